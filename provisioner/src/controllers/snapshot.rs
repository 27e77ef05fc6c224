//! Takes the snapshots that are asked for, alone or in groups, and deletes those that are not wanted any more.

use std::convert::Infallible;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;

use super::reconcile::{Reconciled, record_on};
use super::serving::{begun, named, not_known, runs_in};
use crate::apply::live::{Fresh, restored_by};
use crate::apply::{self, ApplyError, Shared, Subject};
use crate::cache::store::Cache;
use crate::config::store::{ClassRef, NoConfig};
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::operation::decision::SnapshotDecision;
use crate::operation::observed::{ObservedSnapshot, ObservedTarget};
use crate::operation::record::Record;
use crate::operation::snapshot::{form_of, plan_snapshot};
use crate::run::RunId;
use crate::volume::content_view::ContentView;
use crate::volume::group_snapshot::{VolumeGroupSnapshotClass, VolumeGroupSnapshotContent};
use crate::volume::snapshot::{Handle, VolumeSnapshotClass, VolumeSnapshotContent};

impl Reconciled for VolumeSnapshotContent {
    const CONTROLLER: &'static str = "snapshots";
    const FIRST: Operation = Operation::Snapshot;

    fn may_be_ours(&self) -> bool {
        self.view().is_ours()
    }

    async fn act(&self, shared: &Shared) -> Result<Action, ApplyError> {
        let snapshots = &shared.cache.snapshots;
        let view = ContentView::from(self);
        let class = snapshots.classes.get(&ObjectRef::new(view.class.unwrap_or_default()));
        act(self, &view, snapshots.content(view.name()), class.as_deref(), shared).await
    }
}

impl Reconciled for VolumeGroupSnapshotContent {
    const CONTROLLER: &'static str = "groups";
    const FIRST: Operation = Operation::SnapshotGroup;

    fn may_be_ours(&self) -> bool {
        ContentView::from(self).is_ours()
    }

    async fn act(&self, shared: &Shared) -> Result<Action, ApplyError> {
        let groups = &shared.cache.groups;
        let view = ContentView::from(self);
        let class = groups.classes.get(&ObjectRef::new(view.class.unwrap_or_default()));
        let class = class.as_deref().map(|VolumeGroupSnapshotClass(class)| class);
        act(self, &view, groups.content(view.name()), class, shared).await
    }
}

/// Acts on the content of a snapshot or of a group, unless what is `known` by its name is another one by now, or none.
async fn act<K: Reconciled + Subject<Own = Infallible>>(
    content: &K,
    view: &ContentView<'_>,
    known: Option<Arc<K>>,
    class: Option<&VolumeSnapshotClass>,
    shared: &Shared,
) -> Result<Action, ApplyError> {
    if known.is_none_or(|known| known.uid() != content.uid()) {
        return Ok(Action::await_change());
    }
    let record = match record_on(shared, content) {
        Ok(record) => record,
        Err(action) => return Ok(action),
    };
    match decide(view, record.as_ref(), class, shared).await? {
        Next::Wait(action) => Ok(action),
        Next::Do(decision) => apply::carry_out(shared, content, record, *decision).await,
    }
}

enum Next {
    /// Nothing can be decided yet.
    Wait(Action),
    Do(Box<SnapshotDecision>),
}

/// Looks at one content as it is known, and decides on the next thing.
async fn decide(
    content: &ContentView<'_>,
    record: Option<&Record>,
    class: Option<&VolumeSnapshotClass>,
    shared: &Shared,
) -> Result<Next, ApplyError> {
    let cache = &shared.cache;
    let targets: Vec<_> = content.volumes.iter().map(|handle| target(cache, handle)).collect();
    let form = form_of(content, record, class);
    let reference = config_of(content, record).or_else(|| {
        let volume = targets.iter().find_map(|target| target.volume.as_ref())?;
        volume.annotations().get(annotations::CONFIG)?.parse().ok()
    });
    let config = config(shared, reference, content);
    let namespace = runs_in(&config, record);
    if let Some(namespace) = namespace.as_deref().filter(|namespace| !cache.knows_runs_of(namespace)) {
        return Ok(Next::Wait(not_known(
            shared,
            content.of,
            namespace,
            record.and_then(begun),
        )));
    }
    let find = |operation: Operation| cache.run(namespace.as_deref()?, &RunId::new(operation, content.uid()));
    let (snapshot_run, delete_run) = (find(form.take()), find(form.delete()));
    // The API is asked when the deletion begins.
    let restored_by = match namespace.as_deref().filter(|_| content.is_over()) {
        Some(namespace) => restored_by(shared, content, namespace, Fresh::Watched).await?,
        None => None,
    };
    let now = Timestamp::now();
    let handle: Option<Handle> = content.handle().and_then(|handle| handle.parse().ok());
    let away_since = handle.and_then(|handle| handle.host).and_then(|host| {
        let is_there = cache.node_by_host(&host).is_some();
        shared.expectations.away_since(&host, is_there, now)
    });
    let group = cache.groups.of(content).filter(|_| !content.is_group);
    let decision = plan_snapshot(
        &ObservedSnapshot {
            content,
            record,
            form,
            class,
            targets: &targets,
            group: group.as_deref(),
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
    tracing::debug!(content = content.name(), ?decision);
    Ok(Next::Do(Box::new(decision)))
}

/// The volume of this handle, and the claim that it is bound to.
fn target(cache: &Cache, handle: &str) -> ObservedTarget {
    let volume = cache.volume_of_handle(handle);
    let claim = volume.as_ref().and_then(|volume| {
        let of = volume.spec.as_ref()?.claim_ref.as_ref()?;
        let claim = ObjectRef::new(of.name.as_deref()?).within(of.namespace.as_deref()?);
        cache.claims.get(&claim).filter(|claim| claim.metadata.uid == of.uid)
    });
    ObservedTarget {
        handle: handle.to_owned(),
        volume,
        claim,
    }
}

/// The ConfigMap that took a snapshot or is taking it; an administrator may name another one for an existing snapshot.
fn config_of(content: &ContentView<'_>, record: Option<&Record>) -> Option<ConfigRef> {
    let there = content.handle().and_then(|_| content.config());
    there.or_else(|| record?.config.parse().ok())
}

fn config(
    shared: &Shared,
    reference: Option<ConfigRef>,
    content: &ContentView<'_>,
) -> Result<Arc<ProvisionerConfig>, NoConfig> {
    let name = content.class.unwrap_or_default();
    let class = if content.is_group {
        ClassRef::Group(name.to_owned())
    } else {
        ClassRef::Snapshot(name.to_owned())
    };
    named(shared, class, name, reference)
}
