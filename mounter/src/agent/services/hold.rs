//! `mounter hold-device …`: keeps a device open, so that a loop device does not go while a Pod has its node: a mounted
//! node is no user of its device. A process of its own outlives a restart of the agent, and ends with the client
//! container: whatever ends, the kernel detaches the loop device with its last user.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

/// Flags of `mounter hold-device`.
#[derive(Debug, Clone, clap::Args)]
pub struct HoldArgs {
    pub device: PathBuf,
    /// A file to create when the device is open.
    pub held: PathBuf,
}

/// Why a device is not kept open.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    #[error("failed to open device {0}")]
    Open(PathBuf, #[source] io::Error),
    #[error("failed to create {0}")]
    Note(PathBuf, #[source] io::Error),
}

/// Keeps a device open until a signal ends this process.
pub fn run(args: HoldArgs) -> Result<Infallible, HoldError> {
    let HoldArgs { device, held } = args;
    let _open = hold(&device, &held)?;
    loop {
        std::thread::park();
    }
}

fn hold(device: &Path, held: &Path) -> Result<File, HoldError> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let opened = open(device, flags, Mode::empty());
    let opened = opened.map_err(|errno| HoldError::Open(device.to_owned(), errno.into()))?;
    File::create(held).map_err(|error| HoldError::Note(held.to_owned(), error))?;
    Ok(opened.into())
}

#[cfg(test)]
mod tests {
    use super::{HoldError, hold};

    #[test]
    fn it_is_said_when_a_device_is_open_and_only_then() {
        let dir = tempfile::tempdir().unwrap();
        let held = dir.path().join("held");
        let missing = hold(&dir.path().join("device"), &held);
        assert!(matches!(missing, Err(HoldError::Open(..))) && !held.exists());
        hold("/dev/null".as_ref(), &held).unwrap();
        assert!(held.exists());
    }
}
