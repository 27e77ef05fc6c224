//! Removes a cluster, whatever is left of it.

use std::collections::HashSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command::{command, output};
use crate::layout::Layout;
use crate::lock::Lock;
use crate::namespaces::FuseMount;
use crate::progress::{say, step};
use crate::{cgroup, namespaces, network, node};

/// Longest wait for the processes of a namespace to end.
const END_LIMIT: Duration = Duration::from_mins(1);

pub fn down(layout: &Layout) -> Result<()> {
    anyhow::ensure!(
        nix::unistd::geteuid().is_root(),
        "only root can take the cluster away: run it again as root"
    );
    let lock = Lock::cluster(layout)?;
    let removed = step("take the cluster away", |_| remove(layout))?;
    lock.remove();
    say(if removed {
        "Nothing of the cluster is left."
    } else {
        "There was nothing to remove."
    });
    Ok(())
}

/// Removes everything that a cluster can have left; returns whether there was anything. It searches the machine for
/// each part, and trusts no records: a crash may have come before they were written.
pub(super) fn remove(layout: &Layout) -> Result<bool> {
    let inits = namespaces::find_inits(layout)?;
    let links = network::leftovers(layout, node::ALL_NODES);
    let groups = cgroup::folders(&layout.cgroup());
    if inits.is_empty() && links.is_empty() && groups.is_empty() && !layout.state.exists() {
        return Ok(false);
    }
    let pids: Vec<_> = inits.iter().map(|(_, pid)| *pid).collect();
    end_nodes(&pids, &layout.state)?;
    network::remove(layout, node::ALL_NODES);
    cgroup::remove(&layout.cgroup())?;
    unmount_below(&layout.state)?;
    node::remove_mount_points()?;
    if layout.state.exists() {
        std::fs::remove_dir_all(&layout.state)
            .with_context(|| format!("failed to remove {}", layout.state.display()))?;
    }
    let links = network::leftovers(layout, node::ALL_NODES);
    if !links.is_empty() {
        bail!("these links do not go: {}; see `ip -details link`", links.join(" "));
    }
    Ok(true)
}

/// The identity of a file, whatever path leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileId {
    major: u64,
    minor: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self {
            major: nix::sys::stat::major(metadata.dev()),
            minor: nix::sys::stat::minor(metadata.dev()),
            inode: metadata.ino(),
        }
    }
}

/// The loop devices and their files, from the lines of `losetup --list --noheadings --raw --output
/// NAME,BACK-INO,BACK-MAJ:MIN`. The file's path is useless here: it is the path that some node saw.
fn loop_files(listed: &str) -> Vec<(PathBuf, FileId)> {
    let read = |line: &str| {
        // In raw output, a blank is written as \x20.
        let line = line.replace("\\x20", "");
        let mut words = line.split(' ');
        let (device, inode, numbers) = (words.next()?, words.next()?, words.next()?);
        let (major, minor) = numbers.split_once(':')?;
        let file = FileId {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            inode: inode.parse().ok()?,
        };
        Some((PathBuf::from(device), file))
    };
    listed.lines().filter_map(read).collect()
}

/// The files below a folder, without those of containers' images, which are many and never a volume's.
fn files_below(folder: &Path, found: &mut HashSet<FileId>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() && entry.file_name() != "containerd" {
            files_below(&entry.path(), found);
        } else if metadata.is_file() {
            found.insert(FileId::of(&metadata));
        }
    }
}

/// The machine's loop devices that have a file.
fn attached() -> Result<Vec<(PathBuf, FileId)>> {
    let columns = "NAME,BACK-INO,BACK-MAJ:MIN";
    let mut losetup = command("losetup", ["--list", "--noheadings", "--raw", "--output", columns]);
    Ok(loop_files(&output(&mut losetup)?))
}

#[derive(Debug, Clone)]
pub struct LoopDevice {
    /// The number in its name.
    pub number: u32,
    /// The path by which some node or container knew its file, with ` (deleted)` appended if the file is gone; `/` if
    /// the mount that it was on is gone.
    pub file: String,
    /// The file system that its file is on, by its numbers in a mount table, such as `0:57`.
    pub file_system: String,
    /// Whether the file is below the given folder, or the device of such a file.
    pub is_below: bool,
}

/// The files below `folder`, and the loop devices over them, with the devices `more`: a kubelet puts another loop device
/// over that of a raw block volume.
fn files_of(folder: &Path, more: &[PathBuf], attached: &[(PathBuf, FileId)]) -> HashSet<FileId> {
    let mut ours = HashSet::new();
    if attached.is_empty() {
        return ours;
    }
    files_below(folder, &mut ours);
    let below = attached.iter().filter(|(_, file)| ours.contains(file));
    let devices = below.map(|(device, _)| device).chain(more);
    let devices: Vec<_> = devices
        .filter_map(|device| Some(FileId::of(&device.metadata().ok()?)))
        .collect();
    ours.extend(devices);
    ours
}

