//! Which ConfigMap serves a claim or a PV, and whether it is this Mooring's.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::controller::Action;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;

use crate::apply::Shared;
use crate::config::store::{ADD_NAMESPACE, ClassRef, NoConfig};
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::operation::describe::waiting;
use crate::operation::record::Record;
use crate::time::elapsed;

/// The ConfigMap in force for a class. Where the class is gone, or the storage of the one that the record names may have
/// something of it, that one.
pub(crate) fn config_for(
    shared: &Shared,
    class: Option<&StorageClass>,
    class_name: &str,
    record: Option<&Record>,
) -> Result<Arc<ProvisionerConfig>, NoConfig> {
    if let Some(class) = class.filter(|_| !record.is_some_and(Record::is_of_its_config)) {
        let found = elsewhere(shared, shared.context.configs.for_class(class));
        if let Err(NoConfig::Unclaimed { class, .. } | NoConfig::Elsewhere { class, .. }) = &found {
            let (claims, volumes) = (shared.cache.claims.state(), shared.cache.volumes.state());
            let another_s = another_s_config(&claims, &volumes, class_name, |namespace| honours(shared, namespace));
            if let Some(reference) = another_s {
                return Err(NoConfig::Elsewhere {
                    class: class.clone(),
                    reference,
                    is_at_work: true,
                });
            }
        }
        return found;
    }
    let reference = record.and_then(|record| record.config.parse().ok());
    named(shared, class_name.into(), class_name, reference)
}

/// The ConfigMap in force for an existing volume: it stays with the one that made it, whatever has become of its class.
pub(crate) fn config_of(
    shared: &Shared,
    volume: &PersistentVolume,
    class: Option<&StorageClass>,
    class_name: &str,
    record: Option<&Record>,
) -> Result<Arc<ProvisionerConfig>, NoConfig> {
    let made_by = volume.annotations().get(annotations::CONFIG);
    match made_by.and_then(|text| text.parse().ok()) {
        Some(reference) => named(shared, class_name.into(), class_name, Some(reference)),
        None => config_for(shared, class, class_name, record),
    }
}

/// The ConfigMap of this name, if it is in force. `label` is what the class has instead, where it names none.
pub(crate) fn named(
    shared: &Shared,
    class: ClassRef,
    label: &str,
    reference: Option<ConfigRef>,
) -> Result<Arc<ProvisionerConfig>, NoConfig> {
    let configs = &shared.context.configs;
    if !configs.is_synced() {
        return Err(NoConfig::NotReadYet);
    }
    let Some(reference) = reference else {
        let label = label.to_owned();
        return Err(NoConfig::Unclaimed { class, label });
    };
    let found = configs.get(&reference);
    elsewhere(shared, found.ok_or(NoConfig::Missing { class, reference }))
}

/// Whether ConfigMaps of this namespace are this Mooring's business.
fn honours(shared: &Shared, namespace: &str) -> bool {
    shared.context.settings.config_namespaces.contains(namespace)
}

/// A ConfigMap that is not known because it is not looked for may be another Mooring's.
fn elsewhere(
    shared: &Shared,
    found: Result<Arc<ProvisionerConfig>, NoConfig>,
) -> Result<Arc<ProvisionerConfig>, NoConfig> {
    match found {
        Err(NoConfig::Missing { class, reference }) if !honours(shared, &reference.namespace) => {
            Err(NoConfig::Elsewhere {
                class,
                reference,
                is_at_work: false,
            })
        }
        found => found,
    }
}

/// The ConfigMap of another Mooring by which volumes of a class are being made or have been made, if there is one.
fn another_s_config(
    claims: &[Arc<PersistentVolumeClaim>],
    volumes: &[Arc<PersistentVolume>],
    class: &str,
    honours: impl Fn(&str) -> bool,
) -> Option<ConfigRef> {
    let begun = claims.iter().filter_map(|claim| {
        let of_class = claim.spec.as_ref()?.storage_class_name.as_deref() == Some(class);
        let record = Record::on(&**claim).ok().flatten().filter(|_| of_class)?;
        record.config.parse().ok()
    });
    let made = volumes.iter().filter_map(|volume| {
        let of_class = volume.spec.as_ref()?.storage_class_name.as_deref() == Some(class);
        let config = volume.annotations().get(annotations::CONFIG).filter(|_| of_class)?;
        config.parse().ok()
    });
    begun.chain(made).find(|config: &ConfigRef| !honours(&config.namespace))
}

