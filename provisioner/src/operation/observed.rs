//! The input of a plan: all that is known of a claim, a PV or a snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttributesClass};
use k8s_openapi::jiff::Timestamp;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;

use super::attempt::state_of;
use super::content::{self, ObservedSource};
use super::decision::Intent;
use super::describe::{Effect, describe};
use super::drive::Progress;
use super::limits::Limits;
use super::record::Record;
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::run::departed::Departed;
use crate::run::input_state::InputState;
use crate::run::{Run, RunId};
use crate::volume::content_view::ContentView;
use crate::volume::group_snapshot::VolumeGroupSnapshotContent;
use crate::volume::snapshot::{Form, VolumeSnapshotClass};
use crate::volume::topology::Node;

/// What a request is made of, beside what the volume is for.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    pub class: Option<&'a StorageClass>,
    /// The ConfigMap in force.
    pub config: &'a ProvisionerConfig,
    /// Address of the Kubernetes API.
    pub kube_api: &'a str,
}

impl<'a> Surroundings<'a> {
    pub(crate) fn new(class: Option<&'a StorageClass>, config: &'a ProvisionerConfig, kube_api: &'a str) -> Self {
        Self {
            class,
            config,
            kube_api,
        }
    }
}

/// What is known of a claim and all that belongs to it.
#[derive(Clone, Copy)]
pub struct ObservedClaim<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub record: Option<&'a Record>,
    pub class: Option<&'a StorageClass>,
    /// The ConfigMap in force for it.
    pub config: &'a Result<Arc<ProvisionerConfig>, NoConfig>,
    /// Since when it is known to want a volume and to have no ConfigMap; now, if it is not so.
    pub unserved_since: Timestamp,
    /// The run that makes its volume: of operation [`Self::making`].
    pub provision_run: Option<&'a Run>,
    pub delete_run: Option<&'a Run>,
    /// The runs that change its volume.
    pub changes: &'a BTreeMap<Operation, Run>,
    /// How the last run of its provisioning was when it went, if that was seen.
    pub departed: Option<&'a Departed>,
    /// The PVs that bear its name or its uid.
    pub volumes: &'a [Arc<PersistentVolume>],
    /// `volumes` was read from the API just now.
    pub looked_up: bool,
    /// The nodes of the cluster.
    pub nodes: &'a (dyn Fn(&str) -> Option<Node> + Sync),
    /// The node with this value of the label `kubernetes.io/hostname`.
    pub by_host: &'a (dyn Fn(&str) -> Option<Node> + Sync),
    /// The `VolumeAttributesClass` of this name.
    pub attributes: &'a (dyn Fn(&str) -> Option<Arc<VolumeAttributesClass>> + Sync),
    pub source: &'a ObservedSource,
    /// What is being made of its volume: a claim's copy or a snapshot. Known of one that is to change.
    pub copied_by: Option<&'a str>,
    /// Address of the Kubernetes API, for the image.
    pub kube_api: &'a str,
    pub limits: &'a Limits,
}

impl ObservedClaim<'_> {
    /// The claim's uid; without one (which no API server leaves out) nothing can be named.
    pub(crate) fn uid(&self) -> &str {
        self.claim.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The node that was selected for it.
    pub(crate) fn selected(&self) -> Option<&str> {
        self.annotation(annotations::SELECTED_NODE)
            .filter(|node| !node.is_empty())
    }

    /// The operation that makes its volume.
    pub(crate) fn making(&self) -> Operation {
        content::making(self.claim)
    }

    pub(crate) fn run(&self, operation: Operation) -> RunId {
        RunId::new(operation, self.uid())
    }

    /// How far an operation on it is that has this record and this run.
    pub(super) fn progress<'c>(
        &'c self,
        operation: Operation,
        record: Option<&'c Record>,
        run: Option<&'c Run>,
        now: Timestamp,
    ) -> Progress<'c> {
        let config = self.config.as_ref().ok();
        Progress {
            id: self.run(operation),
            record,
            recorded: Intent::Recorded,
            run,
            config,
            state: config.map_or(InputState::Unknown, |config| {
                state_of(config, Some(self.claim), self.class)
            }),
            limits: self.limits,
            now,
        }
    }

    /// What the request of a run is made of, beside the claim.
    pub(crate) fn surroundings<'c>(&'c self, config: &'c ProvisionerConfig) -> Surroundings<'c> {
        Surroundings::new(self.class, config, self.kube_api)
    }

    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it waits for a Pod to be scheduled.
    pub(crate) fn waits_for_consumer(&self) -> bool {
        let mode = self.class.and_then(|class| class.volume_binding_mode.as_deref());
        mode == Some("WaitForFirstConsumer")
    }
}

