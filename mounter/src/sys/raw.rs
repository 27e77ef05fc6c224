//! System calls that our crates have no safe form of: loop devices, the owner of a namespace, the flags of a mount that
//! is not attached yet, waiting for a descriptor, and a thread's own table of them.
//! The one file of the mounter with unsafe code.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

use linux_raw_sys::ioctl::{BLKROSET, NS_GET_USERNS};
use linux_raw_sys::loop_device::{
    _bindgen_ty_1 as LoFlags, LOOP_CONFIGURE, LOOP_CTL_GET_FREE, LOOP_GET_STATUS64, LOOP_SET_CAPACITY,
    LOOP_SET_STATUS64, loop_config, loop_info64,
};
use nix::errno::Errno;
use nix::libc::{self, c_int, c_uint};
use nix::mount::MsFlags;
use rustix::mount::MountAttrFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

// "Bad": requests of loop devices are plain numbers, without the size and direction that newer requests have.
nix::ioctl_none_bad!(loop_ctl_get_free, LOOP_CTL_GET_FREE);
nix::ioctl_write_ptr_bad!(loop_configure, LOOP_CONFIGURE, loop_config);
nix::ioctl_read_bad!(loop_get_status, LOOP_GET_STATUS64, loop_info64);
nix::ioctl_write_ptr_bad!(loop_set_status, LOOP_SET_STATUS64, loop_info64);
nix::ioctl_none_bad!(loop_set_capacity, LOOP_SET_CAPACITY);
nix::ioctl_write_ptr_bad!(set_read_only, BLKROSET, c_int);
nix::ioctl_none_bad!(get_user_namespace, NS_GET_USERNS);

/// What a loop device tells about its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backing {
    /// Device of the file, as `st_dev` has it.
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// Gives the calling thread a table of open files of its own, which has standard input, output and error alone. The
/// thread must own no other file. Kernels before 5.9 have no such call.
pub(super) fn leave_files() -> Result<(), Errno> {
    // SAFETY: what is closed is in a table that no other thread has, and this thread owns none of it.
    let left = unsafe { libc::syscall(libc::SYS_close_range, 3, c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
    done(Errno::result(left))
}

/// The number of a loop device that is free now.
pub(super) fn free_loop(control: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: takes no argument.
    let number = unsafe { loop_ctl_get_free(control.as_raw_fd()) }?;
    u32::try_from(number).map_err(|_| Errno::ERANGE)
}

/// Puts a file behind a loop device, which the kernel removes with its last user. Where one of the two was opened to be
/// read only, the device can only be read in any case.
pub(super) fn configure_loop(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    direct: bool,
    read_only: bool,
) -> Result<(), Errno> {
    // SAFETY: plain numbers and arrays of them; all zeros is a value.
    let mut config: loop_config = unsafe { std::mem::zeroed() };
    config.fd = u32::try_from(file.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    config.info.lo_flags = LoFlags::LO_FLAGS_AUTOCLEAR as u32;
    if direct {
        config.info.lo_flags |= LoFlags::LO_FLAGS_DIRECT_IO as u32;
    }
    if read_only {
        config.info.lo_flags |= LoFlags::LO_FLAGS_READ_ONLY as u32;
    }
    // SAFETY: the kernel reads one loop_config.
    done(unsafe { loop_configure(device.as_raw_fd(), &raw const config) })
}

/// The file behind a loop device; `ENXIO` if there is none.
pub(super) fn loop_backing(device: BorrowedFd<'_>) -> Result<Backing, Errno> {
    let info = loop_info(device)?;
    Ok(Backing {
        device: info.lo_device,
        inode: info.lo_inode,
    })
}

fn loop_info(device: BorrowedFd<'_>) -> Result<loop_info64, Errno> {
    // SAFETY: plain numbers and arrays of them; all zeros is a value.
    let mut info: loop_info64 = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one loop_info64.
    done(unsafe { loop_get_status(device.as_raw_fd(), &raw mut info) })?;
    Ok(info)
}

/// Whether a loop device was made to be only read.
pub(super) fn is_read_only(device: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(loop_info(device)?.lo_flags & LoFlags::LO_FLAGS_READ_ONLY as u32 != 0)
}

/// Lets a block device be written, or has the kernel refuse that. What the device itself refuses stays refused.
pub(super) fn allow_writes(device: BorrowedFd<'_>, allow: bool) -> Result<(), Errno> {
    let refuse = c_int::from(!allow);
    // SAFETY: the kernel reads one int.
    done(unsafe { set_read_only(device.as_raw_fd(), &raw const refuse) })
}

/// Has a loop device read its file's size again.
pub(super) fn refresh_loop(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: takes no argument.
    done(unsafe { loop_set_capacity(device.as_raw_fd()) })
}

/// Has a loop device stay when its last user has gone, or go with that. With no user but this descriptor it goes when
/// that is closed.
pub(super) fn keep_loop(device: BorrowedFd<'_>, keep: bool) -> Result<(), Errno> {
    let mut info = loop_info(device)?;
    if keep {
        info.lo_flags &= !(LoFlags::LO_FLAGS_AUTOCLEAR as u32);
    } else {
        info.lo_flags |= LoFlags::LO_FLAGS_AUTOCLEAR as u32;
    }
    // SAFETY: the kernel reads one loop_info64.
    done(unsafe { loop_set_status(device.as_raw_fd(), &raw const info) })
}

/// Has the runtime watch a descriptor until it can be read.
pub(crate) fn watched(descriptor: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: it owns the descriptor, and nobody replaces or closes it meanwhile.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// The user namespace that another namespace belongs to; `EPERM` if that is neither this process' own nor one below it.
pub(super) fn user_namespace(namespace: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: takes no argument.
    let descriptor = unsafe { get_user_namespace(namespace.as_raw_fd()) }?;
    // SAFETY: the kernel has just opened it for the caller alone.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Sets attributes of the mount that `mount` is the root of, and its propagation (empty leaves it).
pub(super) fn set_mount_attributes(
    mount: BorrowedFd<'_>,
    attributes: MountAttrFlags,
    propagation: MsFlags,
) -> Result<(), Errno> {
    // The access time is a choice of one, and the kernel wants the old choice taken back.
    let clear = if attributes.intersects(MountAttrFlags::MOUNT_ATTR__ATIME) {
        MountAttrFlags::MOUNT_ATTR__ATIME
    } else {
        MountAttrFlags::empty()
    };
    let attr = libc::mount_attr {
        attr_set: attributes.bits().into(),
        attr_clr: clear.bits().into(),
        propagation: propagation.bits(),
        userns_fd: 0,
    };
    // SAFETY: the path ends in NUL and the kernel reads one mount_attr of the size given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    done(Errno::result(result))
}

fn done<T>(result: nix::Result<T>) -> Result<(), Errno> {
    result.map(drop)
}

/// An error number of rustix, as nix and the rest of the mounter have it.
pub(crate) fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}
