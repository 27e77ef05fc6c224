//! Brings every claim of Mooring's to its volume, and every one that is deleted on the way to its end.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;

use super::reconcile::{Reconciled, record_on};
use super::serving::{begun, config_for, config_of, not_known, runs_in};
use crate::apply::live::{Fresh, copied_by, look_up};
use crate::apply::{self, ApplyError, Shared};
use crate::cache::expectations::Fact;
use crate::cache::key;
use crate::operation::decision::{ClaimDecision, Decision, ForClaim};
use crate::operation::describe::describe;
use crate::operation::observed::ObservedClaim;
use crate::operation::{content, is_change_asked, plan_claim, provision, standing};
use crate::run::RunId;

impl Reconciled for PersistentVolumeClaim {
    const CONTROLLER: &'static str = "claims";
    const FIRST: Operation = Operation::Provision;

    fn may_be_ours(&self) -> bool {
        // Whose a claim is, its class says.
        true
    }

    async fn act(&self, shared: &Shared) -> Result<Action, ApplyError> {
        Box::pin(act(self, shared)).await
    }
}

/// Looks at one claim as it is known, and does the next thing.
async fn act(claim: &PersistentVolumeClaim, shared: &Shared) -> Result<Action, ApplyError> {
    let Some(uid) = claim.metadata.uid.clone() else {
        return Ok(Action::await_change());
    };
    let cache = &shared.cache;
    let record = match record_on(shared, claim) {
        Ok(record) => record,
        Err(action) => return Ok(action),
    };
    let class_name = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_deref())
        .unwrap_or_default();
    let class = cache.classes.get(&ObjectRef::new(class_name));
    let mut volumes = cache.volumes_of(&uid);
    if shared.expectations.is(&uid, Fact::Ready) {
        let is_there =
            |volumes: &[Arc<PersistentVolume>]| volumes.iter().any(|volume| standing::is_ready(volume, &uid));
        let is_seen = is_there(&volumes);
        if !is_seen {
            // What was watched of volumes is older than what was watched of the claim.
            volumes = look_up(shared, &uid, volumes).await?;
        }
        if is_seen || !is_there(&volumes) {
            shared.expectations.forget(&uid, Fact::Ready);
        }
    }
    // Of a claim that has its volume, that one says it.
    let is_standing = record
        .as_ref()
        .is_none_or(|record| describe(record.operation).effect.changes_volume());
    if !is_standing {
        // What was given to the claim while its own was being made is not judged, and not removed.
        volumes.retain(|volume| !standing::is_of_another(volume, &uid));
    }
    let volume = standing::volume_of(claim, volumes.iter().map(AsRef::as_ref)).filter(|_| is_standing);
    let config = match volume {
        Some(volume) => config_of(shared, volume, class.as_deref(), class_name, record.as_ref()),
        None => config_for(shared, class.as_deref(), class_name, record.as_ref()),
    };
    let namespace = runs_in(&config, record.as_ref());
    if let Some(namespace) = namespace.as_deref().filter(|namespace| !cache.knows_runs_of(namespace)) {
        // Only claims for which something ran or has to run.
        let is_wanted = config.is_ok() && claim.annotations().contains_key(annotations::STORAGE_PROVISIONER);
        let since = record.as_ref().map_or_else(|| is_wanted.then(Timestamp::now), begun);
        return Ok(not_known(shared, &claim.object_ref(&()), namespace, since));
    }
    let find = |operation: Operation| cache.run(namespace.as_deref()?, &RunId::new(operation, &uid));
    let copied_by = match volume.filter(|_| is_change_asked(claim)) {
        Some(volume) => copied_by(shared, volume, namespace.as_deref(), Fresh::Watched).await?,
        None => None,
    };
    let making = RunId::new(content::making(claim), &uid);
    let place = namespace.as_deref().map(|namespace| making.in_namespace(namespace));
    let (provision_run, delete_run, departed) = (find(making.operation), find(Operation::Delete), cache.departed(&uid));
    let changes = Operation::ALL.into_iter();
    let changes = changes.filter(|operation| describe(*operation).effect.changes_volume());
    let seen = ObservedClaim {
        claim,
        record: record.as_ref(),
        class: class.as_deref(),
        config: &config,
        unserved_since: Timestamp::now(),
        provision_run: provision_run.as_ref(),
        delete_run: delete_run.as_ref(),
        changes: &changes
            .filter_map(|operation| Some((operation, find(operation)?)))
            .collect(),
        departed: departed.as_ref(),
        volumes: &[],
        looked_up: false,
        nodes: &|name| cache.node(name),
        by_host: &|host| cache.node_by_host(host),
        attributes: &|name| cache.attributes(name),
        source: &cache.source_of(claim),
        copied_by: copied_by.as_deref(),
        kube_api: &shared.context.settings.kube_api,
        limits: &shared.limits,
    };
    settle(seen, volumes, place.as_deref(), shared).await
}

/// Decides, after what has to be done first, and does what was decided. `making` is the place of the run that makes the
/// claim's volume.
async fn settle(
    seen: ObservedClaim<'_>,
    mut volumes: Vec<Arc<PersistentVolume>>,
    making: Option<&str>,
    shared: &Shared,
) -> Result<Action, ApplyError> {
    let (claim, uid) = (seen.claim, seen.uid());
    let mut decision = plan(seen, &volumes, false, shared);
    if let Decision::Own(ForClaim::LookUp) = decision {
        volumes = look_up(shared, uid, volumes).await?;
        decision = plan(seen, &volumes, true, shared);
    }
    if decision.begins() == Some(Operation::Delete)
        && let Some(left) = making.and_then(|place| shared.limiter.unseen(place))
    {
        // What made the volume was begun just now, and may still do so: its watch wakes us.
        tracing::debug!(claim = key(claim), "the deletion waits until the run before it is seen");
        return Ok(Action::requeue(left));
    }
    tracing::debug!(claim = key(claim), ?decision);
    apply::carry_out(shared, claim, seen.record.cloned(), decision).await
}

/// What to do, by what is known, with these PVs for the claim.
fn plan(seen: ObservedClaim<'_>, volumes: &[Arc<PersistentVolume>], looked_up: bool, shared: &Shared) -> ClaimDecision {
    let now = Timestamp::now();
    let mut seen = ObservedClaim {
        volumes,
        looked_up,
        unserved_since: now,
        ..seen
    };
    if provision::is_unserved(&seen) {
        seen.unserved_since = shared.expectations.unserved_since(seen.uid(), now);
    } else {
        shared.expectations.served(seen.uid());
    }
    plan_claim(&seen, now)
}
