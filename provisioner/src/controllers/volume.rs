//! Deletes the volumes whose claims are gone.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;

use super::attachment;
use super::reconcile::{Reconciled, record_on};
use super::serving::{begun, config_of, not_known, runs_in};
use crate::apply::live::{Fresh, copied_by};
use crate::apply::{self, ApplyError, Shared};
use crate::cache::expectations::Fact;
use crate::config::ConfigRef;
use crate::operation::describe::describe;
use crate::operation::observed::ObservedVolume;
use crate::operation::plan_volume;
use crate::operation::request::{self, NoHistory};
use crate::operation::standing::is_claimed;
use crate::run::RunId;
use crate::volume::persistent_volume::{self, is_ours};

impl Reconciled for PersistentVolume {
    const CONTROLLER: &'static str = "volumes";
    const FIRST: Operation = Operation::Delete;

    fn may_be_ours(&self) -> bool {
        is_ours(self)
    }

    async fn act(&self, shared: &Shared) -> Result<Action, ApplyError> {
        Box::pin(act(self, shared)).await
    }
}

/// Looks at one PV as it is known, and does the next thing.
async fn act(volume: &PersistentVolume, shared: &Shared) -> Result<Action, ApplyError> {
    let cache = &shared.cache;
    let own_uid = volume.uid().unwrap_or_default();
    // What the watch shows of a PV that was released is out of date until it has caught up. In this order: a PV that is
    // gone is forgotten only after it has left what is watched.
    if shared.expectations.is(&own_uid, Fact::LetGo) || !cache.has_volume(&volume.name_any(), &own_uid) {
        return Ok(Action::await_change());
    }
    let spec = volume.spec.clone().unwrap_or_default();
    let claim = spec.claim_ref.unwrap_or_default();
    let uid = persistent_volume::made_for(volume).unwrap_or_default().to_owned();
    let record = match record_on(shared, volume) {
        Ok(record) => record,
        Err(action) => return Ok(action),
    };
    let class_name = spec.storage_class_name.unwrap_or_default();
    let class = cache.classes.get(&ObjectRef::new(&class_name));
    let config = config_of(shared, volume, class.as_deref(), &class_name, record.as_ref());
    // Where its ConfigMap is gone, its runs are there still.
    let noted = || {
        let reference: ConfigRef = volume.annotations().get(annotations::CONFIG)?.parse().ok()?;
        Some(reference.namespace).filter(|namespace| cache.knows_runs_of(namespace))
    };
    let namespace = runs_in(&config, record.as_ref()).or_else(noted);
    if let Some(namespace) = namespace.as_deref().filter(|namespace| !cache.knows_runs_of(namespace)) {
        let since = record.as_ref().and_then(begun);
        return Ok(not_known(shared, &volume.object_ref(&()), namespace, since));
    }
    if attachment::concerns(volume, record.as_ref()) {
        return Box::pin(attachment::act(
            volume,
            record,
            class.as_deref(),
            &config,
            namespace.as_deref(),
            shared,
        ))
        .await;
    }
    // The claim that has it asks for its changes, which may not be the one that it was made for.
    let claim_uid = claim.uid.as_deref().unwrap_or_default();
    let find = |operation: Operation| {
        let changes = describe(operation).effect.changes_volume();
        let run = RunId::new(operation, if changes { claim_uid } else { &uid });
        Some((operation, cache.run(namespace.as_deref()?, &run)?))
    };
    let runs = Operation::ALL.into_iter().filter_map(find).collect();
    let claimed = cache.claim(&claim).is_some_and(|claim| is_claimed(volume, &claim));
    let has_original = match request::made_by(volume) {
        Err(NoHistory::Copy { original, .. }) => {
            let original = cache.volumes.get(&ObjectRef::new(&original));
            original.is_some_and(|original| is_ours(&original))
        }
        Ok(_) | Err(NoHistory::Unreadable { .. }) => false,
    };
    // The API is asked when the deletion begins.
    let copied_by = copied_by(shared, volume, namespace.as_deref(), Fresh::Watched).await?;
    let now = Timestamp::now();
    let away_since = persistent_volume::host_of(volume).and_then(|host| {
        let is_there = cache.node_by_host(host).is_some();
        shared.expectations.away_since(host, is_there, now)
    });
    let decision = plan_volume(
        &ObservedVolume {
            volume,
            record: record.as_ref(),
            class: class.as_deref(),
            config: &config,
            runs: &runs,
            claimed,
            has_original,
            copied_by: copied_by.as_deref(),
            by_host: &|host| cache.node_by_host(host),
            away_since,
            kube_api: &shared.context.settings.kube_api,
            limits: &shared.limits,
        },
        now,
    );
    tracing::debug!(volume = volume.name_any(), ?decision);
    apply::carry_out(shared, volume, record, decision).await
}
