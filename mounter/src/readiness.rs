//! What this node can do, and the cure in words for what it can't.

use std::path::Path;

use rustix::fs::{Access, access};
use serde::Serialize;

use crate::args::ServeArgs;
use crate::mount_table::Table;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Whether no volume at all can be mounted without it.
    pub required: bool,
    /// What is there, or what to do.
    pub message: String,
}

impl Check {
    fn new(name: &'static str, required: bool, result: Result<String, String>) -> Self {
        Self {
            name,
            ok: result.is_ok(),
            required,
            message: result.unwrap_or_else(|cure| cure),
        }
    }
}

/// Looks at the node. Asks no server and no volume.
pub fn checks(args: &ServeArgs, installed: Result<(), String>) -> Vec<Check> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = Table::parse(&table);
    let file_systems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    vec![
        Check::new("propagation", true, propagation(&table, &args.node.kubelet_root)),
        Check::new(
            "plugin-directory",
            true,
            installed.map(|()| format!("the shim is in {}", args.node.plugin_dir.display())),
        ),
        Check::new("loop-devices", false, loop_devices(Path::new("/dev/loop-control"))),
        Check::new("local-file-systems", false, local_file_systems(&file_systems)),
        Check::new("pool", false, pool(&args.pool_dir)),
        Check::new("fuse", false, fuse(Path::new("/dev/fuse"), &file_systems)),
        Check::new("host-namespace", false, host_pid(args.host_mount_namespace.as_deref())),
    ]
}

/// What keeps mounts beneath the kubelet's root from reaching the host, as things are now; nothing if they do.
pub fn not_shared(kubelet_root: &Path) -> Option<String> {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    propagation(&Table::parse(&text), kubelet_root).err()
}

fn propagation(table: &Table, kubelet_root: &Path) -> Result<String, String> {
    let holding = table.holding(kubelet_root);
    match holding.and_then(|entry| entry.shared) {
        Some(group) => Ok(format!(
            "{} is shared with the host (peer group {group})",
            kubelet_root.display()
        )),
        None => Err(format!(
            "{} is not shared with the host, so no Pod would see a mount: give its volume in the mounter's Pod \
             mountPropagation: Bidirectional, and on the host run mount --make-rshared on the mount that it lies in",
            kubelet_root.display()
        )),
    }
}

fn loop_devices(control: &Path) -> Result<String, String> {
    access(control, Access::READ_OK | Access::WRITE_OK)
        .map(|()| format!("{} can be used", control.display()))
        .map_err(|error| {
            format!(
                "{} can't be used ({error}), so no local volume can be mounted: load the kernel module loop on the \
                 host, and give the mounter's Pod the host's /dev",
                control.display()
            )
        })
}

fn local_file_systems(file_systems: &str) -> Result<String, String> {
    let missing: Vec<_> = ["ext4", "xfs"]
        .into_iter()
        .filter(|name| !knows(file_systems, name))
        .collect();
    if missing.is_empty() {
        return Ok("the kernel has ext4 and xfs".to_owned());
    }
    Err(format!(
        "the kernel has not loaded {0}: it loads it by itself at the first mount if it has the module; if not, run modprobe {0}",
        missing.join(" and ")
    ))
}

fn pool(pool: &Path) -> Result<String, String> {
    let parent = pool.parent().unwrap_or(pool);
    access(parent, Access::WRITE_OK | Access::EXEC_OK)
        .map(|()| format!("{} can be written", parent.display()))
        .map_err(|error| {
            format!(
                "{} can't be written ({error}), so the node has no pool for local volumes: give the mounter's Pod this \
                 directory of the host, or another one by --pool-dir",
                parent.display()
            )
        })
}

fn fuse(device: &Path, file_systems: &str) -> Result<String, String> {
    if knows(file_systems, "fuse") && device.exists() {
        return Ok(format!("{} is there", device.display()));
    }
    Err(
        "there is no FUSE, so client containers such as sshfs can't mount: load the kernel module fuse on the host"
            .to_owned(),
    )
}

fn host_pid(namespace: Option<&Path>) -> Result<String, String> {
    if let Some(path) = namespace {
        return if path.exists() {
            Ok(format!("the host's mount namespace is {}", path.display()))
        } else {
            Err(format!(
                "there is no {}: correct --host-mount-namespace",
                path.display()
            ))
        };
    }
    let processes = std::fs::read_dir("/proc").map_err(|error| format!("/proc can't be read: {error}"))?;
    let found = processes
        .flatten()
        .any(|process| std::fs::read_to_string(process.path().join("comm")).is_ok_and(|comm| comm.trim() == "kubelet"));
    if found {
        return Ok("the kubelet is seen, so types can be served by host".to_owned());
    }
    Err("no process named kubelet is seen, so no type can be served by host: give the mounter's Pod hostPID, or set --host-mount-namespace".to_owned())
}

/// `/proc/filesystems` has a line each, `nodev` before those without a device.
fn knows(file_systems: &str, name: &str) -> bool {
    file_systems
        .lines()
        .any(|line| line.split_whitespace().next_back() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::{fuse, knows, local_file_systems, loop_devices, propagation};
    use crate::mount_table::Table;
    use std::path::Path;

    #[test]
    fn a_private_kubelet_root_is_named_with_its_cure() {
        let root = Path::new("/var/lib/kubelet");
        let shared = Table::parse(b"1 0 8:1 / / rw shared:5 - ext4 /dev/root rw\n");
        let private = Table::parse(b"1 0 8:1 / / rw - ext4 /dev/root rw\n");
        assert!(propagation(&shared, root).unwrap().contains("peer group 5"));
        assert!(propagation(&private, root).unwrap_err().contains("make-rshared"));
    }

    #[test]
    fn what_the_kernel_lacks_is_named_with_its_cure() {
        let text = "nodev\tfuse\n\text4\n";
        assert!(knows(text, "ext4") && !knows(text, "ext"));
        assert!(local_file_systems(text).unwrap_err().contains("modprobe xfs"));
        assert!(fuse(Path::new("/dev/null"), text).is_ok());
        assert!(fuse(Path::new("/nonexistent"), text).is_err());
        assert!(
            loop_devices(Path::new("/nonexistent"))
                .unwrap_err()
                .contains("module loop")
        );
    }
}
