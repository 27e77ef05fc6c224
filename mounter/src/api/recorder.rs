//! Records Events in a task of its own: callers continue at once, however long the API is silent.
//!
//! An Event that could not be created is tried again, after the others, until it is too old to matter. There is room
//! for a fixed number: further ones are dropped, and the caller is told so.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{self, EventType, Reporter};
use mooring_contract::names::MOUNTER;
use mooring_program::error::chain;
use mooring_program::reasons;
use tokio::sync::mpsc;
use tracing::warn;

use crate::volume::job::PodRef;

/// Most Events that wait to be taken up, and most that wait to be tried again.
const ROOM: usize = 128;

/// Longest note that an Event may have.
const MAX_NOTE: usize = 1000;

/// Wait after the first failure; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_secs(1);

const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How long an Event is tried.
const KEPT_FOR: Duration = Duration::from_hours(1);

#[derive(Debug, Clone)]
pub struct Event {
    pub type_: EventType,
    /// The reason, from `mooring_program::reasons`.
    pub reason: &'static str,
    /// What was being done.
    pub action: &'static str,
    /// In words; cut where it is too long for an Event.
    pub note: String,
    pub about: ObjectReference,
    /// Whether a repeated Event is joined with the first, as its series; the first note stays.
    pub joined: bool,
}

impl Event {
    /// A warning that is not joined with others.
    pub fn warning(reason: &'static str, action: &'static str, note: String, about: ObjectReference) -> Self {
        Self {
            type_: EventType::Warning,
            reason,
            action,
            note,
            about,
            joined: false,
        }
    }
}

/// Takes Events to be created.
#[derive(Debug, Clone)]
pub struct Recorder(mpsc::Sender<Event>);

impl Recorder {
    /// Starts to record in the name of the mounter on this node.
    pub fn start(client: Client, node: Option<String>) -> Self {
        let (sender, receiver) = mpsc::channel(ROOM);
        let reporter = Reporter {
            controller: MOUNTER.to_owned(),
            instance: node,
        };
        tokio::spawn(publish_all(client, reporter, receiver));
        Self(sender)
    }

    /// Queues an Event; `false` if there is no room, and it is dropped.
    #[must_use]
    pub fn record(&self, mut event: Event) -> bool {
        cut(&mut event.note);
        let taken = self.0.try_send(event);
        if let Err(error) = &taken {
            warn!(
                "dropped an Event, since the API does not take those before it: {}",
                chain(&error)
            );
        }
        taken.is_ok()
    }
}

/// What a volume has left on a node.
pub fn clean_up_failed(node: &str, words: String) -> Event {
    Event::warning(reasons::CLEAN_UP_FAILED, "CleanUp", words, about_node(node, None))
}

/// A Pod, as an Event is about it.
pub fn about_pod(pod: &PodRef) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

/// A node, as an Event is about it. Without its uid it has its name in that place, as the kubelet has it.
pub fn about_node(node: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(uid.unwrap_or_else(|| node.to_owned())),
        ..ObjectReference::default()
    }
}

fn cut(note: &mut String) {
    while note.len() > MAX_NOTE {
        note.pop();
    }
}