/// The loop devices of the machine, each with whether its file is below `folder`.
pub fn loop_devices(folder: &Path) -> Result<Vec<LoopDevice>> {
    let attached = attached()?;
    let ours = files_of(folder, &[], &attached);
    let of_device = |(device, file): (PathBuf, FileId)| {
        let name = device.file_name()?.to_str()?;
        Some(LoopDevice {
            number: name.strip_prefix("loop")?.parse().ok()?,
            file: backing_file(&device)?,
            file_system: format!("{}:{}", file.major, file.minor),
            is_below: ours.contains(&file),
        })
    };
    Ok(attached.into_iter().filter_map(of_device).collect())
}

/// The machine's loop devices by number, each with the file system that its file is on: [`LoopDevice::file_system`].
pub fn loop_devices_anywhere() -> Result<Vec<(u32, String)>> {
    let named = |(device, file): (PathBuf, FileId)| {
        let number = device.file_name()?.to_str()?.strip_prefix("loop")?.parse().ok()?;
        Some((number, format!("{}:{}", file.major, file.minor)))
    };
    Ok(attached()?.into_iter().filter_map(named).collect())
}

/// Ends nodes by their init processes, and detaches the loop devices whose files are below `folder` or were on the nodes'
/// FUSE file systems. Most of them are gone with their node's mounts.
pub(super) fn end_nodes(inits: &[i32], folder: &Path) -> Result<()> {
    // Asked before: of a file whose daemon has ended nothing is known.
    let served = loop_devices_on(&namespaces::fuse_mounts(inits));
    namespaces::end_inits(inits, END_LIMIT)?;
    let files = files_of(folder, &served, &attached()?);
    let left = || -> Result<Vec<PathBuf>> {
        let held = attached()?.into_iter().filter(|(_, file)| files.contains(file));
        // Another cluster may have one of the numbers by now: its device's file has a path.
        let lost = |device: &&PathBuf| backing_file(device).is_some_and(|file| is_lost(&file));
        let served = served.iter().filter(lost).cloned();
        Ok(held.map(|(device, _)| device).chain(served).collect())
    };
    // The kernel may detach one meanwhile, and does so a moment after its last user.
    for device in left()? {
        let _ = output(command("losetup", ["--detach"]).arg(device));
    }
    let deadline = Instant::now() + END_LIMIT;
    while !left()?.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
    }
    let left = left()?;
    if !left.is_empty() {
        bail!("these loop devices do not go, since something has them open: {left:?}; see `lsblk`");
    }
    Ok(())
}

/// The loop devices over files of these file systems. Whatever asks the kernel for such a file itself hangs with its
/// daemon.
fn loop_devices_on(mounts: &[FuseMount]) -> Vec<PathBuf> {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    let is_on = |device: &PathBuf| {
        backing_file(device).is_some_and(|file| mounts.iter().any(|mount| Path::new(&file).starts_with(&mount.point)))
    };
    devices.filter(is_on).collect()
}

/// [`LoopDevice::file`] of a device that is attached.
fn backing_file(device: &Path) -> Option<String> {
    let path = Path::new("/sys/block")
        .join(device.file_name()?)
        .join("loop/backing_file");
    // A device that was detached meanwhile has none.
    let path = std::fs::read_to_string(path).ok()?;
    Some(path.trim_end_matches('\n').to_owned())
}

/// Whether a loop device's file is one that nobody can reach any more, by [`LoopDevice::file`].
pub(super) fn is_lost(file: &str) -> bool {
    file.ends_with(" (deleted)") || ["", "/"].contains(&file)
}

/// Unmounts what propagated to the machine itself: there should be nothing, but a removal must never follow a mount.
fn unmount_below(folder: &Path) -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").context("failed to read the mount table")?;
    let mut points: Vec<_> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|point| Path::new(point).starts_with(folder))
        .collect();
    points.reverse();
    for point in points {
        nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH)
            .with_context(|| format!("failed to unmount {point}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{FileId, files_below, loop_files};
    use std::collections::HashSet;

    #[test]
    fn a_loop_device_is_recognized_by_its_file_and_not_by_a_path() {
        let listed = "/dev/loop1 1236993 \\x20\\x20254:0\\x20\\x20\n/dev/loop3\n";
        let file = FileId {
            major: 254,
            minor: 0,
            inode: 1_236_993,
        };
        assert_eq!(loop_files(listed), [("/dev/loop1".into(), file)]);
    }

    #[test]
    fn files_are_found_wherever_a_volume_may_be() {
        let folder = std::env::temp_dir().join(format!("mooring-down-{}", std::process::id()));
        for file in ["pool/a.img", "var/lib/containerd/layer"] {
            crate::layout::write_file(&folder.join(file), "").unwrap();
        }
        let mut found = HashSet::new();
        files_below(&folder, &mut found);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.len(), 1);
    }
}
