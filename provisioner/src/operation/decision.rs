//! What a plan decides, to be carried out by [`crate::apply`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use mooring_contract::request::Request;
use serde_json::Value;

use super::record::Record;
use crate::config::ProvisionerConfig;
use crate::process::events::Note;
use crate::run::kind::Kind;
use crate::run::outcome::Category;

/// What to do. Everything here is done at once or not at all; the next step comes with the next change. `Own` is what can be
/// done to an object of its kind only.
#[derive(Debug, Clone)]
pub enum Decision<Own> {
    /// Nothing, until something changes.
    Rest,
    /// Wait for what a watch or the clock will tell.
    Wait {
        /// When to come back, if nothing has changed.
        after: Option<Duration>,
        /// What to tell meanwhile, once.
        say: Option<Note>,
    },
    /// Begin a run: the record, then the Pod, then its Secret.
    Start(Box<Start>),
    /// A Pod is there but has not started: it may still lack its Secret.
    Supply {
        /// What it is to run.
        start: Box<Start>,
        /// When to come back.
        after: Option<Duration>,
        /// What to tell meanwhile, once.
        say: Option<Note>,
    },
    /// Write the record: something has been learnt that must not be forgotten.
    Note(Box<Record>),
    /// Write down that an attempt failed, tell it, remove the Pod.
    Fail(Box<Failed>),
    /// Remove a Pod.
    Stop(PodRef),
    /// Remove the Pods that a finished or undone operation left.
    Tidy(Vec<PodRef>),
    /// What is done to an object of this kind only.
    Own(Own),
}

/// What to do about a claim.
pub type ClaimDecision = Decision<ForClaim>;

/// What to do about a PV.
pub type VolumeDecision = Decision<ForVolume>;

/// What to do about a Pod that has neither claim nor PV.
pub type OrphanDecision = Decision<Infallible>;

/// What is done to a claim only.
#[derive(Debug, Clone)]
pub enum ForClaim {
    /// The volume is what was asked for.
    Accept(Box<Accept>),
    /// The volume is not what was asked for: write that down, remove its PVs, tell it.
    Refuse(Box<Refuse>),
    /// Let the scheduler choose another node.
    Reschedule(Box<Reschedule>),
    /// The volume is gone: remove its PVs, and let the claim go or try again.
    Undone(Box<Undone>),
}

/// What is done to a PV only.
#[derive(Debug, Clone)]
pub enum ForVolume {
    /// Its volume is gone, or is not ours to delete: let it go.
    LetGo(Box<LetGo>),
}

/// What the controller of claims has to do first: nothing can be decided before.
#[derive(Debug, Clone)]
pub enum First {
    /// Read the claim's PV from the API, not from what was watched.
    LookUp,
    /// Make the PV that the image described.
    MakeVolume(Box<PersistentVolume>),
}

impl<Own> Decision<Own> {
    /// The operation of the run that it begins, if it begins one.
    pub fn begins(&self) -> Option<Kind> {
        match self {
            Self::Start(start) => Some(start.operation),
            Self::Rest
            | Self::Wait { .. }
            | Self::Supply { .. }
            | Self::Note(_)
            | Self::Fail(_)
            | Self::Stop(_)
            | Self::Tidy(_)
            | Self::Own(_) => None,
        }
    }

    pub(crate) fn wait_for(say: Note) -> Self {
        Self::Wait {
            after: None,
            say: Some(say),
        }
    }

    pub(crate) fn wait(after: Duration) -> Self {
        Self::Wait {
            after: Some(after),
            say: None,
        }
    }
}

/// Where it is written, before there is a Pod, that a run is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// In the record, which has to be written first: it is new or has changed.
    ToRecord,
    /// In the record, as it stands.
    Recorded,
    /// In the PV itself: it is released and Mooring's finalizer holds it. That is all that a first attempt to delete it needs;
    /// a record begins with the first failure.
    Released,
    /// In the Pod that is the record, see [`crate::controllers::orphan`].
    Pod,
}

