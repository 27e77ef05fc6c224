//! What happened to Pods, claims and volumes, and when the watches reported it.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

use mooring_testbed::progress::spoken;

/// Something that happens to an object once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    Made,
    /// A Pod has its node.
    Scheduled,
    /// A Pod's containers run.
    Running,
    Succeeded,
    Failed,
    /// A claim has its volume.
    Bound,
    Gone,
}

/// An object. A volume is identified by its claim, whose name is known earlier.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// Namespace and name.
    Pod(String, String),
    /// Name of a claim in the bench's namespace.
    Claim(String),
    /// The volume of a claim in the bench's namespace.
    VolumeOf(String),
}

impl Subject {
    pub(super) fn pod(namespace: &str, name: &str) -> Self {
        Self::Pod(namespace.to_owned(), name.to_owned())
    }
}

#[derive(Default)]
struct Seen {
    marks: HashMap<(Subject, Mark), Instant>,
    pods: HashSet<(String, String)>,
}

struct State {
    seen: Mutex<Seen>,
    changed: watch::Sender<()>,
}

/// Watches for as long as it lives.
pub(super) struct Observer {
    state: Arc<State>,
    _watches: JoinSet<()>,
}

impl Observer {
    /// Starts to watch, and returns when all existing objects have been listed.
    pub(super) async fn start(client: &Client, namespace: &str) -> Result<Self> {
        let state = Arc::new(State {
            seen: Mutex::default(),
            changed: watch::channel(()).0,
        });
        let mut watches = JoinSet::new();
        let (listed, mut lists) = tokio::sync::mpsc::channel(3);
        follow(
            &mut watches,
            Api::<Pod>::all(client.clone()),
            listed.clone(),
            &state,
            State::pod,
        );
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
        follow(&mut watches, claims, listed.clone(), &state, State::claim);
        let ours = namespace.to_owned();
        follow(
            &mut watches,
            Api::<PersistentVolume>::all(client.clone()),
            listed,
            &state,
            move |state, volume, gone| state.volume(&ours, volume, gone),
        );
        for _ in 0..3 {
            if tokio::time::timeout(Duration::from_secs(30), lists.recv())
                .await
                .is_err()
            {
                bail!("the API server did not list Pods, claims and volumes within 30 s");
            }
        }
        Ok(Self {
            state,
            _watches: watches,
        })
    }

    /// When something happened, if it did.
    pub(super) fn at(&self, subject: &Subject, mark: Mark) -> Option<Instant> {
        let seen = self.state.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.marks.get(&(subject.clone(), mark)).copied()
    }

    /// Waits for something to happen; returns when it did.
    pub(super) async fn wait(&self, subject: &Subject, mark: Mark, limit: Duration) -> Result<Instant> {
        self.until(&format!("{subject:?} to be {mark:?}"), limit, || {
            if mark != Mark::Failed && self.at(subject, Mark::Failed).is_some() {
                bail!("{subject:?} failed");
            }
            Ok(self.at(subject, mark))
        })
        .await
    }

    /// Waits until a namespace has no Pods.
    pub(super) async fn no_pods(&self, namespace: &str, but: &str, limit: Duration) -> Result<()> {
        self.until(&format!("the Pods of {namespace} to be gone"), limit, || {
            let seen = self.state.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let left = seen
                .pods
                .iter()
                .any(|(at, name)| at == namespace && (but.is_empty() || !name.starts_with(but)));
            Ok((!left).then_some(()))
        })
        .await
    }

    async fn until<T>(&self, what: &str, limit: Duration, look: impl Fn() -> Result<Option<T>>) -> Result<T> {
        let mut changes = self.state.changed.subscribe();
        let wait = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = look()? {
                    return Ok(found);
                }
                let _ = changes.changed().await;
            }
        };
        match tokio::time::timeout(limit, wait).await {
            Ok(found) => found,
            Err(_) => bail!("waited {} for {what} in vain", spoken(limit)),
        }
    }
}

impl State {
    fn mark(&self, subject: &Subject, marks: &[Mark]) {
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for &mark in marks {
            seen.marks.entry((subject.clone(), mark)).or_insert(now);
        }
    }

    fn pod(&self, pod: &Pod, gone: bool) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let mut marks = vec![Mark::Made];
        if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
            marks.push(Mark::Scheduled);
        }
        match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Running") => marks.push(Mark::Running),
            Some("Succeeded") => marks.push(Mark::Succeeded),
            // A Pod that is being deleted ends as failed.
            Some("Failed") if pod.metadata.deletion_timestamp.is_none() => marks.push(Mark::Failed),
            _ => {}
        }
        let key = (namespace.clone(), name.clone());
        if gone {
            marks.push(Mark::Gone);
        }
        self.mark(&Subject::Pod(namespace, name), &marks);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if gone {
            seen.pods.remove(&key);
        } else {
            seen.pods.insert(key);
        }
    }

    fn claim(&self, claim: &PersistentVolumeClaim, gone: bool) {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let marks = [
            (true, Mark::Made),
            (phase == Some("Bound"), Mark::Bound),
            (gone, Mark::Gone),
        ];
        self.mark(&Subject::Claim(claim.name_any()), &those(&marks));
    }

    fn volume(&self, namespace: &str, volume: &PersistentVolume, gone: bool) {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let Some(claim) = claim.filter(|claim| claim.namespace.as_deref() == Some(namespace)) else {
            return;
        };
        let name = claim.name.clone().unwrap_or_default();
        self.mark(
            &Subject::VolumeOf(name),
            &those(&[(true, Mark::Made), (gone, Mark::Gone)]),
        );
    }
}

fn those(marks: &[(bool, Mark)]) -> Vec<Mark> {
    marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect()
}

fn follow<K>(
    watches: &mut JoinSet<()>,
    api: Api<K>,
    listed: tokio::sync::mpsc::Sender<()>,
    state: &Arc<State>,
    take: impl Fn(&State, &K, bool) + Send + 'static,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let state = Arc::clone(state);
    watches.spawn(async move {
        let mut events = std::pin::pin!(watcher(api, Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => take(&state, &object, false),
                Ok(Event::Delete(object)) => take(&state, &object, true),
                Ok(Event::InitDone) => {
                    let _ = listed.try_send(());
                }
                // The watch tries again. If something was missed, the wait for it fails with a message.
                Ok(Event::Init) | Err(_) => {}
            }
            state.changed.send_replace(());
        }
    });
}
