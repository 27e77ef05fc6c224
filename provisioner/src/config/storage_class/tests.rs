use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::storage::v1::StorageClass;

use super::{Claim, ClassAction, plan};
use crate::config::store::Entry;
use crate::config::trust::Trust;
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::yaml;

fn config(name: &str, created: &str, extra: &str) -> (ConfigRef, Entry) {
    let config_map: ConfigMap = yaml::from_str(&format!(
        "metadata: {{namespace: mooring, name: {name}, uid: uid-{name}, creationTimestamp: '{created}', labels: \
         {{storage-class: silver}}}}\ndata: {{plugin-name: mooring.dev/flex-provisioner, image: mooring.dev/x{extra}}}"
    ))
    .unwrap();
    let good = ProvisionerConfig::parse(&config_map, &Trust::offline(None, None)).unwrap();
    let entry = Entry {
        good: Some(Arc::new(good)),
        problems: Vec::new(),
    };
    (ConfigRef::new("mooring", name), entry)
}

fn plan_of(configs: &[(ConfigRef, Entry)], classes: &[StorageClass]) -> super::Plan {
    let read = BTreeSet::from(["mooring".to_owned()]);
    plan(&configs.iter().cloned().collect::<BTreeMap<_, _>>(), classes, &read)
}

/// The class as Mooring makes it, as it is in the API.
fn made(config: &(ConfigRef, Entry)) -> StorageClass {
    let plan = plan_of(std::slice::from_ref(config), &[]);
    let Some(ClassAction::Create(class)) = plan.actions.into_iter().next() else {
        panic!("nothing made")
    };
    let mut class = *class;
    class.metadata.uid = Some("class-uid".into());
    class.metadata.resource_version = Some("5".into());
    class
}

fn kinds(plan: &super::Plan) -> Vec<&'static str> {
    plan.actions
        .iter()
        .map(|action| match action {
            ClassAction::Create(_) => "create",
            ClassAction::Update(_) => "update",
            ClassAction::Replace { .. } => "replace",
            ClassAction::GiveUp(_) => "give up",
        })
        .collect()
}

const DAY: &str = "2026-01-01T00:00:00Z";
const LATER: &str = "2026-01-02T00:00:00Z";

#[test]
fn a_class_is_made_and_then_left_alone() {
    let silver = config("silver", DAY, "");
    let class = made(&silver);
    assert_eq!(class.provisioner, "mooring.dev/flex-provisioner");
    assert_eq!(class.parameters.as_ref().unwrap()["mooring.dev/config-name"], "silver");
    assert_eq!(
        class.metadata.annotations.as_ref().unwrap()["mooring.dev/config-uid"],
        "uid-silver"
    );
    let plan = plan_of(std::slice::from_ref(&silver), std::slice::from_ref(&class));
    assert_eq!(plan.actions, []);
    assert_eq!(plan.claims[&silver.0], Claim::Kept("silver".into()));
}

#[test]
fn changes_are_made_in_place_where_that_can_be_and_else_anew() {
    let class = made(&config("silver", DAY, ""));
    for (extra, expected) in [
        (", mount-options: ro", "update"),
        (", reclaim-policy: Retain", "replace"),
        (", volume-binding-mode: WaitForFirstConsumer", "replace"),
    ] {
        let plan = plan_of(&[config("silver", DAY, extra)], std::slice::from_ref(&class));
        assert_eq!(kinds(&plan), [expected], "{extra}");
    }
    let mut tampered = class.clone();
    tampered.parameters.as_mut().unwrap().insert("x".into(), "y".into());
    assert_eq!(kinds(&plan_of(&[config("silver", DAY, "")], &[tampered])), ["replace"]);
}

#[test]
fn a_class_has_the_provisioner_that_its_config_map_names_and_is_remade_when_that_changes() {
    let by_csi = || {
        let (reference, mut entry) = config("silver", DAY, ", volume-source: csi");
        let good = entry.good.as_mut().map(Arc::make_mut).unwrap();
        good.provisioner = "vcs.mooring.dev";
        (reference, entry)
    };
    let class = made(&by_csi());
    assert_eq!(class.provisioner, "vcs.mooring.dev");
    assert_eq!(kinds(&plan_of(&[by_csi()], std::slice::from_ref(&class))), [""; 0]);
    let by_flex = config("silver", DAY, ", volume-source: csi");
    let plan = plan_of(std::slice::from_ref(&by_flex), std::slice::from_ref(&class));
    assert_eq!(kinds(&plan), ["replace"]);
    assert_eq!(kinds(&plan_of(&[by_csi()], &[made(&by_flex)])), ["replace"]);
    assert_eq!(kinds(&plan_of(&[], &[class])), ["give up"]);
}

