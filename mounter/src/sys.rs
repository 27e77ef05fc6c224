//! Every system call that mounting takes, behind one trait, so that the logic above is tested without root.
//!
//! A call's error says what was attempted on what. There are no decisions here. Runs in workers and in client
//! containers. [`thread`] is for calls that may block where there are no workers.

#[cfg(test)]
pub(crate) mod fake;
mod fuse;
pub mod graft;
mod host;
pub mod look;
pub mod loop_device;
pub mod nowhere;
pub mod ownership;
pub(crate) mod raw;
mod rpcbind;
mod smb_server;
mod system_calls;
pub mod thread;
mod walk;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use self::look::{LookError, LookedAt};
use crate::volume::cause::Cause;
use crate::volume::job::Secrets;
use crate::volume::mount_options::MountFlags;
use crate::volume::mount_table::{DeviceNumber, Table};
use crate::volume::target::{Target, TargetError};

pub use system_calls::Kernel;

/// A system call or a program that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to {attempted}: {cause}")]
pub struct SysError {
    pub attempted: String,
    /// The error number, where it was a system call.
    pub errno: Option<Errno>,
    #[source]
    pub cause: Cause,
}

impl SysError {
    pub fn call(attempted: impl Into<String>, errno: Errno) -> Self {
        Self {
            attempted: attempted.into(),
            errno: Some(errno),
            cause: Cause::of(io::Error::from(errno)),
        }
    }

    /// A failure of the standard library's.
    pub fn io(attempted: impl Into<String>, error: io::Error) -> Self {
        Self {
            attempted: attempted.into(),
            errno: errno_of(&error),
            cause: Cause::of(error),
        }
    }
}

/// Takes it for success that there was nothing to remove.
pub fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The number of an error of the standard library's, if it was a system call's.
pub fn errno_of(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}

pub type Result<T, E = SysError> = std::result::Result<T, E>;

/// A loop device with a file behind it. The kernel removes it when the last mount and the last handle are gone.
#[derive(Debug)]
pub struct LoopDevice {
    pub path: PathBuf,
    /// Its numbers, as the mount table shows them.
    pub number: DeviceNumber,
    /// Keeps it alive until it is mounted.
    pub handle: OwnedFd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMount {
    /// Its type, as in `/proc/filesystems`.
    pub fs_type: String,
    pub source: String,
    /// Options of the file system itself, with their values.
    pub options: Vec<(String, Option<String>)>,
    /// Further options that are secret. The kernel gets each under its own key, so a comma in a value starts no new
    /// option.
    pub credentials: Secrets,
    pub flags: MountFlags,
}

/// A program to be run to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The executable, by its path or by its name in the usual directories.
    pub name: String,
    pub args: Vec<OsString>,
    /// The highest exit code that is no failure.
    pub last_good_exit: i32,
}

/// A file of the pool.
#[derive(Debug)]
pub struct ImageFile {
    /// The pool that it is directly in.
    pub directory: OwnedFd,
    /// Open for reading and writing.
    pub file: File,
    /// The same file, opened again to lock it against other workers: a lock belongs to one open file description, and
    /// that of `file` lives on in a loop device. Programs inherit the lock: one that outlives its worker, as when it
    /// hangs in the kernel, may still write, so no other worker may begin.
    pub lock: File,
    /// Its path, for messages.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Whether it is to have all of its room in the pool: its provisioner has marked it so.
    pub is_preallocated: bool,
}

impl ImageFile {
    /// A path by which this process, and a program that it runs, reach this very file: another may have its name by
    /// now.
    pub fn by_handle(&self) -> PathBuf {
        // Programs inherit this one.
        Path::new("/proc/self/fd").join(self.lock.as_raw_fd().to_string())
    }
}

/// What is behind it is the kernel ([`Kernel`]), and in unit tests a fake that fails on purpose.
pub trait Sys {
    /// What is mounted, as this process sees it.
    fn mount_table(&self) -> Result<Table>;

    /// What is mounted on the target. Asks its server or its daemon.
    fn look(&self, target: &Target) -> Result<LookedAt, LookError>;

    /// Opens the target, which may ask a server.
    fn open_target(&self, target: &Target) -> Result<OwnedFd, TargetError>;

    /// Whether the server of an open directory's file system answers, without an error. Asks it.
    fn answers(&self, directory: &OwnedFd) -> bool;

    /// Whether the directory that is mounted on the target was deleted on its server. Asks it.
    fn is_missing(&self, target: &Target) -> bool;

    /// Unmounts what lies uppermost on `place`: the target, or a directory or file of its Pod's directory.
    fn unmount(&self, target: &Target, place: &Path, how: Unmount) -> Result<(), UnmountError>;

    /// Whether there is a file of this name, seen from where programs run.
    fn is_here(&self, path: &Path) -> bool;

    /// Mounts a file system without attaching it anywhere yet.
    fn new_mount(&self, mount: &NewMount) -> Result<OwnedFd>;

    /// Replaces a mount that is attached nowhere by one of its directory `path`, reached through no symbolic link. Asks
    /// the server.
    fn directory_of(&self, mount: OwnedFd, path: &str, flags: MountFlags) -> Result<OwnedFd>;

    /// A second mount of an open directory's file system, not attached anywhere yet.
    fn clone_mount(&self, directory: &OwnedFd, flags: MountFlags) -> Result<OwnedFd>;

    /// Attaches a mount to an open directory.
    fn attach(&self, mount: &OwnedFd, directory: &OwnedFd) -> Result<()>;

    /// Opens a directory, and makes it first where it is missing (its parents too).
    fn open_or_make_directory(&self, path: &Path, mode: u32) -> Result<OwnedFd>;

