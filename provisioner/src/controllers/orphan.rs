//! Pods that belong to nothing any more.
//!
//! A controller that is paused for long enough between two calls (a frozen machine, a partition) can make a Pod for a claim
//! that another replica has brought to its end meanwhile. Such a Pod is found here by its own labels and annotations, what
//! it may have made is deleted, and only then it is removed: it is the record.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use mooring_contract::names::{annotations, labels};
use mooring_contract::outcome::Outcome;
use mooring_contract::request::Request;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::apply::live::is_orphan;
use crate::apply::{self, ApplyError, Shared};
use crate::cache::store::key;
use crate::config::ProvisionerConfig;
use crate::operation::decision::{Decision, Intent, PodRef, Start};
use crate::operation::observed::Limits;
use crate::operation::record::Record;
use crate::operation::request;
use crate::operation::time::elapsed;
use crate::run::kind::Kind;
use crate::run::outcome::{PodState, created, observe};
use crate::run::pod;

/// How long changes are gathered before the Pods are looked through.
const GATHER: Duration = Duration::from_secs(5);

/// What to do about the Pods of one claim that is gone.
#[derive(Debug)]
enum Plan {
    /// Nothing yet.
    Wait,
    /// They are of no use.
    Remove(Vec<PodRef>),
    /// The volume that may have been made is to be deleted, at this attempt.
    Delete(u32),
}

/// What to do about the Pods of a claim and PV that are both gone.
fn plan(provision: Option<&Pod>, delete: Option<&Pod>, limits: &Limits, now: Timestamp) -> Plan {
    let young = |pod: &Pod| elapsed(created(pod), now) < limits.orphan_age;
    if provision.is_some_and(young) {
        return Plan::Wait;
    }
    let deleted = delete.map(observe);
    let Some(provision) = provision else {
        // The last of a deletion that is over; one that runs may go on, and one that failed has nobody to tell.
        return match (delete, deleted) {
            (Some(pod), Some(PodState::Finished(_))) if !young(pod) => Plan::Remove(vec![PodRef::of(pod)]),
            _ => Plan::Wait,
        };
    };
    match observe(provision) {
        // Without its Secret it never starts, and it is refused one for as long as nobody wants it.
        PodState::Waiting { never_ran: true, .. } => Plan::Remove(vec![PodRef::exactly(provision)]),
        PodState::Finished(finish) if !finish.may_have_run => Plan::Remove(vec![PodRef::of(provision)]),
        PodState::Finished(_) => match (delete, deleted) {
            (None, _) => Plan::Delete(1),
            (Some(pod), Some(PodState::Finished(finish))) if finish.outcome == Outcome::Done => {
                // The record first: what is left of it then is of no use.
                Plan::Remove(vec![PodRef::of(provision), PodRef::of(pod)])
            }
            (Some(pod), Some(PodState::Finished(_))) => {
                let uid = pod::label(pod, labels::CLAIM_UID).unwrap_or_default();
                if elapsed(created(pod), now) > limits.backoff.delay(pod::attempt(pod), uid) {
                    Plan::Remove(vec![PodRef::of(pod)])
                } else {
                    Plan::Wait
                }
            }
            _ => Plan::Wait,
        },
        // It ends by its own limit.
        PodState::Waiting { .. } | PodState::Running | PodState::Leaving => Plan::Wait,
    }
}

/// Looks through the Pods whenever some have changed, until `stop`.
pub async fn run(shared: Shared, resync: Duration, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.cache.pods_changed() => {}
            () = tokio::time::sleep(resync.min(shared.limits.orphan_age)) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(GATHER) => {}
        }
        for uid in shared.cache.orphans() {
            if let Err(error) = Box::pin(settle(&shared, &uid)).await {
                warn!(
                    claim.uid = uid,
                    error = error.chain(),
                    "failed to settle an orphaned Pod; trying again"
                );
            }
        }
    }
}

