//! Publishes on the mounter's own Node which clients it can mount: labels, by which a PersistentVolume's node affinity
//! keeps Pods away, annotations with the cure, and an Event for each change. It also publishes which client Pods of an
//! earlier version are left, and what its pool has left for new volumes.
//!
//! It is one server-side apply, which removes what is no longer published. The admission policy `mooring-mounter-nodes`
//! restricts the right to patch Nodes to these labels and annotations of the mounter's own Node.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::EventType;
use mooring_contract::names::{MOUNTER, annotations, labels};
use mooring_contract::pool::PoolRoom;
use mooring_contract::volume::ClientName;
use mooring_program::error::{answer_of, chain};
use mooring_program::reasons;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, info, info_span, warn};

use crate::api::own_node;
use crate::api::recorder::{Event, Recorder, about_node};
use crate::client_pods::ClientPods;
use crate::client_pods::old::OldPod;
use crate::daemon::status::Status;
use crate::node::readiness::clients::Readiness;
use crate::sys::thread;
use crate::volume::registry::Registry;

/// How often the node is looked at.
const PERIOD: Duration = Duration::from_secs(5);

/// Shortest wait after a failed try.
const MIN_WAIT: Duration = Duration::from_secs(15);

/// How often to check whether the kubelet's endpoint was tried yet: before that there is nothing to publish.
const START_PERIOD: Duration = Duration::from_millis(500);

/// How often to write the same again, in case someone has removed it. A write that changes nothing costs nothing.
const REPEAT: Duration = Duration::from_mins(10);

/// Longest to wait for the pool's disk: what else is published does not wait for it.
const POOL_LIMIT: Duration = Duration::from_secs(2);

/// Shortest time between two writes because of the pool alone. Whoever watches Nodes sees each.
const POOL_PERIOD: Duration = Duration::from_secs(30);

/// Longest wait after failed tries: each is twice as long as the one before.
const MAX_WAIT: Duration = Duration::from_mins(10);

/// Longest text of an annotation; the admission policy has the same limit.
const MAX_TEXT: usize = 1000;

/// Why the node was not marked.
#[derive(Debug, thiserror::Error)]
#[error("failed to mark node {node}: {}", answer_of(source))]
struct PublishError {
    node: String,
    source: Box<kube::Error>,
}

pub struct NodePublisher {
    client: Client,
    events: Recorder,
    node: String,
    status: Status,
    registry: Registry,
    pods: Option<Arc<ClientPods>>,
    published: Option<(Found, Instant)>,
    said: Option<Said>,
    /// A question to the pool's disk that has no answer yet.
    asked: Option<AbortOnDropHandle<io::Result<Option<PoolRoom>>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    readiness: Readiness,
    /// Client Pods of an earlier version; nothing as long as it isn't known.
    old: Option<Vec<OldPod>>,
    /// What the pool has left; nothing where it can't be used.
    pool: Option<PoolRoom>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Said {
    /// Whether it can mount, by client.
    clients: BTreeMap<String, String>,
    /// How many client Pods of an earlier version are left, and which.
    old: (Option<String>, Option<String>),
}

/// A change that is worth an Event.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// These can't be mounted, for one reason.
    Unable { clients: Vec<String>, why: String },
    /// These can be mounted again.
    Able { clients: Vec<String> },
}

impl NodePublisher {
    pub fn new(
        client: Client,
        events: Recorder,
        node: String,
        status: Status,
        registry: Registry,
        pods: Option<Arc<ClientPods>>,
    ) -> Self {
        Self {
            client,
            events,
            node,
            status,
            registry,
            pods,
            published: None,
            said: None,
            asked: None,
        }
    }

