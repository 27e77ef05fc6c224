//! Provisioning and deleting while the API server, or the connection to it, fails at each single call in turn. It is
//! the real API server, behind a proxy that makes the faults. These tests run alone, since the cluster's own
//! controllers are stopped meanwhile.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{ListParams, ResourceExt};
use kube::{Api, Resource};
use mooring_contract::names::{annotations, finalizers};
use mooring_harness::api_proxy::{Fault, Step};
use mooring_harness::audit::{Write, listed};
use mooring_harness::controller::{Rig, with_controllers};
use mooring_harness::nodes::{POOL, on_own_nodes, on_own_nodes_within};
use mooring_harness::provisioner::{MAKER, Provisioner};
use mooring_harness::random::Random;
use mooring_harness::{Scope, is_whole_suite, wait_until};
use mooring_testbed::progress::note;

/// Longest wait for all claims of a test to get or to lose their volumes.
const LIMIT: Duration = Duration::from_mins(4);

/// Time limit of a test in which each call fails in turn.
const WHOLE_LIMIT: Duration = Duration::from_mins(20);

/// Shorter than a controller of these tests waits for an answer.
const LATE: Duration = Duration::from_secs(2);

/// A claim of a test and its uid.
type Claim = (String, String);

/// The stock provisioner of local volumes: each is a file in the pool of its Pod's node.
fn provisioner(scope: &Scope) -> Provisioner {
    scope
        .provisioner()
        .key(
            "image",
            concat!("mooring.dev/provisioner-local:", env!("CARGO_PKG_VERSION")),
        )
        .key("volume-source", "flexVolume")
        .key("backend-volume", "client=pool")
        .key("max-parallel", "12")
        // So that every run needs a token.
        .key("service-account-name", MAKER)
}

/// Which of these uids have a volume in a pool, complete or half made.
fn stored(scope: &Scope, uids: &[String]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for node in 1..=scope.own_cluster()?.description.nodes {
        // A node that has had no volume has no pool.
        let files = scope.on_node(node, &format!("[ ! -d {POOL} ] || ls -A {POOL}"))?;
        let ours = |file: &str| uids.iter().find(|uid| file.contains(uid.as_str())).cloned();
        found.extend(files.lines().filter_map(ours));
    }
    found.sort();
    Ok(found)
}

/// Waits until each of these claims has exactly one volume in Kubernetes and in the pools, and nothing else is left of
/// provisioning.
async fn one_volume_each(scope: &Scope, rig: &Rig, claims: &[Claim]) -> Result<()> {
    let mut uids: Vec<String> = claims.iter().map(|(_, uid)| uid.clone()).collect();
    uids.sort();
    let settled = wait_until("every claim to have its volume and nothing else", LIMIT, async || {
        let all: Api<PersistentVolumeClaim> = scope.api();
        for claim in all.list(&ListParams::default()).await? {
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(
                phase == Some("Bound"),
                "{} is not bound\n{}",
                claim.name_any(),
                rig.proxy.story(&claim.name_any())
            );
            ensure!(
                !claim.finalizers().iter().any(|name| name == finalizers::CLAIM) && !has_record(&claim),
                "{} is still held",
                claim.name_any()
            );
        }
        let left = scope.left_of(&uids).await?;
        ensure!(left.is_empty(), "there are {}", left.join(", "));
        let mut of_claims: Vec<String> = volumes(scope).await?.iter().map(uid_of).collect();
        of_claims.sort();
        ensure!(of_claims == uids, "volumes of {of_claims:?} for claims {uids:?}");
        let stored = stored(scope, &uids)?;
        ensure!(stored == uids, "{stored:?} in the pools for claims {uids:?}");
        Ok(Some(()))
    });
    settled.await?;
    for volume in volumes(scope).await? {
        assert_eq!(volume.name_any(), format!("pvc-{}", uid_of(&volume)));
        assert!(
            volume.finalizers().iter().any(|name| name == finalizers::VOLUME),
            "{} is not held",
            volume.name_any()
        );
        assert!(!has_record(&volume), "{} has a record", volume.name_any());
    }
    Ok(())
}

fn has_record(object: &impl Resource) -> bool {
    object.annotations().contains_key(annotations::OPERATION)
}

fn uid_of(volume: &PersistentVolume) -> String {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim.and_then(|claim| claim.uid.clone()).unwrap_or_default()
}

/// The PVs of claims of the test's namespace.
async fn volumes(scope: &Scope) -> Result<Vec<PersistentVolume>> {
    let all: Api<PersistentVolume> = Api::all(scope.client.clone());
    let mut items = all.list(&ListParams::default()).await?.items;
    items.retain(|volume| {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim.is_some_and(|claim| claim.namespace.as_deref() == Some(&scope.namespace))
    });
    Ok(items)
}

