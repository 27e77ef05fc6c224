//! Whether a volume or a snapshot may be deleted. Every plan that deletes asks here, and so does every run that deletes,
//! about the object as the API has it, before the run gets its properties.

use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::names::finalizers;
use mooring_contract::operation::Operation;

use super::delete::is_unused;
use super::describe::{Effect, describe};
use crate::config::ProvisionerConfig;
use crate::run::Run;
use crate::volume::content_view::ContentView;
use crate::volume::persistent_volume::is_ours;

/// What is to become of a volume when nobody uses it any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReclaimPolicy {
    Delete,
    /// `Retain`, or a policy that Mooring does not have.
    Other(String),
    Unknown,
}

/// Why a volume is not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Kept {
    /// The kind of policy, as Kubernetes calls it, and the policy.
    #[error("its {0} is {1}")]
    Policy(&'static str, String),
    #[error("its {0} is no longer known")]
    Unknown(&'static str),
    #[error("its ConfigMap does not list {0:?} in the key \"operations\"")]
    NotOffered(&'static str),
    #[error("its PersistentVolume no longer has finalizer {}", finalizers::VOLUME)]
    NotHeld,
    #[error("a claim has it, or may yet get it")]
    Used,
}

impl ReclaimPolicy {
    fn named(policy: &str) -> Self {
        match policy {
            "Delete" => Self::Delete,
            "" => Self::Unknown,
            other => Self::Other(other.to_owned()),
        }
    }

    pub(crate) fn of_volume(volume: &PersistentVolume) -> Self {
        let spec = volume.spec.as_ref();
        let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        Self::named(policy.unwrap_or_default())
    }

    pub(crate) fn of_content(content: &ContentView<'_>) -> Self {
        Self::named(content.deletion_policy.as_str())
    }

    /// Of what an orphaned run has made.
    ///
    /// The controller asks a run to go when a PV, or the record of a claim or a content, has taken over. Those are gone
    /// too, and an administrator may have changed the policy before. A run that nobody has asked to go was the last to
    /// know of its volume, so the policy of its request is the volume's.
    ///
    /// An eviction looks the same as the controller's own deletion: see `docs/decisions/orphans.md`.
    pub(crate) fn of_orphan(run: &Run) -> Self {
        if run.leaving_since().is_some() {
            return Self::Unknown;
        }
        match run.request() {
            Ok(request) if describe(request.operation).effect == Effect::TakesSnapshot => {
                Self::named(&request.deletion_policy)
            }
            Ok(request) => Self::named(&request.reclaim_policy),
            Err(_) => Self::Unknown,
        }
    }
}

/// Whether a volume or a snapshot with this policy may be deleted by this operation. Without a ConfigMap at hand, the
/// policy alone is looked at.
pub(crate) fn may_delete(
    policy: &ReclaimPolicy,
    operation: Operation,
    config: Option<&ProvisionerConfig>,
) -> Result<(), Kept> {
    let kind = if describe(operation).effect == Effect::RemovesSnapshot {
        "deletion policy"
    } else {
        "reclaim policy"
    };
    match (policy, config) {
        (ReclaimPolicy::Unknown, _) => Err(Kept::Unknown(kind)),
        (ReclaimPolicy::Other(policy), _) => Err(Kept::Policy(kind, policy.clone())),
        (ReclaimPolicy::Delete, Some(config)) if !config.offers(operation) => Err(Kept::NotOffered(operation.as_str())),
        (ReclaimPolicy::Delete, _) => Ok(()),
    }
}

/// Whether the volume of this PV may be deleted. `is_claimed` says whether [a claim has it](super::delete::is_claimed).
pub(crate) fn may_delete_volume(volume: &PersistentVolume, is_claimed: bool) -> Result<(), Kept> {
    may_delete(&ReclaimPolicy::of_volume(volume), Operation::Delete, None)?;
    if is_claimed || !is_unused(volume) {
        return Err(Kept::Used);
    }
    if is_ours(volume) { Ok(()) } else { Err(Kept::NotHeld) }
}

/// Whether what this content is of may be deleted by this operation. What was never ready is nothing that anybody could
/// want to retain.
pub(crate) fn may_delete_snapshot(content: &ContentView<'_>, operation: Operation) -> Result<(), Kept> {
    if content.handle().is_none() {
        return Ok(());
    }
    may_delete(&ReclaimPolicy::of_content(content), operation, None)
}

#[cfg(test)]
mod tests {
    use mooring_contract::operation::Operation;
    use mooring_contract::request::Request;
    use serde_json::json;

    use super::{Kept, ReclaimPolicy, may_delete};
    use crate::operation::tests::{config, ended, leaving, run, run_with};
    use crate::run::properties::tests::silver;

    #[test]
    fn a_volume_is_deleted_only_if_policy_and_configmap_are_known_to_say_so() {
        let able = config(&[]);
        let mut unable = config(&[]);
        unable.operations.remove(&Operation::Delete);
        let may = |policy: &str, config| may_delete(&ReclaimPolicy::named(policy), Operation::Delete, config);
        assert_eq!(may("Delete", Some(&able)), Ok(()));
        assert_eq!(may("Delete", None), Ok(()));
        assert!(matches!(may("Delete", Some(&unable)), Err(Kept::NotOffered("delete"))));
        let kept = |policy: &str| may(policy, Some(&able)).unwrap_err().to_string();
        assert_eq!(kept("Retain"), "its reclaim policy is Retain");
        assert_eq!(kept(""), "its reclaim policy is no longer known");
        let snapshot = may_delete(&ReclaimPolicy::Unknown, Operation::DeleteGroup, None);
        assert_eq!(
            snapshot.unwrap_err().to_string(),
            "its deletion policy is no longer known"
        );
    }

    #[test]
    fn the_policy_of_an_orphaned_snapshot_is_the_deletion_policy_of_its_content() {
        for operation in [Operation::Snapshot, Operation::Backup, Operation::SnapshotGroup] {
            let of = |deletion_policy: &str| {
                // The volume's own policy says nothing about its snapshots.
                let request = Request {
                    operation,
                    deletion_policy: deletion_policy.to_owned(),
                    ..silver()
                };
                let run = run_with(operation.as_str(), 1, 100, &ended(0, ""), &json!(request));
                ReclaimPolicy::of_orphan(&run)
            };
            assert_eq!(of("Delete"), ReclaimPolicy::Delete);
            assert_eq!(of("Retain"), ReclaimPolicy::Other("Retain".to_owned()));
            assert_eq!(of(""), ReclaimPolicy::Unknown, "of an earlier version");
        }
    }

    #[test]
    fn the_policy_of_an_orphan_is_that_of_its_request_until_it_is_asked_to_go() {
        let made = run_with("provision", 1, 100, &ended(0, ""), &json!(silver()));
        assert_eq!(ReclaimPolicy::of_orphan(&made), ReclaimPolicy::Delete);
        assert_eq!(ReclaimPolicy::of_orphan(&leaving(made)), ReclaimPolicy::Unknown);
        let unreadable = run("provision", 1, 100, &ended(0, ""));
        assert_eq!(ReclaimPolicy::of_orphan(&unreadable), ReclaimPolicy::Unknown);
    }
}