    /// Publishes every change, until `stop`. What was published stays.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut failures = 0;
        let span = info_span!("publish", node.name = self.node);
        loop {
            let wait = match self.look().await {
                None => START_PERIOD,
                Some(found) if !self.is_due(&found) => PERIOD,
                Some(found) => match self.publish(found).instrument(span.clone()).await {
                    Ok(()) => {
                        failures = 0;
                        PERIOD
                    }
                    Err(error) => {
                        let wait = MIN_WAIT.saturating_mul(1 << failures).min(MAX_WAIT);
                        warn!("{}; trying again in {wait:?}", chain(&error));
                        failures = (failures + 1).min(8);
                        wait
                    }
                },
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = self.registry.changed() => {}
            }
        }
    }

    async fn look(&mut self) -> Option<Found> {
        let readiness = self.status.readiness(&self.registry)?;
        let old = match &self.pods {
            Some(pods) => pods.old().await,
            None => Some(Vec::new()),
        };
        let is_usable = readiness.node.is_ok() && !matches!(readiness.clients.get(ClientName::LOCAL), Some(Err(_)));
        let pool = self.pool_left().await.filter(|_| is_usable);
        Some(Found { readiness, old, pool })
    }

    /// What the pool has left; nothing as long as its disk does not answer, which is asked once meanwhile.
    async fn pool_left(&mut self) -> Option<PoolRoom> {
        let status = self.status.clone();
        let ask = || AbortOnDropHandle::new(tokio::spawn(thread::run(move || status.pool_left())));
        let asked = self.asked.get_or_insert_with(ask);
        let answer = tokio::time::timeout(POOL_LIMIT, asked).await.ok()?;
        self.asked = None;
        answer.ok()?.ok()?
    }

    fn is_due(&self, found: &Found) -> bool {
        let published = self.published.as_ref();
        published.is_none_or(|(last, at)| is_due(last, found, at.elapsed()))
    }

    async fn publish(&mut self, found: Found) -> Result<(), PublishError> {
        if self.said.is_none() {
            let there = own_node::read(&self.client, &self.node)
                .await
                .map_err(failed(&self.node))?;
            self.said = Some(said(&there));
        }
        let before = self.said.clone().unwrap_or_default();
        let there = apply(&self.client, &self.node, &marks(&found, &before)).await?;
        self.said = Some(said(&there));
        for change in changes(&before.clients, &found.readiness) {
            self.record(&there, &change);
        }
        self.published = Some((found, Instant::now()));
        Ok(())
    }

    fn record(&self, there: &ObjectMeta, change: &Change) {
        let (type_, reason, note) = match change {
            Change::Unable { clients, why } => (
                EventType::Warning,
                reasons::CLIENT_NOT_READY,
                format!("volumes of {} can't be mounted on this node: {why}", clients.join(", ")),
            ),
            Change::Able { clients } => (
                EventType::Normal,
                reasons::CLIENT_READY,
                format!("volumes of {} can be mounted on this node again", clients.join(", ")),
            ),
        };
        info!(reason, "{note}");
        // If there is no room for the Event, the node's annotations have it.
        let about = about_node(&self.node, there.uid.clone());
        let _ = self.events.record(Event {
            type_,
            ..Event::warning(reason, "Look", note, about)
        });
    }
}

/// Removes everything that was published from the node.
pub async fn take_back(client: &Client, node: &str) {
    last(client, node, &json!({})).await;
}

/// Publishes only that nothing can be mounted on the node, and why.
pub async fn say_only(client: &Client, node: &str, why: &str) {
    let mounter = labels::NODE_MOUNTER;
    let marks = json!({"labels": {mounter: labels::NOT_READY}, "annotations": {mounter: cut(why)}});
    last(client, node, &marks).await;
}

async fn last(client: &Client, node: &str, marks: &Value) {
    match apply(client, node, marks).await {
        Ok(_) => info!("removed from the node what no mounter keeps up to date any more"),
        Err(error) => warn!(
            "failed to remove Mooring's labels and annotations from the node: {}",
            chain(&error)
        ),
    }
}

async fn apply(client: &Client, node: &str, metadata: &Value) -> Result<ObjectMeta, PublishError> {
    let mut object = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
    object["metadata"]["name"] = node.into();
    let params = PatchParams::apply(MOUNTER).force();
    let applied = own_node::patch(client, node, &params, &Patch::Apply(object)).await;
    applied.map_err(failed(node))
}

fn failed(node: &str) -> impl FnOnce(kube::Error) -> PublishError {
    |source| PublishError {
        node: node.to_owned(),
        source: Box::new(source),
    }
}

/// Whether to publish what was found so long after the last time.
fn is_due(last: &Found, found: &Found, since: Duration) -> bool {
    let pool = last.pool != found.pool;
    let rest = last.readiness != found.readiness || last.old != found.old;
    rest || pool && since >= POOL_PERIOD || since >= REPEAT
}

fn word(is_ready: bool) -> &'static str {
    if is_ready { labels::READY } else { labels::NOT_READY }
}

