//! Volumes that move between FlexVolume and CSI, with every call failing in turn, beside the controller at work.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::fake_api::{FakeApi, Fault, key_of};
use super::{Offers, PV, Script, Theatre, UID};
use mooring::migrate::cluster::{MoveCluster, MoveTarget};
use mooring::migrate::drive::{Moved, step};
use mooring::migrate::plan::{Goal, Standing};
use mooring::migrate::record::ClaimKey;
use mooring::migrate::{VolumeSourceKind, VolumeSourceKind::Csi, VolumeSourceKind::FlexVolume};

const CLAIM: &str = "default/data";

fn target() -> MoveTarget {
    MoveTarget {
        claim: ClaimKey {
            namespace: "default".into(),
            name: "data".into(),
            uid: UID.into(),
        },
        volume: PV.into(),
    }
}

fn to(source: Option<VolumeSourceKind>) -> Goal {
    Goal {
        to: source,
        may_hold: source.is_some(),
    }
}

/// What binds claims: it looks at a claim when that has changed or its PV is gone, and at a PV when that has changed.
#[derive(Default)]
struct Binder {
    seen: Option<Value>,
}

impl Binder {
    fn look(&mut self, api: &FakeApi) {
        let mut state = api.lock();
        let volume = state.get("volumes", &format!("/{PV}"));
        if let Some(mut volume) = volume.clone().filter(|volume| volume["status"]["phase"] != "Bound") {
            volume["status"]["phase"] = json!("Bound");
            state.put("volumes", volume);
        }
        let Some(mut claim) = state.get("claims", CLAIM) else {
            return;
        };
        let version = claim["metadata"]["resourceVersion"].clone();
        let phase = if volume.is_none() {
            "Lost"
        } else if self.seen.as_ref() == Some(&version) {
            return;
        } else {
            "Bound"
        };
        if claim["status"]["phase"] != phase {
            claim["status"]["phase"] = json!(phase);
            state.put("claims", claim);
        }
        self.seen = state
            .get("claims", CLAIM)
            .map(|claim| claim["metadata"]["resourceVersion"].clone());
    }
}

/// A claim with a FlexVolume volume, and a Pod's uid that never matters.
async fn stage() -> (Theatre, Binder) {
    let mut theatre = Theatre::open(Script::plain(Offers::Changes));
    theatre.play().await;
    let mut binder = Binder::default();
    binder.look(&theatre.api);
    (theatre, binder)
}

fn put_pod(api: &FakeApi, change: impl FnOnce(&mut Value)) {
    let mut pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "pod-1"},
        "spec": {"nodeName": "node-a", "containers": [],
                 "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"phase": "Running"},
    });
    change(&mut pod);
    api.lock().put("users", pod);
}

/// Goes on for so many steps at most, as a run that is killed after them, and tells where it ended.
async fn steps(theatre: &mut Theatre, binder: &mut Binder, goal: Goal, most: usize) -> Option<Standing> {
    let cluster = MoveCluster::new(theatre.api.client_of_administrator(), "mooring");
    for _ in 0..most {
        let done = step(&cluster, &target(), goal, &BTreeSet::new()).await;
        // Whatever it did to the API, nobody else may do anything about it.
        let before = theatre.api.lock().log.len();
        theatre.turn_of_controllers().await;
        let log = theatre.api.lock().log[before..].to_vec();
        assert!(log.is_empty(), "the controller interferes: {log:?}");
        binder.look(&theatre.api);
        if let Ok((Moved::At(standing), _)) = done {
            return Some(standing);
        }
    }
    None
}

fn source(api: &FakeApi) -> &'static str {
    let volume = api.lock().get("volumes", &format!("/{PV}"));
    match volume {
        None => "none",
        Some(volume) if volume["spec"]["csi"].is_object() => "csi",
        Some(volume) if volume["spec"]["flexVolume"].is_object() => "flexVolume",
        Some(volume) => panic!("{volume}"),
    }
}

/// One volume, bound, and nothing of a move.
fn check(theatre: &Theatre, by: &str, what: &str) {
    assert_eq!(source(&theatre.api), by, "{what}");
    let state = theatre.api.lock();
    assert_eq!(state.all("configmaps").len(), 0, "{what}: a record is left");
    let claim = state.get("claims", CLAIM).unwrap();
    assert_eq!(claim["metadata"]["finalizers"], json!([]), "{what}: the claim is held");
    assert_eq!(claim["status"]["phase"], "Bound", "{what}");
    let volume = state.get("volumes", &format!("/{PV}")).unwrap();
    assert_eq!(volume["status"]["phase"], "Bound", "{what}");
    assert_eq!(
        volume["metadata"]["finalizers"],
        json!(["mooring.dev/volume"]),
        "{what}"
    );
    assert_eq!(volume["spec"]["claimRef"]["uid"], UID, "{what}");
    assert_eq!(
        theatre.storage,
        [PV.to_owned()].into(),
        "{what}: the volumes on the storage"
    );
    let volumes: Vec<_> = state.each("volumes").map(key_of).collect();
    assert_eq!(volumes, [format!("/{PV}")], "{what}: the PersistentVolumes");
}

