//! A kernel in memory: it has a mount table, loop devices and image files, records its calls, and fails where a test
//! says so.

mod grafts;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use super::look::{LookError, LookedAt};
use super::{ImageFile, LoopDevice, NewMount, Program, Result, Sys, SysError, Unmount, UnmountError};
use crate::volume::mount_options::MountFlags;
use crate::volume::mount_table::{DeviceNumber, MountEntry, Table};
use crate::volume::target::{Target, TargetError};

pub(crate) fn target() -> Target {
    Target::parse(Path::new("/kubelet"), "/kubelet/pods/u/volumes/mooring.dev~vcs/v").unwrap()
}

/// An image file in the fake's pool.
#[derive(Debug, Default, Clone)]
pub(crate) struct Image {
    pub(crate) size: u64,
    pub(crate) content: Vec<u8>,
    pub(crate) marked: bool,
    pub(crate) is_preallocated: bool,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<String>,
    programs: Vec<String>,
    new_mounts: Vec<String>,
    hosts: BTreeMap<String, Vec<SocketAddr>>,
    /// Symbolic links on servers, and where they lead.
    links: BTreeMap<String, String>,
    table: Table,
    loops: Vec<(u32, PathBuf)>,
    /// The minor numbers of those that stay without a user.
    kept: BTreeSet<u32>,
    /// Those of loop devices that were made to be only read.
    only_read: BTreeSet<u32>,
    /// Those to which the kernel refuses writes, whatever is behind them.
    refused: BTreeSet<u32>,
    /// Where the next mount is attached, if not on the target of tests.
    opened: Option<PathBuf>,
    images: BTreeMap<PathBuf, Image>,
    /// The images behind handles that are open, or were.
    handles: BTreeMap<PathBuf, PathBuf>,
    pending: Option<MountEntry>,
    failures: Vec<(String, usize, Errno)>,
    bad_programs: BTreeMap<String, String>,
    full: bool,
    statd: bool,
    faults: Faults,
}

impl State {
    /// Where a source leads that has a link on its way; none without.
    fn follow(&self, source: &str) -> Option<String> {
        self.links.iter().find_map(|(link, directory)| {
            let rest = source.strip_prefix(link)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| format!("{directory}{rest}"))
        })
    }
}

/// What is wrong with mounts and with the kernel.
#[derive(Debug, Default)]
struct Faults {
    dead: Option<String>,
    old: bool,
    empty_stage: bool,
    grows_unmounted_only: bool,
}

/// The kernel in memory.
#[derive(Debug, Default)]
pub(crate) struct Fake(RefCell<State>);

impl Fake {
    pub(crate) fn mounted(self, target: &Target, source: &str, fs_type: &str) -> Self {
        self.0
            .borrow_mut()
            .table
            .0
            .push(entry(target.path(), source, fs_type, 0));
        self
    }

    /// What is mounted is so read-only.
    pub(crate) fn read_only(self) -> Self {
        for entry in &mut self.0.borrow_mut().table.0 {
            entry.flags.push("ro".to_owned());
        }
        self
    }

    /// Whether the first loop device can be written.
    pub(crate) fn is_written(&self) -> bool {
        let state = self.0.borrow();
        !state.refused.contains(&1) && !state.only_read.contains(&1)
    }

    /// The same, with an option of the file system.
    pub(crate) fn mounted_with(self, target: &Target, source: &str, fs_type: &str, option: &str) -> Self {
        let mut entry = entry(target.path(), source, fs_type, 0);
        entry.options.push(option.to_owned());
        self.0.borrow_mut().table.0.push(entry);
        self
    }

    /// What is mounted on the target is mounted elsewhere as well.
    pub(crate) fn mounted_once_more(self, target: &Target, place: &str) -> Self {
        let mut state = self.0.borrow_mut();
        let mut entry = state.table.top(&target.path()).unwrap().clone();
        entry.mount_point = place.into();
        state.table.0.push(entry);
        drop(state);
        self
    }

