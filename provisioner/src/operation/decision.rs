//! What a plan decides. [`crate::apply`] carries it out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, TopologySelectorTerm};
use mooring_contract::attachment::AttachedTo;
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;
use serde_json::Value;

pub use super::describe::Intent;
use super::record::Record;
use crate::config::ProvisionerConfig;
use crate::process::events::Note;
use crate::run::input_state::InputState;
use crate::run::outcome::Category;
use crate::run::{Run, RunId, RunRef};
use crate::volume::persistent_volume::Answered;

/// What to do: one step, done at once or not at all. The next step follows the next change. `Own` has the steps that
/// only objects of one kind have.
#[derive(Debug, Clone)]
pub enum Decision<Own> {
    /// Nothing, until something changes.
    Rest,
    /// Wait for a watch or the clock.
    Wait {
        /// When to come back, if nothing has changed.
        after: Option<Duration>,
        /// An Event about the wait, published once.
        say: Option<Note>,
    },
    /// Write the record, then begin the run.
    Start(Box<Start>),
    /// The run is there but has not started: it may still lack its properties.
    Supply {
        start: Box<Start>,
        /// When to come back.
        after: Option<Duration>,
        say: Option<NotStarted>,
    },
    /// Write the record: it has a fact that must survive the controller.
    Record(Box<Record>),
    /// Remove a run that has made nothing, unless anything about it has changed since it was seen; then write so.
    Cancel { record: Box<Record>, run: RunRef },
    /// Record that an attempt failed, publish an Event, remove the run.
    Fail(Box<Failed>),
    /// Remove runs that the object, as it was seen, does not want: what was watched of it may be older than the run, and
    /// if it is gone meanwhile, its runs are all that tells of what they made.
    Stop(Vec<RunRef>),
    /// Remove runs that have nothing more to tell, whatever has become of the object.
    Tidy(Vec<RunRef>),
    /// Write what an operation came to, and remove its runs.
    Settle(Box<Settled>),
    /// A step that only objects of this kind have.
    Own(Own),
}

pub type ClaimDecision = Decision<ForClaim>;

pub type VolumeDecision = Decision<ForVolume>;

/// What to do about a `VolumeSnapshotContent` or a `VolumeGroupSnapshotContent`.
pub type SnapshotDecision = Decision<Infallible>;

/// What to do about the discovery that a ConfigMap promises: its run is its own record, and there are no steps but the
/// common ones.
pub type RunDecision = Decision<Infallible>;

/// What to do about a run that has neither claim nor PV. Such a run is its own record.
pub type OrphanDecision = Decision<Infallible>;

/// The steps that only claims have.
#[derive(Debug, Clone)]
pub enum ForClaim {
    /// Read the claim's PV from the API, not from what was watched: then decide again.
    LookUp,
    /// The volume is what was asked for.
    Accept(Box<Accept>),
    /// The volume is not what was asked for: record that, remove its PVs, publish an Event.
    Refuse(Box<Refuse>),
    /// Ask the scheduler for another node.
    Reschedule(Box<Reschedule>),
    /// The volume is gone: remove its PVs, then release the claim or try again.
    Undone(Box<Undone>),
    /// A change of an existing volume is over, one way or another.
    Altered(Box<Altered>),
}

/// The steps that only PVs have.
#[derive(Debug, Clone)]
pub enum ForVolume {
    /// Its volume is gone, or is not Mooring's to delete: release it.
    LetGo(Box<LetGo>),
    Attached(Box<Attached>),
    Detached(Box<Detached>),
    /// What is open has to wait, and gives way to what can be done for another node.
    Deferred(Box<Record>),
}

impl<Own> Decision<Own> {
    /// The operation of the run that it begins, if it begins one.
    pub fn begins(&self) -> Option<Operation> {
        match self {
            Self::Start(start) => Some(start.run.operation),
            _ => None,
        }
    }

