//! A run as the cluster has it. What it is carried out by, a Pod of its own, only this room knows: the others ask a
//! [`Run`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use mooring_contract::names::{annotations, labels};
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;

use super::identity::RunRef;
use super::outcome::{State, observe};
use crate::time::later;

/// What carries runs out, as the cache watches it.
pub type Carrier = Pod;

/// The labels that carriers of runs have, as a selector.
pub fn selector() -> String {
    format!("{}={}", labels::COMPONENT, labels::COMPONENT_PROVISIONING)
}

/// A run that was seen in the cluster.
#[derive(Debug, Clone)]
pub struct Run(Arc<Carrier>);

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
        Self(carrier.into())
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
        self.0.annotations().get(annotations::CLAIM)?.split_once('/')
    }

    /// `namespace/name` of its ConfigMap.
    pub fn config(&self) -> Option<&str> {
        self.0.annotations().get(annotations::CONFIG).map(String::as_str)
    }

    /// The hash of its ConfigMap, as that was when it was made.
    pub fn fingerprint(&self) -> Option<&str> {
        self.0.annotations().get(annotations::FINGERPRINT).map(String::as_str)
    }

    /// The attempt that it was made for; 0 if it does not say.
    pub fn attempt(&self) -> u32 {
        self.label(labels::ATTEMPT)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// What the image was asked.
    pub fn request(&self) -> Result<Request, RequestError> {
        let text = self.0.annotations().get(annotations::REQUEST);
        serde_json::from_str(text.ok_or(RequestError::Gone)?).map_err(RequestError::Unreadable)
    }

    /// The node that it is on.
    pub fn node(&self) -> Option<&str> {
        let spec = self.0.spec.as_ref()?;
        spec.node_name.as_deref().filter(|node| !node.is_empty())
    }

    /// The namespace that it is in, which is its ConfigMap's.
    pub fn namespace(&self) -> Option<&str> {
        self.0.metadata.namespace.as_deref()
    }

    /// `namespace/name`.
    pub fn place(&self) -> String {
        let namespace = self.namespace().unwrap_or_default();
        format!("{namespace}/{}", self.0.name_any())
    }

    /// The uid of what carries it out.
    pub fn uid(&self) -> &str {
        self.0.metadata.uid.as_deref().unwrap_or_default()
    }

    /// When it was made; the earliest moment there is if the API has not said.
    pub fn made(&self) -> Timestamp {
        let created = self.0.metadata.creation_timestamp.as_ref();
        created.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
    }

    /// When it ended, by its node's clock; if nobody said, when it was made.
    pub fn ended(&self) -> Timestamp {
        let containers = self
            .0
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_deref());
        let ended = containers.and_then(<[_]>::first).and_then(|container| {
            let terminated = container.state.as_ref()?.terminated.as_ref()?;
            terminated.finished_at.as_ref()
        });
        ended.map_or_else(|| self.made(), |time| time.0.max(self.made()))
    }

    /// When it was asked to go, if it was.
    pub fn leaving_since(&self) -> Option<Timestamp> {
        self.0.metadata.deletion_timestamp.as_ref().map(|time| time.0)
    }

    /// When it has to be over: its limit, and `slack` for its node to say so.
    pub fn due(&self, slack: Duration) -> Timestamp {
        let active = self.0.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
        let limit = Duration::from_secs(active.unwrap_or(0).unsigned_abs());
        let started = self.0.status.as_ref().and_then(|status| status.start_time.as_ref());
        // The kubelet's own clock begins when it takes the Pod. A Pod that no kubelet has taken, only the controller
        // ends.
        match started {
            Some(time) => later(time.0, limit + slack),
            None => later(self.made(), limit),
        }
    }

    pub fn state(&self) -> State {
        observe(&self.0)
    }

    pub fn is_over(&self) -> bool {
        match self.state() {
            State::Finished(_) => true,
            State::Waiting { .. } | State::Running | State::Leaving => false,
        }
    }

    /// Whether Kubernetes removes it together with the object of this uid.
    pub fn goes_with(&self, uid: &str) -> bool {
        self.0.owner_references().iter().any(|owner| owner.uid == uid)
    }

    /// Names it for its removal, whatever has become of it since.
    pub fn to_remove(&self) -> RunRef {
        RunRef {
            namespace: self.namespace().unwrap_or_default().to_owned(),
            name: self.0.name_any(),
            uid: self.uid().to_owned(),
            resource_version: None,
        }
    }

    /// Names it for its removal, unless anything about it has changed since.
    pub fn to_remove_as_it_is(&self) -> RunRef {
        RunRef {
            resource_version: self.0.metadata.resource_version.clone(),
            ..self.to_remove()
        }
    }

    /// The object that Events about it are about.
    pub fn object_ref(&self) -> ObjectReference {
        self.0.object_ref(&())
    }

    /// Metadata of the object that carries it out.
    pub(crate) fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    /// The object that carries it out.
    pub(super) fn carrier(&self) -> &Carrier {
        &self.0
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.0.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

#[cfg(test)]
impl Run {
    /// The run after this change of what carries it out.
    pub(crate) fn changed(mut self, change: impl FnOnce(&mut Carrier)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

/// As users find it: `Pod namespace/name`.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pod {}", self.place())
    }
}
