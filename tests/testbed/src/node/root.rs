//! The root file system of an immutable node: only what a kubelet needs to run containers. No shell, no mount helper,
//! no modprobe.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::binaries::Binaries;
use crate::command::{command, find_program};
use crate::layout::{Layout, make_folder, write_file};

/// Programs that the testbed builds.
const BUILT: &[&str] = &["containerd", "containerd-shim-runc-v2", "kube-proxy", "kubelet"];

/// Programs of the machine. The kubelet mounts and unmounts its own volumes (`emptyDir` in memory, Secrets) with
/// util-linux's `mount` and `umount`, and holds raw block volumes with its `losetup`. kube-proxy writes its rules with
/// `nft`.
const TAKEN: &[&str] = &["losetup", "mount", "nft", "runc", "umount"];

/// `/etc/protocols`, from which `nft` takes the names of protocols. Without the names, kube-proxy does not recognize
/// its own rules: when it writes all of them again, after an hour or at its next start, it removes the rules of
/// Services.
pub(super) const PROTOCOLS: &str = "tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n";

/// Network plugins from [`CNI`]. The runtime itself needs `loopback`.
const PLUGINS: &[&str] = &["host-local", "loopback", "ptp"];

const CNI: &str = "/usr/lib/cni";
const PROGRAMS: &str = "/usr/bin";

/// Links and their targets.
const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("sbin", "usr/bin"),
    ("usr/sbin", "bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("etc/mtab", "../proc/self/mounts"),
];

/// Folders to mount other file systems on.
const MOUNT_POINTS: &[&str] = &[
    "dev",
    "etc/cni",
    "etc/kubernetes",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "usr/lib/modules",
    "var",
];

/// The path of a program on an immutable node.
pub(super) fn program(name: &str) -> PathBuf {
    Path::new(PROGRAMS).join(name)
}

pub fn programs() -> BTreeSet<&'static str> {
    BUILT.iter().chain(TAKEN).copied().collect()
}

/// Makes the root unless it exists; it is the same for all nodes of a cluster. Returns the folder.
pub(super) fn make(layout: &Layout, binaries: &Binaries) -> Result<PathBuf> {
    let folder = layout.state.join("root");
    if folder.exists() {
        return Ok(folder);
    }
    let making = layout.state.join("root.making");
    if making.exists() {
        std::fs::remove_dir_all(&making).with_context(|| format!("failed to remove {}", making.display()))?;
    }
    for path in MOUNT_POINTS.iter().chain(&["usr/bin", "usr/lib64"]) {
        make_folder(&making.join(path))?;
    }
    for (link, target) in LINKS {
        symlink(target, making.join(link)).with_context(|| format!("failed to make the link {link}"))?;
    }
    for (file, text) in [
        ("passwd", "root:x:0:0::/root:/none\nnobody:x:65534:65534::/:/none\n"),
        ("group", "root:x:0:\nnogroup:x:65534:\n"),
        ("protocols", PROTOCOLS),
        (
            "os-release",
            "ID=mooring-testbed\nPRETTY_NAME=\"Mooring testbed, immutable\"\n",
        ),
        // Each node mounts its own file there.
        ("hosts", ""),
        ("resolv.conf", ""),
    ] {
        write_file(&making.join("etc").join(file), text)?;
    }
    let mut files: Vec<_> = BUILT.iter().map(|name| (binaries.path(name), program(name))).collect();
    for name in TAKEN {
        let found = find_program(name).with_context(|| format!("{name} is not on the PATH"))?;
        files.push((found, program(name)));
    }
    files.extend(
        PLUGINS
            .iter()
            .map(|name| Path::new(CNI).join(name))
            .map(|path| (path.clone(), path)),
    );
    let mut libraries = BTreeSet::new();
    for (from, to) in &files {
        put(from, &making, to)?;
        libraries.extend(libraries_of(from)?);
    }
    for library in libraries {
        put(&library, &making, &library)?;
    }
    std::fs::rename(&making, &folder).with_context(|| format!("failed to name {}", folder.display()))?;
    Ok(folder)
}

/// Every host has its kernel's modules, whatever else it lacks.
pub(super) fn modules() -> Option<(PathBuf, PathBuf)> {
    let modules = std::fs::canonicalize("/lib/modules").ok()?;
    Some((modules, "/usr/lib/modules".into()))
}

/// Links a file to a second name, or copies it if that fails.
fn put(from: &Path, root: &Path, to: &Path) -> Result<()> {
    let to = root.join(to.strip_prefix("/").unwrap_or(to));
    let failed = || format!("failed to put {} to {}", from.display(), to.display());
    let from = std::fs::canonicalize(from).with_context(failed)?;
    if let Some(folder) = to.parent() {
        make_folder(folder)?;
    }
    match std::fs::hard_link(&from, &to) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            std::fs::copy(&from, &to).with_context(failed)?;
        }
        _ => {}
    }
    Ok(())
}

/// The libraries that a program needs to start.
fn libraries_of(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let run = command("ldd", [program]).output().context("failed to run ldd")?;
    let said = String::from_utf8_lossy(&run.stdout);
    // For a program that needs none, it says so on standard error.
    if !run.status.success() {
        let complaint = String::from_utf8_lossy(&run.stderr);
        ensure!(
            complaint.contains("not a dynamic executable"),
            "ldd {}: {complaint}",
            program.display()
        );
    }
    Ok(listed(&said))
}

fn listed(said: &str) -> BTreeSet<PathBuf> {
    let words = said
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::listed;
    use std::path::PathBuf;

    #[test]
    fn a_program_s_libraries_are_those_that_ldd_found() {
        let said = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld.so.2 \
                    (0x3)\n\tstatically linked\n";
        let found: Vec<_> = listed(said).into_iter().collect();
        assert_eq!(found, ["/lib/x/libc.so.6", "/lib64/ld.so.2"].map(PathBuf::from));
    }
}