/// What is known of a PV and all that belongs to it.
pub struct ObservedVolume<'a> {
    pub volume: &'a PersistentVolume,
    pub record: Option<&'a Record>,
    pub class: Option<&'a StorageClass>,
    /// The ConfigMap in force for it.
    pub config: &'a Result<Arc<ProvisionerConfig>, NoConfig>,
    /// Its runs, and those that change it for the claim that has it.
    pub runs: &'a BTreeMap<Operation, Run>,
    /// Its claim has it, or may yet get it: [`super::standing::is_claimed`].
    pub claimed: bool,
    /// The PV that this is a copy of, if it is one, is there.
    pub has_original: bool,
    /// What is being made as a copy of it: `claim namespace/name`, or the snapshot.
    pub copied_by: Option<&'a str>,
    /// The node with this value of the label `kubernetes.io/hostname`.
    pub by_host: &'a dyn Fn(&str) -> Option<Node>,
    /// Since when the node that the volume lives on has been seen to be missing, if it is.
    pub away_since: Option<Timestamp>,
    /// Address of the Kubernetes API, for the image.
    pub kube_api: &'a str,
    pub limits: &'a Limits,
}

impl<'a> ObservedVolume<'a> {
    /// The run of an operation that does this.
    pub(crate) fn run(&self, does: impl Fn(Effect) -> bool) -> Option<&'a Run> {
        let mut runs = self.runs.iter();
        let found = runs.find(|(operation, _)| does(describe(**operation).effect));
        found.map(|(_, run)| run)
    }
}

/// What is known about the source volume of a snapshot.
#[derive(Debug, Clone, Default)]
pub struct ObservedTarget {
    pub handle: String,
    pub volume: Option<Arc<PersistentVolume>>,
    /// The claim that this is bound to.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
}

/// What is known of a `VolumeSnapshotContent` or a `VolumeGroupSnapshotContent`, and all that belongs to it.
pub struct ObservedSnapshot<'a> {
    pub content: &'a ContentView<'a>,
    pub record: Option<&'a Record>,
    pub form: Form,
    pub class: Option<&'a VolumeSnapshotClass>,
    pub targets: &'a [ObservedTarget],
    /// For a snapshot of a group, the group's content.
    pub group: Option<&'a VolumeGroupSnapshotContent>,
    /// The ConfigMap in force for it.
    pub config: &'a Result<Arc<ProvisionerConfig>, NoConfig>,
    /// The run that takes it.
    pub snapshot_run: Option<&'a Run>,
    pub delete_run: Option<&'a Run>,
    /// The claim whose volume is being made of it, `namespace/name`.
    pub restored_by: Option<&'a str>,
    /// The node with this value of the label `kubernetes.io/hostname`.
    pub by_host: &'a dyn Fn(&str) -> Option<Node>,
    /// Since when the node that the snapshot lives on has been seen to be missing, if it is.
    pub away_since: Option<Timestamp>,
    /// Address of the Kubernetes API, for the image.
    pub kube_api: &'a str,
    pub limits: &'a Limits,
}

impl ObservedSnapshot<'_> {
    pub(crate) fn uid(&self) -> &str {
        self.content.uid()
    }

    pub(crate) fn run(&self, operation: Operation) -> RunId {
        RunId::new(operation, self.uid())
    }
}
