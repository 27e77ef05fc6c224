//! Volumes that an administrator deletes although no claim has them, and copies of a `PersistentVolume` under another
//! name.

use serde_json::{Value, json};

use super::fake_api::key_of;
use super::{Offers, PV, Script, Theatre, UID, shared};
use crate::process::events::EventRecorder;
use crate::run::properties::tests::silver;

/// A PersistentVolume of this name that Mooring accepted, with the annotations of the volume [`PV`].
fn volume(name: &str) -> Value {
    let mut made_by = silver();
    (made_by.pv_name, made_by.pvc_uid) = (PV.into(), UID.into());
    let mut volume = crate::volume::acceptance::tests::volume();
    volume["metadata"] = json!({
        "name": name,
        "finalizers": ["mooring.dev/volume"],
        "annotations": {
            "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
            "mooring.dev/config": "admin/custom-isci-provisioner",
            "mooring.dev/request": json!(made_by).to_string(),
        },
    });
    volume["spec"].as_object_mut().unwrap().remove("claimRef");
    volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
    volume["status"] = json!({"phase": "Available"});
    volume
}

/// The same, of a claim that is gone.
fn released(name: &str) -> Value {
    let mut volume = volume(name);
    volume["spec"]["claimRef"] = json!({"namespace": "default", "name": "data", "uid": "gone"});
    volume["status"] = json!({"phase": "Released"});
    volume
}

/// A theatre with the volume [`PV`] on the storage, these volumes and no claim.
fn open(volumes: Vec<Value>) -> Theatre {
    let mut theatre = Theatre::open(Script::plain(Offers::Changes));
    theatre.storage.insert(PV.to_owned());
    let mut state = theatre.api.lock();
    state.delete("claims", "default/data");
    for volume in volumes {
        state.put("volumes", volume);
    }
    drop(state);
    theatre
}

/// The Events after some turns without kube-controller-manager, which has nothing to do here.
async fn told(theatre: &mut Theatre) -> Vec<String> {
    let (events, mut told) = EventRecorder::new(theatre.shared.context.metrics.clone());
    theatre.shared.context.events = events;
    for _ in 0..8 {
        theatre.turn_of_controllers().await;
        theatre.kubelet();
    }
    std::iter::from_fn(|| told.try_next())
        .map(|(_, note)| note.text)
        .collect()
}

#[tokio::test]
async fn a_volume_that_no_claim_has_goes_when_it_is_deleted() {
    for phase in ["Available", "Pending"] {
        let mut available = volume(PV);
        available["status"]["phase"] = json!(phase);
        let mut theatre = open(vec![available]);
        told(&mut theatre).await;
        assert_eq!(theatre.storage, [PV.to_owned()].into(), "nobody has deleted it yet");
        theatre.api.lock().delete("volumes", &format!("/{PV}"));
        told(&mut theatre).await;
        assert!(theatre.api.lock().all("volumes").is_empty(), "it stays Terminating");
        assert!(theatre.storage.is_empty());
    }
}

#[tokio::test]
async fn a_copy_of_a_volume_goes_and_the_first_claim_s_data_stays() {
    for name in ["for-team-b", "pvc-u1-for-team-b"] {
        for phase in ["Available", "Released"] {
            let mut copy = volume(name);
            copy["status"]["phase"] = json!(phase);
            let mut original = volume(PV);
            original["status"]["phase"] = json!("Bound");
            let mut theatre = open(vec![original, copy]);
            theatre.api.lock().delete("volumes", &format!("/{name}"));
            let told = told(&mut theatre).await;
            let left = theatre.api.lock().all("volumes");
            assert_eq!(left.len(), 1, "it stays Terminating: {left:#?}");
            assert_eq!(
                theatre.storage,
                [PV.to_owned()].into(),
                "the first claim's data is gone"
            );
            assert!(told.iter().any(|text| text.contains("its data stays")), "{told:#?}");
        }
    }
}

