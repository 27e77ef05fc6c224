//! A view of the machine without its devices, in which images are built. buildah's chroot isolation shows the caller's
//! `/dev` and `/sys`, and package scripts scan the disks that they find there (lvm2's never ends, since `io_pgetevents`
//! is refused).

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::command::command;
use crate::layout::make_folder;

/// All devices that an image build sees, besides terminals of its own.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

const LINKS: [(&str, &str); 5] = [
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Where the kernel lists block devices.
const LISTS: [&str; 3] = ["/sys/block", "/sys/class/block", "/sys/dev/block"];

/// Runs `work` in a thread that sees no device of the machine, nor do its children. `folder` is for temporary use.
///
/// A plain user can't make such a view, and needs none: that user can't open the machine's disks.
pub(crate) fn secluded<T: Send>(folder: &Path, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let result = std::thread::scope(|scope| {
        // The mount namespace is the thread's, and ends with it.
        scope
            .spawn(|| {
                if is_root() {
                    leave_devices(folder).context("failed to make a view without the machine's devices")?;
                }
                work()
            })
            .join()
    });
    let Ok(result) = result else {
        bail!("a thread that prepares images panicked");
    };
    result
}

/// A command whose processes all end with it, even those that leave its process group, like dpkg's.
pub(crate) fn contained(program: &str) -> Command {
    if !is_root() {
        return command(program, [] as [&str; 0]);
    }
    command(
        "unshare",
        ["--pid", "--fork", "--kill-child", "--mount-proc", "--", program],
    )
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn leave_devices(folder: &Path) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("failed to make a mount namespace")?;
    // No mount here propagates to the machine, and unmounts on the machine propagate to here.
    let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, slave, None::<&str>).context("failed to leave the machine's mounts")?;
    make_folder(folder)?;
    new(folder, "tmpfs", MsFlags::MS_NOSUID, "mode=0755")?;
    for device in DEVICES {
        let (source, target) = (Path::new("/dev").join(device), folder.join(device));
        File::create(&target).with_context(|| format!("failed to make {}", target.display()))?;
        moved(&source, &target, MsFlags::MS_BIND)?;
    }
    for (name, to) in LINKS {
        symlink(to, folder.join(name)).with_context(|| format!("failed to link {name} in {}", folder.display()))?;
    }
    let no_programs = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    for (name, kind, options) in [
        ("pts", "devpts", "newinstance,ptmxmode=0666,mode=0620"),
        ("shm", "tmpfs", "mode=1777"),
    ] {
        make_folder(&folder.join(name))?;
        new(&folder.join(name), kind, no_programs, options)?;
    }
    moved(folder, Path::new("/dev"), MsFlags::MS_MOVE)?;
    for list in LISTS.map(Path::new).into_iter().filter(|list| list.is_dir()) {
        new(list, "tmpfs", no_programs | MsFlags::MS_RDONLY, "mode=0555")?;
    }
    Ok(())
}

fn new(target: &Path, kind: &str, flags: MsFlags, options: &str) -> Result<()> {
    mount(Some(kind), target, Some(kind), flags, Some(options))
        .with_context(|| format!("failed to mount a {kind} on {}", target.display()))
}

fn moved(source: &Path, target: &Path, how: MsFlags) -> Result<()> {
    mount(Some(source), target, None::<&str>, how, None::<&str>)
        .with_context(|| format!("failed to mount {} on {}", source.display(), target.display()))
}
