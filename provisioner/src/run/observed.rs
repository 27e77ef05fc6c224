//! A run as the cluster has it. What it is carried out by, a Pod of its own or a worker, only this room knows: the
//! others ask a [`Run`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use mooring_contract::names::{annotations, labels};
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;
use mooring_contract::worker::Report;

use super::carrier::{self, Carrier};
use super::identity::{RunId, RunRef};
use super::input_state::InputState;
use super::outcome::{State, observe, observe_on_worker};
use super::release::Release;
use crate::time::later;
use crate::volume::persistent_volume::name_for;

/// Whether a worker has this run.
pub fn has(carrier: &Carrier, id: &RunId) -> bool {
    let label = |key: &str| carrier.labels().get(key).map(String::as_str);
    carrier::is_worker(carrier)
        && label(labels::OPERATION) == Some(id.operation.as_str())
        && label(labels::CLAIM_UID) == Some(&id.uid)
}

/// A run that was seen in the cluster.
#[derive(Debug, Clone)]
pub struct Run {
    carrier: Arc<Carrier>,
    /// What its worker said last, if a worker carries it out and has said anything.
    report: Option<Report>,
}

/// The request of a run can't be read any more.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("the annotation {} of its Pod is gone", annotations::REQUEST)]
    Gone,
    #[error("the annotation {} of its Pod can't be read any more", annotations::REQUEST)]
    Unreadable(#[source] serde_json::Error),
}

impl Run {
    /// The run that this carries out.
    pub fn of(carrier: impl Into<Arc<Carrier>>) -> Self {
        Self {
            carrier: carrier.into(),
            report: None,
        }
    }

    /// The same with what its worker said last.
    #[must_use]
    pub fn reported(self, report: Option<Report>) -> Self {
        Self { report, ..self }
    }

    /// Whether a worker carries it out.
    pub fn is_on_worker(&self) -> bool {
        carrier::is_worker(&self.carrier)
    }

    /// Whether this is a run, and no worker that waits for one.
    pub fn is_run(&self) -> bool {
        !self.is_on_worker() || carrier::has_run(&self.carrier)
    }

    /// Which operation it is, if it is one that is run here.
    pub fn operation(&self) -> Option<Operation> {
        self.label(labels::OPERATION).and_then(|label| label.parse().ok())
    }

    pub fn claim_uid(&self) -> Option<&str> {
        self.label(labels::CLAIM_UID)
    }

    /// Namespace and name of that claim.
    pub fn claim(&self) -> Option<(&str, &str)> {
        self.carrier.annotations().get(annotations::CLAIM)?.split_once('/')
    }

    /// `namespace/name` of its ConfigMap.
    pub fn config(&self) -> Option<&str> {
        self.carrier.annotations().get(annotations::CONFIG).map(String::as_str)
    }

    /// The hash of its ConfigMap, as that was when it was made.
    pub fn fingerprint(&self) -> Option<&str> {
        self.carrier
            .annotations()
            .get(annotations::FINGERPRINT)
            .map(String::as_str)
    }

    /// The state of all that decided it, when it was made; `None` if an earlier version made it.
    pub fn input_state(&self) -> Option<InputState> {
        let state = self.carrier.annotations().get(annotations::INPUT_STATE);
        state.map(|state| state.clone().into())
    }

    /// The attempt that it was made for; 0 if it does not say.
    pub fn attempt(&self) -> u32 {
        self.label(labels::ATTEMPT)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// What the image was asked.
    pub fn request(&self) -> Result<Request, RequestError> {
        let text = self.carrier.annotations().get(annotations::REQUEST);
        serde_json::from_str(text.ok_or(RequestError::Gone)?).map_err(RequestError::Unreadable)
    }

    /// Name of the PV whose volume it is about. A volume that was handed to another claim keeps its PV.
    pub fn pv_name(&self) -> Option<String> {
        let asked = self.request().ok().map(|request| request.pv_name);
        asked
            .filter(|name| !name.is_empty())
            .or_else(|| self.claim_uid().map(name_for))
    }

    /// The node that it is on.
    pub fn node(&self) -> Option<&str> {
        let spec = self.carrier.spec.as_ref()?;
        spec.node_name.as_deref().filter(|node| !node.is_empty())
    }

    /// The namespace that it is in, which is its ConfigMap's.
    pub fn namespace(&self) -> Option<&str> {
        self.carrier.metadata.namespace.as_deref()
    }

    /// `namespace/name`, by the name that a Pod of its own has or would have.
    pub fn place(&self) -> String {
        let namespace = self.namespace().unwrap_or_default();
        match (self.is_on_worker(), self.operation(), self.claim_uid()) {
            (true, Some(operation), Some(uid)) => RunId::new(operation, uid).in_namespace(namespace),
            _ => format!("{namespace}/{}", self.carrier.name_any()),
        }
    }

    /// The uid of the run: that of its Pod, with the run's number behind it if it is on a worker.
    pub fn uid(&self) -> Cow<'_, str> {
        let uid = self.carrier.metadata.uid.as_deref().unwrap_or_default();
        if self.is_on_worker() {
            format!("{uid}/{}", carrier::number(&self.carrier)).into()
        } else {
            uid.into()
        }
    }