/// A run to be begun.
#[derive(Debug, Clone)]
pub struct Start {
    /// Which operation the run is; the record's may be the one that it is a part of.
    pub operation: Kind,
    /// What to run.
    pub request: Request,
    /// By which ConfigMap.
    pub config: Arc<ProvisionerConfig>,
    /// The record of it.
    pub record: Record,
    /// Where it is written that this is to be done.
    pub intent: Intent,
    /// The PV whose deletion this is, by name and uid: the Pod belongs to it and goes with it.
    pub owner: Option<(String, String)>,
    /// The only node that it may run on.
    pub node: Option<String>,
    /// The state that it is tried with: see [`Record::tried`].
    pub state: String,
}

/// An attempt that failed.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The record to write.
    pub record: Record,
    /// What to tell the user.
    pub say: Note,
    /// The Pod to remove.
    pub pod: Option<PodRef>,
    /// For metrics.
    pub category: Category,
    /// When to come back.
    pub after: Option<Duration>,
}

/// A volume that is what was asked for.
#[derive(Debug, Clone)]
pub struct Accept {
    /// The PV.
    pub pv_name: String,
    /// What is to be changed of the PV, if anything.
    pub volume_patch: Option<Value>,
    /// What is to be changed of the claim (JSON patch): its record and finalizer go, and it is bound.
    pub claim_patch: Value,
    /// The Pods to remove.
    pub pods: Vec<PodRef>,
    /// What to tell.
    pub say: Note,
    /// How long it took from the intent on.
    pub took: Duration,
}

/// A volume that is not what was asked for.
#[derive(Debug, Clone)]
pub struct Refuse {
    /// The record to write first.
    pub record: Record,
    /// The PVs to remove, by name and uid.
    pub volumes: Vec<(String, String)>,
    /// What to tell, if anything.
    pub say: Option<Note>,
    /// The Pod to remove.
    pub pod: Option<PodRef>,
}

/// A node that a volume can't be made on.
#[derive(Debug, Clone)]
pub struct Reschedule {
    /// The record to write with it, if there is one.
    pub record: Option<Record>,
    /// What to tell.
    pub say: Note,
    /// The Pod to remove.
    pub pod: Option<PodRef>,
}

/// What comes after a claim's volume is gone.
#[derive(Debug, Clone)]
pub struct Undone {
    /// The PVs to remove first, by name and uid.
    pub volumes: Vec<(String, String)>,
    /// The record with which provisioning begins anew; `None` to let the claim go.
    pub next: Option<Record>,
    /// Another node is to be selected.
    pub reschedule: bool,
    /// The Pods to remove.
    pub pods: Vec<PodRef>,
    /// What to tell, if anything.
    pub say: Option<Note>,
    /// How long it took, if something was run.
    pub took: Option<Duration>,
    /// When to come back.
    pub after: Option<Duration>,
}

/// A PV that is let go.
#[derive(Debug, Clone)]
pub struct LetGo {
    /// The PV is deleted too (it may be already).
    pub delete: bool,
    /// The Pods to remove.
    pub pods: Vec<PodRef>,
    /// What to tell, if anything.
    pub say: Option<Note>,
    /// How long it took, if something was run.
    pub took: Option<Duration>,
}

/// A Pod to be deleted, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: no other Pod of that name is meant.
    pub uid: String,
    /// Only if it is still as it was seen.
    pub resource_version: Option<String>,
}

impl PodRef {
    /// This very Pod, whatever has become of it since.
    pub fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            resource_version: None,
        }
    }

    /// This very Pod, unless anything has become of it since.
    pub fn exactly(pod: &Pod) -> Self {
        Self {
            resource_version: pod.metadata.resource_version.clone(),
            ..Self::of(pod)
        }
    }
}

/// Those of these Pods that are not going already.
pub(crate) fn pods<const N: usize>(pods: [Option<&Pod>; N]) -> Vec<PodRef> {
    pods.into_iter()
        .flatten()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .map(PodRef::of)
        .collect()
}

/// A PV, so that no other of its name is meant.
pub(crate) fn name_and_uid(volume: &PersistentVolume) -> (String, String) {
    let meta = &volume.metadata;
    (
        meta.name.clone().unwrap_or_default(),
        meta.uid.clone().unwrap_or_default(),
    )
}
