//! The next step of a volume's move. Kubernetes lets nobody change a PersistentVolume's source, so the move deletes the
//! PersistentVolume and creates it again under its name, with the same claim in it, by whose uid both stay bound.
//!
//! A kubelet reads the PersistentVolume while it mounts. So while there is none, none mounts; and who is not on a node
//! then can only mount the new one. That is why the Pods are looked at twice, the second time while there is none.

use flex_provisioner::config::VolumeSourceKind;
use flex_provisioner::operation::attach::is_open;
use flex_provisioner::operation::attach::nodes::VolumeNodes;
use flex_provisioner::operation::record::is_busy;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use mooring_contract::names::{annotations, finalizers};

use super::record::{ClaimKey, MoveRecord};
use super::source::{self, SecretSeen, Unmovable};
use super::users::User;

/// What is known of a claim and its volume.
#[derive(Debug)]
pub struct Seen {
    pub record: Option<MoveRecord>,
    pub volume: Option<PersistentVolume>,
    /// The claim, if it is the one that the volume is for.
    pub claim: Option<PersistentVolumeClaim>,
    /// Pods that may have it mounted. Known of a time when `volume` was as it is here.
    pub users: Vec<User>,
    /// The Secret of the PersistentVolume, where it is still to move.
    pub secret: SecretSeen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal {
    /// Where volumes are to go; `None` takes moves back that have begun.
    pub to: Option<VolumeSourceKind>,
    /// Whether a move may begin while the last Pod ends, so that it is over before the next one begins.
    pub may_hold: bool,
}

/// The state of a volume that needs nothing now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It has the right driver already.
    There,
    /// No move of it has begun, and none is to.
    Idle,
    Stays(Unmovable),
    Waits(String),
    /// Neither volume nor record is there any more.
    Gone,
}

