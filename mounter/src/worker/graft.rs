//! Puts a volume that was mounted again where its dead mount still is: in the containers that use it.
//!
//! A container has a copy of the mount in its own mount namespace, and nothing that happens on the node reaches that.
//! So a worker makes a copy of the new mount, enters the container's namespace with it, and puts it in the place of the
//! dead one: beneath it, and then the dead one is taken away, so that nobody ever sees the directory below. A dead
//! mount belongs to a volume only if it shows the volume's id, or if the volume's agent recorded its device; it is also
//! checked to be in a namespace of the volume's own Pod ([`Owner`]), and to be dead. It is touched only by a handle that
//! the kernel says is on that very mount. Any other dead mount stays, since it may be another volume's.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::sys::graft::{Grafts, Likeness};
use crate::sys::{Result, SysError};
use crate::volume::cause::Cause;
use crate::volume::job::MountError;
use crate::volume::mount_table::{DeviceNumber, MountEntry, Table};
use crate::volume::target::Target;
use crate::volume::volume_id::VolumeId;

/// What the kernel adds to the root of a mount whose directory was removed, or is no longer known to be there.
const DELETED: &str = "//deleted";

/// Whose mount namespace it is. What is mounted in a container's says nothing about that: its Pod may have made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// The mounter's own, which has what the node has beneath the kubelet's root: also the parts of volumes that the
    /// kubelet mounts for containers.
    Node,
    /// A container's of the Pod of this uid, by its control group.
    Pod(String),
}

impl Owner {
    /// Whether a mount in this namespace can be one of a volume.
    fn may_have(&self, entry: &MountEntry, target: &Target) -> bool {
        match self {
            Self::Node => entry.mount_point.starts_with(target.pods().join(target.pod_uid())),
            Self::Pod(uid) => uid == target.pod_uid(),
        }
    }
}

/// One mount namespace to look after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraftTask {
    /// A process in it.
    pub pid: i32,
    /// The namespace's own number.
    pub namespace: u64,
    /// Whose it was found to be.
    pub owner: Owner,
    /// Where the volume is mounted on the node.
    pub target: Target,
    /// The devices of its dead mounts that its agent holds: no other file system has their numbers.
    pub dead: Vec<DeviceNumber>,
    /// Devices of mounts like the volume's that no agent recorded ([`KnownMounts`]). Another file system may have a
    /// number by now.
    pub unrecorded: BTreeSet<DeviceNumber>,
    /// Whether the unrecorded mounts showed the volume's id.
    pub show_id: bool,
}

/// The dead mounts of a volume in the mount table of a namespace. In another Pod's there are none: the device number may
/// belong to another file system by now.
pub fn dead_mounts<'a>(owner: &Owner, table: &'a Table, target: &Target, dead: &[DeviceNumber]) -> Vec<&'a MountEntry> {
    let is_dead = |entry: &&MountEntry| {
        dead.contains(&entry.device) && owner.may_have(entry, target) && !is_covered(table, entry)
    };
    table.0.iter().filter(is_dead).collect()
}

/// What is known of a node's volumes, to find mounts in other tables that are like that of a volume, in a namespace of
/// its Pod, gone from the node, and recorded by no agent. If the volume's mounts show its id, they are of this volume.
/// If not, they are of this volume or of another one of the Pod, and nothing tells which.
///
/// Made once for all tables. In most of them all mounts are known, and nothing but their devices is looked at.
pub struct KnownMounts<'a> {
    volumes: Vec<(&'a Target, &'a MountEntry)>,
    /// The types and sources of the volumes. If a source is the volume's id, with the device that it has now.
    kinds: HashMap<(&'a str, &'a str), Option<DeviceNumber>>,
    /// All devices that agents recorded, or that the node's table has: not as that of an earlier mount with an id.
    devices: HashSet<DeviceNumber>,
}

/// Mounts in a namespace that are like that of a volume, and that no agent recorded.
#[derive(Debug)]
pub struct Unrecorded<'a> {
    pub target: &'a Target,
    pub devices: BTreeSet<DeviceNumber>,
    /// Whether they show the volume's id.
    pub show_id: bool,
}

