//! Whether SELinux enforces its rules on the node, and what that means for volumes.

use std::path::{Path, PathBuf};

/// Where the kernel says so.
const FOLDER: &str = "sys/fs/selinux";

/// Switches of the usual policies by which containers may use file systems that bear no labels of their own, and what
/// they are for.
const SWITCHES: [(&str, &str); 4] = [
    ("virt_use_nfs", "NFS"),
    ("virt_use_samba", "SMB"),
    ("virt_sandbox_use_fusefs", "FUSE"),
    ("container_use_cephfs", "CephFS"),
];

/// What is known of the node, through the root of one of these processes.
pub(super) fn check(processes: &[PathBuf]) -> Result<String, String> {
    let mut roots = processes.iter().map(|process| process.join("root"));
    // Some containers have it as well.
    let folder = roots
        .find(|root| root.join(FOLDER).join("enforce").exists())
        .unwrap_or_else(|| PathBuf::from("/"))
        .join(FOLDER);
    judge(&folder)
}

fn judge(folder: &Path) -> Result<String, String> {
    match std::fs::read_to_string(folder.join("enforce"))
        .as_deref()
        .map(str::trim)
    {
        Err(_) => return Ok("the node has no SELinux".to_owned()),
        Ok("0") => return Ok("SELinux is permissive: it denies no access".to_owned()),
        Ok(_) => {}
    }
    let off: Vec<_> = SWITCHES.iter().filter(|(name, _)| is_off(folder, name)).collect();
    let labels =
        "files of local volumes have labels of their own, which the volume's owner sets (chcon -R -t container_file_t)";
    if off.is_empty() {
        return Ok(format!(
            "SELinux is enforcing, and its booleans allow containers volumes on servers; {labels}"
        ));
    }
    let kinds: Vec<_> = off.iter().map(|(_, kind)| *kind).collect();
    let switches: Vec<_> = off.iter().map(|(name, _)| format!("{name}=1")).collect();
    Err(format!(
        "SELinux is enforcing, and denies containers access to {} volumes (Permission denied), although they are \
         mounted: on the host, run setsebool -P {}; {labels}",
        kinds.join(", "),
        switches.join(" ")
    ))
}

/// Whether the policy has a switch, and it is off. The kernel shows its present value and the one to come.
fn is_off(folder: &Path, name: &str) -> bool {
    std::fs::read_to_string(folder.join("booleans").join(name)).is_ok_and(|value| value.starts_with('0'))
}

#[cfg(test)]
mod tests {
    use super::judge;
    use std::fs::{create_dir_all, write};

    #[test]
    fn what_it_means_for_volumes_is_said_with_the_switches_that_this_node_has() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| write(folder.path().join(name), text).unwrap();
        assert!(judge(folder.path()).unwrap().contains("no SELinux"));
        file("enforce", "0");
        assert!(judge(folder.path()).unwrap().contains("permissive"));
        file("enforce", "1");
        assert!(judge(folder.path()).unwrap().contains("container_file_t"));
        create_dir_all(folder.path().join("booleans")).unwrap();
        file("booleans/virt_use_nfs", "0 0");
        file("booleans/virt_use_samba", "1 1");
        file("booleans/virt_sandbox_use_fusefs", "0 1");
        let words = judge(folder.path()).unwrap_err();
        assert!(words.contains("access to NFS, FUSE volumes"), "{words}");
        assert!(
            words.contains("setsebool -P virt_use_nfs=1 virt_sandbox_use_fusefs=1;"),
            "{words}"
        );
        file("booleans/virt_use_nfs", "1 1");
        file("booleans/virt_sandbox_use_fusefs", "1 1");
        assert!(judge(folder.path()).unwrap().contains("its booleans allow"));
    }
}
