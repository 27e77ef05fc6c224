//! Begins a run: makes the Pod that carries it out, then hands the Pod its Secret. Without the Secret the Pod can't
//! start, so between the two there is a last moment to see that the run is not wanted any more.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use mooring_contract::names::labels;
use mooring_contract::property;
use mooring_contract::worker::Ask;
use mooring_seal::new_key;
use secrecy::SecretString;

use super::config_secret::ConfigSecret;
use super::connection::{Connection, WorkerError};
use super::error::RunError;
use super::observed::Run;
use super::order::Order;
use super::pod::{self, Skeleton};
use super::properties::Properties;
use super::worker::Worker;
use super::worker_pod;
use super::workers::Workers;
use crate::config::ProvisionerConfig;
use crate::process::call::{Answer as _, TAKEN, Tolerant as _};
use crate::process::objects::Objects;
use crate::time::elapsed;

/// Shortest life of a token that the API gives.
const SHORTEST_TOKEN: Duration = Duration::from_mins(10);

/// What came of [`Prepared::make`].
#[derive(Debug)]
pub enum Made {
    New(Run),
    /// It existed already, for this very attempt.
    Found(Run),
    /// A run of another attempt has its place.
    Occupied,
}

/// A run whose properties have been found fit to be handed over.
pub struct Prepared<'a> {
    client: &'a Client,
    workers: &'a Workers,
    order: Order<'a>,
    /// The ConfigMap's Secret, as it is now.
    secret: ConfigSecret,
}

impl<'a> Prepared<'a> {
    /// Finds all that can be wrong with a run's properties, before anything is written.
    pub async fn new(client: &'a Client, workers: &'a Workers, order: Order<'a>) -> Result<Self, RunError> {
        let secret = ConfigSecret::read(client, order.config).await?;
        Properties::new(order.request, &secret.data, placeholder(order.config))?;
        Ok(Self {
            client,
            workers,
            order,
            secret,
        })
    }

    /// Makes the run; it waits for [`Self::hand_over`].
    pub async fn make(&self) -> Result<Made, RunError> {
        let Order {
            id,
            request,
            config,
            seals,
            ..
        } = self.order;
        let name = id.name();
        let properties = Properties::new(request, &self.secret.data, placeholder(config))?;
        let empty = seals.then(|| SecretString::from(String::new()));
        let properties = properties.with_answer_key(empty).names();
        let wanted = pod::build(&Skeleton {
            order: self.order,
            secret: &pod::new_secret_name(&name, Timestamp::now()),
            properties: &properties,
            backend_secret: self.secret.for_driver,
        });
        let pods: Objects<Pod> = Objects::within(self.client, &config.reference.namespace);
        if let Some(pod) = pods.create(&wanted).await.unless(TAKEN)? {
            return Ok(Made::New(Run::of(pod)));
        }
        match pods.read(&name).await? {
            Some(found) if is_same(&found, &wanted) => Ok(Made::Found(Run::of(found))),
            Some(found) if is_ours(&found, &wanted) => Ok(Made::Occupied),
            Some(_) => Err(RunError::Taken { what: "Pod", name }),
            None => Err(RunError::Changed(name)),
        }
    }

    /// Has a worker carry the run out; it waits for [`Self::hand_over`].
    pub async fn lend(&self, worker: &Worker) -> Result<Run, RunError> {
        let pod = worker_pod::lend(self.client, worker, &self.order).await?;
        let run = self.order.id.in_namespace(&self.order.config.reference.namespace);
        self.workers.lent(worker, &run);
        Ok(Run::of(pod).reported(self.workers.contacts.report(worker.uid())))
    }

    /// Gives a worker the run that its Pod says it has, and no more time for it than until then.
    async fn hand_to_worker(&self, worker: &Worker, ends: Timestamp) -> Result<(), RunError> {
        let uid = worker.uid();
        let seat = self.workers.contacts.seat(uid);
        // Until it is heard of, its run counts as one that goes on.
        let seat = seat.ok_or_else(|| RunError::Changed(worker.place()))?;
        // Whoever finds it later takes it for one that has ended by then.
        let left = elapsed(Timestamp::now(), ends);
        if left.is_zero() {
            return Err(RunError::Changed(worker.place()));
        }
        let Order { request, .. } = self.order;
        let key = self.order.seals.then(|| seat.key.clone());
        let (properties, request) = Properties::new(request, &self.secret.data, None)?
            .with_answer_key(key)
            .into_texts();
        let number = worker.number();
        let ask = Ask::Begin(worker_pod::order(number, left, properties, request));
        let report = Connection::open(&seat).await?.ask(&ask).await?;
        let given = report.number;
        self.workers.contacts.note(uid, &seat, report);
        if given == number {
            Ok(())
        } else {
            Err(WorkerError::Busy(given).into())
        }
    }

