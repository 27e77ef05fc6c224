//! Volumes that the storage lets only some nodes have: this node's connection to them, and the notes on its Node that
//! say which of them it uses. The controller has them attached; see `docs/decisions/attach.md`.
//!
//! The note is there before anything is mounted, and only after that it is read once more whether the node has the
//! volume. The controller does it the other way round: first it says on the PV that the node is to lose the volume, and
//! after that it reads the notes. So one of the two sees what the other does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::attachment::{AttachedNodes, CONNECTION, Connection, is_for_many, secret_name};
use mooring_contract::names::annotations;
use mooring_contract::volume::{Speaker, VolumeError, keys};
use serde::Deserialize;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep, timeout};
use tracing::{Instrument as _, info, info_span, warn};

use crate::deadlines;
use crate::volume::cause::Cause;
use crate::volume::job::{MountError, MountJob, Secrets};
use crate::volume::kubelet_options;
use crate::volume::mount_table::Table;
use crate::volume::target::Target;

pub mod api;

/// How long to wait between two looks where nothing tells of a change.
const PERIOD: Duration = Duration::from_millis(200);

/// How long after a Pod came to its node the API server may not know yet what that lets the node read: its node
/// authorizer learns it by watches.
const AUTHORIZER_LAG: Duration = Duration::from_secs(5);

/// How long to wait before something forbidden is asked for again.
const FORBIDDEN_RETRY: Duration = Duration::from_millis(500);

/// How long to wait until the API is asked once more.
const RETRY: Duration = Duration::from_secs(5);

/// What the connection of a volume is read from, and where its use is noted.
#[async_trait]
pub trait AttachmentApi: Send + Sync {
    async fn volume(&self, name: &str) -> Result<Option<PersistentVolume>, kube::Error>;
    /// The data of a Secret that only nodes that use the volume may read.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Data, SecretError>;
    /// Returns when the Secret differs from this version, or after a while.
    async fn changed(&self, namespace: &str, name: &str, version: &str);
    /// Notes on the Node that a volume is used, or is not used any more.
    async fn note(&self, volume: &str, used: bool) -> Result<(), kube::Error>;
    /// The volumes that are noted.
    async fn noted(&self) -> Result<BTreeSet<String>, kube::Error>;
}

/// Why a Secret was not read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Nothing may be asked for in the name of this node.
    #[error("the mounter can't act in its node's name: see its log")]
    NotAsNode,
    /// What the API server said.
    #[error("{0}")]
    Forbidden(String),
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// What is in a Secret.
#[derive(Clone, Default)]
pub struct Data {
    pub version: String,
    pub values: BTreeMap<String, Vec<u8>>,
}

/// Why a volume that has to be attached is not mounted; the message says what to do.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(
        "the volume's connection is not from the Secret of a PersistentVolume, so it is not used: remove key \
         {CONNECTION} from the Secret"
    )]
    Forged,
    #[error("failed to read the volume's connection: {0}; only Mooring may write its Secret")]
    Unreadable(#[from] serde_json::Error),
    #[error("the options in the volume's connection are not valid: {0}")]
    Options(#[from] VolumeError),
    #[error(
        "the API server does not let this node read the volume's connection in Secret {namespace}/{name}: check that \
         ClusterRole mooring-mounter-connections is bound to the mounters in namespace {namespace} ({why})"
    )]
    Unproven {
        namespace: String,
        name: String,
        why: SecretError,
    },
}

