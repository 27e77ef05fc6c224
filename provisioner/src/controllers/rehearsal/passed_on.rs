//! A class that passes from one ConfigMap to another while volumes of it are being made, and a ConfigMap that is gone
//! for a while.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{FakeApi, Offers, Script, Theatre, class, configs, shared};
use crate::config::store::{Entry, NoConfig};
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::controllers::serving::config_for;
use crate::operation::tests::{config, ended, record};

/// The ConfigMap by which the first attempt was made.
const FIRST: &str = "admin/custom-isci-provisioner";

/// The one that names the class now.
const NOW: &str = "admin/other";

fn by(reference: &str, class: Option<&str>) -> (ConfigRef, Entry) {
    let reference: ConfigRef = reference.parse().unwrap();
    let good = ProvisionerConfig {
        reference: reference.clone(),
        class_name: class.map(str::to_owned),
        ..config(&[])
    };
    let entry = Entry {
        good: Some(Arc::new(good)),
        problems: vec![],
    };
    (reference, entry)
}

/// The ConfigMap that serves a claim with this record, when these are there.
fn serving(there: &[(ConfigRef, Entry)], noted: &Value) -> Result<String, NoConfig> {
    let script = Script::plain(Offers::Changes);
    let shared = shared(&FakeApi::default(), script);
    shared.context.configs.replace(there.iter().cloned().collect());
    let mut record = record(noted);
    FIRST.clone_into(&mut record.config);
    let found = config_for(&shared, Some(&class(&json!({}))), "silver", Some(&record));
    found.map(|config| config.reference.to_string())
}

/// Proves: P1, P3
#[tokio::test]
async fn what_an_attempt_may_have_made_is_removed_by_its_own_config_map() {
    let both = [by(FIRST, None), by(NOW, Some("silver"))];
    let begun = json!({});
    let may_exist = json!({"may-exist": true, "not-before": "2026-11-21T12:00:00Z"});
    for noted in [&begun, &may_exist] {
        assert_eq!(serving(&both, noted).unwrap(), FIRST, "{noted}");
        // Another storage would find nothing to delete.
        let error = serving(&both[1..], noted).unwrap_err();
        assert!(matches!(error, NoConfig::Missing { .. }), "{noted}: {error}");
    }
    // Nothing can have been made: the class's ConfigMap is the claim's.
    let never_ran = json!({"not-before": "2026-11-21T12:00:00Z"});
    assert_eq!(serving(&both, &never_ran).unwrap(), NOW);
}

/// Proves: P4
#[tokio::test]
async fn a_claim_that_was_given_up_goes_on_when_its_config_map_was_edited_during_the_run() {
    let script = Script::plain(Offers::Changes);
    let mut theatre = Theatre::open(script);
    theatre.turn_of_controllers().await;
    let mut pod = theatre.api.lock().all("pods").remove(0);
    pod["status"] = ended(78, "no such pool");
    theatre.api.lock().put("pods", pod);
    let mut edited = configs(script);
    for entry in edited.values_mut() {
        let before = entry.good.as_deref().cloned().unwrap();
        entry.good = Some(Arc::new(ProvisionerConfig {
            fingerprint: "edited".to_owned(),
            ..before
        }));
    }
    theatre.shared.context.configs.replace(edited);
    theatre.play().await;
    theatre.check("the ConfigMap was edited");
}

/// Proves: P4
#[tokio::test]
async fn a_claim_that_was_given_up_while_its_config_map_was_gone_goes_on_when_that_is_back() {
    let script = Script::plain(Offers::Changes);
    let mut theatre = Theatre::open(script);
    theatre.turn_of_controllers().await;
    theatre.shared.context.configs.replace([].into());
    let mut pod = theatre.api.lock().all("pods").remove(0);
    pod["status"] = ended(78, "no such pool");
    theatre.api.lock().put("pods", pod);
    for _ in 0..4 {
        theatre.turn_of_controllers().await;
    }
    let claim = theatre.api.lock().get("claims", "default/data").unwrap();
    assert!(claim.to_string().contains("gave-up"), "{claim:#}");
    theatre.shared.context.configs.replace(configs(script));
    theatre.play().await;
    theatre.check("the ConfigMap is back");
}
