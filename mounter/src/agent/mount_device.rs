//! `mounter mount-device …`: mounts a device's file system with a label for all files, by system call. mount(8) leaves
//! the label out where it sees no SELinux, as in a container.

use std::io;
use std::path::PathBuf;

use mooring_contract::volume::{ForbiddenOption, split_list};
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::sys::{Kernel, NewMount, Sys as _, SysError};
use crate::volume::job::Secrets;
use crate::volume::mount_options;
use crate::volume::selinux_label::SelinuxLabel;

/// Flags of `mounter mount-device`.
#[derive(Debug, Clone, clap::Args)]
pub struct MountDeviceArgs {
    /// The type of its file system.
    #[arg(long = "type", value_name = "TYPE")]
    fs_type: String,
    /// Mount options with commas, such as `$MOORING_MOUNT_OPTIONS`.
    #[arg(long, default_value = "")]
    options: String,
    /// The label, such as `$MOORING_SELINUX_LABEL`.
    #[arg(long, value_parser = SelinuxLabel::read)]
    label: SelinuxLabel,
    device: PathBuf,
    /// Where to mount it.
    directory: PathBuf,
}

/// Why a device is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountDeviceError {
    #[error(transparent)]
    Option(#[from] ForbiddenOption),
    #[error("failed to open {0}")]
    Directory(PathBuf, #[source] io::Error),
    #[error(transparent)]
    Mount(#[from] SysError),
}

pub fn run(args: MountDeviceArgs) -> Result<(), MountDeviceError> {
    let options = mount_options::sort(&split_list(&args.options), false)?
        .labelled(Some(&args.label))
        .safe_for(&args.fs_type);
    let mut of_file_system = options.file_system;
    if options.flags.is_read_only() {
        // Not only this mount: the device may refuse to be written.
        of_file_system.push(("ro".to_owned(), None));
    }
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(&args.directory, flags, Mode::empty())
        .map_err(|errno| MountDeviceError::Directory(args.directory, errno.into()))?;
    let mount = Kernel.new_mount(&NewMount {
        fs_type: args.fs_type,
        source: args.device.to_string_lossy().into_owned(),
        options: of_file_system,
        credentials: Secrets::default(),
        flags: options.flags,
    })?;
    Ok(Kernel.attach(&mount, &directory)?)
}