/// Waits until nothing is left of these claims.
async fn nothing_left(scope: &Scope, rig: &Rig, claims: &[Claim]) -> Result<()> {
    let uids: Vec<String> = claims.iter().map(|(_, uid)| uid.clone()).collect();
    wait_until("nothing to be left", LIMIT, async || {
        let volumes = volumes(scope).await?;
        if let Some(volume) = volumes.first() {
            let name = claims
                .iter()
                .find(|(_, uid)| *uid == uid_of(volume))
                .map(|(name, _)| name.as_str());
            let story = name.map(|name| rig.proxy.story(name)).unwrap_or_default();
            anyhow::bail!(
                "PersistentVolume {} of {} is there\n{story}",
                volume.name_any(),
                volumes.len()
            );
        }
        let left = scope.left_of(&uids).await?;
        ensure!(left.is_empty(), "there are {}", left.join(", "));
        let stored = stored(scope, &uids)?;
        ensure!(stored.is_empty(), "{stored:?} in the pools");
        Ok(Some(()))
    })
    .await
}

/// Waits until all planned faults of writes have happened. The other calls have come too once a life is settled, if they
/// come in it at all.
async fn all_faults_came(rig: &Rig) -> Result<()> {
    wait_until("every planned fault", LIMIT, async || {
        let pending = rig.proxy.pending(|step| !step.is_read());
        ensure!(pending.is_empty(), "not yet: {}", pending.join(", "));
        Ok(Some(()))
    })
    .await
}

/// Notes the reads that settled lives have done without, whose faults did not happen.
fn note_unneeded(rig: &Rig) {
    for fault in rig.proxy.pending(Step::is_read) {
        note(format!("the call never came: {fault}"));
    }
}

/// The calls of a claim's creation and of its end, recorded from claims without faults: only calls that all of them
/// needed, since a watch may be quicker for one than for another.
async fn recorded(scope: &Scope, rig: &Rig, class: &str) -> Result<(Vec<Step>, Vec<Step>)> {
    let mut lives: Vec<[Vec<Step>; 2]> = Vec::new();
    for index in 1..=some_of(3) {
        let name = &format!("recorded-{index}");
        let uid = rig.proxy.claim(scope, name, class, None).await?;
        let claims = [(name.clone(), uid)];
        one_volume_each(scope, rig, &claims).await?;
        let made = rig.proxy.steps(name);
        rig.proxy.plan(name, None);
        scope.delete(&format!("persistentvolumeclaim/{name}"))?;
        nothing_left(scope, rig, &claims).await?;
        lives.push([made, rig.proxy.steps(name)]);
    }
    let common = |part: usize| {
        let mut steps = lives[0][part].clone();
        steps.retain(|step| lives.iter().all(|life| life[part].contains(step)));
        steps
    };
    let (made, removed) = (common(0), common(1));
    for (what, steps) in [("made", &made), ("removed", &removed)] {
        let calls: Vec<String> = steps.iter().map(ToString::to_string).collect();
        note(format!("a volume is {what} by: {}", calls.join(", ")));
    }
    ensure!(made.len() > 5 && removed.len() > 3, "the calls were not recorded");
    Ok((made, removed))
}

/// Every step combined with every fault with `--all`; else every step with one fault each, and every fault with some
/// step: which one is drawn by the seed.
fn pairs<'a>(steps: &'a [Step], faults: &[Fault]) -> Vec<(&'a Step, Fault)> {
    if !is_whole_suite() {
        let first = Random::new(Random::seed()).below(faults.len() as u64);
        let turns = faults.iter().cycle().skip(usize::try_from(first).unwrap_or_default());
        return steps.iter().zip(turns.copied()).collect();
    }
    let with = |fault: &Fault| steps.iter().map(|step| (step, *fault)).collect::<Vec<_>>();
    faults.iter().flat_map(with).collect()
}

/// This many with `--all`, else half of them.
fn some_of(number: usize) -> usize {
    if is_whole_suite() { number } else { number.div_ceil(2) }
}

/// Whether faults happen one after the other, or all at the same time, each to a claim of its own.
#[derive(Clone, Copy, PartialEq)]
enum Come {
    InTurn,
    Together,
}

/// Makes every call of a claim's creation fail in each of these ways, then every call of its end.
fn every_call_goes_wrong(name: &str, faults: &[Fault], come: Come) {
    on_own_nodes_within(WHOLE_LIMIT, name, async |scope| {
        with_controllers(&scope, 1, async |rig| {
            let provisioner = provisioner(&scope);
            provisioner.apply().await?;
            let (made, removed) = recorded(&scope, rig, &provisioner.class).await?;
            let mut claims = Vec::new();
            for (index, fault) in pairs(&made, faults).into_iter().enumerate() {
                let name = format!("c{index}");
                let uid = rig.proxy.claim(&scope, &name, &provisioner.class, Some(fault)).await?;
                claims.push((name, uid));
                if come == Come::InTurn {
                    all_faults_came(rig).await?;
                }
            }
            all_faults_came(rig).await?;
            one_volume_each(&scope, rig, &claims).await?;
            note_unneeded(rig);
            let mut faults = pairs(&removed, faults).into_iter();
            ensure!(faults.len() <= claims.len(), "too few claims for the faults");
            for (name, _) in &claims {
                rig.proxy.plan(name, faults.next());
                scope.delete(&format!("persistentvolumeclaim/{name}"))?;
                if come == Come::InTurn {
                    all_faults_came(rig).await?;
                }
            }
            all_faults_came(rig).await?;
            nothing_left(&scope, rig, &claims).await?;
            note_unneeded(rig);
            Ok(())
        })
        .await
    });
}

