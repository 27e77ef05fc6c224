//! A provisioning Pod that outlives its claim and its PersistentVolume, as one on a lost node does: what becomes of the
//! volume is up to the reclaim policy and to the operations of the ConfigMap.

use std::sync::Arc;

use serde_json::{Value, json};

use super::fake_api::key_of;
use super::{Offers, PV, Script, Theatre};
use crate::config::store::Entry;
use crate::operation::tests::config;
use crate::process::events::{EventRecorder, Writer};

const POD: &str = "admin/provision-u1";

struct Stage {
    theatre: Theatre,
    told: Writer,
}

impl Stage {
    /// A claim whose image has made the volume. The controller has not looked at the result, and a finalizer holds the
    /// Pod.
    async fn made(operations: &str) -> Self {
        let mut theatre = Theatre::open(Script::plain(Offers::Changes));
        let (events, told) = EventRecorder::new(theatre.shared.context.metrics.clone());
        theatre.shared.context.events = events;
        let good = config(&[
            ("volume-source", "flexVolume"),
            ("operations", operations),
            ("reclaim-policy", "Retain"),
        ]);
        let entry = Entry {
            problems: vec![],
            good: Some(good.clone().into()),
        };
        let configs = [(good.reference, entry)].into();
        theatre.shared.context.configs.replace(configs);
        theatre.turn_of_controllers().await;
        theatre.kubelet();
        let stage = Self { theatre, told };
        stage.change("pods", POD, |pod| {
            pod["metadata"]["finalizers"] = json!(["example.com/held"]);
        });
        assert!(stage.has_volume());
        stage
    }

    /// The same, bound.
    async fn bound() -> Self {
        let mut stage = Self::made("provision,delete").await;
        stage.turns().await;
        let claim = stage.theatre.api.lock().get("claims", "default/data").unwrap();
        assert_eq!(claim["spec"]["volumeName"], PV);
        let pod = stage.theatre.api.lock().get("pods", POD).unwrap();
        assert!(pod["metadata"]["deletionTimestamp"].is_string(), "the Pod is let go");
        stage
    }

    async fn turns(&mut self) {
        for _ in 0..6 {
            self.theatre.turn().await;
        }
    }

    fn change(&self, kind: &'static str, key: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.theatre.api.lock();
        let mut object = state.get(kind, key).unwrap();
        change(&mut object);
        state.put(kind, object);
    }

    fn has_volume(&self) -> bool {
        self.theatre.storage.contains(PV)
    }

    /// What users were told about the volume that is left.
    fn told_of_volume(&mut self) -> Vec<String> {
        let all = std::iter::from_fn(|| self.told.try_next()).map(|(_, note)| note.text);
        all.filter(|text| text.contains("does not delete volume")).collect()
    }

    /// The volume is still there, and one Event says why.
    fn check_kept(&mut self, why: &str) {
        assert!(self.has_volume(), "the storage lost volume {PV}");
        let told = self.told_of_volume();
        assert_eq!(told.len(), 1, "{told:#?}");
        assert!(
            told[0].contains(PV) && told[0].contains("default/data") && told[0].contains(why),
            "{told:#?}"
        );
        let state = self.theatre.api.lock();
        let pods: Vec<_> = state.each("pods").collect();
        assert_eq!(
            pods.iter().map(|pod| key_of(pod)).collect::<Vec<_>>(),
            [POD],
            "{pods:#?}"
        );
        assert!(
            pods[0]["metadata"]["deletionTimestamp"].is_string(),
            "the Pod is not let go"
        );
    }
}

/// Proves: P2
#[tokio::test]
async fn a_volume_whose_policy_became_retain_stays_although_its_pod_outlives_the_pv() {
    let mut stage = Stage::bound().await;
    stage.change("volumes", &format!("/{PV}"), |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    });
    stage.theatre.api.lock().delete("claims", "default/data");
    stage.theatre.api.lock().delete("volumes", &format!("/{PV}"));
    stage.turns().await;
    stage.check_kept("no longer known");
}