pub struct Attachments {
    api: Box<dyn AttachmentApi>,
    node: String,
    kubelet_root: PathBuf,
    /// Targets on which a volume is or is about to be mounted, by volume. Held while a note is written, so that notes
    /// are written one after the other.
    used: Mutex<BTreeMap<String, BTreeSet<String>>>,
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
            left_over: Notify::new(),
        }
    }

    /// Says on the Node that its mounter notes what it uses, and takes back notes on volumes that are not mounted any
    /// more, of an earlier mounter or because the API did not answer; for as long as the mounter runs.
    pub async fn tend(&self) {
        loop {
            let tidy = self
                .tidy()
                .instrument(info_span!("tidy-attachments", node.name = self.node));
            match tidy.await {
                Ok(()) => self.left_over.notified().await,
                Err(error) => {
                    warn!(%error, "failed to say which attached volumes this node uses; trying again");
                    sleep(RETRY).await;
                }
            }
        }
    }

    async fn tidy(&self) -> Result<(), kube::Error> {
        let noted = self.api.noted().await?;
        let mut used = self.used.lock().await;
        for volume in noted {
            let targets = self.mounted(&volume);
            if targets.is_empty() && !used.contains_key(&volume) {
                self.take_back(&volume).await?;
            } else {
                used.entry(volume).or_default().extend(targets);
            }
        }
        Ok(())
    }

    /// Waits until this node has the volume, notes that it is used, and puts what the storage said into the job. Does
    /// nothing about a volume that needs no attachment. Returns whether the storage said what the volume's source is.
    pub async fn connect(&self, job: &mut MountJob) -> Result<bool, MountError> {
        let Some(handed) = job.secrets.0.get(CONNECTION) else {
            return Ok(false);
        };
        let handed = parse(handed)?;
        let name = job.target.name().to_owned();
        let began = Instant::now();
        let until = began + deadlines::inner(job.remaining());
        let known = until.min(began + AUTHORIZER_LAG);
        loop {
            let seen = self.look(&name, &handed, known).await?;
            let is_told = seen.connection.is_for(&self.node);
            if seen.has && is_told {
                self.enter(&job.target).await?;
                // Now that it is noted.
                match self.look(&name, &handed, known).await {
                    Ok(seen) if seen.has && seen.connection.is_for(&self.node) => return self.merge(job, seen),
                    Ok(_) => self.leave(&job.target).await,
                    Err(error) => {
                        self.leave(&job.target).await;
                        return Err(error);
                    }
                }
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(MountError::NotAttached {
                    volume: name,
                    node: self.node.clone(),
                    other: seen.other,
                });
            }
            let wait = async {
                if is_told {
                    // The PV says it next.
                    sleep(PERIOD).await;
                } else {
                    self.api
                        .changed(&seen.namespace, &secret_name(&name), &seen.data.version)
                        .await;
                }
            };
            let _ = timeout(left, wait).await;
        }
    }

    /// After a mount that failed, or an unmount: takes the note back if nothing of the volume is mounted any more.
    pub async fn leave(&self, target: &Target) {
        let name = target.name();
        let mut used = self.used.lock().await;
        let Some(targets) = used.get_mut(name) else { return };
        targets.remove(&target.to_string());
        let mounted = self.mounted(name);
        targets.retain(|target| mounted.contains(target));
        targets.extend(mounted);
        if targets.is_empty() {
            used.remove(name);
            if let Err(error) = self.take_back(name).await {
                warn!(volume = name, %error, "failed to say that the volume is not used on this node any more");
                self.left_over.notify_one();
            }
        }
    }

    async fn enter(&self, target: &Target) -> Result<(), MountError> {
        let name = target.name();
        let mut used = self.used.lock().await;
        if !used.contains_key(name) {
            let noted = self.api.note(name, true).await;
            noted.map_err(|error| api_failed("note on its Node that it uses the volume", error))?;
        }
        used.entry(name.to_owned()).or_default().insert(target.to_string());
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

    fn mounted(&self, volume: &str) -> BTreeSet<String> {
        let table = Table::read().unwrap_or_default();
        let entries = table.volumes(&self.kubelet_root);
        let of = |path: &std::path::Path| path.components().any(|part| part.as_os_str() == volume);
        entries
            .filter(|entry| of(&entry.mount_point))
            .map(|entry| entry.mount_point.display().to_string())
            .collect()
    }

    /// What the API has of the volume. Until `known` it may not know yet that this node uses the volume.
    async fn look(&self, name: &str, handed: &Connection, known: Instant) -> Result<Seen, MountError> {
        let volume = self.api.volume(name).await;
        let volume = volume.map_err(|error| api_failed("read the PersistentVolume", error))?;
        let namespace = volume.as_ref().and_then(secret_namespace);
        let (Some(volume), Some(namespace)) = (volume, namespace) else {
            return Err(MountError::Forbidden(Cause::of(ConnectError::Forged)));
        };
        let data = match self.secret(&namespace, &secret_name(name), known).await {
            Ok(data) => data,
            Err(SecretError::Api(error)) => return Err(api_failed("read the volume's connection", error)),
            // What the kubelet hands over could be a Secret of the Pod's author.
            Err(why) => {
                return Err(MountError::Forbidden(Cause::of(ConnectError::Unproven {
                    namespace,
                    name: secret_name(name),
                    why,
                })));
            }
        };
        let connection = parse(data.values.get(CONNECTION).map(Vec::as_slice).unwrap_or_default())?;
        if connection.proof != handed.proof {
            return Err(MountError::Forbidden(Cause::of(ConnectError::Forged)));
        }
        let own = kubelet_options::of_persistent_volume(&volume).and_then(Result::ok);
        let modes = volume.spec.and_then(|spec| spec.access_modes).unwrap_or_default();
        let noted = volume.metadata.annotations.unwrap_or_default();
        let to = noted.get(annotations::ATTACHED_TO);
        let to = to.and_then(|text| AttachedNodes::parse(text).ok()).unwrap_or_default();
        let operation = noted.get(annotations::OPERATION);
        let other = to.0.iter().map(|to| &to.node).find(|node| **node != self.node);
        Ok(Seen {
            has: to.has(&self.node) && operation.is_none_or(|record| self.is_of_another(record)),
            other: other.filter(|_| !is_for_many(&modes)).cloned(),
            granted: own.map(|own| own.mount_options).unwrap_or_default(),
            connection,
            namespace,
            data,
        })
    }

    /// Reads the Secret of a connection, again and again while that is forbidden, until `known`.
    async fn secret(&self, namespace: &str, name: &str, known: Instant) -> Result<Data, SecretError> {
        loop {
            match self.api.secret(namespace, name).await {
                Err(SecretError::Forbidden(_)) if Instant::now() + FORBIDDEN_RETRY <= known => {
                    sleep(FORBIDDEN_RETRY).await;
                }
                read => return read,
            }
        }
    }

    /// Whether the record of an operation is about another node: this one keeps what it has meanwhile.
    fn is_of_another(&self, record: &str) -> bool {
        let node = serde_json::from_str::<NodeOfRecord>(record)
            .ok()
            .map(|record| record.node);
        node.is_some_and(|node| !node.is_empty() && node != self.node)
    }

    /// Puts what the storage said of the connection into the job, as far as an image may say it.
    fn merge(&self, job: &mut MountJob, seen: Seen) -> Result<bool, MountError> {
        let bad = |error: VolumeError| MountError::bad_options(ConnectError::from(error));
        let mut connection = seen.connection;
        let own = connection.nodes.remove(&self.node);
        let (said, secrets) = if let Some(own) = own {
            let secrets = own.secrets.into_iter();
            let secrets = secrets.map(|(key, text)| (key, text.into_bytes())).collect();
            (own.options, secrets)
        } else {
            let mut secrets = seen.data.values;
            secrets.remove(CONNECTION);
            (connection.options, secrets)
        };
        let says_source = said.contains_key(keys::SOURCE);
        if !said.is_empty() {
            let volume = job.volume.connected(said).map_err(bad)?;
            // As the controller does when it accepts the connection.
            let checked = volume.check(Speaker::Attach, &seen.granted);
            checked.map_err(MountError::bad_options)?;
            job.volume = volume;
        }
        job.secrets = Secrets(secrets);
        Ok(says_source)
    }
}