    /// A container has mounted something in a directory of what is mounted on the target.
    pub(crate) fn mounted_within(self, target: &Target, directory: &str, source: &str) -> Self {
        let path = target.path().join(directory);
        let mut state = self.0.borrow_mut();
        let table = &mut state.table;
        for (id, there) in (1..).zip(&mut table.0) {
            there.id = id;
        }
        let mut inner = entry(path.clone(), source, "tmpfs", 0);
        inner.id = table.0.len() as u64 + 1;
        inner.parent = table.holding(path.parent().unwrap()).unwrap().id;
        table.0.push(inner);
        drop(state);
        self
    }

    pub(crate) fn image(self, path: &str, image: Image) -> Self {
        self.0.borrow_mut().images.insert(path.into(), image);
        self
    }

    /// The call of that name fails once, after it has gone well `after` times.
    pub(crate) fn fail(self, call: &str, after: usize, errno: Errno) -> Self {
        self.0.borrow_mut().failures.push((call.to_owned(), after, errno));
        self
    }

    pub(crate) fn fail_program(self, name: &str, words: &str) -> Self {
        self.0
            .borrow_mut()
            .bad_programs
            .insert(name.to_owned(), words.to_owned());
        self
    }

    /// The daemon of what is mounted from this source is gone.
    pub(crate) fn dead(self, source: &str) -> Self {
        self.0.borrow_mut().faults.dead = Some(source.to_owned());
        self
    }

    /// The kernel can't mount beneath another mount.
    pub(crate) fn old(self) -> Self {
        self.0.borrow_mut().faults.old = true;
        self
    }

    /// Nothing is mounted on the stage.
    pub(crate) fn empty_stage(self) -> Self {
        self.0.borrow_mut().faults.empty_stage = true;
        self
    }

    /// The mounter lacks `CAP_SYS_RESOURCE`.
    pub(crate) fn grows_unmounted_only(self) -> Self {
        self.0.borrow_mut().faults.grows_unmounted_only = true;
        self
    }

    /// The pool has no room left.
    pub(crate) fn full(self) -> Self {
        self.0.borrow_mut().full = true;
        self
    }

    /// A server's name and its addresses; an address is known without.
    pub(crate) fn host(self, name: &str, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.0.borrow_mut().hosts.insert(name.to_owned(), addresses);
        self
    }

    /// A symbolic link on a server, and the directory there to which it leads.
    pub(crate) fn link(self, link: &str, directory: &str) -> Self {
        let mut state = self.0.borrow_mut();
        state.links.insert(link.to_owned(), directory.to_owned());
        drop(state);
        self
    }

    pub(crate) fn heal_programs(&self) {
        self.0.borrow_mut().bad_programs.clear();
    }

    pub(crate) fn mounts_on(&self, target: &Target) -> usize {
        self.0
            .borrow()
            .table
            .0
            .iter()
            .filter(|entry| entry.mount_point == target.path())
            .count()
    }

    /// Where anything is mounted.
    pub(crate) fn mounted_points(&self) -> Vec<String> {
        let state = self.0.borrow();
        let places = state
            .table
            .0
            .iter()
            .map(|entry| entry.mount_point.display().to_string());
        places.collect()
    }

    pub(crate) fn loops(&self) -> usize {
        self.0.borrow().loops.len()
    }

    pub(crate) fn programs(&self) -> Vec<String> {
        self.0.borrow().programs.clone()
    }

    /// With `rpc.statd` on the node.
    pub(crate) fn with_statd(self) -> Self {
        self.0.borrow_mut().statd = true;
        self
    }

    /// The sources of what lies on the target, the uppermost last.
    pub(crate) fn sources_on(&self, target: &Target) -> Vec<String> {
        let state = self.0.borrow();
        let on_target = state.table.0.iter().filter(|entry| entry.mount_point == target.path());
        on_target.map(|entry| entry.source.clone()).collect()
    }

    /// What was to be mounted, also where it failed: type, source and options.
    pub(crate) fn new_mounts(&self) -> Vec<String> {
        self.0.borrow().new_mounts.clone()
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.0.borrow().calls.clone()
    }

