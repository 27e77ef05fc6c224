//! The host's namespaces: finding them, entering them, and a place for programs to mount on.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fspick};

use super::look::is_mount_point;
use super::{Result, SysError, absent_is_fine, raw};
use crate::node::kubelet;
use crate::volume::mount_table::{MountEntry, Table};
use crate::volume::target::Target;

/// Root's alone, in memory, and on every host, even if its root file system is read-only.
const STAGES: &str = "/run/mooring/host";

/// Enters the mount namespace at `namespace`, or that of the kubelet whose root is the target's.
pub(super) fn enter(namespace: Option<&Path>, target: &Target) -> Result<()> {
    let path = match namespace {
        Some(path) => path.to_owned(),
        None => kubelet_namespace(target)?,
    };
    let attempted = || format!("enter the host's mount namespace {}", path.display());
    let handle = File::open(&path).map_err(|e| SysError::io(attempted(), e))?;
    setns(handle, CloneFlags::CLONE_NEWNS).map_err(|e| SysError::call(attempted(), e))
}

/// Enters the network and UTS namespaces beside the host's mount namespace `namespace`, or those of the kubelet whose
/// root is the target's.
pub(super) fn enter_network(namespace: Option<&Path>, target: &Target) -> Result<()> {
    // All of them are files of one process's `ns`.
    let mount = match namespace.filter(|path| path.ends_with("ns/mnt")) {
        Some(path) => path.to_owned(),
        None => kubelet_namespace(target)?,
    };
    for (name, kind) in [("net", CloneFlags::CLONE_NEWNET), ("uts", CloneFlags::CLONE_NEWUTS)] {
        let path = mount.with_file_name(name);
        let attempted = || format!("enter the host's namespace {}", path.display());
        let handle = File::open(&path).map_err(|e| SysError::io(attempted(), e))?;
        setns(handle, kind).map_err(|e| SysError::call(attempted(), e))?;
    }
    Ok(())
}

/// The mount namespace of the kubelet whose root the target lies in.
fn kubelet_namespace(target: &Target) -> Result<PathBuf> {
    let attempted = "find the kubelet's mount namespace";
    let ours = Table::read().map_err(|e| SysError::io(attempted, e))?;
    let found = kubelet::beside(Path::new("/proc"), &ours, &target.path()).map_err(|e| SysError::io(attempted, e))?;
    found.map(|process| process.join("ns/mnt")).ok_or_else(|| SysError {
        attempted: attempted.to_owned(),
        errno: Some(Errno::ESRCH),
        cause: "neither a process named kubelet nor process 1 shares the kubelet's root with this Pod: give the \
                mounter's Pod hostPID and mountPropagation Bidirectional, or set --host-mount-namespace"
            .to_owned()
            .into(),
    })
}

pub(super) fn stage(target: &Target) -> PathBuf {
    Path::new(STAGES).join(format!("{}~{}", target.pod_uid(), target.name()))
}

/// Makes the target's stage, after removing what an earlier try has left on it.
pub(super) fn make_stage(target: &Target) -> Result<PathBuf> {
    let stage = stage(target);
    remove_stage(&stage)?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&stage)
        .map_err(|e| SysError::io(format!("make directory {}", stage.display()), e))?;
    Ok(stage)
}

/// Opens what is mounted on a stage. An ext4 there is read-only after an error from now on, whatever options its program
/// gave it.
pub(super) fn open_stage(stage: &Path) -> Result<Option<OwnedFd>> {
    if !is_mounted(stage)? {
        return Ok(None);
    }
    let how = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory =
        open(stage, how, Mode::empty()).map_err(|e| SysError::call(format!("open {}", stage.display()), e))?;
    let table = Table::read().map_err(|e| SysError::io("read the mount table", e))?;
    if let Some(entry) = table.top(stage).filter(|entry| entry.is_ext()) {
        read_only_on_error(&directory, entry)?;
    }
    Ok(Some(directory))
}

/// Has the ext2, ext3 or ext4 that is mounted at `mount` become read-only at an error: its superblock may say that the
/// node is to panic.
fn read_only_on_error(mount: &OwnedFd, entry: &MountEntry) -> Result<()> {
    let change = || {
        let context = fspick(mount, c"", FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC)?;
        // Or else it would be written from now on.
        if entry.options.iter().any(|option| option == "ro") {
            fsconfig_set_flag(&context, c"ro")?;
        }
        fsconfig_set_string(&context, c"errors", c"remount-ro")?;
        fsconfig_reconfigure(&context)
    };
    change().map_err(|e| SysError::call("set errors=remount-ro for the volume's file system", raw::errno(e)))
}

pub(super) fn remove_stage(stage: &Path) -> Result<()> {
    while is_mounted(stage)? {
        // Its users use it at the target.
        umount2(stage, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|e| SysError::call(format!("unmount {}", stage.display()), e))?;
    }
    absent_is_fine(std::fs::remove_dir(stage)).map_err(|e| SysError::io(format!("remove {}", stage.display()), e))
}

/// Asks the kernel only, not what is mounted.
fn is_mounted(path: &Path) -> Result<bool> {
    is_mount_point(AT_FDCWD, path).map_err(|e| SysError::call(format!("look at {}", path.display()), e))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::{Table, open_stage, remove_stage};

    fn run(program: &str, args: &[&str]) -> String {
        let output = Command::new(program).args(args).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Whether an error makes the file system on `stage` read-only, and whether it can be read only.
    fn shown(stage: &Path) -> (bool, bool) {
        let table = Table::read().unwrap();
        let entry = table.top(stage).unwrap();
        let has = |option: &str| entry.options.iter().any(|other| other == option);
        (has("errors=remount-ro"), has("ro"))
    }

    #[test]
    fn an_ext4_that_a_program_mounted_has_no_say_in_what_an_error_does() {
        let dir = tempfile::tempdir().unwrap();
        let (image, stage) = (dir.path().join("image"), dir.path().join("stage"));
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let (image, at) = (image.to_str().unwrap(), stage.to_str().unwrap());
        run("mkfs.ext4", &["-q", "-e", "panic", image]);
        for options in ["loop", "loop,ro", "loop,errors=continue"] {
            std::fs::create_dir(&stage).unwrap();
            run("mount", &["-t", "ext4", "-o", options, image, at]);
            let before = shown(&stage);
            let opened = open_stage(&stage);
            let after = shown(&stage);
            drop(opened.unwrap().unwrap());
            remove_stage(&stage).unwrap();
            assert_eq!(before, (false, options == "loop,ro"));
            assert_eq!(after, (true, options == "loop,ro"));
        }
    }
}