#[tokio::test]
async fn a_copy_whose_original_is_gone_says_what_stays_and_how_it_can_be_removed() {
    let mut theatre = open(vec![released("for-team-b")]);
    let told = told(&mut theatre).await;
    let said = |text: &str| told.iter().any(|told| told.contains(text));
    assert!(said("kubectl delete pv for-team-b"), "nothing is said: {told:#?}");
    assert_eq!(
        theatre.api.lock().all("volumes").len(),
        1,
        "it is the last that tells of the volume"
    );
    assert_eq!(theatre.storage, [PV.to_owned()].into());
}

/// The cure that the Event names works, with the ConfigMap gone for good.
#[tokio::test]
async fn a_volume_whose_config_map_is_gone_can_be_given_up() {
    let mut theatre = open(vec![released(PV)]);
    theatre.shared.context.configs.replace([].into());
    let told = told(&mut theatre).await;
    let said = |text: &str| told.iter().any(|told| told.contains(text));
    assert!(
        said("give the volume up") && said("kubectl delete pv pvc-u1"),
        "{told:#?}"
    );
    {
        let mut state = theatre.api.lock();
        let mut volume = state.get("volumes", &format!("/{PV}")).unwrap();
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        state.put("volumes", volume);
        state.delete("volumes", &format!("/{PV}"));
    }
    self::told(&mut theatre).await;
    assert!(theatre.api.lock().all("volumes").is_empty());
    assert_eq!(theatre.storage, [PV.to_owned()].into());
}

/// The controller was killed when it had made the Pod that deletes the volume, and before it made the Pod's Secret.
async fn half_begin(theatre: &mut Theatre) {
    theatre.turn_of_controllers().await;
    let secrets: Vec<_> = theatre.api.lock().each("secrets").map(key_of).collect();
    assert_eq!(secrets.len(), 1);
    theatre.api.lock().delete("secrets", &secrets[0]);
    theatre.shared = shared(&theatre.api, theatre.script);
    theatre.watched = 0;
}

#[tokio::test]
async fn a_run_that_was_to_delete_a_volume_goes_if_that_is_to_stay() {
    for is_handed_on in [false, true] {
        let mut theatre = open(vec![released(PV)]);
        half_begin(&mut theatre).await;
        {
            let mut state = theatre.api.lock();
            let mut volume = state.get("volumes", &format!("/{PV}")).unwrap();
            if is_handed_on {
                volume["spec"]["claimRef"] = json!({"namespace": "b", "name": "c", "uid": "u2"});
                volume["status"]["phase"] = json!("Bound");
                state.put(
                    "claims",
                    json!({"metadata": {"namespace": "b", "name": "c", "uid": "u2"}, "spec": {"volumeName": PV}}),
                );
            } else {
                volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
            }
            state.put("volumes", volume);
        }
        told(&mut theatre).await;
        let left = theatre.api.lock().all("pods");
        assert!(left.is_empty(), "it stays for good: {left:#?}");
        assert_eq!(theatre.storage, [PV.to_owned()].into());
    }
}

