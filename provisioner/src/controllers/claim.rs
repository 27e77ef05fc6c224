//! Brings every claim of Mooring's to its volume, and every one that is deleted on the way to its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;

use super::reconcile::{Reconciled, record_on};
use super::serving::{config_for, config_of, not_known, runs_in};
use crate::apply::live::{Fresh, copied_by, look_up};
use crate::apply::{self, ApplyError, Shared, make_volume};
use crate::cache::expectations::Fact;
use crate::cache::key;
use crate::config::ProvisionerConfig;
use crate::config::store::NoConfig;
use crate::operation::content::ObservedSource;
use crate::operation::decision::{ClaimDecision, Decision, First, ForClaim};
use crate::operation::describe::describe;
use crate::operation::observed::ObservedClaim;
use crate::operation::record::Record;
use crate::operation::{content, is_change_asked, plan_claim, provision, standing};
use crate::run::departed::Departed;
use crate::run::{Run, RunId};

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
        let is_there = |volumes: &[Arc<PersistentVolume>]| volumes.iter().any(|volume| standing::is_for(volume, &uid));
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
        let concerned =
            record.is_some() || (config.is_ok() && claim.annotations().contains_key(annotations::STORAGE_PROVISIONER));
        return Ok(not_known(shared, &claim.object_ref(&()), namespace, concerned));
    }
    let find = |operation: Operation| cache.run(namespace.as_deref()?, &RunId::new(operation, &uid));
    let changes = volume.filter(|_| is_change_asked(claim));
    let copied_by = match changes {
        Some(volume) => copied_by(shared, volume, namespace.as_deref(), Fresh::Watched).await?,
        None => None,
    };
    let making = RunId::new(content::making(claim), &uid);
    let known = Known {
        provision_run: find(making.operation),
        making: namespace.as_deref().map(|namespace| making.in_namespace(namespace)),
        delete_run: find(Operation::Delete),
        changes: Operation::ALL
            .into_iter()
            .filter(|operation| describe(*operation).effect.changes_volume())
            .filter_map(|operation| Some((operation, find(operation)?)))
            .collect(),
        departed: cache.departed(&uid),
        source: cache.source_of(claim),
        claim,
        uid,
        record,
        class,
        config,
        copied_by,
    };
    known.settle(volumes, shared).await
}

/// What is known of a claim before anything is read from the API.
struct Known<'a> {
    claim: &'a PersistentVolumeClaim,
    uid: String,
    record: Option<Record>,
    class: Option<Arc<StorageClass>>,
    config: Result<Arc<ProvisionerConfig>, NoConfig>,
    provision_run: Option<Run>,
    /// The place of that run.
    making: Option<String>,
    delete_run: Option<Run>,
    changes: BTreeMap<Operation, Run>,
    departed: Option<Departed>,
    source: ObservedSource,
    copied_by: Option<String>,
}

impl Known<'_> {
    /// Decides, after what has to be done first, and does what was decided.
    async fn settle(self, mut volumes: Vec<Arc<PersistentVolume>>, shared: &Shared) -> Result<Action, ApplyError> {
        let (claim, uid) = (self.claim, &self.uid);
        let (mut looked_up, mut made) = (false, false);
        loop {
            let decision = match self.plan(&volumes, looked_up, shared) {
                Decision::Own(ForClaim::First(First::LookUp)) if !looked_up => {
                    volumes = look_up(shared, uid, volumes).await?;
                    looked_up = true;
                    continue;
                }
                // Judged and let go at once: a later turn would have to wait for the watch first.
                Decision::Own(ForClaim::First(First::MakeVolume(volume))) if !made => {
                    volumes = make_volume(shared, &volume, uid).await?;
                    looked_up = true;
                    made = true;
                    continue;
                }
                decision => decision,
            };
            if decision.begins() == Some(Operation::Delete)
                && let Some(left) = self.making.as_deref().and_then(|place| shared.limiter.unseen(place))
            {
                // What made the volume was begun just now, and may still do so: its watch wakes us.
                tracing::debug!(claim = key(claim), "the deletion waits until the run before it is seen");
                return Ok(Action::requeue(left));
            }
            tracing::debug!(claim = key(claim), ?decision);
            return apply::carry_out(shared, claim, self.record, decision).await;
        }
    }

    /// What to do, by what is known, with these PVs for the claim.
    fn plan(&self, volumes: &[Arc<PersistentVolume>], looked_up: bool, shared: &Shared) -> ClaimDecision {
        let (cache, now) = (&shared.cache, Timestamp::now());
        let mut seen = ObservedClaim {
            claim: self.claim,
            record: self.record.as_ref(),
            class: self.class.as_deref(),
            config: &self.config,
            unserved_since: now,
            provision_run: self.provision_run.as_ref(),
            delete_run: self.delete_run.as_ref(),
            changes: &self.changes,
            departed: self.departed.as_ref(),
            volumes,
            looked_up,
            nodes: &|name| cache.node(name),
            by_host: &|host| cache.node_by_host(host),
            attributes: &|name| cache.attributes(name),
            source: &self.source,
            copied_by: self.copied_by.as_deref(),
            kube_api: &shared.context.settings.kube_api,
            limits: &shared.limits,
        };
        if provision::is_unserved(&seen) {
            seen.unserved_since = shared.expectations.unserved_since(&self.uid, now);
        } else {
            shared.expectations.served(&self.uid);
        }
        plan_claim(&seen, now)
    }
}
