//! The real system calls.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, FallocateFlags, OFlag, OpenHow, fallocate, open, openat, openat2};
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::sys::statfs::fstatfs;
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{UnlinkatFlags, Whence, fsync, lseek, read, unlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, move_mount, open_tree,
};

use super::look::{self, LookError, LookedAt};
use super::loop_device::{self, LoopAccess};
use super::{
    ImageFile, LoopDevice, NewMount, Program, Result, Sys, SysError, Unmount, UnmountError, fuse, host, nowhere, raw,
    rpcbind, smb_server, walk,
};
use crate::volume::cause::Cause;
use crate::volume::mount_options::MountFlags;
use crate::volume::mount_table::{DeviceNumber, Table};
use crate::volume::target::{CONFINED, Target, TargetError, file_type};

/// What marks say of their image files: it is being formatted; it is to have all of its room (`provisioner-local`).
const FORMATTING: &str = "formatting";
const PREALLOCATED: &str = "preallocated";

/// Where programs are looked for, in the mounter's image and on a host.
const PROGRAM_DIRECTORIES: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/current-system/sw/bin";

/// What the kernel adds to the name of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// How much of a program's output is kept, from its end.
const PROGRAM_WORDS: u64 = 2048;

#[derive(Debug, Clone, Copy, Default)]
pub struct Kernel;

impl Sys for Kernel {
    fn mount_table(&self) -> Result<Table> {
        // A worker has one thread, so /proc/self is right even after it has entered another namespace.
        Table::read().map_err(|e| SysError::io("read the mount table", e))
    }

    fn look(&self, target: &Target) -> Result<LookedAt, LookError> {
        look::look(target)
    }

    fn open_target(&self, target: &Target) -> Result<OwnedFd, TargetError> {
        target.open()
    }

    fn answers(&self, directory: &OwnedFd) -> bool {
        fstatfs(directory).is_ok()
    }

    fn is_missing(&self, target: &Target) -> bool {
        let directory = target.open();
        directory.is_ok_and(|directory| fstat(directory).err() == Some(Errno::ENOENT))
    }

    fn unmount(&self, target: &Target, place: &Path, how: Unmount) -> Result<(), UnmountError> {
        let (parent, name) = match target.open_parent_of(place) {
            Ok(opened) => opened,
            Err(TargetError::Missing(_)) => return Err(UnmountError::NotMounted),
            Err(error) => return Err(error.into()),
        };
        // Through its parent, since a handle of the mount itself would keep it busy.
        let path = Path::new("/proc/self/fd")
            .join(parent.as_raw_fd().to_string())
            .join(name);
        let flags = match how {
            Unmount::Plain => MntFlags::UMOUNT_NOFOLLOW,
            Unmount::Detach => MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH,
            Unmount::Force => MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_FORCE,
        };
        umount2(&path, flags).map_err(|errno| match errno {
            // INVAL: no mount; NOENT: no directory.
            Errno::EINVAL | Errno::ENOENT => UnmountError::NotMounted,
            Errno::EBUSY => UnmountError::Busy,
            errno => SysError::call(format!("unmount {}", place.display()), errno).into(),
        })
    }

    fn is_here(&self, path: &Path) -> bool {
        Path::new("/").join(path).symlink_metadata().is_ok()
    }

    fn new_mount(&self, mount: &NewMount) -> Result<OwnedFd> {
        nowhere::act(|| new_mount(mount))
    }

    fn directory_of(&self, mount: OwnedFd, path: &str, flags: MountFlags) -> Result<OwnedFd> {
        walk::directory_of(mount, path, flags)
    }

    fn clone_mount(&self, directory: &OwnedFd, flags: MountFlags) -> Result<OwnedFd> {
        let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let mount = open_tree(directory, c"", how)
            .map_err(|e| SysError::call("make a second mount of a directory", raw::errno(e)))?;
        raw::set_mount_attributes(mount.as_fd(), flags.attributes(), MsFlags::empty())
            .map_err(|e| SysError::call("set the flags of a mount", e))?;
        Ok(mount)
    }

    fn attach(&self, mount: &OwnedFd, directory: &OwnedFd) -> Result<()> {
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(mount, c"", directory, c"", how)
            .map_err(|e| SysError::call("put the mount onto the volume's directory", raw::errno(e)))
    }