#[derive(Debug, Clone, PartialEq)]
pub enum MoveStep {
    Rest(Standing),
    /// Write the move's record, or write it again.
    Note(Box<MoveRecord>),
    /// Have the claim stay.
    Hold,
    /// Delete the PersistentVolume.
    Delete,
    /// Let it go.
    Free,
    /// Create this one.
    Make(Box<PersistentVolume>),
    /// Let the claim go. That makes Kubernetes look at it, too.
    Release,
    Forget,
    /// Look again in a moment, for this.
    Await(&'static str),
    /// Look again when these Pods have ended.
    AwaitEnd,
}

pub fn plan(seen: &Seen, goal: Goal) -> MoveStep {
    match (&seen.record, &seen.volume) {
        (None, None) => MoveStep::Rest(Standing::Gone),
        (None, Some(volume)) => fresh(seen, volume, goal),
        (Some(record), None) => absent(seen, record, goal),
        (Some(record), Some(volume)) if volume.metadata.uid.as_deref() == Some(&record.uid) => {
            begun(seen, record, volume, goal)
        }
        (Some(_), Some(volume)) => exchanged(seen, volume),
    }
}

/// No move has begun.
fn fresh(seen: &Seen, volume: &PersistentVolume, goal: Goal) -> MoveStep {
    if is_held(seen) {
        return MoveStep::Release;
    }
    let Some(to) = goal.to else {
        return MoveStep::Rest(Standing::Idle);
    };
    if source::of(volume) == Some(to) {
        return MoveStep::Rest(Standing::There);
    }
    match (hindrance(seen, volume, to, goal), ClaimKey::of(volume)) {
        (None, Some(claim)) => MoveStep::Note(Box::new(MoveRecord::new(volume, claim, to))),
        (Some(standing), _) => MoveStep::Rest(standing),
        (None, None) => MoveStep::Rest(unbound()),
    }
}

/// It is written down, and the PersistentVolume is still the old one.
fn begun(seen: &Seen, record: &MoveRecord, volume: &PersistentVolume, goal: Goal) -> MoveStep {
    let changed = source::plain(volume) != record.old;
    let anew = || {
        MoveStep::Note(Box::new(MoveRecord {
            version: record.version.clone(),
            ..MoveRecord::new(volume, record.claim.clone(), record.to)
        }))
    };
    if volume.metadata.deletion_timestamp.is_some() {
        // There is no way back but by creating it again.
        return if changed { anew() } else { MoveStep::Free };
    }
    if goal.to != Some(record.to) || hindrance(seen, volume, record.to, goal).is_some() {
        return if is_held(seen) {
            MoveStep::Release
        } else {
            MoveStep::Forget
        };
    }
    if changed {
        return anew();
    }
    if is_held(seen) {
        MoveStep::Delete
    } else {
        MoveStep::Hold
    }
}

/// There is no PersistentVolume: only now nobody can begin to use it.
fn absent(seen: &Seen, record: &MoveRecord, goal: Goal) -> MoveStep {
    let old = || MoveStep::Make(Box::new(record.old.clone()));
    if goal.to != Some(record.to) || seen.claim.is_none() {
        return old();
    }
    if seen.users.is_empty() {
        return source::through(&record.old, record.to).map_or_else(|_| old(), |new| MoveStep::Make(Box::new(new)));
    }
    let all_end = seen.users.iter().all(|user| user.ending.is_some());
    if all_end && goal.may_hold {
        MoveStep::AwaitEnd
    } else {
        old()
    }
}

/// There is a PersistentVolume again.
fn exchanged(seen: &Seen, volume: &PersistentVolume) -> MoveStep {
    let Some(claim) = &seen.claim else {
        return MoveStep::Forget;
    };
    // What binds has seen it then, and finds the claim in order when it looks.
    if !is_bound(volume.status.as_ref().and_then(|status| status.phase.as_ref())) {
        return MoveStep::Await("the PersistentVolume to be bound to its claim");
    }
    if is_held(seen) {
        return MoveStep::Release;
    }
    if !is_bound(claim.status.as_ref().and_then(|status| status.phase.as_ref())) {
        return MoveStep::Await("the claim to be bound to its PersistentVolume");
    }
    MoveStep::Forget
}

fn is_bound(phase: Option<&String>) -> bool {
    phase.is_some_and(|phase| phase == "Bound")
}

fn is_held(seen: &Seen) -> bool {
    let held = seen.claim.iter().flat_map(ResourceExt::finalizers);
    held.into_iter().any(|name| name == finalizers::MIGRATION)
}

fn unbound() -> Standing {
    Standing::Stays(Unmovable::Unbound)
}

/// Why a volume can't move, or not now.
fn hindrance(seen: &Seen, volume: &PersistentVolume, to: VolumeSourceKind, goal: Goal) -> Option<Standing> {
    let stays = |why: Unmovable| Some(Standing::Stays(why));
    let waits = |text: &str| Some(Standing::Waits(text.to_owned()));
    if let Err(error) = source::through(volume, to) {
        return stays(error);
    }
    let Some(claim) = &seen.claim else {
        return Some(unbound());
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return stays(Unmovable::ClaimGoing);
    }
    if volume.metadata.deletion_timestamp.is_some() {
        return stays(Unmovable::Going);
    }
    if claim.owner_references().iter().any(|owner| owner.kind == "Pod") {
        return stays(Unmovable::OfPod);
    }
    if let Err(error) = source::check(volume, Some(claim), &seen.secret, to) {
        return stays(error);
    }
    let status = claim.status.as_ref();
    if !is_bound(status.and_then(|status| status.phase.as_ref()))
        || !is_bound(volume.status.as_ref().and_then(|status| status.phase.as_ref()))
    {
        return waits("its claim is not bound");
    }
    if is_busy(claim) || volume.annotations().contains_key(annotations::OPERATION) {
        return waits("an operation on the volume is under way: see the claim's Events");
    }
    if is_open(volume, None) {
        return waits(&format!(
            "it is attached to node {}, until no Pod there uses it",
            VolumeNodes::of(volume).names().join(" and ")
        ));
    }
    let growing = status.and_then(|status| status.allocated_resource_statuses.as_ref());
    if growing.is_some_and(|all| all.values().any(|word| word.starts_with("NodeResize"))) {
        return waits("its file system still has to grow, which needs a Pod that uses it");
    }
    let others = volume.finalizers().iter();
    let mut others = others.filter(|name| ![finalizers::VOLUME, finalizers::PV_PROTECTION].contains(&name.as_str()));
    if let Some(other) = others.next() {
        return waits(&format!("finalizer {other} holds the PersistentVolume"));
    }
    let holding = |user: &&User| user.ending.is_none() || !goal.may_hold;
    let users: Vec<_> = seen
        .users
        .iter()
        .filter(holding)
        .map(|user| user.name.as_str())
        .collect();
    if users.is_empty() {
        return None;
    }
    Some(Standing::Waits(format!("used by Pod {}", users.join(", "))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flex_provisioner::config::VolumeSourceKind::{Csi, FlexVolume};
    use serde_json::{Value, json};

    use super::{Goal, MoveStep, Seen, Standing, plan};
    use crate::migrate::fixtures::{claim, volume};
    use crate::migrate::record::tests::record;
    use crate::migrate::source::{self, SecretSeen};
    use crate::migrate::users::User;

    const TO_CSI: Goal = Goal {
        to: Some(Csi),
        may_hold: false,
    };

    const WAITING: Goal = Goal {
        may_hold: true,
        ..TO_CSI
    };

    const BACK: Goal = Goal {
        to: None,
        may_hold: false,
    };

    fn user(ending: bool) -> User {
        User {
            name: "web".into(),
            uid: "p".into(),
            ending: ending.then_some(Duration::ZERO),
        }
    }

    /// A bound claim and its volume, after a change of either.
    fn seen(change: impl FnOnce(&mut Value, &mut Value)) -> Seen {
        let (mut volume, mut claim) = (volume(), json!(claim()));
        volume["status"] = json!({"phase": "Bound"});
        claim["status"] = json!({"phase": "Bound"});
        change(&mut volume, &mut claim);
        Seen {
            record: None,
            volume: Some(serde_json::from_value(volume).unwrap()),
            claim: Some(serde_json::from_value(claim).unwrap()),
            users: vec![],
            secret: SecretSeen::Unneeded,
        }
    }

    fn noted(change: impl FnOnce(&mut Value, &mut Value)) -> Seen {
        Seen {
            record: Some(record()),
            ..seen(change)
        }
    }

    fn word(seen: &Seen, goal: Goal) -> String {
        match plan(seen, goal) {
            MoveStep::Rest(Standing::Stays(text)) => format!("stays: {text}"),
            MoveStep::Rest(Standing::Waits(text)) => format!("waits: {text}"),
            MoveStep::Rest(standing) => format!("{standing:?}"),
            MoveStep::Note(record) => format!("note {}", record.to.as_str()),
            MoveStep::Make(volume) => format!("make {}", source::of(&volume).unwrap().as_str()),
            step => format!("{step:?}"),
        }
    }

    const HELD: &str = "mooring.dev/migration";

    #[test]
    fn a_move_goes_step_by_step() {
        assert_eq!(word(&seen(|_, _| {}), TO_CSI), "note csi");
        let held = |claim: &mut Value| claim["metadata"]["finalizers"] = json!([HELD]);
        assert_eq!(word(&noted(|_, _| {}), TO_CSI), "Hold");
        assert_eq!(word(&noted(|_, claim| held(claim)), TO_CSI), "Delete");
        let going = |volume: &mut Value| volume["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
        let deleted = |volume: &mut Value, claim: &mut Value| {
            held(claim);
            going(volume);
        };
        assert_eq!(word(&noted(deleted), TO_CSI), "Free");
        assert_eq!(word(&noted(deleted), BACK), "Free", "there is no other way back");
        let mut absent = noted(|_, claim| held(claim));
        absent.volume = None;
        assert_eq!(word(&absent, TO_CSI), "make csi");
        assert_eq!(word(&absent, BACK), "make flexVolume");
        let made = |phase: &str, claimed: &str, is_held: bool| {
            noted(|volume, claim| {
                volume["metadata"]["uid"] = json!("v2");
                volume["status"]["phase"] = json!(phase);
                claim["status"]["phase"] = json!(claimed);
                if is_held {
                    held(claim);
                }
            })
        };
        for goal in [TO_CSI, BACK] {
            assert!(word(&made("Pending", "Lost", true), goal).contains("PersistentVolume to be bound"));
            assert_eq!(word(&made("Bound", "Lost", true), goal), "Release");
            assert!(word(&made("Bound", "Lost", false), goal).contains("claim to be bound"));
            assert_eq!(word(&made("Bound", "Bound", false), goal), "Forget");
        }
        let mut gone = made("Released", "Bound", false);
        gone.claim = None;
        assert_eq!(word(&gone, TO_CSI), "Forget");
        let there = Goal {
            to: Some(FlexVolume),
            ..TO_CSI
        };
        assert_eq!(word(&seen(|_, _| {}), there), "There");
        assert_eq!(word(&seen(|_, _| {}), BACK), "Idle");
    }

    #[test]
    fn nothing_moves_under_a_pod_that_uses_it() {
        let used = |ending: &[bool]| Seen {
            users: ending.iter().map(|ending| user(*ending)).collect(),
            ..seen(|_, _| {})
        };
        assert_eq!(word(&used(&[false]), TO_CSI), "waits: used by Pod web");
        assert_eq!(word(&used(&[false]), WAITING), "waits: used by Pod web");
        assert_eq!(word(&used(&[true]), TO_CSI), "waits: used by Pod web");
        assert_eq!(word(&used(&[true]), WAITING), "note csi");
        assert_eq!(word(&used(&[true, false]), WAITING), "waits: used by Pod web");
        // It began after the first look.
        for (held, expected) in [(true, "Release"), (false, "Forget")] {
            let began = Seen {
                users: vec![user(false)],
                ..noted(|_, claim| {
                    if held {
                        claim["metadata"]["finalizers"] = json!([HELD]);
                    }
                })
            };
            assert_eq!(word(&began, WAITING), expected);
        }
        let absent = |ending: &[bool]| Seen {
            volume: None,
            record: Some(record()),
            ..used(ending)
        };
        assert_eq!(
            word(&absent(&[false]), WAITING),
            "make flexVolume",
            "it may have mounted the old one"
        );
        assert_eq!(word(&absent(&[true]), WAITING), "AwaitEnd");
        assert_eq!(word(&absent(&[true]), TO_CSI), "make flexVolume");
    }

    #[test]
    fn a_move_that_is_taken_back_before_the_exchange_leaves_all_as_it_was() {
        assert_eq!(
            word(&noted(|_, claim| claim["metadata"]["finalizers"] = json!([HELD])), BACK),
            "Release"
        );
        assert_eq!(word(&noted(|_, _| {}), BACK), "Forget");
        let held = |_: &mut Value, claim: &mut Value| claim["metadata"]["finalizers"] = json!([HELD]);
        assert_eq!(word(&seen(held), TO_CSI), "Release", "its record was removed by hand");
    }

    #[test]
    fn a_volume_that_has_changed_is_written_down_anew_before_it_is_deleted() {
        let grown = |volume: &mut Value, claim: &mut Value| {
            volume["spec"]["capacity"]["storage"] = json!("2Gi");
            claim["metadata"]["finalizers"] = json!([HELD]);
        };
        assert_eq!(word(&noted(grown), TO_CSI), "note csi");
        let deleted = |volume: &mut Value, claim: &mut Value| {
            grown(volume, claim);
            volume["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
        };
        assert_eq!(word(&noted(deleted), BACK), "note csi");
    }

    type Change = fn(&mut Value, &mut Value);

    #[test]
    fn what_hinders_a_move_is_named() {
        let table: [(&str, Change); 8] = [
            ("stays: its claim is being deleted", |_, claim| {
                claim["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
            }),
            ("stays: it is being deleted", |volume, _| {
                volume["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
            }),
            ("stays: its claim belongs to a Pod", |_, claim| {
                claim["metadata"]["ownerReferences"] =
                    json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p"}]);
            }),
            ("waits: its claim is not bound", |_, claim| {
                claim["status"]["phase"] = json!("Lost");
            }),
            ("waits: an operation", |_, claim| {
                claim["metadata"]["finalizers"] = json!(["mooring.dev/provisioning"]);
            }),
            ("waits: an operation", |volume, _| {
                volume["metadata"]["annotations"] = json!({"mooring.dev/operation": "{}"});
            }),
            ("waits: its file system", |_, claim| {
                claim["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizePending"});
            }),
            ("waits: finalizer example.com/x", |volume, _| {
                volume["metadata"]["finalizers"] = json!(["mooring.dev/volume", "example.com/x"]);
            }),
        ];
        for (expected, change) in table {
            let word = word(&seen(change), TO_CSI);
            assert!(word.starts_with(expected), "{word}");
        }
        let mut unbound = seen(|_, _| {});
        unbound.claim = None;
        assert!(word(&unbound, TO_CSI).starts_with("stays: no claim"));
        let foreign = seen(|volume, _| {
            volume["spec"]["flexVolume"] = Value::Null;
            volume["spec"]["nfs"] = json!({"server": "h", "path": "/"});
        });
        assert_eq!(word(&foreign, TO_CSI), "stays: its source is nfs, and not Mooring's");
    }
}
