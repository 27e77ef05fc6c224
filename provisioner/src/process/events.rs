//! Events: what users and administrators are told, on the object that they look at.
//!
//! [`Publisher::publish`] never waits and never fails: nothing is delayed for the sake of an Event. A repeated Event
//! becomes a series, so that a volume that fails for a week costs a handful of writes.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use mooring_contract::names;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::process::metrics::Metrics;

mod note;
pub mod series;

pub use note::{EventType, Note};
use series::{EventWrite, Ledger};

/// Reasons of Events: the word by which people and scripts look for them.
pub mod reasons {
    /// A provisioning Pod has been started.
    pub const STARTED: &str = "ProvisioningStarted";
    /// The volume is there.
    pub const PROVISIONED: &str = "Provisioned";
    /// A run of the image failed and will be tried again.
    pub const FAILED: &str = "ProvisioningFailed";
    /// A run of the image failed, and only a change of the ConfigMap or the claim brings another.
    pub const GIVEN_UP: &str = "ProvisioningGivenUp";
    /// What the operation waits for.
    pub const WAITING: &str = "ProvisioningWaiting";
    /// The PV that the image made is not what was asked for.
    pub const REFUSED_VOLUME: &str = "VolumeRefused";
    /// A run took longer than it may.
    pub const TIMED_OUT: &str = "ProvisioningTimedOut";
    /// The volume is gone.
    pub const DELETED: &str = "VolumeDeleted";
    /// A delete run failed and will be tried again.
    pub const DELETE_FAILED: &str = "VolumeDeletionFailed";
    /// A run that makes a volume larger has been started; the reasons of expansions are those of external-resizer.
    pub const RESIZING: &str = "Resizing";
    /// A run that was to make a volume larger failed and will be tried again, or can't be done.
    pub const RESIZE_FAILED: &str = "VolumeResizeFailed";
    /// The volume is larger.
    pub const RESIZED: &str = "VolumeResizeSuccessful";
    /// The storage is larger, and a node is to enlarge the file system.
    pub const FS_RESIZE_REQUIRED: &str = "FileSystemResizeRequired";
    /// An expansion that failed is not asked for any more.
    pub const RESIZE_TAKEN_BACK: &str = "VolumeSizeRestored";
    /// A run that gives a volume other attributes has been started; the reasons of modifications are those of
    /// external-resizer.
    pub const MODIFYING: &str = "VolumeModify";
    /// A run that was to give a volume other attributes failed and will be tried again, or can't be done.
    pub const MODIFY_FAILED: &str = "VolumeModifyFailed";
    /// The volume has other attributes.
    pub const MODIFIED: &str = "VolumeModifySuccessful";
    /// A modification that failed is not asked for any more.
    pub const MODIFY_TAKEN_BACK: &str = "VolumeModifyCanceled";
    /// A run that takes a snapshot failed, or there can be none; the reasons about snapshots are those of
    /// external-snapshotter.
    pub const SNAPSHOT_FAILED: &str = "SnapshotCreationFailed";
    /// A run that removes a snapshot failed and will be tried again.
    pub const SNAPSHOT_DELETE_FAILED: &str = "SnapshotDeleteError";
    /// The volume went with its node.
    pub const NODE_GONE: &str = "VolumeLostWithNode";
    /// The selected node can't mount the volume.
    pub const NODE_UNABLE: &str = "NodeCannotMount";
    /// The claim asks for something that no image can make.
    pub const BAD_CLAIM: &str = "ClaimRefused";
    /// No ConfigMap is in force for the claim's class.
    pub const NO_CONFIG: &str = "NoProvisionerConfig";
    /// A provisioner ConfigMap has come into force.
    pub const CONFIG_IN_FORCE: &str = "ConfigInForce";
    /// A provisioner ConfigMap has errors.
    pub const CONFIG_REFUSED: &str = "ConfigRefused";
    /// A provisioner ConfigMap has an oddity.
    pub const CONFIG_WARNING: &str = "ConfigWarning";
    /// Another ConfigMap serves the class.
    pub const CLASS_TAKEN: &str = "StorageClassTaken";
    /// The StorageClass has been made.
    pub const CLASS_MADE: &str = "StorageClassMade";
    /// The StorageClass outlives its ConfigMap, since it is in use.
    pub const CLASS_KEPT: &str = "StorageClassKept";
}

