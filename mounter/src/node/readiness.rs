//! What this node can do, and the cure in words for what it can't.

mod check;
pub mod clients;
mod daemons;
mod directories;
pub mod kernel_modules;
mod selinux;

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::sys::stat::makedev;
use nix::unistd::{AccessFlags, access};

use crate::node::args::NodeArgs;
use crate::node::kubelet::{beside, kubelets, kubelets_of};
use crate::volume::mount_table::Table;
pub use check::{Check, ClientVerdict};
use check::{FUSE, HOST_NAMESPACE, ISCSID, LOOP_DEVICES, PLUGIN_DIRECTORY, POOL};
use kernel_modules::NodeKernel;

/// Numbers of `/dev/fuse` and `/dev/loop-control`, on every Linux.
const FUSE_NUMBERS: (u32, u32) = (10, 229);
const LOOP_NUMBERS: (u32, u32) = (10, 237);

/// The node's kernel, with the modules that the kubelet sees.
pub fn kernel() -> NodeKernel {
    NodeKernel::look(&kubelets().unwrap_or_default())
}

/// Looks at the node. Asks no server and no volume. `installed` says where the shim is, or why it is not; `unheld` that
/// no admission policy holds the mounter, once that is known.
pub fn checks(
    node: &NodeArgs,
    pool_dir: &Path,
    host_mount_namespace: Option<&Path>,
    installed: Result<String, String>,
    unheld: Option<String>,
) -> Vec<Check> {
    let table = match table() {
        Ok(table) => table,
        // The rest can't be known.
        Err(cure) => return vec![Check::new("mount-table", true, Err(cure))],
    };
    let kernel = kernel();
    let proc = Path::new("/proc");
    let of_node = kubelets_of(&table, node.kubelet_root());
    let root = directories::root(&of_node, node.kubelet_root());
    let policies = unheld.map(|cure| Check::new("admission-policies", true, Err(cure)));
    let looked_at = [
        // What is wrong about the root explains the rest.
        Check::new("kubelet-root", true, root),
        Check::new("propagation", true, propagation(&table, node.kubelet_root())),
        Check::new(PLUGIN_DIRECTORY, false, installed),
        Check::new("kubelet-directories", false, directories::check(&of_node, node)),
        Check::new(LOOP_DEVICES, false, loop_devices(Path::new("/dev/loop-control"))),
        Check::new("local-file-systems", false, local_file_systems(&kernel)),
        Check::new(POOL, false, pool(pool_dir)),
        Check::new(FUSE, false, fuse(Path::new("/dev/fuse"))),
        Check::new(
            HOST_NAMESPACE,
            false,
            host_namespace(host_mount_namespace, &table, node.kubelet_root()),
        ),
        Check::new(ISCSID, false, daemons::iscsid(proc, of_node.first())),
        Check::new("nfs-version-3-locks", false, daemons::nfs_locks(proc, of_node.first())),
        Check::new("selinux", false, selinux::check(&of_node)),
    ];
    policies.into_iter().chain(looked_at).collect()
}

/// What keeps mounts beneath the kubelet's root from reaching the host at the moment; `None` if they do.
pub fn not_shared(kubelet_root: &Path) -> Option<String> {
    table().and_then(|table| propagation(&table, kubelet_root)).err()
}

fn table() -> Result<Table, String> {
    Table::read().map_err(|error| {
        format!("the mount table of the mounter's Pod can't be read ({error}): see whether the node is out of memory")
    })
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
             mountPropagation: Bidirectional, and on the host run mount --make-rshared on the mount that contains it",
            kubelet_root.display()
        )),
    }
}

fn loop_devices(control: &Path) -> Result<String, String> {
    usable(control, LOOP_NUMBERS)
        .map(|()| format!("{} can be used", control.display()))
        .map_err(|error| {
            format!(
                "{} can't be used ({error}), so no local volume can be mounted: load the kernel module loop on the \
                 host, and give the mounter's Pod the host's /dev",
                control.display()
            )
        })
}

/// Whether a device can be opened and has the numbers of its name. It may exist before its module, which the kernel
/// loads when the device is opened.
fn usable(device: &Path, (major, minor): (u32, u32)) -> std::io::Result<()> {
    let found = std::fs::metadata(device)?;
    if !found.file_type().is_char_device() || found.rdev() != makedev(major.into(), minor.into()) {
        return Err(std::io::Error::other("it is something else"));
    }
    File::options().read(true).write(true).open(device).map(drop)
}

fn local_file_systems(kernel: &NodeKernel) -> Result<String, String> {
    let missing: Vec<_> = ["ext4", "xfs"].into_iter().filter(|name| !kernel.has(name)).collect();
    if missing.is_empty() {
        return Ok("the kernel has ext4 and xfs".to_owned());
    }
    Err(format!(
        "the kernel has not loaded {0}: it loads the module at the first mount if there is one; if not, run modprobe \
         {0}",
        missing.join(" and ")
    ))
}

fn pool(pool: &Path) -> Result<String, String> {
    let parent = pool.parent().unwrap_or(pool);
    access(parent, AccessFlags::W_OK | AccessFlags::X_OK)
        .map(|()| format!("{} can be written", parent.display()))
        .map_err(|errno| {
            let error = std::io::Error::from(errno);
            format!(
                "{} can't be written ({error}), so the node has no pool for local volumes: give the mounter's Pod this \
                 directory of the host, or another one by --pool-dir",
                parent.display()
            )
        })
}

fn fuse(device: &Path) -> Result<String, String> {
    usable(device, FUSE_NUMBERS)
        .map(|()| format!("{} is there", device.display()))
        .map_err(|error| {
            format!(
                "{} can't be used ({error}), so client containers such as sshfs can't mount: load the kernel module \
                 fuse on the host, and give the mounter's Pod the host's /dev",
                device.display()
            )
        })
}

/// The namespace that types served by `host` enter, and those that the kernel serves from the node's network.
fn host_namespace(named: Option<&Path>, table: &Table, kubelet_root: &Path) -> Result<String, String> {
    if let Some(path) = named {
        return if path.exists() {
            Ok(format!("the host's mount namespace is {}", path.display()))
        } else {
            Err(format!(
                "there is no {}: correct --host-mount-namespace",
                path.display()
            ))
        };
    }
    let found = beside(Path::new("/proc"), table, kubelet_root);
    match found.map_err(|error| format!("/proc can't be read: {error}"))? {
        Some(process) => Ok(format!("the kubelet's namespaces are those of {}", process.display())),
        None => Err(
            "the mounter sees neither a process named kubelet nor the node's process 1, so host serves nothing, and \
             self serves neither NFS nor SMB: give the mounter's Pod hostPID, or set --host-mount-namespace"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::kernel_modules::NodeKernel;
    use super::{fuse, local_file_systems, loop_devices, propagation};
    use crate::volume::mount_table::Table;
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
        let kernel = NodeKernel::with_modules("nodev\tfuse\n\text4\n", &[]);
        assert!(local_file_systems(&kernel).unwrap_err().contains("modprobe xfs"));
        // Another device in its place won't do.
        for device in ["/dev/null", "/nonexistent"].map(Path::new) {
            assert!(fuse(device).unwrap_err().contains("module fuse"), "{device:?}");
            assert!(loop_devices(device).unwrap_err().contains("module loop"), "{device:?}");
        }
    }
}
