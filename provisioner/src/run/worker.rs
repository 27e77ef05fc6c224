//! A worker: a Pod of the image that stays, and carries out one run after another. While it has a run, its labels and
//! annotations say which, as those of a Pod of the run's own would: so the API says who has what, and two controllers
//! can't give one worker two runs.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use mooring_contract::names::annotations;

use super::carrier::{self, Carrier};
use super::identity::RunRef;
use super::outcome::{Finish, State, observe};
use super::pod::only_node;
use super::worker_set::WorkerSet;
use crate::config::ProvisionerConfig;

/// Begins the name of a worker, and of no run.
pub(super) const PREFIX: &str = "worker-";

/// A worker that was seen in the cluster.
#[derive(Debug, Clone)]
pub struct Worker(Arc<Carrier>);

impl Worker {
    /// The worker that this is, if it is one.
    pub fn of(carrier: &Arc<Carrier>) -> Option<Self> {
        carrier::is_worker(carrier).then(|| Self(carrier.clone()))
    }

    /// The uid of its Pod.
    pub fn uid(&self) -> &str {
        self.0.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The name of its Pod.
    pub fn name(&self) -> &str {
        self.0.metadata.name.as_deref().unwrap_or_default()
    }

    /// `namespace/name`.
    pub fn place(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    pub(super) fn namespace(&self) -> &str {
        self.0.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// `namespace/name` of its ConfigMap.
    pub fn config(&self) -> &str {
        self.0.annotations().get(annotations::CONFIG).map_or("", String::as_str)
    }

    /// For which runs it is.
    pub fn set(&self) -> WorkerSet {
        WorkerSet {
            config: self.config().to_owned(),
            node: only_node(&self.0).map(str::to_owned),
        }
    }

    /// The hash of its ConfigMap, as that was when it was made.
    pub fn fingerprint(&self) -> &str {
        let fingerprint = self.0.annotations().get(annotations::FINGERPRINT);
        fingerprint.map_or("", String::as_str)
    }

    /// Whether it is one that this version of the ConfigMap asks for.
    pub fn is_for(&self, config: &ProvisionerConfig) -> bool {
        self.config() == config.reference.to_string() && self.fingerprint() == config.fingerprint
    }

    pub fn has_run(&self) -> bool {
        carrier::has_run(&self.0)
    }

    /// The number of the last run that it was given.
    pub fn number(&self) -> u64 {
        carrier::number(&self.0)
    }

    pub fn is_leaving(&self) -> bool {
        self.0.metadata.deletion_timestamp.is_some()
    }

    /// Whether its container has ended: it starts no other.
    pub fn is_over(&self) -> bool {
        matches!(self.phase(), Some("Failed" | "Succeeded"))
    }

    /// Where it listens, once it runs.
    pub fn address(&self) -> Option<(String, u16)> {
        let ip = self.0.status.as_ref()?.pod_ip.clone()?;
        let container = self.0.spec.as_ref()?.containers.first()?;
        let port = container.ports.as_ref()?.first()?.container_port;
        (self.phase() == Some("Running")).then_some((ip, u16::try_from(port).ok()?))
    }

    /// Since when it has been there.
    pub fn made(&self) -> Timestamp {
        let made = self.0.metadata.creation_timestamp.as_ref();
        made.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    }

    /// Names it for its removal, unless anything about it has changed since.
    pub fn to_remove_as_it_is(&self) -> RunRef {
        RunRef {
            resource_version: self.0.metadata.resource_version.clone(),
            ..RunRef::of_carrier(&self.0)
        }
    }

    /// How its container ended, if it did.
    pub fn end(&self) -> Option<Finish> {
        match observe(&self.0) {
            State::Finished(finish) if finish.why.is_empty() => Some(Finish {
                why: "exit code 0".to_owned(),
                ..finish
            }),
            State::Finished(finish) => Some(finish),
            State::Waiting { .. } | State::Running | State::Leaving => None,
        }
    }

    /// Why its container does not start, if it does not.
    pub fn waits_for(&self) -> Option<String> {
        match observe(&self.0) {
            State::Waiting { why, .. } if !why.is_empty() => Some(why),
            State::Waiting { .. } | State::Running | State::Leaving | State::Finished(_) => None,
        }
    }

    /// Its Pod.
    pub(super) fn pod(&self) -> &Carrier {
        &self.0
    }

    fn phase(&self) -> Option<&str> {
        self.0.status.as_ref()?.phase.as_deref()
    }
}
