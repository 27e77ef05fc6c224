//! Events: what users and administrators are told, on the object that they look at.
//!
//! [`EventRecorder::publish`] never waits and never fails: no Event delays anything else. A repeated Event
//! becomes a series, so that a volume that fails for a week costs a write an hour, which keeps the Event from expiring.
//! One that the API did not take is written again for some minutes: it may be the only one.

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

use crate::process::call::{is_conflict, is_not_found, may_pass};
use crate::process::metrics::Metrics;

mod held;
mod note;
pub mod series;

use held::{Held, Told};
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
            // None goes before the others: each may wait for an answer for long.
            let next = tokio::select! {
                () = stop.cancelled() => break,
                due = held.due() => Some(due),
                next = self.queue.recv() => match next {
                    Some((regarding, note)) => take(&mut held, regarding, note),
                    None => break,
                },
            };
            if let Some(told) = next {
                self.write(&client, &instance, &mut ledger, &mut held, told).await;
            }
        }
        while let Ok((regarding, note)) = self.queue.try_recv() {
            if let Some(told) = take(&mut held, regarding, note) {
                self.write(&client, &instance, &mut ledger, &mut held, told).await;
            }
        }
        let mut left = Held::default();
        for told in held.all() {
            self.write(&client, &instance, &mut ledger, &mut left, told).await;
        }
        for told in left.all() {
            self.dropped(&told.note, None);
        }
    }

    /// Writes an Event, or has it held if the API may take it later.
    async fn write(&self, client: &Client, instance: &str, ledger: &mut Ledger, held: &mut Held, told: Told) {
        let Told { regarding, note, .. } = &told;
        let now = Timestamp::now();
        let (mut write, at) = match &told.failed {
            Some(failed) => (failed.write.clone(), failed.at),
            None => (ledger.decide(regarding, note, now), now),
        };
        let namespace = regarding.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(client.clone(), namespace);
        let written = match &write {
            EventWrite::Skip => return,
            EventWrite::Drop => {
                self.metrics.event_dropped();
                return;
            }
            EventWrite::Create { name } => create(&events, name, instance, &told, at).await,
            EventWrite::Repeat { name, count } => match repeat(&events, name, *count, at).await {
                // The API server forgets Events after an hour or so: begin a new one.
                Err(error) if is_not_found(&error) => {
                    let name = series::name(regarding, note, now);
                    let created = create(&events, &name, instance, &told, at).await;
                    write = EventWrite::Create { name };
                    created
                }
                other => other,
            },
        };
        match written {
            Err(error) if may_pass(&error) => {
                let note = note.clone();
                if !held.again(told, write, at) {
                    self.dropped(&note, Some(&error));
                }
                return;
            }
            Ok(()) => {}
            // Its namespace is gone, and its readers with it.
            Err(error) if is_not_found(&error) => {
                debug!(reason = note.reason, note.text, "the namespace of an event is gone");
            }
            Err(error) => self.dropped(note, Some(&error)),
        }
        ledger.written(regarding, note, &write, now);
    }

    fn dropped(&self, note: &Note, error: Option<&kube::Error>) {
        self.metrics.event_dropped();
        let error = error.map(|error| error as &dyn std::error::Error);
        warn!(error, reason = note.reason, note.text, "failed to publish an event");
    }
}

/// Takes a note as the API can take it.
fn take(held: &mut Held, regarding: ObjectReference, mut note: Note) -> Option<Told> {
    note.text = series::shortened(&note.text);
    held.take(regarding, note)
}

async fn repeat(events: &Api<Event>, name: &str, count: i32, at: Timestamp) -> Result<(), kube::Error> {
    let series = EventSeries {
        count,
        last_observed_time: MicroTime(at),
    };
    let patch = Patch::Merge(json!({ "series": series }));
    events.patch(name, &PatchParams::default(), &patch).await.map(drop)
}

async fn create(
    events: &Api<Event>,
    name: &str,
    instance: &str,
    told: &Told,
    at: Timestamp,
) -> Result<(), kube::Error> {
    let Told { regarding, note, .. } = told;
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(note.action.to_owned()),
        reason: Some(note.reason.to_owned()),
        note: Some(note.text.clone()),
        type_: Some(format!("{:?}", note.kind)),
        event_time: Some(MicroTime(at)),
        regarding: Some(regarding.clone()),
        related: note.related.clone(),
        reporting_controller: Some(names::FIELD_MANAGER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        ..Event::default()
    };
    match events.create(&PostParams::default(), &event).await {
        // It was taken before, and the answer was lost.
        Err(error) if is_conflict(&error) => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests;
