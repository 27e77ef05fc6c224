//! Brings every claim of Mooring's to its volume, and every one that is deleted on the way to its end.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use mooring_contract::names::annotations;

use super::reconcile::{Reconciled, record_on};
use super::serving::{config_for, config_of, not_known, runs_in};
use crate::apply::live::{copied_by, look_up, make};
use crate::apply::{self, ApplyError, Shared};
use crate::cache::store::key;
use crate::operation::decision::First;
use crate::operation::observed::ObservedClaim;
use crate::operation::{content, is_change_asked, provision, standing};
use crate::run::{Kind, RunId};

impl Reconciled for PersistentVolumeClaim {
    const CONTROLLER: &'static str = "claims";
    const FIRST: Kind = Kind::Provision;

    fn may_be_ours(&self) -> bool {
        // Whose a claim is, its class says.
        true
    }

    async fn act(&self, shared: &Shared) -> Result<Action, ApplyError> {
        act(self, shared).await
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
    // Of a claim that has its volume, that one says it.
    let is_standing = match record.as_ref().map(|record| record.operation) {
        None | Some(Kind::Expand | Kind::Modify) => true,
        Some(
            Kind::Provision
            | Kind::Clone
            | Kind::Restore
            | Kind::Delete
            | Kind::Snapshot
            | Kind::DeleteSnapshot
            | Kind::Backup
            | Kind::DeleteBackup
            | Kind::Discover
            | Kind::Attach
            | Kind::Detach,
        ) => false,
    };
    let volume = standing::volume_of(claim, volumes.iter().map(AsRef::as_ref)).filter(|_| is_standing);
    let config = match volume {
        Some(volume) => config_of(shared, volume, class.as_deref(), class_name, record.as_ref()),
        None => config_for(shared, class.as_deref(), class_name, record.as_ref()),
    };
    let namespace = runs_in(&config, record.as_ref());
    if let Some(namespace) = namespace.as_deref().filter(|namespace| !cache.knows_runs_of(namespace)) {
        // Only claims that something was or is to be run for.
        let concerned =
            record.is_some() || (config.is_ok() && claim.annotations().contains_key(annotations::STORAGE_PROVISIONER));
        return Ok(not_known(shared, &claim.object_ref(&()), namespace, concerned));
    }
    let find = |kind: Kind| cache.run(namespace.as_deref()?, &RunId::new(kind, &uid));
    let (provision_run, delete_run) = (find(content::making(claim)), find(Kind::Delete));
    let (expand_run, modify_run) = (find(Kind::Expand), find(Kind::Modify));
    let from = cache.source_of(claim);
    let changes = volume.filter(|_| is_change_asked(claim));
    let copied_by = match changes {
        Some(volume) => copied_by(shared, volume, namespace.as_deref()).await?,
        None => None,
    };
    let departed = cache.departed(&uid);
    let nodes = |name: &str| cache.node(name);
    let by_host = |host: &str| cache.node_by_host(host);
    let attributes = |name: &str| cache.attributes(name);
    let (mut looked_up, mut made) = (false, false);
    loop {
        let now = Timestamp::now();
        let planned = {
            let mut seen = ObservedClaim {
                claim,
                record: record.as_ref(),
                class: class.as_deref(),
                config: &config,
                unserved_since: now,
                provision_run: provision_run.as_ref(),
                delete_run: delete_run.as_ref(),
                expand_run: expand_run.as_ref(),
                modify_run: modify_run.as_ref(),
                departed: departed.as_ref(),
                volumes: &volumes,
                looked_up,
                nodes: &nodes,
                by_host: &by_host,
                attributes: &attributes,
                source: &from,
                copied_by: copied_by.as_deref(),
                kube_api: &shared.context.settings.kube_api,
                limits: &shared.limits,
            };
            if provision::is_unserved(&seen) {
                seen.unserved_since = shared.expectations.unserved_since(&uid, now);
            } else {
                shared.expectations.served(&uid);
            }
            provision::plan(&seen, now)
        };
        let decision = match planned {
            Ok(decision) => decision,
            Err(First::LookUp) if !looked_up => {
                volumes = look_up(shared, &uid, volumes).await?;
                looked_up = true;
                continue;
            }
            // Bound at once to what was made: the binder would do it with more writes, at 20 a second for the whole
            // cluster.
            Err(First::MakeVolume(volume)) if !made => {
                volumes = make(shared, &volume, &uid).await?;
                looked_up = true;
                made = true;
                continue;
            }
            // Done already, and not seen yet.
            Err(first @ (First::LookUp | First::MakeVolume(_))) => {
                forget_places(shared, &uid, None);
                tracing::debug!(claim = key(claim), decision = ?first);
                return Ok(Action::requeue(Duration::from_secs(1)));
            }
        };
        forget_places(shared, &uid, decision.begins());
        tracing::debug!(claim = key(claim), ?decision);
        return apply::claim(shared, claim, record, decision).await;
    }
}

/// Leaves the queues in which the claim waits for nothing any more: one that is deleted while it waits for its
/// provisioning waits for its undoing from then on.
fn forget_places(shared: &Shared, uid: &str, begins: Option<Kind>) {
    for kind in Kind::ALL {
        if begins != Some(kind) {
            shared.limiter.forget(&RunId::new(kind, uid).name());
        }
    }
}
