//! Looks at one volume's move in the API, and carries a step out. Every write expects what was seen.

use std::collections::BTreeSet;

use flex_provisioner::process::call::{Answer as _, CallError, is_conflict, is_not_found};
use flex_provisioner::volume::acceptance::secret_ref;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use mooring_contract::names::finalizers::MIGRATION;
use mooring_contract::names::labels;
use serde_json::json;

use super::plan::{MoveStep, Seen};
use super::record::{ClaimKey, MoveRecord, MoveRecordError};
use super::source::SecretSeen;
use super::users::{self, User};

/// What kinds are called in errors.
const VOLUME: &str = "PersistentVolume";
const CLAIM: &str = "claim";
const RECORD: &str = "ConfigMap";

/// Why a volume's move does not go on.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error(transparent)]
    Call(#[from] CallError),
    /// A record that can't be used.
    #[error("ConfigMap {name} has no usable record: delete it if no move needs it")]
    Record { name: String, source: MoveRecordError },
    #[error("timed out waiting for {what}: check that kube-controller-manager runs, then run this again")]
    Late { what: &'static str },
}

/// The volume of a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MoveTarget {
    pub claim: ClaimKey,
    pub volume: String,
}

/// A cluster, as an administrator may use it.
#[derive(Clone)]
pub struct MoveCluster {
    pub(super) client: Client,
    namespace: String,
}