    fn open_or_make_directory(&self, path: &Path, mode: u32) -> Result<OwnedFd> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(path)
            .map_err(|e| SysError::io(format!("make directory {}", path.display()), e))?;
        open(
            path,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .map_err(|e| SysError::call(format!("open directory {}", path.display()), e))
    }

    fn same_file(&self, a: &OwnedFd, b: &OwnedFd) -> Result<bool> {
        let number = |fd| {
            fstat(fd)
                .map(|stat| (stat.st_dev, stat.st_ino))
                .map_err(|e| SysError::call("look at an open directory", e))
        };
        Ok(number(a)? == number(b)?)
    }

    fn open_image(&self, pool: &Path, name: &str) -> Result<ImageFile> {
        let path = pool.join(name);
        let failed = |errno| SysError::call(format!("open image file {}", path.display()), errno);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let pool = open(pool, flags, Mode::empty()).map_err(failed)?;
        let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let open = |more| {
            openat2(&pool, name, OpenHow::new().flags(flags | more).resolve(CONFINED))
                .map(File::from)
                .map_err(failed)
        };
        // The lock stays open in programs that are run.
        let (file, lock) = (open(OFlag::O_CLOEXEC)?, open(OFlag::empty())?);
        let metadata = file
            .metadata()
            .map_err(|e| SysError::io(format!("look at {}", path.display()), e))?;
        if !metadata.file_type().is_file() {
            return Err(failed(Errno::EINVAL));
        }
        // Not by nix, whose lock is given up with its first owner: a program that inherits this one keeps it.
        let attempted = || format!("lock image file {}", path.display());
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => SysError::call(attempted(), Errno::EAGAIN),
            TryLockError::Error(error) => SysError::io(attempted(), error),
        })?;
        let is_preallocated = has_mark(&pool, &mark_name(&path, PREALLOCATED))?;
        Ok(ImageFile {
            directory: pool,
            file,
            lock,
            path,
            size: metadata.size(),
            is_preallocated,
        })
    }

    fn read_image(&self, image: &ImageFile, offset: u64, length: usize) -> Result<Vec<u8>> {
        let read = read_at(&image.file, offset, length);
        read.map_err(|e| SysError::io(format!("read image file {}", image.path.display()), e))
    }

    fn read_device(&self, path: &Path, offset: u64, length: usize) -> Result<Vec<u8>> {
        let read = File::open(path).and_then(|file| read_at(&file, offset, length));
        read.map_err(|e| SysError::io(format!("read {}", path.display()), e))
    }

    fn write_device(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
        let opened = File::options().write(true).open(path);
        let written = opened.and_then(|file| file.write_all_at(bytes, offset).and_then(|()| file.sync_all()));
        written.map_err(|e| SysError::io(format!("write to {}", path.display()), e))
    }

    fn is_blank(&self, image: &ImageFile) -> Result<bool> {
        let failed = |errno| SysError::call(format!("read image file {}", image.path.display()), errno);
        let seek = |offset: u64, whence| {
            let offset = i64::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
            lseek(&image.file, offset, whence).map(i64::cast_unsigned)
        };
        let mut offset = 0;
        loop {
            // What was never written need not be read.
            offset = match seek(offset, Whence::SeekData) {
                Ok(data) => data,
                // NXIO: nothing but holes from here on.
                Err(Errno::ENXIO) => return Ok(true),
                Err(errno) => return Err(failed(errno)),
            };
            let hole = seek(offset, Whence::SeekHole).map_err(failed)?;
            while offset < hole {
                let length = usize::try_from((hole - offset).min(1 << 20)).unwrap_or(1 << 20);
                let bytes = self.read_image(image, offset, length)?;
                if bytes.is_empty() {
                    return Ok(true);
                }
                if bytes.iter().any(|byte| *byte != 0) {
                    return Ok(false);
                }
                offset += bytes.len() as u64;
            }
        }
    }

    fn is_marked(&self, image: &ImageFile) -> Result<bool> {
        has_mark(&image.directory, &mark_name(&image.path, FORMATTING))
    }

    fn mark(&self, image: &ImageFile, marked: bool) -> Result<()> {
        let mark = mark_name(&image.path, FORMATTING);
        let failed = |errno| SysError::call(format!("write {mark} in the pool"), errno);
        if marked {
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            match openat(&image.directory, &*mark, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
                Ok(file) => {
                    let mut file = File::from(file);
                    file.write_all(b"mkfs runs, or was ended before it was done: the next mount runs it again\n")
                        .and_then(|()| file.sync_all())
                        .map_err(|e| SysError::io(format!("write {mark} in the pool"), e))?;
                }
                Err(Errno::EEXIST) if self.is_marked(image)? => {}
                Err(errno) => return Err(failed(errno)),
            }
        } else {
            match unlinkat(&image.directory, &*mark, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        fsync(&image.directory).map_err(failed)
    }

    fn allocate(&self, image: &ImageFile) -> Result<()> {
        let attempted = || format!("allocate all of image file {}", image.path.display());
        let size = i64::try_from(image.size).map_err(|_| SysError::call(attempted(), Errno::EFBIG))?;
        let there = image.file.metadata().map_err(|e| SysError::io(attempted(), e))?;
        // What fallocate gets before the room ends it keeps, and other volumes would have none.
        let missing = image.size.saturating_sub(there.blocks().saturating_mul(512));
        if missing > self.space_left(image)? {
            return Err(SysError::call(attempted(), Errno::ENOSPC));
        }
        fallocate(&image.file, FallocateFlags::empty(), 0, size).map_err(|errno| SysError::call(attempted(), errno))
    }

    fn space_left(&self, image: &ImageFile) -> Result<u64> {
        fstatvfs(&image.file)
            .map(|stat| stat.blocks_available().saturating_mul(stat.fragment_size()))
            .map_err(|e| SysError::call(format!("look at the file system of {}", image.path.display()), e))
    }

    fn find_loop(&self, image: &ImageFile) -> Result<Option<LoopDevice>> {
        let file_name = image.path.file_name().unwrap_or_default();
        let image = image
            .file
            .metadata()
            .map_err(|e| SysError::io("look at the image file", e))?;
        let wanted = raw::Backing {
            device: image.dev(),
            inode: image.ino(),
        };
        let blocks = std::fs::read_dir("/sys/block").map_err(|e| SysError::io("list /sys/block", e))?;
        for block in blocks.flatten() {
            let name = block.file_name();
            if !name.as_encoded_bytes().starts_with(b"loop") || !may_be_behind(&block.path(), file_name) {
                continue;
            }
            let device = match open_loop(&Path::new("/dev").join(&name)) {
                Ok(device) => device,
                // It may be the image's: a second device over the same file would destroy the first one's work.
                Err(error) if error.errno == Some(Errno::ENOENT) && block.path().join("loop").exists() => {
                    return Err(error);
                }
                // It has gone away meanwhile.
                Err(_) => continue,
            };
            if raw::loop_backing(device.handle.as_fd()) == Ok(wanted) {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    fn file_behind(&self, device: DeviceNumber) -> Result<Option<OsString>> {
        let path = format!("/sys/dev/block/{}:{}/loop/backing_file", device.major, device.minor);
        match std::fs::read(&path) {
            Ok(file) => Ok(Some(name_of(&file).to_owned())),
            // Another kind of device, or one with no file.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SysError::io(format!("read {path}"), error)),
        }
    }

    fn attach_loop(&self, image: &ImageFile, read_only: bool) -> Result<LoopDevice> {
        let attempted = format!("put image file {} behind a loop device", image.path.display());
        let control = open("/dev/loop-control", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|e| SysError::call("open /dev/loop-control (is the module loop loaded?)", e))?;
        let access = LoopAccess {
            read_only,
            direct: true,
        };
        let again = "the kubelet tries again until there is one";
        loop_device::attach_by(&attempted, again, &control, &image.file, access, |path, _| {
            open_loop(&path)
        })
    }

    fn is_read_only(&self, device: &LoopDevice) -> Result<bool> {
        raw::is_read_only(device.handle.as_fd())
            .map_err(|e| SysError::call(format!("ask whether {} can be written", device.path.display()), e))
    }

    fn allow_writes(&self, device: &LoopDevice, allow: bool) -> Result<()> {
        let attempted = if allow { "allow" } else { "refuse" };
        raw::allow_writes(device.handle.as_fd(), allow)
            .map_err(|e| SysError::call(format!("{attempted} writes to {}", device.path.display()), e))
    }

    fn refresh_loop(&self, device: &LoopDevice) -> Result<()> {
        raw::refresh_loop(device.handle.as_fd())
            .map_err(|e| SysError::call(format!("expand {}", device.path.display()), e))
    }

    fn keep_loop(&self, device: &LoopDevice, keep: bool) -> Result<()> {
        let attempted = if keep { "keep" } else { "detach" };
        raw::keep_loop(device.handle.as_fd(), keep)
            .map_err(|e| SysError::call(format!("{attempted} {}", device.path.display()), e))
    }

    fn clone_node(&self, device: &LoopDevice, read_only: bool) -> Result<OwnedFd> {
        clone_node_at(self, &device.path, device.number, read_only)
    }

    fn clone_node_of(&self, device: DeviceNumber, read_only: bool) -> Result<OwnedFd> {
        let about = format!("/sys/dev/block/{}:{}/uevent", device.major, device.minor);
        let text = std::fs::read_to_string(&about).map_err(|e| SysError::io(format!("read {about}"), e))?;
        let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        let name =
            name.ok_or_else(|| SysError::call(format!("find the name of the device in {about}"), Errno::ENODEV))?;
        clone_node_at(self, &Path::new("/dev").join(name), device, read_only)
    }

    fn device_at(&self, target: &Target) -> Result<Option<DeviceNumber>, TargetError> {
        target.device()
    }

    fn enter_host(&self, namespace: Option<&Path>, target: &Target) -> Result<()> {
        host::enter(namespace, target)
    }

    fn enter_host_network(&self, namespace: Option<&Path>, target: &Target) -> Result<()> {
        host::enter_network(namespace, target)
    }

    fn resolve(&self, host: &str) -> Result<Vec<SocketAddr>> {
        (host, 0)
            .to_socket_addrs()
            .map(Iterator::collect)
            .map_err(|e| SysError::io(format!("find the address of server {host}"), e))
    }

    fn has_rpc_program(&self, program: u32, version: u32) -> Result<bool> {
        rpcbind::has(program, version)
    }

    fn wait_for_smb(&self, server: SocketAddr) -> Result<()> {
        smb_server::wait_for_answer(server)
    }

    fn stage(&self, target: &Target) -> PathBuf {
        host::stage(target)
    }

    fn make_stage(&self, target: &Target) -> Result<PathBuf> {
        host::make_stage(target)
    }

    fn open_stage(&self, stage: &Path) -> Result<Option<OwnedFd>> {
        host::open_stage(stage)
    }

    fn remove_stage(&self, stage: &Path) -> Result<()> {
        host::remove_stage(stage)
    }

    fn make_fuse_device(&self) -> Result<()> {
        fuse::make_device(Path::new("/dev/fuse"))
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn may_grow_mounted(&self) -> bool {
        // Where that can't be read, the kernel says it when it is tried.
        caps::has_cap(None, CapSet::Effective, Capability::CAP_SYS_RESOURCE).unwrap_or(true)
    }

    fn run(&self, program: &Program) -> Result<()> {
        let attempted = || format!("run {}", program.name);
        // A file and not a pipe: a daemon that the program leaves behind would keep a pipe open.
        let mut words = memfd_create(c"words", MFdFlags::MFD_CLOEXEC)
            .map(File::from)
            .map_err(|e| SysError::call(attempted(), e))?;
        let both = || {
            words
                .try_clone()
                .map(Stdio::from)
                .map_err(|e| SysError::io(attempted(), e))
        };
        let mut command = Command::new(find_program(&program.name)?);
        command
            .args(&program.args)
            .env_clear()
            .env("PATH", PROGRAM_DIRECTORIES)
            .stdin(Stdio::null())
            .stdout(both()?)
            .stderr(both()?);
        let status = nowhere::act(|| command.status().map_err(|e| SysError::io(attempted(), e)))?;
        if status.code().is_some_and(|code| code <= program.last_good_exit) {
            return Ok(());
        }
        let mut said = Vec::new();
        let length = words.stream_position().unwrap_or_default();
        let _ = words.seek(SeekFrom::Start(length.saturating_sub(PROGRAM_WORDS)));
        let _ = words.take(PROGRAM_WORDS).read_to_end(&mut said);
        let said = String::from_utf8_lossy(&said);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let end = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or_default()),
        };
        Err(SysError {
            attempted: attempted(),
            errno: None,
            cause: if said.is_empty() {
                end.into()
            } else {
                format!("{said} ({end})").into()
            },
        })
    }
}

/// Less at the end.
fn read_at(file: &File, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0; length];
    let mut filled = 0;
    while filled < length {
        let read = file.read_at(&mut buffer[filled..], offset + filled as u64)?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    buffer.truncate(filled);
    Ok(buffer)
}

/// A second mount of a device's node, which has to be that of this device.
fn clone_node_at(sys: &impl Sys, path: &Path, number: DeviceNumber, read_only: bool) -> Result<OwnedFd> {
    let failed = |errno| SysError::call(format!("make a second mount of {}", path.display()), errno);
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let node = open(path, flags, Mode::empty()).map_err(failed)?;
    if DeviceNumber::of(fstat(&node).map_err(failed)?.st_rdev) != number {
        return Err(failed(Errno::ENODEV));
    }
    sys.clone_mount(&node, MountFlags::device().read_only(read_only))
}

/// Whether a file of this name may be behind a loop device. Only such a device is asked: for the answer the kernel
/// looks at the device's file, which hangs if that is on a dead server.
fn may_be_behind(block: &Path, file_name: &OsStr) -> bool {
    // It exists while the device has a file.
    let Ok(backing) = std::fs::read(block.join("loop/backing_file")) else {
        return false;
    };
    name_of(&backing) == file_name
}

/// The name of a loop device's file. Its directory says nothing: it is as a mount namespace had it that may be gone.
fn name_of(backing: &[u8]) -> &OsStr {
    let path = backing.strip_suffix(b"\n").unwrap_or(backing);
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    OsStr::from_bytes(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default())
}

/// Beside the image, under a name that no volume can have.
/// The name of a file of the pool that says something of an image file beside it.
fn mark_name(image: &Path, what: &str) -> String {
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.{what}")
}

fn has_mark(pool: &OwnedFd, mark: &str) -> Result<bool> {
    let failed = |errno| SysError::call(format!("look for {mark} in the pool"), errno);
    match fstatat(pool, mark, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(found) if file_type(&found) == SFlag::S_IFREG => Ok(true),
        Ok(_) => Err(SysError {
            cause: "it is not a plain file, so Mooring did not make it: see who did, and remove it".into(),
            ..failed(Errno::EINVAL)
        }),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(failed(errno)),
    }
}

fn open_loop(path: &Path) -> Result<LoopDevice> {
    let failed = |errno| SysError::call(format!("open {}", path.display()), errno);
    let handle = open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).map_err(|errno| {
        if errno != Errno::ENOENT {
            return failed(errno);
        }
        SysError {
            cause: "the kernel has this loop device, but it is not in the mounter's /dev: give the mounter's Pod the \
                    host's /dev, and on the host see that new devices appear there (devtmpfs)"
                .to_owned()
                .into(),
            ..failed(errno)
        }
    })?;
    let stat = fstat(&handle).map_err(failed)?;
    Ok(LoopDevice {
        path: path.to_owned(),
        number: DeviceNumber::of(stat.st_rdev),
        handle,
    })
}

fn find_program(name: &str) -> Result<PathBuf> {
    PROGRAM_DIRECTORIES
        .split(':')
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| SysError {
            attempted: format!("run {name}"),
            errno: Some(Errno::ENOENT),
            cause: format!("no program {name} in {PROGRAM_DIRECTORIES}").into(),
        })
}

/// What the kernel said of a mount that it refused.
#[derive(Debug, thiserror::Error)]
#[error("{said} ({source})")]
struct KernelSaid {
    said: String,
    source: std::io::Error,
}

/// What the kernel said of a failed mount, one message a read, without their level (`e `); else the error alone.
fn said_of(context: std::os::fd::BorrowedFd<'_>, source: std::io::Error) -> Cause {
    let mut said = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = read(context, &mut buffer) {
        let line = String::from_utf8_lossy(&buffer[..length]);
        let line = line.trim();
        let plain = ["e ", "w ", "i "].iter().find_map(|level| line.strip_prefix(level));
        said.push(plain.unwrap_or(line).to_owned());
    }
    if said.is_empty() {
        return Cause::of(source);
    }
    Cause::of(KernelSaid {
        said: said.join("; "),
        source,
    })
}

fn new_mount(mount: &NewMount) -> Result<OwnedFd> {
    let attempted = || format!("mount {} as {}", mount.source, mount.fs_type);
    let context = fsopen(&*mount.fs_type, FsOpenFlags::FSOPEN_CLOEXEC);
    let context = context.map_err(raw::errno).map_err(|errno| match errno {
        Errno::ENODEV => SysError {
            attempted: attempted(),
            errno: Some(errno),
            cause: format!(
                "the node's kernel has no file system {0}: load its module ({0})",
                mount.fs_type
            )
            .into(),
        },
        errno => SysError::call(attempted(), errno),
    })?;
    let said = |what: String| {
        let context = context.as_fd();
        // File systems have numbers that nix does not know.
        move |errno: rustix::io::Errno| SysError {
            attempted: what,
            errno: Some(raw::errno(errno)),
            cause: said_of(context, errno.into()),
        }
    };
    fsconfig_set_string(&context, c"source", &*mount.source).map_err(said(attempted()))?;
    for (key, value) in &mount.options {
        match value {
            Some(value) => fsconfig_set_string(&context, &**key, &**value),
            None => fsconfig_set_flag(&context, &**key),
        }
        .map_err(said(format!("{} with mount option {key}", attempted())))?;
    }
    for (key, value) in &mount.credentials.0 {
        fsconfig_set_string(&context, &**key, value.as_slice())
            .map_err(said(format!("{} with the Secret's {key}", attempted())))?;
    }
    fsconfig_create(&context).map_err(said(attempted()))?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, mount.flags.attributes()).map_err(said(attempted()))
}