impl<'a> KnownMounts<'a> {
    /// From the node's table, the volumes that are mounted, and the dead mounts that agents recorded.
    pub fn new(node: &'a Table, mounted: &'a [Target], recorded: &BTreeSet<DeviceNumber>) -> Self {
        let tops = node.tops();
        let top = |target: &'a Target| Some((target, *tops.get(target.path().as_path())?));
        let volumes: Vec<_> = mounted.iter().filter_map(top).collect();
        let kind_of = |(target, live): &(&Target, &'a MountEntry)| {
            let device = VolumeId::of(target).is_of(live).then_some(live.device);
            (kind(live), device)
        };
        let kinds: HashMap<_, _> = volumes.iter().map(kind_of).collect();
        let is_earlier =
            |entry: &&MountEntry| matches!(kinds.get(&kind(entry)), Some(Some(device)) if *device != entry.device);
        let others = node.0.iter().filter(|entry| !is_earlier(entry));
        let devices = others.map(|entry| entry.device).chain(recorded.iter().copied());
        Self {
            devices: devices.collect(),
            kinds,
            volumes,
        }
    }

    /// The unrecorded mounts of a namespace, by the volumes that they are or may be of.
    pub fn unrecorded(&self, owner: &Owner, table: &Table) -> Vec<Unrecorded<'a>> {
        let is_unknown =
            |entry: &&MountEntry| !self.devices.contains(&entry.device) && self.kinds.contains_key(&kind(entry));
        let unknown: Vec<_> = table.0.iter().filter(is_unknown).collect();
        if unknown.is_empty() {
            return Vec::new();
        }
        let of_volume = |&(target, live): &(&'a Target, &'a MountEntry)| {
            let alike = unknown
                .iter()
                .filter(|entry| is_alike(entry, live) && owner.may_have(entry, target) && !is_covered(table, entry));
            let devices: BTreeSet<_> = alike.map(|entry| entry.device).collect();
            let show_id = matches!(self.kinds.get(&kind(live)), Some(Some(_)));
            (!devices.is_empty()).then_some(Unrecorded {
                target,
                devices,
                show_id,
            })
        };
        self.volumes.iter().filter_map(of_volume).collect()
    }
}

/// Whether two mounts have the same type and source. Two volumes may have both alike.
fn is_alike(one: &MountEntry, other: &MountEntry) -> bool {
    kind(one) == kind(other)
}

/// Type and source.
fn kind(entry: &MountEntry) -> (&str, &str) {
    (&entry.fs_type, &entry.source)
}

/// Whether another mount lies on the whole of this one.
fn is_covered(table: &Table, entry: &MountEntry) -> bool {
    let mut others = table.0.iter();
    others.any(|other| other.parent == entry.id && other.mount_point == entry.mount_point)
}

/// Replaces every dead mount of a volume in one mount namespace. All of them are tried; the first failure is the
/// result. A dead mount that no agent recorded stays and is a failure, unless its id proves whose it is.
pub fn graft(sys: &mut impl Grafts, task: &GraftTask) -> Result<(), MountError> {
    let table = sys.table()?;
    let live = table
        .top(&task.target.path())
        .filter(|entry| !task.dead.contains(&entry.device) && !task.unrecorded.contains(&entry.device));
    let Some(live) = live else {
        return Err(not_done(&task.target.path(), "it is not mounted again yet".into()));
    };
    let container = match &task.owner {
        Owner::Node => None,
        Owner::Pod(uid) => Some(opened(sys, task, uid)?),
    };
    let theirs = match &container {
        None => table.clone(),
        Some(container) => sys.table_of(container)?,
    };
    let of = |devices: Vec<DeviceNumber>| dead_mounts(&task.owner, &theirs, &task.target, &devices);
    let id = VolumeId::of(&task.target);
    // Those that are held may show what an earlier release has shown, and not what the new one does.
    let mut dead = of(task.dead.clone());
    dead.retain(|entry| !id.is_not_of(entry));
    let mut unattributed = of(task.unrecorded.iter().copied().collect());
    unattributed.retain(|entry| is_alike(entry, live));
    if task.show_id && is_proved_by_id(sys, container.as_ref())? {
        dead.extend(unattributed.extract_if(.., |entry| id.is_of(entry)));
    }
    if dead.is_empty() && unattributed.is_empty() {
        return Ok(());
    }
    let volume = sys.open_target(&task.target)?;
    let mut first = Ok(());
    let mut copies = Vec::new();
    for entry in dead {
        match copy(sys, &volume, entry) {
            Ok(mount) => copies.push((entry, mount)),
            Err(error) => first = first.and(Err(failed(entry, error))),
        }
    }
    drop(volume);
    if let Some(container) = &container {
        sys.enter(container)?;
    }
    for (entry, mount) in copies {
        let replaced = replace_in(sys, entry, &mount);
        first = first.and(replaced);
    }
    for entry in unattributed {
        first = first.and(refuse_if_dead(sys, entry));
    }
    first
}