    /// Gives the run its properties, with which it starts. `fresh` says that it was made just now, so that it has none
    /// yet.
    pub async fn hand_over(&self, run: &Run, fresh: bool) -> Result<(), RunError> {
        let Order { request, config, .. } = self.order;
        let pod = run.carrier();
        if let Some(worker) = Worker::of(pod) {
            return self.hand_to_worker(&worker, run.due(Duration::ZERO)).await;
        }
        let secrets: Objects<Secret> = Objects::within(self.client, &pod.namespace().unwrap_or_default());
        let name = pod::secret_name(pod).to_owned();
        if !fresh && secrets.read(&name).await?.is_some_and(|found| is_owned(&found, pod)) {
            return Ok(());
        }
        let token = match (&config.service_token, &config.service_account) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(account)) => Some(self.token(account, pod).await?),
            (None, None) => None,
        };
        let key = self.order.seals.then(new_key).transpose()?;
        let data = Properties::new(request, &self.secret.data, token)?
            .with_answer_key(key.map(SecretString::from))
            .into_secret_data();
        let made = secrets.create(&pod::secret(pod, data)).await;
        if made.unless(TAKEN)?.is_some() {
            return Ok(());
        }
        match secrets.read(&name).await? {
            Some(found) if is_owned(&found, pod) => Ok(()),
            Some(_) => Err(RunError::Taken { what: "Secret", name }),
            // The Pod is gone already, and its Secret with it.
            None => Err(RunError::Changed(name)),
        }
    }

    /// A token of the service account that is good for as long as its Pod is there, and not longer than the run.
    async fn token(&self, account: &str, pod: &Pod) -> Result<SecretString, RunError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let life = (self.order.config.timeout + Duration::from_mins(1)).max(SHORTEST_TOKEN);
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
            .or_failed_to("create", "a token of service account", account)?;
        answer
            .status
            .and_then(|status| status.token)
            .map(SecretString::from)
            .ok_or_else(|| RunError::NoToken(account.to_owned()))
    }
}

/// What a run was given to seal its answer with.
pub async fn answer_key(client: &Client, workers: &Workers, run: &Run) -> Result<SecretString, RunError> {
    let pod = run.carrier();
    if let Some(worker) = Worker::of(pod) {
        let seat = workers.contacts.seat(worker.uid());
        return seat
            .map(|seat| seat.key)
            .ok_or_else(|| RunError::NoAnswerKey(worker.place()));
    }
    let secrets: Objects<Secret> = Objects::within(client, &pod.namespace().unwrap_or_default());
    let name = pod::secret_name(pod).to_owned();
    let secret = secrets.read(&name).await?;
    let key = secret.filter(|secret| is_owned(secret, pod)).and_then(|secret| {
        let key = secret.data?.remove(property::keys::ANSWER_KEY)?;
        String::from_utf8(key.0).ok()
    });
    key.map(SecretString::from).ok_or(RunError::NoAnswerKey(name))
}

/// Stands for the token while only the names of the properties matter.
fn placeholder(config: &ProvisionerConfig) -> Option<SecretString> {
    (config.service_token.is_some() || config.service_account.is_some()).then(|| SecretString::from(String::new()))
}

fn is_owned(secret: &Secret, pod: &Pod) -> bool {
    let owner = |uid: &str| secret.owner_references().iter().any(|owner| owner.uid == uid);
    pod.metadata.uid.as_deref().is_some_and(owner)
}

/// A Pod of Mooring's for the same run, at whatever attempt.
fn is_ours(found: &Pod, wanted: &Pod) -> bool {
    [labels::COMPONENT, labels::CLAIM_UID, labels::OPERATION]
        .into_iter()
        .all(|key| found.labels().get(key) == wanted.labels().get(key))
}

/// The Pod of the same attempt.
fn is_same(found: &Pod, wanted: &Pod) -> bool {
    is_ours(found, wanted)
        && found.metadata.deletion_timestamp.is_none()
        && found.labels().get(labels::ATTEMPT) == wanted.labels().get(labels::ATTEMPT)
}