#[cfg(test)]
mod tests {
    use super::{Kernel, may_be_behind};
    use crate::sys::Sys as _;
    use nix::errno::Errno;
    use std::ffi::OsStr;
    use std::fs::File;
    use std::time::Duration;

    #[test]
    fn a_mark_goes_through_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("pool");
        let other = dir.path().join("other");
        std::fs::create_dir(&pool).unwrap();
        std::fs::write(pool.join("a.img"), "x").unwrap();
        let image = Kernel.open_image(&pool, "a.img").unwrap();
        for step in ["dangling", "written"] {
            let _ = std::fs::remove_file(pool.join(".a.img.formatting"));
            std::os::unix::fs::symlink(&other, pool.join(".a.img.formatting")).unwrap();
            let marked = Kernel.mark(&image, true);
            let is_written = std::fs::read_to_string(&other).is_ok_and(|text| text != "its own");
            assert!(!is_written, "another's file was written: {step}");
            assert!(marked.is_err() && Kernel.is_marked(&image).is_err(), "{step}");
            std::fs::write(&other, "its own").unwrap();
        }
        std::fs::remove_file(pool.join(".a.img.formatting")).unwrap();
        assert!(!Kernel.is_marked(&image).unwrap());
        for is_marked in [true, true, false, false] {
            Kernel.mark(&image, is_marked).unwrap();
            assert_eq!(Kernel.is_marked(&image).unwrap(), is_marked);
            assert_eq!(pool.join(".a.img.formatting").exists(), is_marked);
        }
    }

    #[test]
    fn an_image_file_that_another_has_locked_is_not_waited_for() {
        let pool = tempfile::tempdir().unwrap();
        std::fs::write(pool.path().join("a.img"), "x").unwrap();
        let backup = File::open(pool.path().join("a.img")).unwrap();
        backup.lock().unwrap();
        let path = pool.path().to_owned();
        let (sender, opened) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(Kernel.open_image(&path, "a.img")));
        let opened = opened.recv_timeout(Duration::from_secs(10));
        let error = opened.expect("it waits for the lock").unwrap_err();
        assert_eq!(error.errno, Some(Errno::EAGAIN), "{error}");
        drop(backup);
        Kernel.open_image(pool.path(), "a.img").unwrap();
    }

    #[test]
    fn only_a_device_whose_file_has_the_image_s_name_is_asked() {
        let block = tempfile::tempdir().unwrap();
        let is = |name: &str| may_be_behind(block.path(), OsStr::new(name));
        assert!(!is("a.img"), "nothing is behind it");
        let folder = block.path().join("loop");
        std::fs::create_dir(&folder).unwrap();
        for (backing, may_be) in [
            ("/var/lib/mooring/pool/a.img\n", true),
            ("/a.img\n", true),
            ("/pool/a.img (deleted)\n", true),
            ("/pool/aa.img\n", false),
            ("/pool/a.img/disk\n", false),
            ("", false),
        ] {
            std::fs::write(folder.join("backing_file"), backing).unwrap();
            assert_eq!(is("a.img"), may_be, "{backing:?}");
        }
    }
}