    pub(crate) fn is_marked_now(&self, path: &str) -> bool {
        self.0.borrow().images[Path::new(path)].marked
    }

    /// A worker that was killed: the kernel drops what it only held by handles.
    pub(crate) fn kill_worker(&self) {
        self.0.borrow_mut().pending = None;
        self.free_loops();
    }

    fn free_loops(&self) {
        let mut state = self.0.borrow_mut();
        let State {
            loops,
            table,
            kept,
            only_read,
            ..
        } = &mut *state;
        loops.retain(|(minor, _)| {
            kept.contains(minor)
                || table
                    .0
                    .iter()
                    .any(|entry| entry.device.minor == *minor && entry.device.major == 7)
        });
        only_read.retain(|minor| loops.iter().any(|(there, _)| there == minor));
    }

    fn enter(&self, call: &str) -> Result<()> {
        let mut state = self.0.borrow_mut();
        state.calls.push(call.to_owned());
        let failing = state
            .failures
            .iter()
            .position(|(name, after, _)| name == call && *after == 0);
        if let Some(index) = failing {
            let (_, _, errno) = state.failures.remove(index);
            return Err(SysError::call(call, errno));
        }
        for (name, after, _) in &mut state.failures {
            if name == call {
                *after -= 1;
            }
        }
        Ok(())
    }
}

fn handle() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

fn entry(mount_point: PathBuf, source: &str, fs_type: &str, minor: u32) -> MountEntry {
    MountEntry {
        id: 0,
        parent: 0,
        device: DeviceNumber {
            major: if source.starts_with("/dev/loop") { 7 } else { 0 },
            minor,
        },
        root: "/".into(),
        mount_point,
        flags: words(MountFlags::safe()),
        shared: None,
        master: None,
        fs_type: fs_type.to_owned(),
        source: source.to_owned(),
        options: Vec::new(),
    }
}

/// Flags as the mount table shows them.
fn words(flags: MountFlags) -> Vec<String> {
    flags.to_string().split(',').map(str::to_owned).collect()
}

fn device(minor: u32) -> LoopDevice {
    LoopDevice {
        path: format!("/dev/loop{minor}").into(),
        number: DeviceNumber { major: 7, minor },
        handle: handle(),
    }
}

impl Sys for Fake {
    fn mount_table(&self) -> Result<Table> {
        self.enter("mount_table")?;
        Ok(self.0.borrow().table.clone())
    }

    fn look(&self, target: &Target) -> Result<LookedAt, LookError> {
        self.enter("look")
            .map_err(|_| LookError::Target(TargetError::Missing(target.path())))?;
        let state = self.0.borrow();
        Ok(match state.table.top(&target.path()) {
            None => LookedAt::Nothing,
            Some(entry) if state.faults.dead.as_ref() == Some(&entry.source) => LookedAt::Dead,
            Some(_) => LookedAt::Alive,
        })
    }

    fn open_target(&self, target: &Target) -> Result<OwnedFd, TargetError> {
        self.enter("open_target")
            .map_err(|_| TargetError::Missing(target.path()))?;
        self.0.borrow_mut().opened = Some(target.path());
        Ok(handle())
    }

    fn answers(&self, _: &OwnedFd) -> bool {
        self.enter("answers").is_ok()
    }

    fn is_missing(&self, _: &Target) -> bool {
        self.enter("is_missing").is_err()
    }

    fn unmount(&self, _: &Target, place: &Path, how: Unmount) -> Result<(), UnmountError> {
        match self.enter("unmount") {
            Err(error) if error.errno == Some(Errno::EBUSY) => return Err(UnmountError::Busy),
            other => other?,
        }
        let mut state = self.0.borrow_mut();
        let table = &mut state.table;
        let top = table.0.iter().rposition(|entry| entry.mount_point == place);
        let top = table.0[top.ok_or(UnmountError::NotMounted)?].clone();
        // What is detached takes with it what lies within.
        loop {
            let first = table.innermost(&top).clone();
            if first != top && how == Unmount::Plain {
                return Err(UnmountError::Busy);
            }
            let index = table.0.iter().rposition(|entry| *entry == first);
            table.0.remove(index.ok_or(UnmountError::NotMounted)?);
            if first == top {
                break;
            }
        }
        drop(state);
        self.free_loops();
        Ok(())
    }

