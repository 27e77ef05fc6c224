//! Takes the snapshots that are asked for, and deletes those that are not wanted any more.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;

use super::reconcile::{Reconciled, record_on};
use super::serving::{elsewhere, not_known, runs_in};
use crate::apply::live::restored_by;
use crate::apply::{self, ApplyError, Shared};
use crate::config::store::{ClassRef, NoConfig};
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::operation::observed::ObservedSnapshot;
use crate::operation::record::Record;
use crate::operation::snapshot::{form_of, plan_snapshot};
use crate::run::RunId;
use crate::volume::snapshot::{Handle, VolumeSnapshotContent};

impl Reconciled for VolumeSnapshotContent {
    const CONTROLLER: &'static str = "snapshots";
    const FIRST: Operation = Operation::Snapshot;

    fn may_be_ours(&self) -> bool {
        self.is_ours()
    }

    async fn act(&self, shared: &Shared) -> Result<Action, ApplyError> {
        act(self, shared).await
    }
}

/// Looks at one content as it is known, and does the next thing.
async fn act(content: &VolumeSnapshotContent, shared: &Shared) -> Result<Action, ApplyError> {
    let cache = &shared.cache;
    let uid = content.uid().unwrap_or_default();
    let there = cache.snapshots.content(&content.name_any());
    if there.is_none_or(|there| there.uid() != content.uid()) {
        return Ok(Action::await_change());
    }
    let record = match record_on(shared, content) {
        Ok(record) => record,
        Err(action) => return Ok(action),
    };
    let volume = content.spec.source.volume_handle.as_deref();
    let volume = volume.and_then(|handle| cache.volume_of_handle(handle));
    let claim = volume.as_ref().and_then(|volume| {
        let of = volume.spec.as_ref()?.claim_ref.as_ref()?;
        let claim = ObjectRef::new(of.name.as_deref()?).within(of.namespace.as_deref()?);
        cache.claims.get(&claim).filter(|claim| claim.metadata.uid == of.uid)
    });
    let class_name = content.spec.volume_snapshot_class_name.as_deref().unwrap_or_default();
    let class = cache.snapshots.classes.get(&ObjectRef::new(class_name));
    let form = form_of(content, record.as_ref(), class.as_deref());
    let reference = config_of(content, record.as_ref()).or_else(|| {
        let made_by = volume.as_ref()?.annotations().get(annotations::CONFIG)?;
        made_by.parse().ok()
    });
    let config = config(shared, reference, class_name);
    let namespace = runs_in(&config, record.as_ref());
    if let Some(namespace) = namespace.as_deref().filter(|namespace| !cache.knows_runs_of(namespace)) {
        return Ok(not_known(shared, &content.object_ref(&()), namespace, record.is_some()));
    }
    let find = |kind: Operation| cache.run(namespace.as_deref()?, &RunId::new(kind, &uid));
    let (snapshot_run, delete_run) = (find(form.take()), find(form.delete()));
    let restored_by = match namespace
        .as_deref()
        .filter(|_| content.is_over() && delete_run.is_none())
    {
        Some(namespace) => restored_by(shared, content, namespace).await?,
        None => None,
    };
    let now = Timestamp::now();
    let handle: Option<Handle> = content.handle().and_then(|handle| handle.parse().ok());
    let away_since = handle.and_then(|handle| handle.host).and_then(|host| {
        if cache.node_by_host(&host).is_some() {
            shared.expectations.is_back(&host);
            return None;
        }
        Some(shared.expectations.away_since(&host, now))
    });
    let decision = plan_snapshot(
        &ObservedSnapshot {
            content,
            record: record.as_ref(),
            form,
            class: class.as_deref(),
            volume: volume.as_deref(),
            claim: claim.as_deref(),
            config: &config,
            snapshot_run: snapshot_run.as_ref(),
            delete_run: delete_run.as_ref(),
            restored_by: restored_by.as_deref(),
            by_host: &|host| cache.node_by_host(host),
            away_since,
            kube_api: &shared.context.settings.kube_api,
            limits: &shared.limits,
        },
        now,
    );
    for kind in [form.take(), form.delete()] {
        if decision.begins() != Some(kind) {
            shared.limiter.forget(&RunId::new(kind, &uid).name());
        }
    }
    tracing::debug!(content = content.name_any(), ?decision);
    apply::snapshot(shared, content, record, decision).await
}

/// The ConfigMap that took a snapshot, or is taking it; of one that is there, the one that an administrator names.
fn config_of(content: &VolumeSnapshotContent, record: Option<&Record>) -> Option<ConfigRef> {
    let there = content.handle().and_then(|_| content.config());
    there.or_else(|| record?.config.parse().ok())
}

/// The ConfigMap in force.
fn config(shared: &Shared, reference: Option<ConfigRef>, class: &str) -> Result<Arc<ProvisionerConfig>, NoConfig> {
    let configs = &shared.context.configs;
    if !configs.is_synced() {
        return Err(NoConfig::NotReadYet);
    }
    let Some(reference) = reference else {
        return Err(NoConfig::Unclaimed {
            class: ClassRef::Snapshot(class.to_owned()),
            label: class.to_owned(),
        });
    };
    let missing = NoConfig::Missing {
        class: ClassRef::Snapshot(class.to_owned()),
        reference: reference.clone(),
    };
    elsewhere(shared, configs.get(&reference).ok_or(missing))
}
