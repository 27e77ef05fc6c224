//! The device of FUSE.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, StatxFlags, makedev, mknodat, statx};
use rustix::io::Errno;

use super::{Result, SysError};

/// Its numbers on every Linux system (`Documentation/admin-guide/devices.txt`).
const NUMBERS: (u32, u32) = (10, 229);

/// Makes the device at `path` where it is missing. A container has the devices that the host had when the container was
/// made, and the host may have loaded its module since. When the device is opened, the kernel itself loads the module.
pub(super) fn make_device(path: &Path) -> Result<()> {
    let failed = |errno| SysError::call(format!("make the device {}", path.display()), errno);
    match statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE) {
        Err(Errno::NOENT) => {}
        other => return other.map(drop).map_err(failed),
    }
    let (major, minor) = NUMBERS;
    let permissions = Mode::from_raw_mode(0o666);
    match mknodat(CWD, path, FileType::CharacterDevice, permissions, makedev(major, minor)) {
        Err(Errno::EXIST) => Ok(()),
        made => made.map_err(failed),
    }
}