    fn new_mount(&self, mount: &NewMount) -> Result<OwnedFd> {
        let options = mount.options.iter().map(|(key, value)| match value {
            Some(value) => format!("{key}={value}"),
            None => key.clone(),
        });
        let secret = |(key, value): (&String, &Vec<u8>)| format!("{key}={}", String::from_utf8_lossy(value));
        let options = options.chain(mount.credentials.0.iter().map(secret));
        let options = options.collect::<Vec<_>>().join(",");
        let text = format!("{} {} {options}", mount.fs_type, mount.source);
        self.0.borrow_mut().new_mounts.push(text);
        self.enter("new_mount")?;
        let minor = mount.source.trim_start_matches("/dev/loop").parse().unwrap_or_default();
        let mut state = self.0.borrow_mut();
        // The kernel follows links, and shows where they lead.
        let source = state.follow(&mount.source).unwrap_or_else(|| mount.source.clone());
        let mut made = entry(PathBuf::new(), &source, &mount.fs_type, minor);
        made.flags = words(mount.flags);
        state.pending = Some(made);
        Ok(handle())
    }

    fn directory_of(&self, _: OwnedFd, path: &str, flags: MountFlags) -> Result<OwnedFd> {
        self.enter("directory_of")?;
        let mut state = self.0.borrow_mut();
        let mut made = state.pending.take().unwrap();
        made.source += path;
        if state.follow(&made.source).is_some() {
            return Err(SysError::call("directory_of", Errno::ELOOP));
        }
        made.flags = words(flags);
        state.pending = Some(made);
        Ok(handle())
    }

    fn clone_mount(&self, _: &OwnedFd, flags: MountFlags) -> Result<OwnedFd> {
        self.enter("clone_mount")?;
        let mut made = entry(PathBuf::new(), "clone", "clone", 0);
        made.flags = words(flags);
        self.0.borrow_mut().pending = Some(made);
        Ok(handle())
    }

    fn attach(&self, _: &OwnedFd, _: &OwnedFd) -> Result<()> {
        self.enter("attach")?;
        let mut state = self.0.borrow_mut();
        let mut entry = state.pending.take().unwrap();
        entry.mount_point = state.opened.take().unwrap_or_else(|| target().path());
        state.table.0.push(entry);
        Ok(())
    }

    fn is_here(&self, path: &Path) -> bool {
        path == Path::new("dev/vda1")
    }

    fn open_or_make_directory(&self, _: &Path, _: u32) -> Result<OwnedFd> {
        self.enter("open_or_make_directory")?;
        Ok(handle())
    }

    fn same_file(&self, _: &OwnedFd, _: &OwnedFd) -> Result<bool> {
        self.enter("same_file")?;
        Ok(self.0.borrow().table.0.iter().all(|entry| entry.source == "clone"))
    }

    fn open_image(&self, pool: &Path, name: &str) -> Result<ImageFile> {
        self.enter("open_image")?;
        let path = pool.join(name);
        let mut state = self.0.borrow_mut();
        let image = state.images.get(&path);
        let image = image.ok_or_else(|| SysError::call("open image", Errno::ENOENT))?;
        let image = ImageFile {
            directory: handle(),
            file: handle().into(),
            lock: handle().into(),
            size: image.size,
            is_preallocated: image.is_preallocated,
            path: path.clone(),
        };
        state.handles.insert(image.by_handle(), path);
        Ok(image)
    }

    fn read_image(&self, image: &ImageFile, _: u64, _: usize) -> Result<Vec<u8>> {
        self.enter("read_image")?;
        Ok(self.0.borrow().images[&image.path].content.clone())
    }

    fn read_device(&self, path: &Path, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.enter("read_device")?;
        let state = self.0.borrow();
        let content = &state.images[&state.handles[path]].content;
        let offset = usize::try_from(offset).unwrap();
        Ok(content.iter().copied().skip(offset).take(length).collect())
    }