impl MoveCluster {
    /// `namespace` is Mooring's, in which records are kept.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
        }
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    fn claims(&self, target: &MoveTarget) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &target.claim.namespace)
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn all_volumes(&self) -> Result<Vec<PersistentVolume>, CallError> {
        let all = self.volumes().list(&ListParams::default()).await;
        Ok(all.or_failed_to("list", VOLUME, "objects")?.items)
    }

    /// The moves that have begun, and what is wrong with records that can't be read.
    pub async fn records(&self) -> Result<Vec<Result<MoveRecord, MoveError>>, CallError> {
        let selector = format!("{}={}", labels::COMPONENT, labels::COMPONENT_MIGRATION);
        let all = self.maps().list(&ListParams::default().labels(&selector)).await;
        let all = all.or_failed_to("list", RECORD, "objects")?;
        Ok(all.items.iter().map(read).collect())
    }

    /// What there is. The Pods come last: so those are known that were on a node while the volume was as it is here.
    /// `hopeless` are uids of Pods that do not end.
    pub async fn look(&self, target: &MoveTarget, hopeless: &BTreeSet<String>) -> Result<Seen, MoveError> {
        let name = MoveRecord::name_for(&target.claim.uid);
        let map = self.maps().get_opt(&name).await.or_failed_to("read", RECORD, &name)?;
        let record = map.as_ref().map(read).transpose()?;
        let claim = self.claims(target).get_opt(&target.claim.name).await;
        let claim = claim.or_failed_to("read", CLAIM, &target.claim.name)?;
        let claim = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(&target.claim.uid));
        let volume = self.volumes().get_opt(&target.volume).await;
        let volume = volume.or_failed_to("read", VOLUME, &target.volume)?;
        let secret = self.secret_of(volume.as_ref()).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &target.claim.namespace);
        let pods = pods.list(&ListParams::default()).await;
        let pods = pods.or_failed_to("list", "Pods of", &target.claim.namespace)?;
        let users = pods.items.iter().filter_map(|pod| users::of(pod, &target.claim.name));
        let users = users.map(|user| User {
            ending: user.ending.filter(|_| !hopeless.contains(&user.uid)),
            ..user
        });
        Ok(Seen {
            record,
            volume,
            claim,
            users: users.collect(),
            secret,
        })
    }

    async fn secret_of(&self, volume: Option<&PersistentVolume>) -> Result<SecretSeen, CallError> {
        let named = volume.and_then(|volume| secret_ref(volume.spec.as_ref()?));
        let of = named.and_then(|named| Some((named.namespace.as_deref()?, named.name.as_deref()?)));
        let Some((namespace, name)) = of else {
            return Ok(SecretSeen::Unneeded);
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = secrets.get_opt(name).await.or_failed_to("read", "Secret", name)?;
        let name = format!("{namespace}/{name}");
        Ok(match secret {
            None => SecretSeen::Missing(name),
            Some(secret) => SecretSeen::There {
                name,
                is_text: secret
                    .data
                    .iter()
                    .flatten()
                    .all(|(_, value)| str::from_utf8(&value.0).is_ok()),
                kind: secret.type_.unwrap_or_default(),
            },
        })
    }

    /// Carries a step out. What has changed since it was seen is left as it is: the next look tells.
    pub async fn take(&self, target: &MoveTarget, seen: &Seen, step: &MoveStep) -> Result<(), MoveError> {
        let post = PostParams::default();
        let (done, verb, what, name) = match step {
            MoveStep::Rest(_) | MoveStep::Await(_) | MoveStep::AwaitEnd => return Ok(()),
            MoveStep::Note(record) => {
                let map = record.to_config_map(&self.namespace);
                let name = map.name_any();
                let done = if record.version.is_some() {
                    self.maps().replace(&name, &post, &map).await.map(drop)
                } else {
                    self.maps().create(&post, &map).await.map(drop)
                };
                (done, "write", RECORD, name)
            }
            MoveStep::Hold => {
                let done = self.hold(target, seen, true).await;
                (done, "hold", CLAIM, target.claim.name.clone())
            }
            MoveStep::Release => {
                let done = self.hold(target, seen, false).await;
                (done, "release", CLAIM, target.claim.name.clone())
            }
            MoveStep::Delete => {
                let meta = seen.volume.as_ref().map(|volume| &volume.metadata);
                let expected = Preconditions {
                    uid: meta.and_then(|meta| meta.uid.clone()),
                    resource_version: meta.and_then(|meta| meta.resource_version.clone()),
                };
                let how = DeleteParams::background().preconditions(expected);
                let done = self.volumes().delete(&target.volume, &how).await.map(drop);
                (done, "delete", VOLUME, target.volume.clone())
            }
            MoveStep::Free => {
                let meta = seen.volume.as_ref().map(|volume| &volume.metadata);
                let patch = json!({"metadata": {
                    "uid": meta.and_then(|meta| meta.uid.as_deref()),
                    "resourceVersion": meta.and_then(|meta| meta.resource_version.as_deref()),
                    "finalizers": [],
                }});
                let how = PatchParams::default();
                let done = self.volumes().patch(&target.volume, &how, &Patch::Merge(&patch)).await;
                (done.map(drop), "free", VOLUME, target.volume.clone())
            }
            MoveStep::Make(volume) => {
                let done = self.volumes().create(&post, volume).await.map(drop);
                (done, "create", VOLUME, target.volume.clone())
            }
            MoveStep::Forget => {
                let name = MoveRecord::name_for(&target.claim.uid);
                let done = self.maps().delete(&name, &DeleteParams::default()).await.map(drop);
                (done, "delete", RECORD, name)
            }
        };
        match done {
            Err(error) if !is_conflict(&error) && !is_not_found(&error) => {
                Err(CallError::new(verb, what, &name, error).into())
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Puts the finalizer of a move on the claim, or takes it off.
    async fn hold(&self, target: &MoveTarget, seen: &Seen, hold: bool) -> Result<(), kube::Error> {
        let Some(claim) = &seen.claim else { return Ok(()) };
        let others = claim.finalizers().iter().filter(|name| *name != MIGRATION);
        let mut finalizers: Vec<_> = others.map(String::as_str).collect();
        finalizers.extend(hold.then_some(MIGRATION));
        let patch = json!({"metadata": {
            "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version, "finalizers": finalizers,
        }});
        let how = PatchParams::default();
        let done = self
            .claims(target)
            .patch(&target.claim.name, &how, &Patch::Merge(&patch))
            .await;
        done.map(drop)
    }
}

fn read(map: &ConfigMap) -> Result<MoveRecord, MoveError> {
    MoveRecord::of(map).map_err(|source| MoveError::Record {
        name: map.name_any(),
        source,
    })
}