/// What is known of a volume and this node.
struct Seen {
    /// The node has it, and is not about to lose it.
    has: bool,
    /// The node that has it instead, if only one can.
    other: Option<String>,
    /// Mount options of the PV, which was accepted with them.
    granted: Vec<String>,
    connection: Connection,
    namespace: String,
    /// All of the Secret.
    data: Data,
}

/// What has to be known of an operation that is open on a PV.
#[derive(Deserialize)]
struct NodeOfRecord {
    #[serde(default)]
    node: String,
}

fn parse(text: &[u8]) -> Result<Connection, MountError> {
    serde_json::from_slice(text).map_err(|error| MountError::bad_options(ConnectError::from(error)))
}

/// Where the Secret of a PV that needs an attachment is.
fn secret_namespace(volume: &PersistentVolume) -> Option<String> {
    let wanted = secret_name(volume.metadata.name.as_deref()?);
    let spec = volume.spec.as_ref()?;
    let flex = spec.flex_volume.as_ref().and_then(|flex| flex.secret_ref.as_ref());
    let csi = || spec.csi.as_ref().and_then(|csi| csi.node_publish_secret_ref.as_ref());
    let secret = flex.or_else(csi)?;
    secret
        .namespace
        .clone()
        .filter(|_| secret.name.as_deref() == Some(&wanted))
}

fn api_failed(attempted: &str, error: kube::Error) -> MountError {
    MountError::Failed {
        attempted: attempted.to_owned(),
        cause: Cause::of(error),
    }
}

#[cfg(test)]
mod tests;