/// Proves: P1, P3
#[test]
fn a_controller_killed_before_or_after_any_api_call_leaves_one_volume_a_claim_and_none_without() {
    // The next controller resumes what the last kill interrupted, while the next kill is under way.
    every_call_goes_wrong("killed", &[Fault::KilledBefore, Fault::KilledAfter], Come::InTurn);
}

/// Proves: P1, P3
#[test]
fn an_api_server_that_refuses_breaks_off_or_is_silent_or_late_at_any_call_costs_no_volume() {
    let faults = [
        Fault::Status(500),
        Fault::Status(409),
        Fault::Status(429),
        Fault::BrokenOff,
        Fault::Silence,
        Fault::Late(LATE),
    ];
    every_call_goes_wrong("refused", &faults, Come::Together);
}

/// Proves: P1
#[test]
fn watches_that_are_cut_and_events_that_are_refused_cost_no_volume() {
    on_own_nodes("cut", async |scope| {
        with_controllers(&scope, 1, async |rig| {
            let provisioner = provisioner(&scope);
            provisioner.apply().await?;
            rig.proxy.fail_events(true);
            let mut claims = Vec::new();
            for index in 0..some_of(8) {
                let name = format!("c{index}");
                let uid = rig.proxy.claim(&scope, &name, &provisioner.class, None).await?;
                claims.push((name, uid));
                rig.proxy.cut_watches();
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            rig.proxy.cut_watches();
            one_volume_each(&scope, rig, &claims).await?;
            for (name, _) in &claims {
                scope.delete(&format!("persistentvolumeclaim/{name}"))?;
                rig.proxy.cut_watches();
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            nothing_left(&scope, rig, &claims).await
        })
        .await
    });
}

/// Writes for a claim whose volume is on a node that nobody chose beforehand: the Pod's node has to be recorded as
/// well.
const WHOLE_LIFE: usize = 11;

/// Some of them, without which there is no volume or no end of it.
const NEEDED: [(&str, &str); 4] = [
    ("create", "pods"),
    ("create", "persistentvolumes"),
    ("patch", "persistentvolumeclaims"),
    ("delete", "persistentvolumes"),
];

/// Proves: P7
#[test]
fn late_watches_cost_no_further_write() {
    on_own_nodes("lag", async |scope| {
        with_controllers(&scope, 1, async |rig| {
            let provisioner = provisioner(&scope);
            provisioner.apply().await?;
            // More time than the controller needs for any step. It counts from the next start of a watch.
            rig.proxy.lag_watches(Duration::from_millis(700));
            rig.proxy.renew_watches().await?;
            let mut lagged = rig.proxy.lagged();
            for index in 0..some_of(3) {
                let name = format!("c{index}");
                let uid = rig.proxy.claim(&scope, &name, &provisioner.class, None).await?;
                let claims = [(name.clone(), uid.clone())];
                one_volume_each(&scope, rig, &claims).await?;
                scope.delete(&format!("persistentvolumeclaim/{name}"))?;
                nothing_left(&scope, rig, &claims).await?;
                let mut writes = scope.controller_writes(&name, &uid, None)?;
                writes.retain(|write| !write.is_token());
                assert!(
                    writes.len() <= WHOLE_LIFE,
                    "more than {WHOLE_LIFE} writes: {}",
                    listed(&writes)
                );
                // The audit log has the claim's life, and the watches told late of it.
                for (verb, resource) in NEEDED {
                    let is_it = |write: &Write| write.verb == verb && write.resource == resource;
                    assert!(writes.iter().any(is_it), "no {verb} of {resource}: {}", listed(&writes));
                }
                let now = rig.proxy.lagged();
                ensure!(now > lagged, "no watch was late");
                lagged = now;
            }
            Ok(())
        })
        .await
    });
}

/// Proves: P1
#[test]
fn two_controllers_that_both_believe_to_lead_do_no_harm() {
    on_own_nodes("two", async |scope| {
        with_controllers(&scope, 2, async |rig| {
            let provisioner = provisioner(&scope);
            provisioner.apply().await?;
            let mut claims = Vec::new();
            // Each is stopped in turn, wherever it happens to be, and continues with its old view.
            for index in 0..some_of(12) {
                let name = format!("c{index}");
                let uid = rig.proxy.claim(&scope, &name, &provisioner.class, None).await?;
                claims.push((name, uid));
                let controller = &rig.controllers[index % 2];
                controller.hold(true)?;
                tokio::time::sleep(Duration::from_millis(400)).await;
                controller.hold(false)?;
            }
            one_volume_each(&scope, rig, &claims).await?;
            for (index, (name, _)) in claims.iter().enumerate() {
                scope.delete(&format!("persistentvolumeclaim/{name}"))?;
                let controller = &rig.controllers[index % 2];
                controller.hold(true)?;
                tokio::time::sleep(Duration::from_millis(400)).await;
                controller.hold(false)?;
            }
            nothing_left(&scope, rig, &claims).await
        })
        .await
    });
}