/// Looks at the Pods of one claim that is gone, and does the next thing.
pub(crate) async fn settle(shared: &Shared, uid: &str) -> Result<(), ApplyError> {
    let pods = shared.cache.pods_of(uid);
    let of = |kind: Kind| {
        let is = |pod: &&Arc<Pod>| pod::label(pod, labels::OPERATION) == Some(kind.as_str());
        pods.iter().find(is).cloned()
    };
    let (provision, delete) = (of(Kind::Provision), of(Kind::Delete));
    let decided = plan(
        provision.as_deref(),
        delete.as_deref(),
        &shared.limits,
        Timestamp::now(),
    );
    let Some(pod) = provision.or(delete) else { return Ok(()) };
    if matches!(decided, Plan::Wait) || !is_orphan(shared, &pod, uid).await? {
        return Ok(());
    }
    let decision = match decided {
        Plan::Wait => return Ok(()),
        Plan::Remove(pods) => {
            info!(pod = key(&*pod), "removing Pods of a claim that is gone");
            Decision::Tidy(pods)
        }
        Plan::Delete(attempt) => {
            let Some(start) = deletion(shared, &pod, attempt) else {
                warn!(
                    pod = key(&*pod),
                    "its claim is gone and its volume may be there, but its ConfigMap is gone too"
                );
                return Ok(());
            };
            info!(pod = key(&*pod), "deleting the volume of a claim that is gone");
            Decision::Start(Box::new(start))
        }
    };
    apply::orphan(shared, &pod, decision).await.map(drop)
}

/// The run that deletes what a provisioning Pod may have made.
fn deletion(shared: &Shared, provision: &Pod, attempt: u32) -> Option<Start> {
    let reference = provision.annotations().get(annotations::CONFIG)?.parse().ok()?;
    let config: Arc<ProvisionerConfig> = shared.context.configs.get(&reference)?;
    let made_by: Request = pod::request(provision)?;
    let node = pod::node(provision)
        .filter(|_| config.is_node_local())
        .map(str::to_owned);
    let record = Record {
        operation: Kind::Delete,
        attempt,
        pod: key(provision),
        since: created(provision),
        config: config.reference.to_string(),
        config_uid: config.uid.clone(),
        node: node.clone().unwrap_or_default(),
        not_before: None,
        last_error: String::new(),
        tried: String::new(),
        gave_up: false,
        may_exist: true,
        cancelled: false,
        refused: false,
    };
    let kube_api = &shared.context.settings.kube_api;
    Some(Start {
        operation: Kind::Delete,
        request: request::delete(made_by, None, &config, kube_api, [].into()),
        config,
        record,
        intent: Intent::Pod,
        owner: None,
        node,
        state: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::{Plan, plan};
    use crate::operation::observed::Limits;
    use crate::operation::tests::{ended, no_image, now, pod, running};
    use k8s_openapi::api::core::v1::Pod;

    fn word(provision: Option<&Pod>, delete: Option<&Pod>) -> &'static str {
        match plan(provision, delete, &Limits::default(), now()) {
            Plan::Wait => "wait",
            Plan::Remove(pods) if pods.len() == 2 => "remove both",
            Plan::Remove(_) => "remove",
            Plan::Delete(_) => "delete",
        }
    }

    /// Proves: P1
    #[test]
    fn an_orphan_is_settled_step_by_step_with_itself_as_the_record() {
        let provision = |age, status: &_| pod("provision", 1, age, status);
        let delete = |age, status: &_| pod("delete", 1, age, status);
        let made = provision(100, &ended(0, ""));
        assert_eq!(word(Some(&provision(10, &ended(0, ""))), None), "wait", "too young");
        assert_eq!(word(Some(&provision(100, &running())), None), "wait");
        assert_eq!(word(Some(&provision(100, &no_image())), None), "remove");
        assert_eq!(word(Some(&made), None), "delete");
        assert_eq!(word(Some(&made), Some(&delete(9, &running()))), "wait");
        assert_eq!(
            word(Some(&made), Some(&delete(3, &ended(75, "")))),
            "wait",
            "backing off"
        );
        assert_eq!(
            word(Some(&made), Some(&delete(90, &ended(75, "")))),
            "remove",
            "and again"
        );
        assert_eq!(word(Some(&made), Some(&delete(9, &ended(0, "")))), "remove both");
        assert_eq!(word(None, Some(&delete(100, &ended(0, "")))), "remove");
        assert_eq!(word(None, Some(&delete(100, &running()))), "wait");
    }
}