    fn write_device(&self, path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
        self.enter("write_device")?;
        let mut state = self.0.borrow_mut();
        let path = state.handles[path].clone();
        let content = &mut state.images.get_mut(&path).unwrap().content;
        let offset = usize::try_from(offset).unwrap();
        content.resize(content.len().max(offset + bytes.len()), 0);
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn is_blank(&self, image: &ImageFile) -> Result<bool> {
        self.enter("is_blank")?;
        Ok(self.0.borrow().images[&image.path]
            .content
            .iter()
            .all(|byte| *byte == 0))
    }

    fn is_marked(&self, image: &ImageFile) -> Result<bool> {
        self.enter("is_marked")?;
        Ok(self.0.borrow().images[&image.path].marked)
    }

    fn mark(&self, image: &ImageFile, marked: bool) -> Result<()> {
        self.enter("mark")?;
        self.0.borrow_mut().images.get_mut(&image.path).unwrap().marked = marked;
        Ok(())
    }

    fn allocate(&self, _: &ImageFile) -> Result<()> {
        self.enter("allocate")
    }

    fn space_left(&self, _: &ImageFile) -> Result<u64> {
        Ok(if self.0.borrow().full { 0 } else { u64::MAX })
    }

    fn find_loop(&self, image: &ImageFile) -> Result<Option<LoopDevice>> {
        self.enter("find_loop")?;
        let state = self.0.borrow();
        Ok(state
            .loops
            .iter()
            .find(|(_, path)| *path == image.path)
            .map(|(minor, _)| device(*minor)))
    }

    fn file_behind(&self, device: DeviceNumber) -> Result<Option<OsString>> {
        self.enter("file_behind")?;
        let state = self.0.borrow();
        let of_device = state
            .loops
            .iter()
            .find(|(minor, _)| (7, *minor) == (device.major, device.minor));
        Ok(of_device.and_then(|(_, path)| path.file_name()).map(Into::into))
    }

    fn attach_loop(&self, image: &ImageFile, read_only: bool) -> Result<LoopDevice> {
        self.enter("attach_loop")?;
        let mut state = self.0.borrow_mut();
        let minor = u32::try_from(state.loops.len()).unwrap() + 1;
        state.loops.push((minor, image.path.clone()));
        if read_only {
            state.only_read.insert(minor);
        }
        Ok(device(minor))
    }

    fn is_read_only(&self, device: &LoopDevice) -> Result<bool> {
        self.enter("is_read_only")?;
        Ok(self.0.borrow().only_read.contains(&device.number.minor))
    }

    fn allow_writes(&self, device: &LoopDevice, allow: bool) -> Result<()> {
        self.enter("allow_writes")?;
        let refused = &mut self.0.borrow_mut().refused;
        if allow {
            refused.remove(&device.number.minor);
        } else {
            refused.insert(device.number.minor);
        }
        Ok(())
    }

    fn refresh_loop(&self, _: &LoopDevice) -> Result<()> {
        self.enter("refresh_loop")
    }

    fn keep_loop(&self, device: &LoopDevice, keep: bool) -> Result<()> {
        self.enter("keep_loop")?;
        let kept = &mut self.0.borrow_mut().kept;
        if keep {
            kept.insert(device.number.minor);
        } else {
            kept.remove(&device.number.minor);
        }
        Ok(())
    }

    fn clone_node(&self, device: &LoopDevice, read_only: bool) -> Result<OwnedFd> {
        self.enter("clone_node")?;
        let mut node = entry(PathBuf::new(), "devtmpfs", "devtmpfs", 6);
        node.flags.extend(read_only.then(|| "ro".to_owned()));
        node.root = Path::new("/").join(device.path.file_name().unwrap());
        self.0.borrow_mut().pending = Some(node);
        Ok(handle())
    }

    fn clone_node_of(&self, device: DeviceNumber, read_only: bool) -> Result<OwnedFd> {
        self.enter("clone_node_of")?;
        let mut node = entry(PathBuf::new(), "devtmpfs", "devtmpfs", 6);
        node.flags.extend(read_only.then(|| "ro".to_owned()));
        node.root = format!("/loop{}", device.minor).into();
        self.0.borrow_mut().pending = Some(node);
        Ok(handle())
    }

    fn device_at(&self, target: &Target) -> Result<Option<DeviceNumber>, TargetError> {
        self.enter("device_at")
            .map_err(|_| TargetError::Missing(target.path()))?;
        let state = self.0.borrow();
        let minor = |entry: &MountEntry| {
            let name = entry.root.to_str()?.strip_prefix("/loop")?;
            name.parse().ok()
        };
        let minor = state.table.top(&target.path()).and_then(minor);
        Ok(minor.map(|minor| DeviceNumber { major: 7, minor }))
    }

    fn enter_host(&self, _: Option<&Path>, _: &Target) -> Result<()> {
        self.enter("enter_host")
    }

    fn enter_host_network(&self, _: Option<&Path>, _: &Target) -> Result<()> {
        self.enter("enter_host_network")
    }

    fn resolve(&self, host: &str) -> Result<Vec<SocketAddr>> {
        self.enter("resolve")?;
        if let Some(addresses) = self.0.borrow().hosts.get(host) {
            return Ok(addresses.clone());
        }
        let address = host.parse().map_err(|_| SysError {
            attempted: format!("find the address of server {host}"),
            errno: None,
            cause: "Name or service not known".into(),
        })?;
        Ok(vec![SocketAddr::new(address, 0)])
    }

    fn has_rpc_program(&self, _: u32, _: u32) -> Result<bool> {
        self.enter("has_rpc_program")?;
        Ok(self.0.borrow().statd)
    }

    fn wait_for_smb(&self, _: SocketAddr) -> Result<()> {
        self.enter("wait_for_smb")
    }

    fn stage(&self, _: &Target) -> PathBuf {
        "/run/stage".into()
    }

    fn make_stage(&self, _: &Target) -> Result<PathBuf> {
        self.enter("make_stage")?;
        Ok("/run/stage".into())
    }

    fn open_stage(&self, _: &Path) -> Result<Option<OwnedFd>> {
        self.enter("open_stage")?;
        Ok((!self.0.borrow().faults.empty_stage).then(handle))
    }

    fn remove_stage(&self, _: &Path) -> Result<()> {
        self.enter("remove_stage")
    }

    fn make_fuse_device(&self) -> Result<()> {
        self.enter("make_fuse_device")
    }

    fn pause(&self, _: Duration) {
        self.0.borrow_mut().calls.push("pause".to_owned());
    }

    fn may_grow_mounted(&self) -> bool {
        !self.0.borrow().faults.grows_unmounted_only
    }

    fn run(&self, program: &Program) -> Result<()> {
        self.enter("run")?;
        let mut state = self.0.borrow_mut();
        let behind = program
            .args
            .last()
            .and_then(|arg| state.handles.get(Path::new(arg)))
            .cloned();
        let mut args: Vec<_> = program
            .args
            .iter()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        if let (Some(path), Some(arg)) = (&behind, args.last_mut()) {
            *arg = format!("handle:{}", path.display());
        }
        state.programs.push(format!("{} {}", program.name, args.join(" ")));
        let made = match program.name.as_str() {
            "mkfs.xfs" => Some(b"XFSB".to_vec()),
            "mkfs.ext4" => Some([vec![0; 1080], vec![0x53, 0xef]].concat()),
            _ => None,
        };
        let failure = state.bad_programs.get(&program.name).cloned();
        let image = behind.and_then(|path| state.images.get_mut(&path));
        if let (Some(image), Some(made)) = (image, made) {
            // A program that was ended half-way leaves garbage.
            image.content = if failure.is_some() { b"rubbish".to_vec() } else { made };
        }
        match failure {
            None => Ok(()),
            Some(words) => Err(SysError {
                attempted: format!("run {}", program.name),
                errno: None,
                cause: words.into(),
            }),
        }
    }
}