async fn publish_all(client: Client, reporter: Reporter, mut queue: mpsc::Receiver<Event>) {
    let joining = events::Recorder::new(client.clone(), reporter.clone());
    let mut waiting: VecDeque<(Event, Instant)> = VecDeque::new();
    let mut wait = FIRST_WAIT;
    loop {
        while waiting.len() < ROOM
            && let Ok(event) = queue.try_recv()
        {
            waiting.push_back((event, Instant::now()));
        }
        let Some((event, since)) = waiting.pop_front() else {
            match queue.recv().await {
                Some(event) => waiting.push_back((event, Instant::now())),
                None => return,
            }
            continue;
        };
        let published = events::Event {
            type_: event.type_,
            reason: event.reason.to_owned(),
            note: Some(event.note.clone()),
            action: event.action.to_owned(),
            secondary: None,
        };
        // A recorder of its own has made none before.
        let own = (!event.joined).then(|| events::Recorder::new(client.clone(), reporter.clone()));
        let about = event.about.name.as_deref().unwrap_or_default();
        match own.as_ref().unwrap_or(&joining).publish(&published, &event.about).await {
            Ok(()) => wait = FIRST_WAIT,
            Err(error) if is_final(&error) || since.elapsed() >= KEPT_FOR => {
                warn!(
                    error = %chain(&error),
                    reason = event.reason,
                    "failed to make an Event about {about}"
                );
            }
            Err(error) => {
                warn!(
                    error = %chain(&error),
                    reason = event.reason,
                    "failed to make an Event about {about}; trying again in {wait:?}"
                );
                waiting.push_back((event, since));
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

/// Whether the API will never take it: its namespace is being deleted, or the right to make it was taken away.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && ![408, 429].contains(&status.code))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::runtime::events::EventType;
    use serde_json::{Value, json};

    use super::{Event, MAX_NOTE, ROOM, Recorder, about_pod};
    use crate::api::tests::silent_server;
    use crate::volume::job::PodRef;

    /// What an API server was sent: the verb and the Event.
    pub(crate) type Recorded = Arc<Mutex<Vec<(String, Value)>>>;

    /// An API server that keeps each Event as it is sent, after it has refused as many as `down`.
    pub(crate) fn api(down: usize) -> (Client, Recorded) {
        let recorded = Recorded::default();
        let heard = Arc::clone(&recorded);
        let down = Arc::new(Mutex::new(down));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (heard, down) = (Arc::clone(&heard), Arc::clone(&down));
            async move {
                let verb = request.method().to_string();
                let bytes = request.into_body().collect_bytes().await?;
                let is_down = {
                    let mut down = down.lock().unwrap();
                    let is_down = *down > 0;
                    *down = down.saturating_sub(1);
                    is_down
                };
                if is_down {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500});
                    let answer = Response::builder()
                        .status(500)
                        .body(Body::from(status.to_string().into_bytes()));
                    return Ok::<_, kube::Error>(answer.unwrap());
                }
                heard
                    .lock()
                    .unwrap()
                    .push((verb, serde_json::from_slice(&bytes).unwrap()));
                Ok(Response::new(Body::from(bytes.to_vec())))
            }
        });
        (Client::new(service, "default"), recorded)
    }

    /// Waits until so many Events were made.
    pub(crate) async fn recorded(recorded: &Recorded, count: usize) -> Vec<(String, Value)> {
        for _ in 0..500 {
            let now = recorded.lock().unwrap().clone();
            if now.len() >= count {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not {count} Events: {:?}", recorded.lock().unwrap());
    }

    fn event(note: &str, joined: bool) -> Event {
        Event {
            type_: EventType::Warning,
            reason: "Reason",
            action: "Test",
            note: note.to_owned(),
            about: about_pod(&PodRef {
                name: "web-0".into(),
                namespace: "shop".into(),
                uid: "u".into(),
            }),
            joined,
        }
    }

    /// `record` can't wait: it is not async, and its queue does not block.
    #[tokio::test]
    async fn who_tells_something_to_a_silent_api_goes_on_at_once_and_what_finds_no_room_is_left_out() {
        let recorder = Recorder::start(silent_server("").await, None);
        let taken = (0..ROOM * 4).filter(|_| recorder.record(event("x", false))).count();
        assert!(taken <= ROOM * 2, "{taken}");
    }

    #[tokio::test]
    async fn an_event_that_the_api_refused_is_recorded_when_it_accepts() {
        let (client, heard) = api(1);
        let recorder = Recorder::start(client, Some("node-1".into()));
        assert!(recorder.record(event("first", false)));
        assert!(recorder.record(event(&"ä".repeat(2000), false)));
        let heard = recorded(&heard, 2).await;
        let notes: Vec<_> = heard.iter().map(|(_, event)| event["note"].as_str().unwrap()).collect();
        assert!(notes[0].starts_with('ä') && notes[0].len() <= MAX_NOTE, "{notes:?}");
        assert_eq!(notes[1], "first");
    }

    #[tokio::test]
    async fn the_same_again_is_counted_only_where_that_is_wanted() {
        let (client, heard) = api(0);
        let recorder = Recorder::start(client, Some("node-1".into()));
        for joined in [true, true, false, false] {
            assert!(recorder.record(event("x", joined)));
        }
        let verbs: Vec<_> = recorded(&heard, 4).await.into_iter().map(|(verb, _)| verb).collect();
        assert_eq!(verbs, ["POST", "PATCH", "POST", "POST"]);
    }
}