    /// When it was made; the earliest moment there is if the API has not said.
    pub fn made(&self) -> Timestamp {
        if let Some(begun) = carrier::begun(&self.carrier).filter(|_| self.is_on_worker()) {
            return begun;
        }
        let created = self.carrier.metadata.creation_timestamp.as_ref();
        created.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    }

    /// When it ended, by its node's clock; if nobody said, when it was made.
    pub fn ended(&self) -> Timestamp {
        let status = self.carrier.status.as_ref();
        let containers = status.and_then(|status| status.container_statuses.as_deref());
        let ended = containers.and_then(<[_]>::first).and_then(|container| {
            let terminated = container.state.as_ref()?.terminated.as_ref()?;
            terminated.finished_at.as_ref()
        });
        ended.map_or_else(|| self.made(), |time| time.0.max(self.made()))
    }

    /// When it was asked to go, if it was.
    pub fn leaving_since(&self) -> Option<Timestamp> {
        self.carrier.metadata.deletion_timestamp.as_ref().map(|time| time.0)
    }

    /// When it has to be over: its limit, and `slack` for its node to say so.
    pub fn due(&self, slack: Duration) -> Timestamp {
        if self.is_on_worker() {
            return later(self.made(), carrier::timeout(&self.carrier) + slack);
        }
        let active = self.carrier.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
        let limit = Duration::from_secs(active.unwrap_or(0).unsigned_abs());
        let started = self
            .carrier
            .status
            .as_ref()
            .and_then(|status| status.start_time.as_ref());
        // The kubelet's own clock begins when it takes the Pod. A Pod that no kubelet has taken, only the controller
        // ends.
        match started {
            Some(time) => later(time.0, limit + slack),
            None => later(self.made(), limit),
        }
    }

    /// Whether its worker has ended it by its limit without saying so, if it was ever given it: one that was not, or that
    /// can't be reached, never does. What runs in a Pod of its own, Kubernetes ends, and says so.
    pub fn has_run_out(&self, slack: Duration, now: Timestamp) -> bool {
        self.is_on_worker() && !self.is_over() && self.due(slack) <= now
    }

    pub fn state(&self) -> State {
        if self.is_on_worker() {
            let of_this = self.report.as_ref();
            observe_on_worker(&self.carrier, carrier::number(&self.carrier), of_this)
        } else {
            observe(&self.carrier)
        }
    }

    pub fn is_over(&self) -> bool {
        match self.state() {
            State::Finished(_) => true,
            State::Waiting { .. } | State::Running | State::Leaving => false,
        }
    }

    /// Whether its container is known to have been started.
    pub fn has_started(&self) -> bool {
        match self.state() {
            State::Running => true,
            State::Finished(finish) => finish.started,
            State::Waiting { .. } | State::Leaving => false,
        }
    }

    /// Whether its image says that it has done what it was for.
    pub fn is_done(&self) -> bool {
        matches!(self.state(), State::Finished(finish) if finish.outcome == Outcome::Done)
    }

    /// Whether it was begun for the object of this uid, and for no other of its name.
    pub fn belongs_to(&self, uid: &str) -> bool {
        if self.is_on_worker() {
            let owner = self.carrier.annotations().get(annotations::OWNER);
            return owner.is_some_and(|owner| owner == uid);
        }
        self.carrier.owner_references().iter().any(|owner| owner.uid == uid)
    }

    /// Whether Kubernetes removes it together with the object of this uid.
    pub fn goes_with(&self, uid: &str) -> bool {
        !self.is_on_worker() && self.belongs_to(uid)
    }

    /// Names it for its removal, whatever has become of it since.
    pub fn to_remove(&self) -> RunRef {
        let number = carrier::number(&self.carrier);
        let report = self.report.as_ref();
        let has_ended = report.is_some_and(|report| report.number == number && report.ended.is_some());
        let stays = self.is_on_worker() && has_ended && self.leaving_since().is_none();
        RunRef {
            uid: self.uid().into_owned(),
            release: stays.then(|| Release::of(&self.carrier)),
            ..RunRef::of_carrier(&self.carrier)
        }
    }

    /// Names it for its removal, unless anything about it has changed since.
    pub fn to_remove_as_it_is(&self) -> RunRef {
        RunRef {
            resource_version: self.carrier.metadata.resource_version.clone(),
            ..self.to_remove()
        }
    }

    /// The object that Events about it are about.
    pub fn object_ref(&self) -> ObjectReference {
        self.carrier.object_ref(&())
    }

    /// Metadata of the object that carries it out.
    pub(crate) fn meta(&self) -> &ObjectMeta {
        &self.carrier.metadata
    }

    /// The object that carries it out.
    pub(super) fn carrier(&self) -> &Arc<Carrier> {
        &self.carrier
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.carrier.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

#[cfg(test)]
impl Run {
    /// The run after this change of what carries it out.
    pub(crate) fn changed(mut self, change: impl FnOnce(&mut Carrier)) -> Self {
        change(Arc::make_mut(&mut self.carrier));
        self
    }
}

/// As users find it: `Pod namespace/name`.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.namespace().unwrap_or_default();
        write!(f, "Pod {namespace}/{}", self.carrier.name_any())
    }
}