/// A container of the Pod `uid`. Whose it is is asked once it is held: another Pod's may have pid and namespace since
/// the scan.
fn opened<S: Grafts>(sys: &S, task: &GraftTask, uid: &str) -> Result<S::Container, MountError> {
    let container = sys.open_container(task.pid, task.namespace)?;
    match sys.pod_of(&container)? {
        Some(found) if found == uid => Ok(container),
        _ => Err(not_done(
            &task.target.path(),
            format!("process {} is not of Pod {uid} any more", task.pid).into(),
        )),
    }
}

/// Whether a mount that shows a volume's id is of that volume. In a user namespace of its own, a container that has only
/// a part of the volume could get all of it by a mount with the id.
fn is_proved_by_id<S: Grafts>(sys: &S, container: Option<&S::Container>) -> Result<bool> {
    container.map_or(Ok(true), |container| sys.is_of_root(container))
}

/// An error if a mount that may be another volume's is dead.
fn refuse_if_dead<S: Grafts>(sys: &S, entry: &MountEntry) -> Result<(), MountError> {
    match place_of(sys, entry)? {
        Some(place) if sys.is_dead(&place).map_err(|error| failed(entry, error))? => Err(MountError::Unattributed {
            path: entry.mount_point.display().to_string(),
        }),
        _ => Ok(()),
    }
}

/// A second mount of the volume, or of the part of it that the dead mount showed.
fn copy<S: Grafts>(sys: &S, volume: &S::Place, dead: &MountEntry) -> Result<S::Mount> {
    let likeness = Likeness::of(dead);
    let part = within(&dead.root);
    if part.as_os_str().is_empty() {
        return sys.copy(volume, likeness);
    }
    sys.copy(&sys.open_within(volume, &part)?, likeness)
}

/// The part of a file system that a mount shows, as a path from its root.
fn within(root: &Path) -> PathBuf {
    let text = root.to_string_lossy();
    let path = text.strip_suffix(DELETED).map_or(root, Path::new);
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

/// A handle on a mount of the present namespace, if it is still there as it was seen.
fn place_of<S: Grafts>(sys: &S, seen: &MountEntry) -> Result<Option<S::Place>, MountError> {
    let error_of = |error: SysError| failed(seen, error);
    let now = sys.table().map_err(error_of)?;
    let is_seen = |entry: &&MountEntry| entry.id == seen.id && entry.device == seen.device;
    let Some(now) = now.0.iter().find(is_seen) else {
        return Ok(None);
    };
    let place = sys.open_at(&now.mount_point).map_err(error_of)?;
    if sys.mount_id(&place).map_err(error_of)? != seen.id {
        return Err(not_done(&now.mount_point, "something else is mounted over it".into()));
    }
    Ok(Some(place))
}

/// Replaces one dead mount of the present namespace, if it is as it was seen.
fn replace_in<S: Grafts>(sys: &S, dead: &MountEntry, mount: &S::Mount) -> Result<(), MountError> {
    let error_of = |error: SysError| failed(dead, error);
    let Some(place) = place_of(sys, dead)? else {
        return Ok(());
    };
    match replace(sys, &place, mount).map_err(error_of)? {
        // Another file system has the number by now.
        Replaced::Alive | Replaced::Done => Ok(()),
        // The dead mount below is out of sight, and goes with the container.
        Replaced::Unable => sys.put_onto(mount, &place).map_err(error_of),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// The new mount is there, the dead one gone.
    Done,
    /// Nothing was done: the mount is not dead.
    Alive,
    /// Nothing was done: the kernel can't, or the dead mount is gone.
    Unable,
}

/// Replaces the dead mount whose root is `place` by a mount that is not attached yet. One of the two is there at any
/// moment.
pub fn replace<S: Grafts>(sys: &S, place: &S::Place, mount: &S::Mount) -> Result<Replaced> {
    if !sys.is_dead(place)? {
        return Ok(Replaced::Alive);
    }
    if !sys.put_beneath(mount, place)? {
        return Ok(Replaced::Unable);
    }
    sys.detach(place)?;
    Ok(Replaced::Done)
}

fn failed(dead: &MountEntry, error: SysError) -> MountError {
    not_done(&dead.mount_point, Cause::of(error))
}

fn not_done(path: &Path, cause: Cause) -> MountError {
    MountError::failed(format!("replace the dead mount at {}", path.display()), cause)
}

#[cfg(test)]
mod tests;
