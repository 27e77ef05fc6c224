//! The system calls that replace a dead mount in place, in this mount namespace or in another one. They are behind a
//! trait of their own, for the same reason as [`super::Sys`].
//!
//! No mount is identified by its path alone: a path gives a handle, and the handle the id of the mount that it is on.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::{Mode, fstat, stat};
use nix::sys::statfs::fstatfs;
use nix::unistd::fchdir;
use rustix::mount::{MountAttrFlags, MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::{Result, SysError, raw};
use crate::volume::mount_options::MountFlags;
use crate::volume::mount_table::{MountEntry, Table};
use crate::volume::pod_cgroup::PodCgroups;
use crate::volume::target::{CONFINED, Target, TargetError};

const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// The properties that a mount takes over from the one that it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Likeness {
    /// Flags of the mount that are set whatever the original has.
    pub flags: MountAttrFlags,
    pub propagation: Propagation,
}

/// Whether later mounts on a mount propagate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// Mounts and unmounts stay where they were made.
    Private,
    /// It receives those of the original, and sends none.
    Slave,
    /// It is in the original's peer group, and both get them.
    Shared,
}

impl Likeness {
    /// Those of a mount that is attached nowhere.
    pub fn detached() -> Self {
        Self {
            flags: MountAttrFlags::empty(),
            propagation: Propagation::Private,
        }
    }

    /// Reads it from a mount.
    pub fn of(entry: &MountEntry) -> Self {
        Self {
            flags: MountFlags::of(entry).attributes(),
            propagation: match (entry.shared, entry.master) {
                (Some(_), _) => Propagation::Shared,
                (None, Some(_)) => Propagation::Slave,
                (None, None) => Propagation::Private,
            },
        }
    }
}

/// The system calls that put a mount in the place of another, in every mount namespace that has it.
///
/// They are not part of [`Sys`](super::Sys), whose calls all happen in one mount namespace on handles that only the
/// kernel gives. Here the caller moves from one namespace to the next for good ([`Grafts::enter`]), and handles are
/// types of the implementation: the fake of a worker keeps the tables of many namespaces, and says by a handle in which
/// of them it was opened. That of an agent, which stays in its own, is the same fake as that of `Sys`.
pub trait Grafts {
    /// A handle of a file or directory, which keeps what is mounted there from being unmounted.
    type Place;
    /// A mount that is not attached.
    type Mount;
    /// A process and its mount namespace, which are the same as long as this is held.
    type Container;

    /// What is mounted, as this process sees it now.
    fn table(&self) -> Result<Table>;

    /// Opens process `pid` and its mount namespace, which has to be `namespace`: another process may have the pid by
    /// now, and another namespace the number.
    fn open_container(&self, pid: i32, namespace: u64) -> Result<Self::Container>;

    /// The uid of the Pod that an open process belongs to, by its control group; an error if it has ended.
    fn pod_of(&self, container: &Self::Container) -> Result<Option<String>>;

    /// Whether nobody but the node's root can mount in the open namespace: it belongs to this process' user namespace.
    fn is_of_root(&self, container: &Self::Container) -> Result<bool>;

    /// What is mounted, as an open process sees it.
    fn table_of(&self, container: &Self::Container) -> Result<Table>;

    /// Opens the root of what is mounted on a target. No server is asked.
    fn open_target(&self, target: &Target) -> Result<Self::Place, TargetError>;

    /// Opens the uppermost mount at a path from the mount table.
    fn open_at(&self, path: &Path) -> Result<Self::Place>;

    /// Opens something beneath a directory, following no link. Asks the server.
    fn open_within(&self, directory: &Self::Place, path: &Path) -> Result<Self::Place>;

    /// The id of the mount that a handle is on.
    fn mount_id(&self, place: &Self::Place) -> Result<u64>;

    /// Whether the daemon of a FUSE file system is gone. A live one is asked.
    fn is_dead(&self, place: &Self::Place) -> Result<bool>;

    /// A second mount of a handle's file or directory.
    fn copy(&self, place: &Self::Place, likeness: Likeness) -> Result<Self::Mount>;

    /// Enters an open mount namespace, for good.
    fn enter(&mut self, container: &Self::Container) -> Result<()>;

