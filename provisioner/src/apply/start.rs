//! Begins a run: the record, the Pod, its Secret, in this order. A controller that stops in between goes on where it was.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use kube::runtime::controller::Action;
use mooring_contract::names::{FLEX_DRIVER, annotations, finalizers, labels};
use secrecy::SecretString;
use tracing::info;

use super::{Apply, ApplyError, Subject, is_conflict};
use crate::cache::limiter::Place;
use crate::cache::store::key;
use crate::cache::work_queue::Target;
use crate::config::ProvisionerConfig;
use crate::operation::decision::{Intent, PodRef, Start};
use crate::operation::record::Record;
use crate::operation::words::words;
use crate::process::events::{Note, reasons};
use crate::run::kind::Kind;
use crate::run::pod;
use crate::run::properties::Properties;

/// Shortest life of a token that the API gives.
const SHORTEST_TOKEN: Duration = Duration::from_mins(10);

/// Longest wait for a place that no Pod's end has ended: a safeguard, as every end wakes who waits.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

impl Apply<'_> {
    /// Begins a run, if there is a place for it.
    pub(super) async fn start(&mut self, start: Start) -> Result<Action, ApplyError> {
        let config = &start.config;
        let name = pod::name(start.operation, &start.request.pvc_uid);
        let place = format!("{}/{name}", config.reference.namespace);
        let target = match &self.subject {
            Subject::Claim(claim) => Target::Claim(claim.namespace().unwrap_or_default(), claim.name_any()),
            Subject::Volume(volume) => Target::Volume(volume.name_any()),
            Subject::Orphan(_) => Target::Volume(start.request.pv_name.clone()),
        };
        let shared = self.shared;
        let taken = shared.limiter.take(
            &place,
            &config.reference.to_string(),
            config.max_parallel.map(std::num::NonZeroUsize::get),
            &shared.cache.in_flight(),
            &target,
        );
        match taken {
            Place::Free => {}
            Place::Full => return Ok(Action::requeue(LOOK_AGAIN)),
            Place::Begun(left) => return Ok(Action::requeue(left)),
        }
        let begun = self.begin(&start).await;
        if !matches!(begun, Ok(Begun::Made)) {
            shared.limiter.seen(&place);
        }
        match begun {
            Ok(_) => Ok(Action::await_change()),
            // Nothing has been written yet that says so: the record would be one of an attempt.
            Err(error) if error.is_rejection() && self.record.is_some() => {
                let record = self.record.clone().unwrap_or_else(|| start.record.clone());
                self.rejected(&record, start.state, &error).await
            }
            Err(error) => {
                self.tell(start.operation, &error);
                Err(error)
            }
        }
    }

    /// Makes the Secret of a Pod that stands, if it has none. Returns the Pod's uid.
    pub(super) async fn supply(&mut self, start: Start) -> Result<Option<String>, ApplyError> {
        let name = pod::name(start.operation, &start.request.pvc_uid);
        let Some(pod) = self.shared.cache.pod(&start.config.reference.namespace, &name) else {
            return Ok(None);
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if self.shared.expectations.is_supplied(&uid) {
            return Ok(Some(uid));
        }
        let supplied = async {
            let secret = self.config_secret(&start.config).await?;
            self.make_secret(&start, &pod, secret.data, false).await
        };
        let supplied = supplied.await;
        if let Err(error) = &supplied {
            self.tell(start.operation, error);
        }
        supplied.map(|()| Some(uid))
    }

    fn tell(&self, operation: Kind, error: &ApplyError) {
        // A conflict is the normal end of acting on old knowledge, and nobody's business.
        if error.category() != "conflict" {
            let words = words(operation);
            self.say(Note::warning(words.failed, words.action, error.chain()));
        }
    }

    async fn begin(&mut self, start: &Start) -> Result<Begun, ApplyError> {
        // All that can be wrong with the input is found before anything is written.
        let secret = self.config_secret(&start.config).await?;
        let names = Properties::new(&start.request, &secret.data, placeholder(&start.config))?.names();
        match start.intent {
            Intent::ToRecord => self.write_record(&start.record).await?,
            // What fails from here on is an attempt that failed, and is written down as one.
            Intent::Released => self.record = Some(start.record.clone()),
            Intent::Recorded | Intent::Pod => {}
        }
        let name = pod::name(start.operation, &start.request.pvc_uid);
        let pod = pod::build(&pod::Run {
            secret: &pod::new_secret_name(&name, Timestamp::now()),
            request: &start.request,
            config: &start.config,
            attempt: start.record.attempt,
            node: start.node.as_deref(),
            properties: &names,
            backend_secret: secret.for_driver,
            owner: start.owner.as_ref().map(|(name, uid)| (name.as_str(), uid.as_str())),
        });
        let pods: Api<Pod> = self.api(&start.config.reference.namespace);
        let (pod, begun) = match pods.create(&PostParams::default(), &pod).await {
            Ok(pod) => (pod, Begun::Made),
            Err(error) if is_conflict(&error) => {
                let found = pods
                    .get_opt(&name)
                    .await
                    .map_err(|source| ApplyError::api("read Pod", &name, source))?;
                match found {
                    Some(found) if is_same(&found, &pod) => (found, Begun::Found),
                    // An earlier attempt that is still going: its end wakes us.
                    Some(found) if is_ours(&found, &pod) => return Ok(Begun::Found),
                    Some(_) => return Err(ApplyError::Taken { what: "Pod", name }),
                    None => return Err(ApplyError::Changed(name)),
                }
            }
            Err(source) => return Err(ApplyError::api("create Pod", &name, source)),
        };
        // Without its Secret the Pod can't start: so this is the last moment to see that it is not wanted any more.
        if !self.still_wanted(start).await? {
            // What was watched was old, or this process was held up: another replica has gone on.
            self.delete_pod(&PodRef::of(&pod)).await?;
            return Ok(Begun::Found);
        }
        self.make_secret(start, &pod, secret.data, true).await?;
        info!(
            pod = key(&pod),
            operation = %start.request.operation,
            attempt = start.record.attempt,
            config = %start.config.reference,
            "began a run"
        );
        match start.operation {
            Kind::Provision if start.record.attempt == 1 => {
                let text = format!("Pod {} makes the volume with {}", key(&pod), start.config.image);
                self.say(Note::normal(reasons::STARTED, words(Kind::Provision).action, text));
            }
            // Its users hear of a deletion only if it fails, and of an attempt after the first by what failed before it.
            Kind::Provision | Kind::Delete => {}
        }
        Ok(begun)
    }

    /// Whether the API still has the intent that this run goes by.
    async fn still_wanted(&self, start: &Start) -> Result<bool, ApplyError> {
        let live = match &self.subject {
            Subject::Claim(claim) => {
                let api: Api<PersistentVolumeClaim> = self.api(&claim.namespace().unwrap_or_default());
                let name = claim.name_any();
                let live = api.get_metadata_opt(&name).await;
                let live = live.map_err(|source| ApplyError::api("read claim", &name, source))?;
                live.filter(|live| live.metadata.uid == claim.metadata.uid)
                    .map(|live| live.metadata)
            }
            Subject::Volume(volume) => {
                let api: Api<PersistentVolume> = self.volumes();
                let name = volume.name_any();
                let live = api.get_metadata_opt(&name).await;
                let live = live.map_err(|source| ApplyError::api("read PersistentVolume", &name, source))?;
                live.filter(|live| live.metadata.uid == volume.metadata.uid)
                    .map(|live| live.metadata)
            }
            // Seen to be one just now, and what is run only deletes.
            Subject::Orphan(_) => return Ok(true),
        };
        let Some(live) = live else { return Ok(false) };
        let text = live
            .annotations
            .as_ref()
            .and_then(|all| all.get(annotations::OPERATION));
        if start.intent == Intent::Released {
            let held = live.finalizers.iter().flatten().any(|name| name == finalizers::VOLUME);
            return Ok(held && text.is_none());
        }
        let record = text.and_then(|text| Record::parse(text).ok());
        Ok(record.is_some_and(|record| record == start.record))
    }

    /// The ConfigMap's Secret, read as it is now.
    async fn config_secret(&self, config: &ProvisionerConfig) -> Result<ConfigSecret, ApplyError> {
        let Some(name) = &config.secret_name else {
            return Ok(ConfigSecret::default());
        };
        let namespace = &config.reference.namespace;
        let secrets: Api<Secret> = self.api(namespace);
        let secret = secrets
            .get_opt(name)
            .await
            .map_err(|source| ApplyError::api("read Secret", name, source))?
            .ok_or_else(|| ApplyError::NoSecret {
                name: name.clone(),
                namespace: namespace.clone(),
            })?;
        Ok(ConfigSecret {
            for_driver: secret.type_.as_deref() == Some(FLEX_DRIVER),
            data: secret.data.unwrap_or_default(),
        })
    }

    /// Makes the Pod's Secret. `fresh` says that the Pod was made just now, so that there is none yet.
    async fn make_secret(
        &self,
        start: &Start,
        pod: &Pod,
        values: BTreeMap<String, ByteString>,
        fresh: bool,
    ) -> Result<(), ApplyError> {
        self.put_secret(start, pod, values, fresh).await?;
        self.shared
            .expectations
            .supplied(pod.metadata.uid.as_deref().unwrap_or_default());
        Ok(())
    }

    async fn put_secret(
        &self,
        start: &Start,
        pod: &Pod,
        values: BTreeMap<String, ByteString>,
        fresh: bool,
    ) -> Result<(), ApplyError> {
        let secrets: Api<Secret> = self.api(&pod.namespace().unwrap_or_default());
        let name = pod::secret_name(pod).to_owned();
        if !fresh {
            let found = secrets.get_opt(&name).await;
            let found = found.map_err(|source| ApplyError::api("read Secret", &name, source))?;
            if found.is_some_and(|found| is_owned(&found, pod)) {
                return Ok(());
            }
        }
        let token = match (&start.config.service_token, &start.config.service_account) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(account)) => Some(self.token(account, pod, start).await?),
            (None, None) => None,
        };
        let data = Properties::new(&start.request, &values, token)?.into_secret_data();
        let secret = pod::secret(pod, data);
        match secrets.create(&PostParams::default(), &secret).await {
            Ok(_) => return Ok(()),
            Err(error) if is_conflict(&error) => {}
            Err(source) => return Err(ApplyError::api("create Secret", &name, source)),
        }
        let found = secrets.get_opt(&name).await;
        let found = found.map_err(|source| ApplyError::api("read Secret", &name, source))?;
        match found {
            Some(found) if is_owned(&found, pod) => Ok(()),
            Some(_) => Err(ApplyError::Taken { what: "Secret", name }),
            // The Pod is gone already, and its Secret with it.
            None => Err(ApplyError::Changed(name)),
        }
    }

    /// A token of the service account that is good for as long as its Pod is there, and not longer than the run.
    async fn token(&self, account: &str, pod: &Pod, start: &Start) -> Result<SecretString, ApplyError> {
        let accounts: Api<ServiceAccount> = self.api(&pod.namespace().unwrap_or_default());
        let life = (start.config.timeout + Duration::from_mins(1)).max(SHORTEST_TOKEN);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
                expiration_seconds: i64::try_from(life.as_secs()).ok(),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .map_err(|source| ApplyError::api("create a token of service account", account, source))?;
        answer
            .status
            .and_then(|status| status.token)
            .map(SecretString::from)
            .ok_or_else(|| ApplyError::NoToken(account.to_owned()))
    }
}

