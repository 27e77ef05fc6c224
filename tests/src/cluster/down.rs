//! Taking a cluster away, whatever is left of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Lock;
use crate::command::{command, output};
use crate::layout::Layout;
use crate::progress::{say, step};
use crate::{cgroup, namespaces, network, node};

/// Longest wait for the processes of a namespace to end.
const END_LIMIT: Duration = Duration::from_mins(1);

/// Takes the cluster away.
pub fn down(layout: &Layout) -> Result<()> {
    anyhow::ensure!(
        nix::unistd::geteuid().is_root(),
        "only root can take the cluster away: run it again as root"
    );
    let lock = Lock::take(layout)?;
    let removed = step("take the cluster away", |_| remove(layout))?;
    drop(lock);
    let _ = std::fs::remove_file(layout.state.with_extension("lock"));
    say(if removed {
        "Nothing of the cluster is left."
    } else {
        "There was nothing to take away."
    });
    Ok(())
}

/// Removes all that a cluster can have left; says whether there was anything. Each part is found by looking for it on the
/// machine, never by what was written down: a crash may have come before the writing.
pub(super) fn remove(layout: &Layout) -> Result<bool> {
    let inits = namespaces::find_inits(layout)?;
    let links = network::leftovers(layout, node::MAX_NODES);
    let groups = cgroup::folders(&layout.cgroup());
    if inits.is_empty() && links.is_empty() && groups.is_empty() && !layout.state.exists() {
        return Ok(false);
    }
    let pids: Vec<_> = inits.iter().map(|(_, pid)| *pid).collect();
    namespaces::end(&pids, END_LIMIT)?;
    detach_loop_devices(&layout.state)?;
    network::remove(layout, node::MAX_NODES);
    cgroup::remove(&layout.cgroup())?;
    unmount_below(&layout.state)?;
    node::remove_mount_points(layout);
    if layout.state.exists() {
        std::fs::remove_dir_all(&layout.state)
            .with_context(|| format!("failed to remove {}", layout.state.display()))?;
    }
    let links = network::leftovers(layout, node::MAX_NODES);
    if !links.is_empty() {
        bail!("these links do not go: {}; see `ip -details link`", links.join(" "));
    }
    Ok(true)
}

/// The loop devices whose file lies below `folder`, from the lines of `losetup --list --noheadings --raw --output
/// NAME,BACK-FILE`.
fn loops_below(listed: &str, folder: &Path) -> Vec<PathBuf> {
    listed
        .lines()
        .filter_map(|line| line.split_once(' '))
        // In raw output a blank is written as \x20; a removed file is marked "(deleted)" behind one.
        .filter(|(_, file)| Path::new(&file.replace("\\x20", " ")).starts_with(folder))
        .map(|(device, _)| PathBuf::from(device))
        .collect()
}

fn detach_loop_devices(folder: &Path) -> Result<()> {
    let list = || -> Result<_> {
        let mut losetup = command(
            "losetup",
            ["--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE"],
        );
        Ok(loops_below(&output(&mut losetup)?, folder))
    };
    for device in list()? {
        // One that the kernel let go of meanwhile is what was wanted.
        let _ = output(command("losetup", ["--detach"]).arg(&device));
    }
    let left = list()?;
    if !left.is_empty() {
        bail!("these loop devices do not go, since something has them open: {left:?}; see `lsblk`");
    }
    Ok(())
}

/// Mounts that reached the machine itself: there should be none, but a removal must never follow one.
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
    use super::loops_below;
    use std::path::{Path, PathBuf};

    #[test]
    fn only_loop_devices_of_our_own_files_are_taken() {
        let listed = "/dev/loop0 /var/lib/mooring-testbed/nodes/node-1/pool/a.img\n\
                      /dev/loop1 /var/lib/mooring-testbed-other/a.img\n\
                      /dev/loop2 /var/lib/mooring-testbed/b.img\\x20(deleted)\n/dev/loop3\n";
        assert_eq!(
            loops_below(listed, Path::new("/var/lib/mooring-testbed")),
            [PathBuf::from("/dev/loop0"), PathBuf::from("/dev/loop2")]
        );
    }
}