/// How many Events may wait to be written.
const QUEUE: usize = 512;

/// Takes the Events of the controllers. A clone shares the queue.
#[derive(Debug, Clone)]
pub struct Publisher {
    queue: mpsc::Sender<(ObjectReference, Note)>,
    metrics: Metrics,
}

/// What writes the Events; see [`Publisher::new`].
#[derive(Debug)]
pub struct Writer {
    queue: mpsc::Receiver<(ObjectReference, Note)>,
    metrics: Metrics,
}

impl Publisher {
    /// A publisher, and the writer that must run beside it.
    pub fn new(metrics: Metrics) -> (Self, Writer) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let publisher = Self {
            queue: sender,
            metrics: metrics.clone(),
        };
        (publisher, Writer { queue, metrics })
    }

    /// Tells of an object. Returns at once.
    pub fn publish(&self, regarding: &ObjectReference, note: Note) {
        debug!(
            object.kind = regarding.kind,
            object.namespace = regarding.namespace,
            object.name = regarding.name,
            reason = note.reason,
            note.text
        );
        if self.queue.try_send((regarding.clone(), note)).is_err() {
            self.metrics.event_dropped();
        }
    }
}

impl Writer {
    /// The next Event that would be written; for tests of those who publish.
    pub fn try_next(&mut self) -> Option<(ObjectReference, Note)> {
        self.queue.try_recv().ok()
    }

    /// Writes Events until `stop`, and then those that are waiting already. `instance` is this replica's name.
    pub async fn run(mut self, client: Client, instance: String, stop: CancellationToken) {
        let mut ledger = Ledger::default();
        loop {
            let next = tokio::select! {
                biased;
                next = self.queue.recv() => next,
                () = stop.cancelled() => self.queue.try_recv().ok(),
            };
            let Some((regarding, note)) = next else { return };
            self.write(&client, &instance, &mut ledger, regarding, note).await;
        }
    }

    async fn write(
        &self,
        client: &Client,
        instance: &str,
        ledger: &mut Ledger,
        regarding: ObjectReference,
        mut note: Note,
    ) {
        note.text = series::shortened(&note.text);
        let now = Timestamp::now();
        let namespace = regarding.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(client.clone(), namespace);
        let written = match ledger.decide(&regarding, &note, now) {
            EventWrite::Skip => return,
            EventWrite::Drop => {
                self.metrics.event_dropped();
                return;
            }
            EventWrite::Create { name } => create(&events, &name, instance, &regarding, &note, now).await,
            EventWrite::Repeat { name, count } => {
                let series = EventSeries {
                    count,
                    last_observed_time: MicroTime(now),
                };
                let patch = json!({ "series": series });
                match events.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
                    // The API server forgets Events after an hour or so: begin a new one.
                    Err(kube::Error::Api(status)) if status.code == 404 => {
                        let name = ledger.renew(&regarding, &note, now);
                        create(&events, &name, instance, &regarding, &note, now).await
                    }
                    other => other.map(drop),
                }
            }
        };
        if let Err(error) = written {
            self.metrics.event_dropped();
            warn!(
                error = &error as &dyn std::error::Error,
                reason = note.reason,
                note.text,
                "failed to publish an event"
            );
        }
    }
}

async fn create(
    events: &Api<Event>,
    name: &str,
    instance: &str,
    regarding: &ObjectReference,
    note: &Note,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(note.action.to_owned()),
        reason: Some(note.reason.to_owned()),
        note: Some(note.text.clone()),
        type_: Some(format!("{:?}", note.kind)),
        event_time: Some(MicroTime(now)),
        regarding: Some(regarding.clone()),
        related: note.related.clone(),
        reporting_controller: Some(names::FIELD_MANAGER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..Event::default()
    };
    events.create(&PostParams::default(), &event).await.map(drop)
}