/// Proves: P1, P7
#[tokio::test]
async fn a_volume_moves_there_and_back_with_seven_writes_each() {
    let (mut theatre, mut binder) = stage().await;
    let before = theatre.api.lock().get("volumes", &format!("/{PV}")).unwrap();
    for (source, by) in [(Csi, "csi"), (FlexVolume, "flexVolume")] {
        let writes = theatre.api.lock().log.len();
        assert_eq!(
            steps(&mut theatre, &mut binder, to(Some(source)), 40).await,
            Some(Standing::There)
        );
        check(&theatre, by, by);
        let log = theatre.api.lock().log[writes..].to_vec();
        assert_eq!(log.len(), 7, "{log:#?}");
    }
    let after = theatre.api.lock().get("volumes", &format!("/{PV}")).unwrap();
    assert_eq!(
        (&before["spec"], &before["metadata"]["annotations"]),
        (&after["spec"], &after["metadata"]["annotations"])
    );
    // It is deleted as any other.
    theatre.script.deleted_after = Some(0);
    theatre.play().await;
    theatre.check("moved and deleted");
}

/// Proves: P1
#[tokio::test]
async fn a_move_ends_well_whatever_fails_and_whenever_it_is_cut_off() {
    for fault in Fault::ALL {
        for nth in 1.. {
            let (theatre, mut binder) = stage().await;
            theatre.api.fail(nth, fault);
            let goal = to(Some(Csi));
            let cluster = MoveCluster::new(theatre.api.client_of_administrator(), "mooring");
            let mut at = None;
            for _ in 0..60 {
                let done = step(&cluster, &target(), goal, &BTreeSet::new()).await;
                theatre.api.lock().tripped = false;
                binder.look(&theatre.api);
                if let Ok((Moved::At(standing), _)) = done {
                    at = Some(standing);
                    break;
                }
            }
            assert_eq!(at, Some(Standing::There), "call {nth} failed {fault:?}");
            check(&theatre, "csi", &format!("call {nth} failed {fault:?}"));
            if theatre.api.lock().calls() < nth {
                break;
            }
        }
    }
}

/// Proves: P1
#[tokio::test]
async fn a_move_that_is_cut_off_is_taken_up_or_back_from_anywhere() {
    for end in [Some(Csi), None, Some(FlexVolume)] {
        for most in 0..12 {
            let (mut theatre, mut binder) = stage().await;
            let ended = steps(&mut theatre, &mut binder, to(Some(Csi)), most).await;
            let by = source(&theatre.api);
            let standing = steps(&mut theatre, &mut binder, to(end), 40).await;
            assert!(standing.is_some(), "cut off after {most}: it never ends");
            let what = format!("cut off after {most}, then to {end:?}");
            match end {
                Some(Csi) => check(&theatre, "csi", &what),
                Some(FlexVolume) => check(&theatre, "flexVolume", &what),
                // Over already, or the new one is there: that is not taken back.
                None => check(&theatre, if by == "csi" { "csi" } else { "flexVolume" }, &what),
            }
            assert!(ended.is_none() || by == "csi", "{what}");
        }
    }
}

/// Proves: P1, P3
#[tokio::test]
async fn a_claim_that_is_deleted_within_a_move_ends_with_nothing_once_that_is_over() {
    for end in [Some(Csi), None] {
        for most in 0..12 {
            let (mut theatre, mut binder) = stage().await;
            steps(&mut theatre, &mut binder, to(Some(Csi)), most).await;
            theatre.api.lock().delete("claims", CLAIM);
            for _ in 0..4 {
                theatre.turn().await;
            }
            let cluster = MoveCluster::new(theatre.api.client_of_administrator(), "mooring");
            let begun = !theatre.api.lock().all("configmaps").is_empty();
            assert!(
                !begun
                    || theatre.storage == [PV.to_owned()].into()
                    || theatre.api.lock().get("claims", CLAIM).is_none()
            );
            for _ in 0..60 {
                drop(step(&cluster, &target(), to(end), &BTreeSet::new()).await);
                theatre.turn().await;
                binder.look(&theatre.api);
                theatre.binder();
            }
            theatre.script.deleted_after = Some(0);
            theatre.check(&format!("cut off after {most}, then deleted, then {end:?}"));
            assert!(theatre.api.lock().all("configmaps").is_empty(), "a record is left");
        }
    }
}

/// Proves: P1
#[tokio::test]
async fn nothing_moves_under_a_pod_whenever_it_begins() {
    for most in 0..12 {
        let (mut theatre, mut binder) = stage().await;
        steps(&mut theatre, &mut binder, to(Some(Csi)), most).await;
        let by = source(&theatre.api);
        put_pod(&theatre.api, |_| {});
        let standing = steps(&mut theatre, &mut binder, to(Some(Csi)), 40).await;
        let what = format!("a Pod began after {most}");
        if by == "csi" {
            check(&theatre, "csi", &what);
        } else {
            assert_eq!(standing, Some(Standing::Waits("used by Pod web".into())), "{what}");
            check(&theatre, "flexVolume", &what);
        }
    }
}

#[tokio::test]
async fn a_volume_moves_between_the_end_of_one_pod_and_the_start_of_the_next() {
    let (mut theatre, mut binder) = stage().await;
    let ending = |pod: &mut Value| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    };
    put_pod(&theatre.api, ending);
    assert_eq!(
        steps(&mut theatre, &mut binder, to(Some(Csi)), 40).await,
        None,
        "it waits for the Pod's end"
    );
    assert_eq!(source(&theatre.api), "none");
    assert_eq!(
        theatre.api.lock().get("claims", CLAIM).unwrap()["status"]["phase"],
        "Lost"
    );
    let pods: Vec<_> = theatre.api.lock().each("users").map(key_of).collect();
    for pod in pods {
        theatre.api.lock().delete("users", &pod);
    }
    assert_eq!(
        steps(&mut theatre, &mut binder, to(Some(Csi)), 40).await,
        Some(Standing::There)
    );
    check(&theatre, "csi", "moved");
}
