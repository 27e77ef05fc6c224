//! The device of FUSE.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod, stat};

use super::{Result, SysError};

/// Its numbers on every Linux system (`Documentation/admin-guide/devices.txt`).
const NUMBERS: (u64, u64) = (10, 229);

/// Makes the device at `path` where it is missing. A container has the devices that the host had when the container was
/// made, and the host may have loaded its module since. When the device is opened, the kernel itself loads the module.
pub(super) fn make_device(path: &Path) -> Result<()> {
    let failed = |errno| SysError::call(format!("make the device {}", path.display()), errno);
    match stat(path) {
        Err(Errno::ENOENT) => {}
        other => return other.map(drop).map_err(failed),
    }
    let (major, minor) = NUMBERS;
    let permissions = Mode::from_bits_truncate(0o666);
    match mknod(path, SFlag::S_IFCHR, permissions, makedev(major, minor)) {
        Err(Errno::EEXIST) => Ok(()),
        made => made.map_err(failed),
    }
}