#[test]
fn what_others_put_on_a_class_outlives_its_remaking() {
    let mut class = made(&config("silver", DAY, ""));
    let default = "storageclass.kubernetes.io/is-default-class";
    class
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert(default.into(), "true".into());
    class.metadata.finalizers = Some(vec!["example.com/x".into()]);
    let plan = plan_of(&[config("silver", DAY, ", reclaim-policy: Retain")], &[class]);
    let [ClassAction::Replace { new, .. }] = &plan.actions[..] else {
        panic!("{plan:?}")
    };
    assert_eq!(new.metadata.annotations.as_ref().unwrap()[default], "true");
    assert_eq!(
        new.metadata.finalizers.as_deref(),
        Some(&["example.com/x".to_owned()][..])
    );
}

#[test]
fn somebody_else_s_class_is_never_touched() {
    let silver = config("silver", DAY, "");
    for (text, claim) in [
        (
            "{metadata: {name: silver}, provisioner: example.com/x}",
            Claim::Foreign {
                class: "silver".into(),
                provisioner: "example.com/x".into(),
            },
        ),
        (
            "{metadata: {name: silver}, provisioner: mooring.dev/flex-provisioner}",
            Claim::Own("silver".into()),
        ),
        (
            "{metadata: {name: silver}, provisioner: vcs.mooring.dev}",
            Claim::Own("silver".into()),
        ),
    ] {
        let class: StorageClass = yaml::from_str(text).unwrap();
        let with = plan_of(std::slice::from_ref(&silver), std::slice::from_ref(&class));
        assert_eq!((with.actions.len(), &with.claims[&silver.0]), (0, &claim), "{text}");
        assert_eq!(plan_of(&[], &[class]).actions, [], "{text}");
    }
}

#[test]
fn a_class_is_given_up_with_its_config_map_but_a_copy_of_it_is_not() {
    let class = made(&config("silver", DAY, ""));
    let mut copy = class.clone();
    copy.metadata.name = Some("copy".into());
    let plan = plan_of(&[], &[class.clone(), copy]);
    assert_eq!(plan.actions, [ClassAction::GiveUp(Box::new(class))]);
}

#[test]
fn a_class_stays_while_its_config_map_is_only_bad_or_unread() {
    let silver = config("silver", DAY, "");
    let class = made(&silver);
    let bad = (silver.0.clone(), Entry::default());
    assert_eq!(plan_of(&[bad], std::slice::from_ref(&class)).actions, []);
    let unread = plan(&BTreeMap::new(), [&class], &BTreeSet::from(["admin".to_owned()]));
    assert_eq!(unread.actions, []);
}

#[test]
fn of_two_config_maps_the_older_has_the_class() {
    let old = config("old", DAY, "");
    let young = config("young", LATER, "");
    let plan = plan_of(&[young.clone(), old.clone()], &[]);
    assert_eq!(kinds(&plan), ["create"]);
    assert_eq!(plan.claims[&old.0], Claim::Kept("silver".into()));
    assert_eq!(
        plan.claims[&young.0],
        Claim::Taken {
            class: "silver".into(),
            by: old.0.clone()
        }
    );
    // When the older goes, the class passes to the younger; its parameters can't be changed, so it is created again.
    assert_eq!(kinds(&plan_of(&[young], &[made(&old)])), ["replace"]);
}

#[test]
fn a_config_map_that_names_another_class_takes_its_class_along() {
    let silver = config("silver", DAY, "");
    let class = made(&silver);
    let (reference, mut entry) = silver;
    let mut gold = (**entry.good.as_ref().unwrap()).clone();
    gold.class_name = Some("gold".into());
    entry.good = Some(Arc::new(gold));
    assert_eq!(kinds(&plan_of(&[(reference, entry)], &[class])), ["create", "give up"]);
}

#[test]
fn a_config_map_made_anew_adopts_its_class() {
    let class = made(&config("silver", DAY, ""));
    let (reference, mut entry) = config("silver", LATER, "");
    let mut again = (**entry.good.as_ref().unwrap()).clone();
    again.uid = "uid-again".into();
    entry.good = Some(Arc::new(again));
    let plan = plan_of(&[(reference, entry)], &[class]);
    let [ClassAction::Update(class)] = &plan.actions[..] else {
        panic!("{plan:?}")
    };
    assert_eq!(
        class.metadata.annotations.as_ref().unwrap()["mooring.dev/config-uid"],
        "uid-again"
    );
    assert_eq!(class.metadata.resource_version.as_deref(), Some("5"));
}