/// The namespace of an object's runs: where the record says that they are, else where they would be.
pub(crate) fn runs_in(config: &Result<Arc<ProvisionerConfig>, NoConfig>, record: Option<&Record>) -> Option<String> {
    let recorded = record.and_then(|record| record.run.split_once('/'));
    recorded
        .map(|(namespace, _)| namespace.to_owned())
        .or_else(|| config.as_ref().ok().map(|config| config.reference.namespace.clone()))
}

/// The runs of a namespace have not been listed, so nothing can be decided that depends on them. `since` is when there
/// first was something to decide for the object, if there is.
pub(crate) fn not_known(
    shared: &Shared,
    object: &ObjectReference,
    namespace: &str,
    since: Option<Timestamp>,
) -> Action {
    // Their list wakes everybody.
    let Some(since) = since else {
        return Action::await_change();
    };
    let left_alone = (!honours(shared, namespace)).then_some(shared.limits.elsewhere_grace);
    match why_not_known(namespace, left_alone, elapsed(since, Timestamp::now())) {
        Ok(text) => {
            let note = waiting(Operation::Provision, text);
            shared.context.events.publish(object, note);
            Action::await_change()
        }
        Err(left) => Action::requeue(left),
    }
}

/// What to say of an object that has waited for this long for the list of a namespace's runs; `Err` with how long
/// another Mooring still has for it. `left_alone` is how long that has in all, if the namespace may be another's.
fn why_not_known(namespace: &str, left_alone: Option<Duration>, waited: Duration) -> Result<String, Duration> {
    let Some(grace) = left_alone else {
        return Ok(format!(
            "the Pods of namespace {namespace} can't be watched: bind ClusterRole flex-provisioner-configs in it"
        ));
    };
    match grace.saturating_sub(waited) {
        Duration::ZERO => Ok(format!(
            "an operation of a ConfigMap in namespace {namespace} has begun, and this Mooring honours no ConfigMaps of \
             that namespace: {ADD_NAMESPACE}"
        )),
        left => Err(left),
    }
}

/// When the operation of a record began, unless nobody has to do anything for it.
pub(crate) fn begun(record: &Record) -> Option<Timestamp> {
    Some(record.since).filter(|_| !record.is_refused_change())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use serde_json::{Value, json};

    use super::{another_s_config, why_not_known};
    use crate::operation::tests::record;

    /// A claim in the hands of the Mooring whose ConfigMap this is.
    fn claim(class: &str, config: &str) -> Arc<PersistentVolumeClaim> {
        let record = record(&json!({"config": config})).to_text();
        let claim = json!({
            "metadata": {"annotations": {"mooring.dev/operation": record}}, "spec": {"storageClassName": class},
        });
        Arc::new(serde_json::from_value(claim).unwrap())
    }

    fn volume(class: &str, annotations: &Value) -> Arc<PersistentVolume> {
        let volume = json!({"metadata": {"annotations": annotations}, "spec": {"storageClassName": class}});
        Arc::new(serde_json::from_value(volume).unwrap())
    }

    #[test]
    fn a_class_is_another_mooring_s_if_that_makes_or_made_volumes_of_it() {
        let honours = |namespace: &str| namespace == "ours";
        let by = |config: &str| json!({"mooring.dev/config": config});
        for (claims, volumes, found) in [
            (vec![], vec![], None),
            (vec![claim("gold", "theirs/c")], vec![], Some("theirs/c")),
            (vec![claim("silver", "theirs/c")], vec![], None),
            (vec![claim("gold", "ours/c")], vec![volume("gold", &by("ours/c"))], None),
            (vec![], vec![volume("gold", &by("theirs/c"))], Some("theirs/c")),
            (
                vec![],
                vec![volume("silver", &by("theirs/c")), volume("gold", &json!({}))],
                None,
            ),
        ] {
            let seen = another_s_config(&claims, &volumes, "gold", honours);
            assert_eq!(
                seen.map(|config| config.to_string()).as_deref(),
                found,
                "{claims:?} {volumes:?}"
            );
        }
    }

    #[test]
    fn what_has_begun_in_a_namespace_that_does_not_count_is_reported_when_nobody_has_gone_on_with_it() {
        let minutes = Duration::from_mins;
        let said = |left_alone, waited| why_not_known("admin", left_alone, waited);
        assert_eq!(said(Some(minutes(5)), minutes(1)), Err(minutes(4)));
        for waited in [minutes(5), minutes(600)] {
            let text = said(Some(minutes(5)), waited).unwrap();
            assert!(
                text.contains("namespace admin") && text.contains("config-namespaces"),
                "{text}"
            );
        }
        assert!(said(None, minutes(0)).unwrap().contains("bind ClusterRole"));
    }
}