    /// When to look at the object again if nothing changes.
    pub fn due(&self) -> Option<Duration> {
        match self {
            Self::Wait { after, .. } | Self::Supply { after, .. } => *after,
            _ => None,
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

/// An Event about a run that has not started: published once because it is late, and once because it can't.
#[derive(Debug, Clone)]
pub struct NotStarted {
    pub note: Note,
    /// Its node says that it can't.
    pub is_blocked: bool,
}

/// A run to be begun.
#[derive(Debug, Clone)]
pub struct Start {
    /// Which run; the record's operation may be another one, which it is a part of.
    pub run: RunId,
    pub request: Request,
    /// The ConfigMap that it uses.
    pub config: Arc<ProvisionerConfig>,
    pub record: Record,
    /// Where the intent is recorded.
    pub intent: Intent,
    /// The PV whose deletion this is, or the ConfigMap, by name and uid: the run belongs to it and goes with it.
    pub owner: Option<(String, String)>,
    /// The only node on which it may run.
    pub node: Option<String>,
    /// Where else it may run: the class's `allowedTopologies`, if it decides where the volume is. Empty: anywhere.
    pub allowed: Vec<TopologySelectorTerm>,
    /// The state that it is tried with: see [`Record::tried`].
    pub state: InputState,
}

#[derive(Debug, Clone)]
pub struct Failed {
    /// The record to write.
    pub record: Record,
    pub say: Note,
    /// The run to remove.
    pub run: Option<RunRef>,
    /// For metrics.
    pub category: Category,
    /// When to come back.
    pub after: Option<Duration>,
}

/// A volume that is what was asked for.
#[derive(Debug, Clone)]
pub struct Accept {
    /// The operation that made it.
    pub operation: Operation,
    pub pv_name: String,
    pub volume: ForAccepted,
    /// The change of the claim (JSON patch): removes its record and finalizer.
    pub claim_patch: Value,
    /// The Secret to make for the volume's connection, by namespace and name, if the volume has to be attached.
    pub connection: Option<(String, String)>,
    /// The runs to remove.
    pub runs: Vec<RunRef>,
    pub say: Option<Note>,
    /// How long it took from the intent on.
    pub took: Duration,
}

/// What an accepted volume's PV lacks.
#[derive(Debug, Clone)]
pub enum ForAccepted {
    /// The PV: the image only described it.
    Make(Box<PersistentVolume>),
    /// Some of what Mooring keeps on it.
    Patch(Value),
    Nothing,
}

/// A volume that is not what was asked for.
#[derive(Debug, Clone)]
pub struct Refuse {
    /// The record to write first.
    pub record: Record,
    /// The PVs to remove, by name and uid.
    pub volumes: Vec<(String, String)>,
    pub say: Option<Note>,
    /// The run to remove.
    pub run: Option<RunRef>,
}

/// A node that a volume can't be made on.
#[derive(Debug, Clone)]
pub struct Reschedule {
    /// The record to write with it, if there is one.
    pub record: Option<Record>,
    pub say: Note,
    /// The run to remove.
    pub run: Option<RunRef>,
}

/// What comes after a claim's volume is gone.
#[derive(Debug, Clone, Default)]
pub struct Undone {
    /// The PVs to remove first, by name and uid.
    pub volumes: Vec<(String, String)>,
    /// The record with which provisioning begins again; `None` to release the claim.
    pub next: Option<Record>,
    /// The scheduler has to select another node.
    pub reschedule: bool,
    /// The runs to remove.
    pub runs: Vec<RunRef>,
    pub say: Option<Note>,
    /// How long it took, if something was run.
    pub took: Option<Duration>,
    /// When to come back.
    pub after: Option<Duration>,
}

/// What is left to write about a change of an existing volume, in this order.
#[derive(Debug, Clone, Default)]
pub struct Altered {
    pub operation: Operation,
    /// A run, with its place (`namespace/name`), that must not exist any more: `apply` looks for it in the API, not in
    /// the cache, and removes it first.
    pub without: Option<(String, RunId)>,
    pub pv_name: String,
    /// The change of the PV, if any.
    pub volume_patch: Option<Value>,
    /// The change of the claim's status, if any.
    pub status: Option<Value>,
    /// Whether no node has anything left to do, if that is known.
    pub at_once: Option<bool>,
    /// Whether to remove the claim's record and finalizer.
    pub release: bool,
    /// The runs to remove.
    pub runs: Vec<RunRef>,
    pub say: Option<Note>,
    /// How long it took, if the volume has changed.
    pub took: Option<Duration>,
}

impl Altered {
    /// Nothing to do about a PV.
    pub(super) fn of(operation: Operation, volume: &PersistentVolume) -> Self {
        Self {
            operation,
            pv_name: volume.metadata.name.clone().unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// A PV that is released.
#[derive(Debug, Clone)]
pub struct LetGo {
    /// Whether to delete the PV too (it may be deleted already).
    pub delete: bool,
    /// Uid of the run that made the volume, if it is still there and nothing is left for it to undo.
    pub reclaimed: Option<String>,
    /// The runs to remove.
    pub runs: Vec<RunRef>,
    pub say: Option<Note>,
    /// How long it took, if something was run.
    pub took: Option<Duration>,
}

#[derive(Debug, Clone)]
pub struct Attached {
    pub to: AttachedTo,
    /// How the node reaches the volume.
    pub answered: Answered,
    /// The runs to remove.
    pub runs: Vec<RunRef>,
    pub say: Option<Note>,
    pub took: Duration,
}

#[derive(Debug, Clone)]
pub struct Detached {
    /// The runs to remove.
    pub runs: Vec<RunRef>,
    pub took: Duration,
}

/// What to write about a snapshot that was made or deleted, or about a run that is its own record, in this order.
#[derive(Debug, Clone, Default)]
pub struct Settled {
    /// The content's new status, if it changes.
    pub status: Option<Value>,
    /// Its new annotations, if there are any.
    pub notes: Option<Value>,
    /// Whether to remove the record.
    pub release: bool,
    /// Whether to remove the finalizer too.
    pub let_go: bool,
    /// Uid of the run that made it, if it is still there and nothing is left for it to undo.
    pub reclaimed: Option<String>,
    /// The runs to remove.
    pub runs: Vec<RunRef>,
    pub say: Option<Note>,
    /// The operation that is done with it, and how long it took, if something was run.
    pub done: Option<(Operation, Duration)>,
    /// When to come back.
    pub after: Option<Duration>,
}

/// Those of these runs that are not being removed already.
pub(crate) fn removable<'r>(runs: impl IntoIterator<Item = Option<&'r Run>>) -> Vec<RunRef> {
    runs.into_iter()
        .flatten()
        .filter(|run| run.leaving_since().is_none())
        .map(Run::to_remove)
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