/// Proves: P2
#[tokio::test]
async fn a_volume_whose_pv_somebody_took_away_stays() {
    let mut stage = Stage::bound().await;
    stage.theatre.api.lock().take_away("volumes", &format!("/{PV}"));
    stage.theatre.api.lock().take_away("claims", "default/data");
    stage.turns().await;
    stage.check_kept("no longer known");
}

/// Proves: P2
#[tokio::test]
async fn a_volume_of_a_class_that_retains_is_not_deleted_as_an_orphan() {
    let mut stage = Stage::made("provision,delete").await;
    stage.change("pods", POD, |pod| {
        let request = &mut pod["metadata"]["annotations"]["mooring.dev/request"];
        *request = json!(
            request
                .as_str()
                .unwrap()
                .replace(r#""reclaim-policy":"Delete""#, r#""reclaim-policy":"Retain""#)
        );
    });
    stage.theatre.api.lock().take_away("claims", "default/data");
    stage.turns().await;
    stage.check_kept("Retain");
}

/// Proves: P2
#[tokio::test]
async fn an_orphan_is_not_deleted_with_a_configmap_that_does_not_offer_it() {
    let mut stage = Stage::made("provision").await;
    stage.theatre.api.lock().take_away("claims", "default/data");
    stage.turns().await;
    stage.check_kept("operations");
}

#[tokio::test]
async fn a_run_that_was_left_beside_a_retained_pv_is_let_go_before_the_pv() {
    let mut stage = Stage::bound().await;
    stage.change("pods", POD, |pod| pod["metadata"]["deletionTimestamp"] = Value::Null);
    stage.change("volumes", &format!("/{PV}"), |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    });
    stage.theatre.api.lock().delete("claims", "default/data");
    stage.theatre.api.lock().delete("volumes", &format!("/{PV}"));
    // As another replica that knows nothing of what was done.
    stage.theatre.shared.expectations = Arc::default();
    stage.turns().await;
    stage.check_kept("no longer known");
}

/// The controller was killed before it removed the run, and the claim was deleted before the next one came to that.
#[tokio::test]
async fn a_run_that_was_left_goes_although_the_pv_is_retained_and_stays() {
    let mut stage = Stage::bound().await;
    stage.change("pods", POD, |pod| pod["metadata"]["deletionTimestamp"] = Value::Null);
    stage.change("volumes", &format!("/{PV}"), |volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    });
    stage.theatre.api.lock().take_away("claims", "default/data");
    stage.theatre.shared.expectations = Arc::default();
    stage.turns().await;
    let pod = stage.theatre.api.lock().get("pods", POD).unwrap();
    assert!(
        pod["metadata"]["deletionTimestamp"].is_string(),
        "the Pod stays for as long as the PV"
    );
    assert!(stage.has_volume());
}

/// Proves: P2
#[tokio::test]
async fn a_volume_whose_pv_mooring_does_not_hold_is_not_deleted_as_an_orphan() {
    let mut stage = Stage::bound().await;
    stage.change("pods", POD, |pod| pod["metadata"]["deletionTimestamp"] = Value::Null);
    stage.change("volumes", &format!("/{PV}"), |volume| {
        volume["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
    });
    stage.theatre.api.lock().take_away("claims", "default/data");
    stage.theatre.shared.expectations = Arc::default();
    stage.turns().await;
    stage.check_kept("mooring.dev/volume");
}

/// Proves: P2
#[tokio::test]
async fn of_a_volume_that_was_deleted_nobody_is_told_that_it_stays() {
    let mut stage = Stage::bound().await;
    stage.theatre.api.lock().delete("claims", "default/data");
    stage.turns().await;
    assert!(!stage.has_volume() && stage.theatre.api.lock().get("volumes", &format!("/{PV}")).is_none());
    assert_eq!(stage.told_of_volume(), [""; 0]);
}

/// Proves: P1
#[tokio::test]
async fn a_volume_that_nobody_was_given_is_deleted_as_an_orphan() {
    let mut stage = Stage::made("provision,delete").await;
    stage.theatre.api.lock().take_away("claims", "default/data");
    stage.turns().await;
    assert!(!stage.has_volume());
    assert_eq!(stage.told_of_volume(), [""; 0]);
}