fn key(client: &str) -> String {
    format!("{}{client}", labels::NODE_CLIENT_PREFIX)
}

/// The node's labels and annotations; what isn't known stays as it was.
fn marks(found: &Found, before: &Said) -> Value {
    let Found { readiness, old, pool } = found;
    let clients = readiness.clients.iter();
    let mut labels: BTreeMap<String, String> = clients
        .map(|(client, verdict)| (key(client), word(verdict.is_ok()).to_owned()))
        .collect();
    labels.insert(labels::NODE_MOUNTER.to_owned(), word(readiness.node.is_ok()).to_owned());
    let unable = readiness.unable().into_iter();
    let mut notes: BTreeMap<String, String> = unable.map(|(client, why)| (key(&client), cut(&why))).collect();
    if let Err(why) = &readiness.node {
        notes.insert(labels::NODE_MOUNTER.to_owned(), cut(why));
    }
    let left = pool.and_then(|left| serde_json::to_string(&left).ok());
    notes.extend(left.map(|left| (annotations::NODE_POOL.to_owned(), left)));
    let (count, why) = old.as_deref().map_or_else(|| before.old.clone(), old_marks);
    let old = labels::NODE_OLD_CLIENT_PODS;
    labels.extend(count.map(|count| (old.to_owned(), count)));
    notes.extend(why.map(|why| (old.to_owned(), why)));
    json!({"labels": labels, "annotations": notes})
}

/// How many client Pods of an earlier version there are, and which.
fn old_marks(old: &[OldPod]) -> (Option<String>, Option<String>) {
    let why: Vec<_> = old.iter().map(OldPod::text).collect();
    let why = Some(cut(&why.join("; "))).filter(|why| !why.is_empty());
    (Some(old.len().to_string()), why)
}

/// What a node's labels and annotations say.
fn said(node: &ObjectMeta) -> Said {
    let labels = node.labels.clone().unwrap_or_default();
    let annotations = node.annotations.as_ref();
    let old = labels::NODE_OLD_CLIENT_PODS;
    let ours = |(key, value): (&String, &String)| {
        let client = key.strip_prefix(labels::NODE_CLIENT_PREFIX)?;
        Some((client.to_owned(), value.clone()))
    };
    Said {
        clients: labels.iter().filter_map(ours).collect(),
        old: (
            labels.get(old).cloned(),
            annotations.and_then(|all| all.get(old).cloned()),
        ),
    }
}

/// What has changed since the node said `before`, one for each reason.
fn changes(before: &BTreeMap<String, String>, found: &Readiness) -> Vec<Change> {
    let mut unable: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    let mut able = Vec::new();
    for (client, verdict) in &found.clients {
        let was = before.get(client).map(String::as_str);
        match verdict {
            Err(why) if was != Some(labels::NOT_READY) => unable.entry(why).or_default().push(client.clone()),
            Ok(()) if was == Some(labels::NOT_READY) => able.push(client.clone()),
            _ => {}
        }
    }
    let unable = unable.into_iter().map(|(why, clients)| Change::Unable {
        clients,
        why: why.clone(),
    });
    let able = Some(able).filter(|clients| !clients.is_empty());
    unable.chain(able.map(|clients| Change::Able { clients })).collect()
}

