//! Attaches the volumes that have to be attached, and detaches them: a part of the controller of PVs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use mooring_contract::operation::Operation;

use crate::apply::live::node_now;
use crate::apply::{self, ApplyError, Shared};
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::operation::attach;
use crate::operation::attach::observed::ObservedAttachment;
use crate::operation::describe::waiting;
use crate::operation::record::Record;
use crate::run::RunId;
use crate::volume::persistent_volume;

/// Whether a PV's attachment has to be looked at before anything else is done with it.
pub(super) fn concerns(volume: &PersistentVolume, record: Option<&Record>) -> bool {
    attach::secret_of(volume).is_some() && (is_bound(volume) || attach::is_open(volume, record))
}

fn is_bound(volume: &PersistentVolume) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Bound")
}

/// Why a volume stays attached while the Pods that use volumes are not listed, if it is this controller that says so.
fn why_attached(config: &Result<Arc<ProvisionerConfig>, NoConfig>) -> Option<String> {
    let has_them_listed = |operation| matches!(operation, &Operation::Attach | &Operation::Detach);
    match config {
        // Their list has only been begun.
        Ok(config) if config.operations.iter().any(has_them_listed) => None,
        Ok(_) => Some(
            "the volume is attached, but key operations of its ConfigMap lacks attach and detach: add them again"
                .to_owned(),
        ),
        Err(NoConfig::NotOurs { .. } | NoConfig::NotReadYet | NoConfig::Elsewhere { .. }) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Looks at the attachment of one PV, and does the next thing.
pub(super) async fn act(
    volume: &PersistentVolume,
    record: Option<Record>,
    class: Option<&StorageClass>,
    config: &Result<Arc<ProvisionerConfig>, NoConfig>,
    namespace: Option<&str>,
    shared: &Shared,
) -> Result<Action, ApplyError> {
    let cache = &shared.cache;
    let uid = persistent_volume::made_for(volume).unwrap_or_default();
    let claim = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.clone())
        .unwrap_or_default();
    let is_there = cache.claim(&claim).is_some();
    let (claim_namespace, claim_name) = (claim.namespace.unwrap_or_default(), claim.name.unwrap_or_default());
    let wanted = if is_bound(volume) && is_there {
        let Some(nodes) = cache.consumers.nodes(&claim_namespace, &claim_name) else {
            if attach::is_open(volume, record.as_ref())
                && let Some(text) = why_attached(config)
            {
                let note = waiting(Operation::Detach, text);
                shared.context.events.publish(&volume.object_ref(&()), note);
            }
            // Their list wakes everybody.
            return Ok(Action::await_change());
        };
        nodes
    } else {
        Vec::new()
    };
    let find = |operation: Operation| cache.run(namespace?, &RunId::new(operation, uid));
    let (attach_run, detach_run) = (find(Operation::Attach), find(Operation::Detach));
    let mut nodes = Vec::new();
    loop {
        let seen = ObservedAttachment {
            volume,
            record: record.as_ref(),
            class,
            config,
            attach_run: attach_run.as_ref(),
            detach_run: detach_run.as_ref(),
            wanted: &wanted,
            nodes: &nodes,
            kube_api: &shared.context.settings.kube_api,
            limits: &shared.limits,
        };
        match attach::plan(&seen, Timestamp::now()) {
            Ok(decision) => {
                tracing::debug!(volume = volume.name_any(), ?decision);
                return apply::carry_out(shared, volume, record, decision).await;
            }
            Err(look) => nodes.push(node_now(shared, volume, look).await?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::why_attached;
    use crate::config::store::NoConfig;
    use crate::operation::tests::config;

    #[test]
    fn only_the_controller_of_a_volume_s_config_map_says_why_it_stays_attached() {
        let why = |operations| {
            why_attached(&Ok(Arc::new(config(&[
                ("operations", operations),
                ("volume-source", "csi"),
            ]))))
        };
        let text = why("provision,delete").expect("a reason");
        assert!(text.contains("lacks attach and detach"), "{text}");
        assert_eq!(why("provision,delete,attach,detach"), None, "the Pods are being listed");
        assert_eq!(why_attached(&Err(NoConfig::NotReadYet)), None);
    }
}
