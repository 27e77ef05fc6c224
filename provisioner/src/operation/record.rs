//! The record of an operation: what the annotation `mooring.dev/operation` on a claim, a PV or a
//! `VolumeSnapshotContent` says.
//!
//! It is written before the first run is made and is all that the controller knows after a restart.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use mooring_contract::names::{annotations, finalizers};
use mooring_contract::operation::Operation;
use serde::{Deserialize, Serialize};

use super::describe::{Effect, Reads, describe};
use crate::config::ProvisionerConfig;
use crate::run::input_state::InputState;
use crate::text::cut;
use crate::time::whole_seconds;

/// One operation on one volume, over all its attempts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(clippy::struct_excessive_bools)] // each is one fact that has to outlive the controller
pub struct Record {
    pub operation: Operation,
    /// Number of the attempt that runs or comes next, from 1.
    pub attempt: u32,
    /// `namespace/name` of the run; in the annotation it is called after what carries it out.
    #[serde(rename = "pod")]
    pub run: String,
    /// When the operation began.
    pub since: Timestamp,
    /// `namespace/name` of the ConfigMap.
    pub config: String,
    pub config_uid: String,
    /// The node that the operation is bound to: the selected one, or that of the pool used. Empty for any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The attempt has not begun, and must not begin before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
    /// What the last attempt was tried with: a change of it ends the waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tried: Option<InputState>,
    /// The image said not to try again until [`Self::tried`] changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gave_up: bool,
    /// An attempt that failed may have run, so the volume may exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_exist: bool,
    /// The only run never started and is being taken back: nothing has to be undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
    /// What was made was refused: it is being deleted before the next attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// For an expansion, the size in bytes that the volume should get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// For an expansion or a modification: nobody knows how the last run ended, or an earlier one ran although it was
    /// taken for one that never would, so the storage may have [`Self::size`] or [`Self::attributes`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// For a copy, the name of the source PV. For an operation on a snapshot, the snapshot's handle.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// For an attachment, the name by which the node's clients log in at a target.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub initiator: String,
    /// For an attachment, what the node's cloud calls it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// For a modification, the name of the `VolumeAttributesClass` that the volume should get.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub attributes: String,
}

/// A record that can't be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "annotation mooring.dev/operation can't be read ({0}): if a later version of Mooring wrote it, install that again; \
     else restore its value, which only Mooring may write"
)]
pub struct RecordError(#[from] serde_json::Error);

/// Longest error kept in a record, in bytes: an image's [last words](crate::run::outcome::last_words), and what they
/// are about.
const MAX_ERROR: usize = 768;

/// Whether an operation on a claim is open, so that its volume must not be copied now. A change that the image has
/// refused changes nothing, until something else does.
pub fn is_busy(claim: &PersistentVolumeClaim) -> bool {
    let noted = claim.annotations().get(annotations::OPERATION);
    match noted.map(|text| serde_json::from_str::<Record>(text)) {
        Some(Ok(record)) => !record.is_refused_change(),
        Some(Err(_)) => true,
        None => claim.finalizers().iter().any(|held| held == finalizers::CLAIM),
    }
}

impl Record {
    /// The record of a first attempt that nothing is known of yet.
    pub fn first(operation: Operation, run: String, since: Timestamp, config: &ProvisionerConfig) -> Self {
        Self {
            operation,
            attempt: 1,
            run,
            since: whole_seconds(since),
            config: config.reference.to_string(),
            config_uid: config.uid.clone(),
            ..Self::default()
        }
    }

    /// Whether it is one of a change that the image has refused: the volume is as it was, and nothing is run until the
    /// claim or the ConfigMap changes.
    pub fn is_refused_change(&self) -> bool {
        let is_change = describe(self.operation).effect.changes_volume();
        is_change && self.gave_up && !self.uncertain
    }

    /// Whether its attempt has begun.
    pub fn has_begun(&self) -> bool {
        self.not_before.is_none() && !self.gave_up
    }

    /// Whether its run may have made or changed something, or may be there: only the ConfigMap that the record names
    /// has that storage.
    pub fn is_of_its_config(&self) -> bool {
        self.may_exist || self.not_before.is_none()
    }

    /// Whether it is one of making a volume.
    pub fn is_provision(&self) -> bool {
        describe(self.operation).effect == Effect::MakesVolume
    }

    /// Whether it is one of removing a volume.
    pub fn is_delete(&self) -> bool {
        describe(self.operation).effect == Effect::RemovesVolume
    }

    /// Whether a copy of this PV is being made by it now: a run of it may be there, or is about to be.
    pub fn copies(&self, pv_name: &str) -> bool {
        let begun = self.has_begun() && !self.cancelled && !self.refused;
        describe(self.operation).reads == Reads::SourceVolume && begun && self.source == pv_name
    }

    /// The record on a claim or a PV, if it has one.
    pub fn on(object: &impl ResourceExt) -> Result<Option<Self>, RecordError> {
        Self::text_in(object.meta()).map(|text| Self::parse(text)).transpose()
    }

    /// Where an object has it, as a JSON pointer.
    pub(crate) fn text_in(meta: &ObjectMeta) -> Option<&String> {
        meta.annotations.as_ref()?.get(annotations::OPERATION)
    }

    pub fn path() -> String {
        format!("/metadata/annotations/{}", annotations::OPERATION.replace('/', "~1"))
    }

    /// Reads an annotation's value.
    pub fn parse(text: &str) -> Result<Self, RecordError> {
        Ok(serde_json::from_str(text)?)
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The record after the attempt failed.
    #[must_use]
    pub fn failed(&self, error: &str, not_before: Timestamp, may_have_run: bool) -> Self {
        Self {
            attempt: self.attempt.saturating_add(1),
            not_before: Some(not_before),
            last_error: cut(error, MAX_ERROR).to_owned(),
            may_exist: self.may_exist || may_have_run,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Record;
    use crate::operation::tests::config;
    use mooring_contract::operation::Operation;

    #[test]
    fn a_record_reads_back_and_a_fresh_one_is_short() {
        let since = "2026-11-21T00:00:00.5Z".parse().unwrap();
        let record = Record::first(Operation::Provision, "admin/provision-u".into(), since, &config(&[]));
        assert_eq!(
            record.to_text(),
            concat!(
                r#"{"operation":"provision","attempt":1,"pod":"admin/provision-u","since":"2026-11-21T00:00:00Z","#,
                r#""config":"admin/custom-isci-provisioner","config-uid":"c1"}"#
            )
        );
        assert_eq!(Record::parse(&record.to_text()).unwrap(), record);
        let failed = record.failed(&"ö".repeat(400), "2026-11-21T00:01:00Z".parse().unwrap(), true);
        assert_eq!(
            (failed.attempt, failed.may_exist, failed.last_error.len()),
            (2, true, 768)
        );
        assert_eq!(Record::parse(&failed.to_text()).unwrap(), failed);
        assert!(Record::parse("{}").is_err());
    }
}
