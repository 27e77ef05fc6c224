//! A class that passes from one ConfigMap to another while volumes of it are being made.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{FakeApi, Offers, Script, class, shared};
use crate::config::store::{Entry, NoConfig};
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::controllers::serving::config_for;
use crate::operation::tests::{config, record};

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
