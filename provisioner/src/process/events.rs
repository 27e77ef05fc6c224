//! Events: what users and administrators are told, on the object that they look at.
//!
//! [`EventRecorder::publish`] never waits and never fails: no Event delays anything else. A repeated Event
//! becomes a series, so that a volume that fails for a week costs a write an hour, which keeps the Event from expiring.

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

mod held;
mod note;
pub mod series;

use held::Held;
pub use mooring_program::reasons;
pub use note::{EventType, Note};
use series::{EventWrite, Ledger};

/// How many Events may wait to be written.
const QUEUE: usize = 512;

/// Takes the Events of the controllers. A clone shares the queue.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<(ObjectReference, Note)>,
    metrics: Metrics,
}

/// What writes the Events; see [`EventRecorder::new`].
#[derive(Debug)]
pub struct Writer {
    queue: mpsc::Receiver<(ObjectReference, Note)>,
    metrics: Metrics,
}

impl EventRecorder {
    /// A recorder, and the writer that must run beside it.
    pub fn new(metrics: Metrics) -> (Self, Writer) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let recorder = Self {
            queue: sender,
            metrics: metrics.clone(),
        };
        (recorder, Writer { queue, metrics })
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
        let mut held = Held::default();
        loop {
            let next = tokio::select! {
                biased;
                due = held.due() => Some(due),
                next = self.queue.recv() => {
                    let Some((regarding, note)) = next else { break };
                    held.take(regarding, note)
                }
                () = stop.cancelled() => break,
            };
            if let Some((regarding, note)) = next {
                self.write(&client, &instance, &mut ledger, regarding, note).await;
            }
        }
        while let Ok((regarding, note)) = self.queue.try_recv() {
            if let Some((regarding, note)) = held.take(regarding, note) {
                self.write(&client, &instance, &mut ledger, regarding, note).await;
            }
        }
        for (regarding, note) in held.all() {
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
        match written {
            Ok(()) => {}
            // Its namespace is gone, and its readers with it.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                debug!(reason = note.reason, note.text, "the namespace of an event is gone");
            }
            Err(error) => {
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