/// Whether the Pod was made now.
#[derive(Debug)]
enum Begun {
    Made,
    Found,
}

#[derive(Default)]
struct ConfigSecret {
    data: BTreeMap<String, ByteString>,
    /// The kubelet gives it to Mooring's driver.
    for_driver: bool,
}

/// Stands for the token while only the names of the properties matter.
fn placeholder(config: &ProvisionerConfig) -> Option<SecretString> {
    (config.service_token.is_some() || config.service_account.is_some()).then(|| SecretString::from(String::new()))
}

fn is_owned(secret: &Secret, pod: &Pod) -> bool {
    let owner = |uid: &str| secret.owner_references().iter().any(|owner| owner.uid == uid);
    pod.metadata.uid.as_deref().is_some_and(owner)
}

/// A Pod of Mooring's for the same claim and operation.
fn is_ours(found: &Pod, wanted: &Pod) -> bool {
    [labels::COMPONENT, labels::CLAIM_UID, labels::OPERATION]
        .into_iter()
        .all(|key| pod::label(found, key) == pod::label(wanted, key))
}

/// The Pod of the same attempt.
fn is_same(found: &Pod, wanted: &Pod) -> bool {
    is_ours(found, wanted) && found.metadata.deletion_timestamp.is_none() && pod::attempt(found) == pod::attempt(wanted)
}
