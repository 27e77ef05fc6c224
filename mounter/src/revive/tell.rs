//! Tells the user of a volume what became of it, by Events on the Pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use mooring_contract::names::{MOUNTER, reasons};
use tracing::{info, warn};

use crate::client::PodRef;
use crate::target::Target;

/// Longest note that an Event may have.
const MAX_NOTE: usize = 1000;

/// What there is to tell of a volume.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// It can be used again, after so many seconds.
    Revived(f64),
    /// It could not be mounted anew, for this reason.
    Failed(String),
    /// A container that uses it could not be given the new mount.
    Stuck(String),
    /// Its server does not answer and its Pod is gone but for that, so whoever waits for it got an error.
    GivenUp,
    /// The same, but others have the same file system of its server, so nobody got an error.
    Shared,
}

impl News {
    fn reason(&self) -> &'static str {
        match self {
            Self::Revived(_) => reasons::VOLUME_REVIVED,
            Self::Failed(_) | Self::Stuck(_) => reasons::VOLUME_NOT_REVIVED,
            Self::GivenUp => reasons::VOLUME_GIVEN_UP,
            Self::Shared => reasons::VOLUME_NOT_GIVEN_UP,
        }
    }

    /// What was tried: with the reason it tells Events of one volume apart.
    fn action(&self) -> &'static str {
        match self {
            Self::Revived(_) | Self::Failed(_) => "Mount",
            Self::Stuck(_) => "Replace",
            Self::GivenUp | Self::Shared => "Unmount",
        }
    }

    /// In words, with what to do.
    pub fn note(&self, volume: &str) -> String {
        let mut note = match self {
            Self::Revived(seconds) => format!(
                "the program that served volume {volume} ended; it was mounted anew and can be used again after \
                 {seconds:.1} s. Files that were open must be opened again"
            ),
            Self::Failed(why) => format!(
                "the program that served volume {volume} ended, and it can't be mounted anew: {why}. It is tried again \
                 until it succeeds or the Pod is deleted"
            ),
            Self::Stuck(why) => format!(
                "volume {volume} was mounted anew, but not for every container: {why}. Delete this Pod: its successor \
                 gets the new mount. It is tried again by itself"
            ),
            Self::GivenUp => format!(
                "volume {volume} did not answer, and this Pod is being deleted: what waited for the volume was ended, so that it \
                 can be unmounted. What had not reached its server yet is lost"
            ),
            Self::Shared => format!(
                "volume {volume} does not answer, and this Pod is being deleted, but what waits for the volume is not ended: others \
                 on this node have the same file system of its server, and would get errors with it. This Pod goes when the server is \
                 back, or when they are deleted too. An NFS volume with mount option nosharecache has a file system of its own"
            ),
        };
        while note.len() > MAX_NOTE {
            note.pop();
        }
        note
    }
}

/// Tells each thing once.
pub struct Teller {
    recorder: Recorder,
    /// The last that was told of each target.
    told: BTreeMap<Target, News>,
}

impl Teller {
    /// One who tells in the name of the mounter on this node.
    pub fn new(client: Client, node: Option<String>) -> Self {
        let reporter = Reporter {
            controller: MOUNTER.to_owned(),
            instance: node,
        };
        Self {
            recorder: Recorder::new(client, reporter),
            told: BTreeMap::new(),
        }
    }

    /// Tells the user of a Pod, unless this was the last that was told; whether it was told now.
    pub async fn tell(&mut self, target: &Target, pod: Option<&PodRef>, news: News) -> bool {
        if self.told.get(target) == Some(&news) {
            return false;
        }
        let note = news.note(target.name());
        let well = matches!(news, News::Revived(_));
        if well {
            info!(target.path = %target, "{note}");
        } else {
            warn!(target.path = %target, "{note}");
        }
        if let Some(pod) = pod.filter(|pod| !pod.name.is_empty() && !pod.namespace.is_empty()) {
            let event = Event {
                type_: if well { EventType::Normal } else { EventType::Warning },
                reason: news.reason().to_owned(),
                note: Some(note),
                action: news.action().to_owned(),
                secondary: None,
            };
            if let Err(error) = self.recorder.publish(&event, &reference(pod, target)).await {
                warn!(%error, pod = format!("{}/{}", pod.namespace, pod.name), "failed to make an Event");
            }
        }
        self.told.insert(target.clone(), news);
        true
    }