    /// Puts a mount beneath the one whose root `top` is, so that nobody sees it yet; `false` if it can't be done: the
    /// kernel is older than 6.5, or `top` is no longer mounted here.
    fn put_beneath(&self, mount: &Self::Mount, top: &Self::Place) -> Result<bool>;

    /// Puts a mount on top of a handle.
    fn put_onto(&self, mount: &Self::Mount, place: &Self::Place) -> Result<()>;

    /// Detaches the mount whose root the handle is; it is gone when its last user is.
    fn detach(&self, top: &Self::Place) -> Result<()>;
}

/// The kernel, and where its `/proc` is at the moment.
#[derive(Debug)]
pub struct DeviceNode {
    proc: PathBuf,
}

impl Default for DeviceNode {
    fn default() -> Self {
        Self { proc: "/proc".into() }
    }
}

impl DeviceNode {
    fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = self.proc.join(path);
        std::fs::read(&path).map_err(|e| SysError::io(format!("read {}", path.display()), e))
    }
}

/// An open process.
#[derive(Debug)]
pub struct OpenContainer {
    pid: i32,
    /// Its directory in `/proc`. Nothing can be read there once it has ended, whoever has its pid then.
    process: OwnedFd,
    namespace: OwnedFd,
}

impl OpenContainer {
    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let failed = |error| SysError::io(format!("read {name} of process {}", self.pid), error);
        let file = openat(&self.process, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
        let mut text = Vec::new();
        let read = file.map(File::from).map_err(Into::into);
        read.and_then(|mut file| file.read_to_end(&mut text)).map_err(failed)?;
        Ok(text)
    }
}

fn parsed(table: &[u8]) -> Result<Table> {
    Table::try_parse(table).map_err(|error| SysError::io("read a mount table", error))
}

impl Grafts for DeviceNode {
    type Place = OwnedFd;
    type Mount = OwnedFd;
    type Container = OpenContainer;

    fn table(&self) -> Result<Table> {
        parsed(&self.read("self/mountinfo")?)
    }

    fn open_container(&self, pid: i32, namespace: u64) -> Result<OpenContainer> {
        let failed = |e| SysError::call(format!("open the mount namespace of process {pid}"), e);
        let directory = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let process = open(&self.proc.join(pid.to_string()), directory, Mode::empty()).map_err(failed)?;
        let link = openat(&process, "ns/mnt", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)?;
        if fstat(&link).map_err(failed)?.st_ino != namespace {
            return Err(failed(Errno::ESRCH));
        }
        Ok(OpenContainer {
            pid,
            process,
            namespace: link,
        })
    }

    fn pod_of(&self, container: &OpenContainer) -> Result<Option<String>> {
        let groups = PodCgroups::seen_by(&self.read("self/cgroup")?);
        Ok(groups.pod(&container.read("cgroup")?))
    }

    fn is_of_root(&self, container: &OpenContainer) -> Result<bool> {
        let failed = |e| {
            let asked = format!("see whose the mount namespace of process {} is", container.pid);
            SysError::call(asked, e)
        };
        let theirs = match raw::user_namespace(container.namespace.as_fd()) {
            Ok(users) => fstat(users).map_err(failed)?,
            // It is not of this user namespace nor of one below it.
            Err(Errno::EPERM) => return Ok(false),
            Err(e) => return Err(failed(e)),
        };
        let ours = stat(&self.proc.join("self/ns/user")).map_err(failed)?;
        Ok((theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino))
    }

    fn table_of(&self, container: &OpenContainer) -> Result<Table> {
        parsed(&container.read("mountinfo")?)
    }

    fn open_target(&self, target: &Target) -> Result<OwnedFd, TargetError> {
        target.open()
    }

    fn open_at(&self, path: &Path) -> Result<OwnedFd> {
        let straight = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        openat2(AT_FDCWD, path, OpenHow::new().flags(HANDLE).resolve(straight))
            .map_err(|e| SysError::call(format!("open {}", path.display()), e))
    }

    fn open_within(&self, directory: &OwnedFd, path: &Path) -> Result<OwnedFd> {
        openat2(directory, path, OpenHow::new().flags(HANDLE).resolve(CONFINED))
            .map_err(|e| SysError::call(format!("open {} of the volume", path.display()), e))
    }