fn cut(why: &str) -> String {
    let mut why = why.to_owned();
    while why.len() > MAX_TEXT {
        why.pop();
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readiness(clients: &[(&str, &str)]) -> Readiness {
        let verdict = |why: &str| {
            if why.is_empty() { Ok(()) } else { Err(why.to_owned()) }
        };
        Readiness {
            node: Ok(()),
            clients: clients
                .iter()
                .map(|(client, why)| ((*client).to_owned(), verdict(why)))
                .collect(),
        }
    }

    fn marks_of(readiness: Readiness) -> Value {
        let old = Some(Vec::new());
        let pool = None;
        marks(&Found { readiness, old, pool }, &Said::default())
    }

    #[test]
    fn old_pods_are_counted_and_named_and_stay_published_while_the_list_is_unknown() {
        let pod = OldPod {
            name: "client-sshfs-0".into(),
            image: "i:1".into(),
            agent_image: "m:1".into(),
            users: None,
        };
        let mut found = Found {
            readiness: readiness(&[]),
            old: Some(vec![pod]),
            pool: None,
        };
        let with = marks(&found, &Said::default());
        assert_eq!(with["labels"]["mooring.dev/old-client-pods"], "1");
        let why = with["annotations"]["mooring.dev/old-client-pods"].as_str().unwrap();
        assert!(why.contains("client-sshfs-0 (i:1"), "{why}");
        let metadata: ObjectMeta = serde_json::from_value(with.clone()).unwrap();
        found.old = None;
        assert_eq!(marks(&found, &said(&metadata)), with);
        assert!(
            marks(&found, &Said::default())["labels"]
                .get("mooring.dev/old-client-pods")
                .is_none()
        );
    }

    #[test]
    fn labels_say_whether_and_annotations_what_to_do() {
        let long = "x".repeat(MAX_TEXT + 1);
        let marks = marks_of(readiness(&[("a", ""), ("b", "do this"), ("c", &long)]));
        assert_eq!(
            marks["labels"],
            json!({
                "client.mooring.dev/a": "ready", "client.mooring.dev/b": "not-ready", "client.mooring.dev/c": "not-ready",
                "mooring.dev/mounter": "ready", "mooring.dev/old-client-pods": "0",
            })
        );
        assert_eq!(marks["annotations"].as_object().unwrap().len(), 2);
        assert_eq!(marks["annotations"]["client.mooring.dev/b"], "do this");
        assert_eq!(
            marks["annotations"]["client.mooring.dev/c"].as_str().unwrap().len(),
            MAX_TEXT
        );
        let none = marks_of(Readiness {
            node: Err("do that".into()),
            ..readiness(&[])
        });
        assert_eq!(
            none["labels"],
            json!({"mooring.dev/mounter": "not-ready", "mooring.dev/old-client-pods": "0"})
        );
        assert_eq!(none["annotations"], json!({"mooring.dev/mounter": "do that"}));
    }

    #[test]
    fn what_the_pool_has_left_is_published_seldom_and_anything_else_at_once() {
        let with = |free: u64, old: bool| Found {
            readiness: readiness(&[("local", "")]),
            old: old.then(Vec::new),
            pool: Some(PoolRoom::new(1 << 40, free, 0)),
        };
        let last = with(1 << 39, true);
        let noted = &marks(&last, &Said::default())["annotations"]["mooring.dev/pool"];
        let read: PoolRoom = serde_json::from_str(noted.as_str().unwrap()).unwrap();
        assert_eq!(Some(read), last.pool);
        let soon = POOL_PERIOD / 2;
        let nothing = Found {
            pool: None,
            ..last.clone()
        };
        for (found, since, expected) in [
            (last.clone(), REPEAT / 2, false),
            (last.clone(), REPEAT, true),
            (with(1 << 38, true), soon, false),
            (with(1 << 38, true), POOL_PERIOD, true),
            (with(1 << 38, false), soon, true),
            (nothing.clone(), soon, false),
            (nothing, POOL_PERIOD, true),
        ] {
            assert_eq!(is_due(&last, &found, since), expected, "{found:?} after {since:?}");
        }
    }

    #[test]
    fn a_change_gets_one_event_and_clients_with_the_same_reason_share_it() {
        let found = readiness(&[
            ("a", "do this"),
            ("b", "do this"),
            ("c", "do that"),
            ("d", ""),
            ("e", ""),
        ]);
        let before = [
            ("a", "ready"),
            ("c", "not-ready"),
            ("d", "not-ready"),
            ("gone", "ready"),
        ];
        let before = before.map(|(client, word)| (client.to_owned(), word.to_owned())).into();
        let unable = |clients: &[&str], why: &str| Change::Unable {
            clients: clients.iter().map(|&client| client.to_owned()).collect(),
            why: why.to_owned(),
        };
        let able = Change::Able {
            clients: vec!["d".into()],
        };
        assert_eq!(changes(&before, &found), [unable(&["a", "b"], "do this"), able]);
        // A restarted mounter finds on the node what it has reported.
        let marked = ObjectMeta {
            labels: serde_json::from_value(marks_of(found.clone())["labels"].clone()).unwrap(),
            ..ObjectMeta::default()
        };
        assert!(changes(&said(&marked).clients, &found).is_empty());
        assert_eq!(
            changes(&BTreeMap::new(), &readiness(&[("a", "x"), ("b", "")])),
            [unable(&["a"], "x")]
        );
    }
}