    /// Forgets what was told of volumes that are gone.
    pub fn keep(&mut self, is_there: impl Fn(&Target) -> bool) {
        self.told.retain(|target, _| is_there(target));
    }
}

/// The Pod, and which of its volumes: what happens to the same part of an object again is joined into one Event, which keeps the note
/// of the first time.
fn reference(pod: &PodRef, target: &Target) -> ObjectReference {
    ObjectReference {
        // By the volume's directory, which is all that is known of it here: the PersistentVolume's name, or that of an inline volume.
        field_path: Some(format!("spec.volumes{{{}}}", target.name())),
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: Some(pod.name.clone()),
        namespace: Some(pod.namespace.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::Value;

    use super::{MAX_NOTE, News, Teller};
    use crate::client::PodRef;
    use crate::target::Target;

    #[test]
    fn whatever_is_not_well_says_what_to_do() {
        assert!(News::Stuck("x".into()).note("v").contains("Delete this Pod"));
        assert!(News::Failed("no server".into()).note("v").contains("no server"));
        assert!(News::Revived(1.25).note("v").contains("opened again"));
        assert!(News::Failed("ä".repeat(2000)).note("v").len() <= MAX_NOTE);
    }

    /// What an API server was told: the verb and the Event.
    type Told = Arc<Mutex<Vec<(String, Value)>>>;

    /// An API server that keeps each Event as it is told.
    fn api() -> (Client, Told) {
        let told = Told::default();
        let heard = Arc::clone(&told);
        let service = tower::service_fn(move |request: Request<Body>| {
            let heard = Arc::clone(&heard);
            async move {
                let verb = request.method().to_string();
                let bytes = request.into_body().collect_bytes().await?;
                heard
                    .lock()
                    .unwrap()
                    .push((verb, serde_json::from_slice(&bytes).unwrap()));
                Ok::<_, kube::Error>(Response::new(Body::from(bytes.to_vec())))
            }
        });
        (Client::new(service, "default"), told)
    }

    #[tokio::test]
    async fn two_volumes_of_a_pod_are_told_of_apart_and_one_that_is_lost_again_is_counted() {
        let (client, told) = api();
        let mut teller = Teller::new(client, Some("node-1".into()));
        let pod = PodRef {
            name: "web-0".into(),
            namespace: "shop".into(),
            uid: "u".into(),
        };
        let target = |name: &str| {
            let directory = format!("/k/pods/u/volumes/mooring.dev~vcs/{name}");
            Target::parse(Path::new("/k"), &directory).unwrap()
        };
        for (volume, news) in [
            ("one", News::Revived(1.0)),
            ("two", News::Revived(1.0)),
            ("one", News::Failed("no server".into())),
            ("one", News::Stuck("in use".into())),
            ("one", News::Revived(2.0)),
        ] {
            assert!(teller.tell(&target(volume), Some(&pod), news).await);
        }
        let told = told.lock().unwrap();
        let said: Vec<_> = told
            .iter()
            .map(|(verb, event)| {
                let field = event["regarding"]["fieldPath"].as_str().unwrap();
                (verb.as_str(), field, event["reason"].as_str().unwrap())
            })
            .collect();
        assert_eq!(
            said,
            [
                ("POST", "spec.volumes{one}", "VolumeRevived"),
                ("POST", "spec.volumes{two}", "VolumeRevived"),
                ("POST", "spec.volumes{one}", "VolumeNotRevived"),
                ("POST", "spec.volumes{one}", "VolumeNotRevived"),
                ("PATCH", "spec.volumes{one}", "VolumeRevived"),
            ]
        );
        assert!(told[1].1["note"].as_str().unwrap().contains("volume two"));
    }
}
