//! A loop device over any file, in a container whose `/dev` has the devices of when it started.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc::dev_t;
use nix::sys::stat::{Mode, SFlag, fstat, makedev, mknod};

use super::{LoopDevice, Result, SysError, raw};
use crate::volume::cause::Cause;
use crate::volume::mount_table::DeviceNumber;

/// Numbers of all Linux systems (`Documentation/admin-guide/devices.txt`).
const LOOP_MAJOR: u64 = 7;
const MISC_MAJOR: u64 = 10;
const LOOP_CONTROL_MINOR: u64 = 237;

/// How often a free one is looked for, since another may take it first.
const TRIES: usize = 64;

/// Every loop device is taken.
#[derive(Debug, thiserror::Error)]
#[error("the node has no free loop device ({source}): {again}")]
struct NoLoopDevice {
    again: &'static str,
    source: std::io::Error,
}

/// How a loop device uses its file.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoopAccess {
    pub read_only: bool,
    /// Past the cache that the node has of the file, if the file's file system can do that.
    pub direct: bool,
}

/// Puts a file behind a free loop device, which goes with its last user. One over a file that was opened for reading
/// can't be written.
pub fn attach(file: &File, path: &Path, access: LoopAccess) -> Result<LoopDevice> {
    let attempted = format!("put {} behind a loop device", path.display());
    let how = if access.read_only {
        OFlag::O_RDONLY
    } else {
        OFlag::O_RDWR
    };
    let again = "the agent tries again when another has gone";
    attach_by(&attempted, again, &open_control()?, file, access, |path, number| {
        let failed = |errno| SysError::call(format!("open {}", path.display()), errno);
        let handle = open_device(&path, SFlag::S_IFBLK, makedev(LOOP_MAJOR, number.into()), how).map_err(failed)?;
        let device = fstat(&handle).map_err(failed)?.st_rdev;
        Ok(LoopDevice {
            number: DeviceNumber::of(device),
            path,
            handle,
        })
    })
}

/// Puts a file behind a free loop device, which `open` opens by its path and number. If none is free, `again` says who
/// tries again.
pub(super) fn attach_by(
    attempted: &str,
    again: &'static str,
    control: &OwnedFd,
    file: &File,
    LoopAccess { read_only, direct }: LoopAccess,
    open: impl Fn(PathBuf, u32) -> Result<LoopDevice>,
) -> Result<LoopDevice> {
    for _ in 0..TRIES {
        let number = raw::free_loop(control.as_fd()).map_err(|errno| SysError {
            attempted: attempted.to_owned(),
            errno: Some(errno),
            cause: Cause::of(NoLoopDevice {
                again,
                source: errno.into(),
            }),
        })?;
        let device = open(PathBuf::from(format!("/dev/loop{number}")), number)?;
        let configure = |direct| raw::configure_loop(device.handle.as_fd(), file.as_fd(), direct, read_only);
        let configured = match configure(direct) {
            // The file's file system has no direct I/O.
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) if direct => configure(false),
            other => other,
        };
        match configured {
            Ok(()) => return Ok(device),
            // Another was faster.
            Err(Errno::EBUSY) => {}
            Err(errno) => return Err(SysError::call(attempted, errno)),
        }
    }
    Err(SysError::call(attempted, Errno::EBUSY))
}

/// Opens the device that gives out loop devices. The kernel loads their module for that.
pub fn open_control() -> Result<OwnedFd> {
    let control = Path::new("/dev/loop-control");
    let number = makedev(MISC_MAJOR, LOOP_CONTROL_MINOR);
    open_device(control, SFlag::S_IFCHR, number, OFlag::O_RDWR)
        .map_err(|errno| SysError::call("open /dev/loop-control (is the module loop loaded?)", errno))
}

/// The name of the file behind a loop device, as the kernel has it; none if there is no file. The device is not opened
/// for that.
pub fn file_behind(device: &Path) -> Option<String> {
    let backing = Path::new("/sys/block")
        .join(device.file_name()?)
        .join("loop/backing_file");
    let name = std::fs::read(backing).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

fn open_device(path: &Path, kind: SFlag, number: dev_t, access: OFlag) -> Result<OwnedFd, Errno> {
    let opened = || open(path, access | OFlag::O_CLOEXEC, Mode::empty());
    match opened() {
        Err(Errno::ENOENT) => {}
        other => return other,
    }
    match mknod(path, kind, Mode::from_bits_truncate(0o600), number) {
        Ok(()) | Err(Errno::EEXIST) => opened(),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_device_goes_with_its_last_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let file = File::create_new(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let file = File::open(&path).unwrap();
        // Only root can, where there are such devices.
        let access = LoopAccess {
            read_only: true,
            direct: true,
        };
        let Ok(device) = attach(&file, &path, access) else {
            return;
        };
        let behind = file_behind(&device.path).unwrap();
        assert!(behind.ends_with("/disk"), "{behind}");
        drop(device.handle);
        // As long as nobody else looks at it just now.
        let gone = || file_behind(&device.path).is_none_or(|now| now != behind);
        assert!((0..50).any(|_| gone() || {
            std::thread::sleep(std::time::Duration::from_millis(100));
            false
        }));
    }
}
