//! Volumes that the storage lets only some nodes have: this node's connection to them, and the notes on its Node that
//! say which of them it uses. The controller has them attached; see `docs/decisions/attach.md`.
//!
//! The note is there before anything is mounted, and only after that it is read once more whether the node has the
//! volume. The controller does it the other way round: first it says on the PV that the node is to lose the volume, and
//! after that it reads the notes. So one of the two sees what the other does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as StdInstant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::attachment::{AttachedNodes, Connection, is_for_many};
use mooring_contract::names::{CONNECTION_KEYS, annotations};
use mooring_seal::SealError;
use mooring_seal::signature::{PublicKeys, Verified};
use serde::Deserialize;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{Instrument as _, info, info_span, warn};

use crate::deadlines;
use crate::grant::{Grant, ToAttach};
use crate::volume::cause::Cause;
use crate::volume::job::MountError;
use crate::volume::mount_table::{MountEntry, Table, UnknownOwner};
use crate::volume::target::Target;

pub mod api;

/// How long to wait between two looks at the PersistentVolume, at first and at most: a mounter may read one, and not
/// watch them, since it would see those of all nodes.
const FIRST_PERIOD: Duration = Duration::from_millis(50);
const LONGEST_PERIOD: Duration = Duration::from_secs(1);

/// How long to wait until the API is asked once more.
const RETRY: Duration = Duration::from_secs(5);

/// What says how a node reaches a volume, and where its use is noted.
#[async_trait]
pub trait AttachmentApi: Send + Sync {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, kube::Error>;
    /// The keys of the controllers that sign connections.
    async fn keys(&self) -> Result<PublicKeys, kube::Error>;
    /// Notes on the Node that a volume is used, or is not used any more.
    async fn note(&self, volume: &str, used: bool) -> Result<(), kube::Error>;
    /// The volumes that are noted.
    async fn noted(&self) -> Result<BTreeSet<String>, kube::Error>;
}

/// Why a volume that has to be attached is not mounted; the message says what to do.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("the PersistentVolume was deleted while the volume was being attached: delete the Pod")]
    Replaced,
    #[error(
        "the volume's connection, in annotation {annotation} of its PersistentVolume, is not used: {0}; remove the \
         annotation, and Mooring attaches the volume again", annotation = annotations::ATTACHED_TO
    )]
    NotSigned(SealError),
    #[error(
        "the volume's connection, in annotation {annotation} of its PersistentVolume, is for another volume or node: \
         remove the annotation, and Mooring attaches the volume again", annotation = annotations::ATTACHED_TO
    )]
    OfAnother,
    #[error(
        "the volume's connection, in annotation {annotation} of its PersistentVolume, is older than the last that this \
         node used: remove the annotation, and Mooring attaches the volume again", annotation = annotations::ATTACHED_TO
    )]
    Older,
}

/// Clients that may still clean up after volumes which are not mounted any more.
#[async_trait]
pub trait CleanUps: Send + Sync {
    /// Whether a client has something of a volume of this name, or may have.
    async fn may_have(&self, volume: &str) -> bool;
}

pub struct Attachments {
    api: Box<dyn AttachmentApi>,
    node: String,
    kubelet_root: PathBuf,
    /// Targets on which a volume is or is about to be mounted, by volume, each with the number of its mount; without
    /// one it is only known from the mount table. Held while a note is written, so that notes are written one after the
    /// other.
    used: Mutex<BTreeMap<String, BTreeMap<String, Option<u64>>>>,
    /// How many mounts were begun.
    begun: AtomicU64,
    /// The serial of the newest connection of each volume that was used, by the PersistentVolume's uid.
    serials: std::sync::Mutex<BTreeMap<String, u64>>,
    /// Told of each note that could not be taken back.
    left_over: Notify,
}

impl Attachments {
    pub fn new(api: Box<dyn AttachmentApi>, node: String, kubelet_root: PathBuf) -> Self {
        Self {
            api,
            node,
            kubelet_root,
            used: Mutex::default(),
            begun: AtomicU64::default(),
            serials: std::sync::Mutex::default(),
            left_over: Notify::new(),
        }
    }