    fn mount_id(&self, place: &OwnedFd) -> Result<u64> {
        let text = self.read(format!("self/fdinfo/{}", place.as_raw_fd()))?;
        let text = String::from_utf8_lossy(&text);
        let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        id.and_then(|id| id.trim().parse().ok())
            .ok_or_else(|| SysError::call("read the number of a mount", Errno::EINVAL))
    }

    fn is_dead(&self, place: &OwnedFd) -> Result<bool> {
        // Any other error is still an answer.
        Ok(matches!(fstatfs(place), Err(Errno::ENOTCONN | Errno::ECONNABORTED)))
    }

    fn copy(&self, place: &OwnedFd, likeness: Likeness) -> Result<OwnedFd> {
        let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let mount = open_tree(place, c"", how)
            .map_err(|e| SysError::call("make a second mount of the volume", raw::errno(e)))?;
        let propagation = match likeness.propagation {
            Propagation::Private => MsFlags::MS_PRIVATE,
            Propagation::Slave => MsFlags::MS_SLAVE,
            // A second mount has the original's peers.
            Propagation::Shared => MsFlags::empty(),
        };
        raw::set_mount_attributes(mount.as_fd(), likeness.flags, propagation)
            .map_err(|e| SysError::call("set the flags of a mount", e))?;
        Ok(mount)
    }

    fn enter(&mut self, container: &OpenContainer) -> Result<()> {
        let failed = |e| SysError::call(format!("enter the mount namespace of process {}", container.pid), e);
        let directory = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let proc = open(&self.proc, directory, Mode::empty()).map_err(failed)?;
        setns(&container.namespace, CloneFlags::CLONE_NEWNS).map_err(failed)?;
        // In that namespace, /proc may be anything.
        fchdir(&proc).map_err(failed)?;
        self.proc = PathBuf::new();
        Ok(())
    }

    fn put_beneath(&self, mount: &OwnedFd, top: &OwnedFd) -> Result<bool> {
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
            | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH
            | MoveMountFlags::MOVE_MOUNT_BENEATH;
        match move_mount(mount, c"", top, c"", how).map_err(raw::errno) {
            Ok(()) => Ok(true),
            Err(Errno::EINVAL) => Ok(false),
            Err(e) => Err(SysError::call("put the new mount beneath the dead one", e)),
        }
    }

    fn put_onto(&self, mount: &OwnedFd, place: &OwnedFd) -> Result<()> {
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(mount, c"", place, c"", how)
            .map_err(|e| SysError::call("put the new mount onto the dead one", raw::errno(e)))
    }

    fn detach(&self, top: &OwnedFd) -> Result<()> {
        // Through the handle, so that exactly its mount is detached, whatever its path is.
        let path = self.proc.join(format!("self/fd/{}", top.as_raw_fd()));
        umount2(&path, MntFlags::MNT_DETACH).map_err(|e| SysError::call("take the dead mount away", e))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::process::Command;

    use super::{DeviceNode, Grafts as _};

    #[test]
    fn nothing_is_read_of_a_process_that_has_ended_and_no_namespace_is_taken_for_another() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let node = DeviceNode::default();
        let namespace = std::fs::metadata("/proc/self/ns/mnt").unwrap().ino();
        let opened = node.open_container(pid, namespace).unwrap();
        assert_eq!(node.table_of(&opened).unwrap(), node.table().unwrap());
        node.pod_of(&opened).unwrap();
        assert!(node.open_container(pid, namespace + 1).is_err());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(node.pod_of(&opened).is_err() && node.table_of(&opened).is_err());
    }
    #[test]
    fn a_namespace_of_another_user_namespace_is_not_of_root() {
        use std::io::{BufRead as _, BufReader, Write as _};
        use std::process::Stdio;

        let node = DeviceNode::default();
        let is_of_root = |pid: u32| {
            let namespace = std::fs::metadata(format!("/proc/{pid}/ns/mnt")).unwrap().ino();
            let opened = node.open_container(i32::try_from(pid).unwrap(), namespace).unwrap();
            node.is_of_root(&opened).unwrap()
        };
        assert!(is_of_root(std::process::id()));
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--mount", "sh", "-c", "echo in; read _"]);
        let mut child = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        assert_eq!(said, "in\n", "this test needs user namespaces");
        assert!(!is_of_root(child.id()));
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
    }
}