    /// Whether two open directories are one and the same.
    fn same_file(&self, a: &OwnedFd, b: &OwnedFd) -> Result<bool>;

    /// Opens the image file `name` directly in `pool`, following no link, and locks it; [`Errno::EAGAIN`] if another
    /// process has it locked.
    fn open_image(&self, pool: &Path, name: &str) -> Result<ImageFile>;

    /// Reads what is at `offset` of an image; less at its end.
    fn read_image(&self, image: &ImageFile, offset: u64, length: usize) -> Result<Vec<u8>>;

    /// Reads what is at `offset` of a device or a file; less at its end.
    fn read_device(&self, path: &Path, offset: u64, length: usize) -> Result<Vec<u8>>;

    /// Writes at `offset` of a device or a file, and syncs that to disk.
    fn write_device(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Whether every byte of an image is zero, or was never written.
    fn is_blank(&self, image: &ImageFile) -> Result<bool>;

    /// Whether the image is marked as being formatted; an error if what has the mark's name is no mark.
    fn is_marked(&self, image: &ImageFile) -> Result<bool>;

    /// Marks the image as being formatted, or removes the mark, and syncs that to disk.
    fn mark(&self, image: &ImageFile, marked: bool) -> Result<()>;

    /// Has the image take all of its room in the pool. What it holds stays.
    fn allocate(&self, image: &ImageFile) -> Result<()>;

    /// How many bytes are free in the file system that the image is in.
    fn space_left(&self, image: &ImageFile) -> Result<u64>;

    /// The loop device that has the image behind it.
    fn find_loop(&self, image: &ImageFile) -> Result<Option<LoopDevice>>;

    /// The name, without its directory, of the file behind a device, if that is a loop device.
    fn file_behind(&self, device: DeviceNumber) -> Result<Option<OsString>>;

    /// Puts the image behind a free loop device, which can be written or only read.
    fn attach_loop(&self, image: &ImageFile, read_only: bool) -> Result<LoopDevice>;

    /// Whether a loop device can only be read.
    fn is_read_only(&self, device: &LoopDevice) -> Result<bool>;

    /// Lets a loop device be written, or has the kernel refuse that until it is let again.
    fn allow_writes(&self, device: &LoopDevice, allow: bool) -> Result<()>;

    /// Tells a loop device that its file has grown.
    fn refresh_loop(&self, device: &LoopDevice) -> Result<()>;

    /// Has a loop device stay without a user, or go with its last one.
    fn keep_loop(&self, device: &LoopDevice, keep: bool) -> Result<()>;

    /// A second mount of a device's node, not attached anywhere yet. `read_only` notes in the mount table what it is
    /// for: who opens the node can write the device in any case.
    fn clone_node(&self, device: &LoopDevice, read_only: bool) -> Result<OwnedFd>;

    /// The same for any device of the kernel's.
    fn clone_node_of(&self, device: DeviceNumber, read_only: bool) -> Result<OwnedFd>;

    /// The numbers of the device that is shown at a target; none if there is a mere file.
    fn device_at(&self, target: &Target) -> Result<Option<DeviceNumber>, TargetError>;

    /// Enters the host's mount namespace, for good: `namespace`, or that of the kubelet with the target's root.
    fn enter_host(&self, namespace: Option<&Path>, target: &Target) -> Result<()>;

    /// Enters the host's network and UTS namespaces, for good: those beside `namespace`, the host's mount namespace, or
    /// those of the kubelet with the target's root.
    fn enter_host_network(&self, namespace: Option<&Path>, target: &Target) -> Result<()>;

    /// The addresses of a host, by the resolver of this process's network.
    fn resolve(&self, host: &str) -> Result<Vec<SocketAddr>>;

    /// Whether an RPC program is registered with the `rpcbind` of this process's network; `false` if there is no
    /// `rpcbind`.
    fn has_rpc_program(&self, program: u32, version: u32) -> Result<bool>;

    /// Waits until an SMB server answers, whatever it says; silence is [`Errno::ETIMEDOUT`]. It can be killed
    /// meanwhile.
    fn wait_for_smb(&self, server: SocketAddr) -> Result<()>;

    fn stage(&self, target: &Target) -> PathBuf;

    /// Makes a directory for a program to mount on. It is root's alone, with nothing mounted on it.
    fn make_stage(&self, target: &Target) -> Result<PathBuf>;

    /// Opens what is mounted on a stage; `None` if nothing is. An ext4 there is read-only after an error from then on.
    fn open_stage(&self, stage: &Path) -> Result<Option<OwnedFd>>;

    /// Removes a stage; what was moved from it to the target stays there.
    fn remove_stage(&self, stage: &Path) -> Result<()>;

    /// Makes `/dev/fuse` where it is missing.
    fn make_fuse_device(&self) -> Result<()>;

    /// Waits for this long; a fake does not.
    fn pause(&self, time: Duration);

    /// Whether the kernel lets this process enlarge an ext4 that is mounted (`CAP_SYS_RESOURCE`).
    fn may_grow_mounted(&self) -> bool;

    /// Runs a program to its end, with an empty environment. If it fails, its output is in the error.
    fn run(&self, program: &Program) -> Result<()>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Only if nothing uses it.
    Plain,
    /// Detach it at once, even if it is in use; it is gone when its last user is (`MNT_DETACH`).
    Detach,
    /// Give an error to all that wait for its server, and unmount it if nothing uses it then (`MNT_FORCE`).
    Force,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnmountError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("nothing is mounted")]
    NotMounted,
    #[error("it is in use")]
    Busy,
    #[error(transparent)]
    Other(#[from] SysError),
}