/// An administrator keeps a Released volume, or gives it to another claim, and the watch does not show it yet. The first
/// attempt to delete it has no record; the second has one, which nothing need be written to any more.
#[tokio::test]
async fn a_volume_that_was_released_when_the_watch_last_showed_it_is_not_deleted() {
    let second = json!({
        "operation": "delete", "attempt": 2, "pod": "admin/delete-u1", "since": "2026-11-21T00:00:00Z",
        "config": "admin/custom-isci-provisioner", "config-uid": "c1", "may-exist": true,
    });
    for record in [None, Some(second.to_string())] {
        let mut released = released(PV);
        released["metadata"]["uid"] = json!("v1");
        if let Some(record) = &record {
            released["metadata"]["annotations"]["mooring.dev/operation"] = json!(record);
        }
        let kept = |change: &dyn Fn(&mut Value)| {
            let mut kept = released.clone();
            change(&mut kept);
            kept
        };
        let retained = kept(&|volume| volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain"));
        let available = kept(&|volume| {
            volume["spec"].as_object_mut().unwrap().remove("claimRef");
            volume["status"]["phase"] = json!("Available");
        });
        let not_yet_available = kept(&|volume| volume["spec"]["claimRef"] = json!(null));
        let let_go = kept(&|volume| volume["metadata"]["finalizers"] = json!(["example.com/held"]));
        let handed_on =
            kept(&|volume| volume["spec"]["claimRef"] = json!({"namespace": "b", "name": "c", "uid": "u2"}));
        for (live, claim) in [
            (retained, None),
            (available, None),
            (not_yet_available, None),
            (let_go, None),
            (
                handed_on,
                Some(json!({"metadata": {"namespace": "b", "name": "c", "uid": "u2"}})),
            ),
        ] {
            for is_begun in [false, true] {
                let mut theatre = open(vec![released.clone()]);
                if is_begun {
                    half_begin(&mut theatre).await;
                }
                {
                    let mut state = theatre.api.lock();
                    state.put("volumes", live.clone());
                    if let Some(claim) = &claim {
                        state.put("claims", claim.clone());
                    }
                }
                theatre.lagging.insert("volumes", vec![released.clone()]);
                for _ in 0..8 {
                    theatre.turn_of_controllers().await;
                    theatre.kubelet();
                }
                assert_eq!(
                    theatre.storage,
                    [PV.to_owned()].into(),
                    "the data is gone, begun: {is_begun}: {live:#}"
                );
            }
        }
        let mut theatre = open(vec![released.clone()]);
        told(&mut theatre).await;
        assert!(theatre.storage.is_empty(), "what is released is deleted");
    }
}

/// Its user bound the claim to another PersistentVolume before kube-controller-manager bound it to this one.
#[tokio::test]
async fn a_volume_goes_when_its_claim_is_bound_to_another() {
    let mut released = released(PV);
    released["spec"]["claimRef"]["uid"] = json!(UID);
    let mut theatre = open(vec![released]);
    let claim = json!({
        "metadata": {"namespace": "default", "name": "data", "uid": UID}, "spec": {"volumeName": "another"},
    });
    theatre.api.lock().put("claims", claim);
    told(&mut theatre).await;
    assert!(
        theatre.storage.is_empty(),
        "the storage keeps a volume that no claim can have"
    );
}

/// An administrator gives a volume that was retained to a claim while Mooring makes another volume for that.
#[tokio::test]
async fn a_volume_that_a_claim_is_given_stays_and_the_one_that_was_being_made_goes() {
    const GIVEN: &str = "pvc-u0";
    let mut theatre = Theatre::open(Script::plain(Offers::Changes));
    theatre.turn_of_controllers().await;
    let mut given = released(GIVEN);
    let request = &mut given["metadata"]["annotations"]["mooring.dev/request"];
    *request = json!(
        request
            .as_str()
            .unwrap()
            .replace(PV, GIVEN)
            .replace(r#":"u1""#, r#":"u0""#)
    );
    given["spec"]["claimRef"]["uid"] = json!(UID);
    theatre.storage.insert(GIVEN.to_owned());
    theatre.api.lock().put("volumes", given);
    theatre.script.quick_binder = true;
    theatre.binder();
    theatre.play().await;
    let state = theatre.api.lock();
    let claim = state.get("claims", "default/data").unwrap();
    assert_eq!(claim["spec"]["volumeName"], GIVEN);
    assert_eq!(claim["metadata"]["finalizers"], json!([]), "it is still held");
    assert!(
        state.get("volumes", &format!("/{GIVEN}")).is_some(),
        "the PersistentVolume is gone"
    );
    assert_eq!(theatre.storage, [GIVEN.to_owned()].into());
}