    /// Says on the Node that its mounter notes what it uses, and takes back notes on volumes that are not mounted any
    /// more, of an earlier mounter or because the API did not answer; for as long as the mounter runs. What a client may
    /// still clean up after stays noted.
    pub async fn tend(&self, clean_ups: Option<&dyn CleanUps>) {
        loop {
            let tidy = self
                .tidy(clean_ups)
                .instrument(info_span!("tidy-attachments", node.name = self.node));
            match tidy.await {
                Ok(true) => self.left_over.notified().await,
                Ok(false) => sleep(RETRY).await,
                Err(error) => {
                    warn!(%error, "failed to say which attached volumes this node uses; trying again");
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Whether nothing is left to do.
    async fn tidy(&self, clean_ups: Option<&dyn CleanUps>) -> Result<bool, kube::Error> {
        let noted = self.api.noted().await?;
        // Before the lock is taken, which mounts wait for.
        let mut cleaned_up_after = BTreeSet::new();
        for volume in &noted {
            if let Some(clean_ups) = clean_ups
                && self.mounted(volume).is_ok_and(|mounted| mounted.is_empty())
                && clean_ups.may_have(volume).await
            {
                cleaned_up_after.insert(volume.clone());
            }
        }
        let mut used = self.used.lock().await;
        for volume in noted {
            let Ok(mounted) = self.mounted(&volume) else {
                // What may be mounted stays noted.
                continue;
            };
            let targets = used.entry(volume.clone()).or_default();
            renew(targets, mounted);
            if targets.is_empty() {
                used.remove(&volume);
                if !cleaned_up_after.contains(&volume) {
                    self.take_back(&volume).await?;
                }
            }
        }
        Ok(cleaned_up_after.is_empty())
    }

    /// Waits until this node has the volume, and notes that it is used. The grant has what the storage said.
    pub async fn connect(&self, to_attach: ToAttach, deadline: StdInstant) -> Result<Grant, MountError> {
        let target = to_attach.target();
        let left = deadline.saturating_duration_since(StdInstant::now());
        let until = Instant::now() + deadlines::inner(left);
        let mut period = FIRST_PERIOD;
        let mut seen = self.seen(to_attach.persistent_volume());
        loop {
            if let Some(signed) = &seen.own {
                let connection = self.verified(&to_attach, signed).await?;
                // Before anything is noted: who can't open it has another volume.
                let grant = to_attach.connected(&connection)?;
                self.used_serial(connection.get());
                self.enter(target).await?;
                // Now that it is noted.
                match self.look(&to_attach).await {
                    Ok(again) if again.own == seen.own => return Ok(grant),
                    Ok(_) => self.leave(target).await,
                    Err(error) => {
                        self.leave(target).await;
                        return Err(error);
                    }
                }
            }
            if Instant::now() >= until {
                return Err(MountError::NotAttached {
                    volume: target.name().to_owned(),
                    node: self.node.clone(),
                    other: seen.other,
                });
            }
            sleep_until(until.min(Instant::now() + period)).await;
            period = LONGEST_PERIOD.min(period.mul_f32(1.5));
            seen = self.look(&to_attach).await?;
        }
    }

    /// After a mount that failed, or an unmount: takes the note back if nothing of the volume is mounted any more.
    pub async fn leave(&self, target: &Target) {
        let name = target.name();
        let mut used = self.used.lock().await;
        let Some(targets) = used.get_mut(name) else { return };
        targets.remove(&target.to_string());
        let mounted = match self.mounted(name) {
            Ok(mounted) => mounted,
            Err(error) => {
                // It may still be mounted, so it stays noted.
                warn!(volume = name, %error, "failed to read the mount table: the volume still counts as used");
                targets.insert(target.to_string(), None);
                self.left_over.notify_one();
                return;
            }
        };
        renew(targets, mounted);
        if targets.is_empty() {
            used.remove(name);
            if let Err(error) = self.take_back(name).await {
                warn!(volume = name, %error, "failed to say that the volume is not used on this node any more");
                self.left_over.notify_one();
            }
        }
    }

    /// After an unmount that its client still cleans up after: takes the note back when `rest` is over, unless the
    /// volume is mounted on the target again by then.
    pub async fn leave_after(self: &Arc<Self>, target: &Target, rest: impl Future<Output = ()> + Send + 'static) {
        let name = target.name();
        let mount = Some(self.begun.fetch_add(1, Ordering::Relaxed));
        {
            let mut used = self.used.lock().await;
            let targets = used.get_mut(name);
            let Some(known) = targets.and_then(|targets| targets.get_mut(&target.to_string())) else {
                return;
            };
            // The mount table does not show it any more.
            *known = mount;
        }
        let (attachments, target) = (Arc::clone(self), target.clone());
        tokio::spawn(async move {
            rest.await;
            let now = {
                let used = attachments.used.lock().await;
                let targets = used.get(target.name());
                targets.and_then(|targets| targets.get(&target.to_string()).copied())
            };
            if now == Some(mount) {
                attachments.leave(&target).await;
            }
        });
    }

    async fn enter(&self, target: &Target) -> Result<(), MountError> {
        let name = target.name();
        let mut used = self.used.lock().await;
        if !used.contains_key(name) {
            let noted = self.api.note(name, true).await;
            noted.map_err(|error| api_failed("note on its Node that it uses the volume", error))?;
        }
        let mount = self.begun.fetch_add(1, Ordering::Relaxed);
        let targets = used.entry(name.to_owned()).or_default();
        targets.insert(target.to_string(), Some(mount));
        Ok(())
    }

    async fn take_back(&self, volume: &str) -> Result<(), kube::Error> {
        self.api.note(volume, false).await?;
        info!(
            volume,
            "the volume is not used on this node any more, and can be detached"
        );
        Ok(())
    }

    /// The targets on which a volume is mounted.
    ///
    /// # Errors
    /// The mount table can't be read, or whose the volume is: nothing is known then.
    fn mounted(&self, volume: &str) -> io::Result<BTreeSet<String>> {
        self.targets_in(&Table::read()?, volume).map_err(io::Error::other)
    }

    /// The same, by a mount table. No inline volume is among them: none is granted the name of an attached volume.
    fn targets_in(&self, table: &Table, volume: &str) -> Result<BTreeSet<String>, UnknownOwner> {
        let target = |found: Result<&MountEntry, UnknownOwner>| {
            let mount_point = match &found {
                Ok(entry) => &entry.mount_point,
                Err(unknown) => &unknown.mount_point,
            };
            let target = Target::parse_any(&self.kubelet_root, mount_point.to_str()?).ok()?;
            (target.name() == volume).then(|| found.map(|_| target.to_string()))
        };
        table.volumes(&self.kubelet_root).filter_map(target).collect()
    }

    async fn look(&self, to_attach: &ToAttach) -> Result<Seen, MountError> {
        let found = self.api.volume(to_attach.target().name()).await;
        let found = found.map_err(|error| api_failed("read the PersistentVolume", error))?;
        let is_it = |found: &PersistentVolume| found.metadata.uid.as_deref() == Some(to_attach.uid());
        let found = found.filter(is_it).ok_or_else(|| refused(ConnectError::Replaced))?;
        Ok(self.seen(&found))
    }

    fn seen(&self, found: &PersistentVolume) -> Seen {
        let modes = found.spec.as_ref().and_then(|spec| spec.access_modes.as_deref());
        let noted = |key: &str| found.metadata.annotations.as_ref()?.get(key);
        let to = noted(annotations::ATTACHED_TO);
        let to = to.and_then(|text| AttachedNodes::parse(text).ok()).unwrap_or_default();
        let is_kept = noted(annotations::OPERATION).is_none_or(|record| self.is_of_another(record));
        let own = to.of(&self.node).map(|to| to.connection.clone());
        let other = to.0.iter().map(|to| &to.node).find(|node| **node != self.node);
        Seen {
            // An earlier version of the controller says nothing here. The present one attaches the volume again.
            own: own.filter(|signed| is_kept && !signed.is_empty()),
            other: other.filter(|_| !is_for_many(modes.unwrap_or_default())).cloned(),
        }
    }

    /// The connection of this volume and node, which a controller signed.
    async fn verified(&self, to_attach: &ToAttach, signed: &str) -> Result<Verified<Connection>, MountError> {
        let keys = self.api.keys().await;
        let keys = keys.map_err(|error| {
            let attempted = format!("read the controllers' public keys in ConfigMap {CONNECTION_KEYS}");
            api_failed(&attempted, error)
        })?;
        let verified = keys.verify::<Connection>(signed);
        let verified = verified.map_err(|error| refused(ConnectError::NotSigned(error)))?;
        let connection = verified.get();
        let (name, uid) = (to_attach.target().name(), to_attach.uid());
        if (&*connection.volume, &*connection.volume_uid, &*connection.node) != (name, uid, &*self.node) {
            return Err(refused(ConnectError::OfAnother));
        }
        let newest = self.serials.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if newest.get(uid).is_some_and(|newest| connection.serial < *newest) {
            return Err(refused(ConnectError::Older));
        }
        Ok(verified)
    }

    /// Remembers that a connection was opened: no older one is used after it.
    fn used_serial(&self, connection: &Connection) {
        let mut serials = self.serials.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let newest = serials.entry(connection.volume_uid.clone()).or_default();
        *newest = connection.serial.max(*newest);
    }

    /// Whether the record of an operation is about another node: this one keeps what it has meanwhile.
    fn is_of_another(&self, record: &str) -> bool {
        let node = serde_json::from_str::<NodeOfRecord>(record)
            .ok()
            .map(|record| record.node);
        node.is_some_and(|node| !node.is_empty() && node != self.node)
    }
}

/// Brings what is known of a volume's targets from the mount table up to date. A mount in progress is not there yet.
fn renew(targets: &mut BTreeMap<String, Option<u64>>, mounted: BTreeSet<String>) {
    targets.retain(|target, mount| mount.is_some() || mounted.contains(target));
    for target in mounted {
        targets.entry(target).or_default();
    }
}

/// What is known of a volume and this node.
struct Seen {
    /// How this node reaches it, signed; `None` if the node does not have it, or is about to lose it.
    own: Option<String>,
    /// The node that has it instead, if only one can.
    other: Option<String>,
}

/// What has to be known of an operation that is open on a PV.
#[derive(Deserialize)]
struct NodeOfRecord {
    #[serde(default)]
    node: String,
}

fn refused(error: ConnectError) -> MountError {
    MountError::Forbidden(Cause::of(error))
}

fn api_failed(attempted: &str, error: kube::Error) -> MountError {
    MountError::failed(attempted, Cause::of(error))
}

#[cfg(test)]
mod tests;
