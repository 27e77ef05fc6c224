use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::storage::v1::StorageClass;
use mooring_contract::discovered::Discovered;
use proptest::prelude::*;
use serde_json::json;

use super::{DiscoveredPlan, Discoveries, Ending, Endings, LastDiscovery, Listing, Listings, plan};
use crate::config::storage_class::ClassAction;
use crate::config::store::Entry;
use crate::config::trust::Trust;
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::operation::tests::now;
use crate::yaml;

fn config(name: &str, label: &str, day: u32, extra: &str) -> (ConfigRef, Entry) {
    let labels = match label {
        "" => String::new(),
        label => format!(", labels: {{storage-class: {label}}}"),
    };
    let config_map: ConfigMap = yaml::from_str(&format!(
        "metadata: {{namespace: mooring, name: {name}, uid: uid-{name}, creationTimestamp: \
         '2026-01-0{day}T00:00:00Z'{labels}}}\ndata: {{plugin-name: mooring.dev/flex-provisioner, image: \
         mooring.dev/x, operations: 'provision,delete,expand,snapshot,delete-snapshot,discover', volume-source: \
         csi{extra}}}"
    ))
    .unwrap();
    let good = ProvisionerConfig::parse(&config_map, &Trust::offline(None, None)).unwrap();
    let entry = Entry {
        good: Some(Arc::new(good)),
        problems: Vec::new(),
    };
    (ConfigRef::new("mooring", name), entry)
}

/// A cluster's classes, and what decides about them.
struct World {
    entries: BTreeMap<ConfigRef, Entry>,
    answers: Listings,
    classes: BTreeMap<String, StorageClass>,
    version: u32,
}

impl World {
    fn of(configs: impl IntoIterator<Item = (ConfigRef, Entry)>) -> Self {
        Self {
            entries: configs.into_iter().collect(),
            answers: Listings::new(),
            classes: BTreeMap::new(),
            version: 0,
        }
    }

    fn answers(&mut self, config: &str, printed: &str) {
        let answer = Listing {
            config_uid: format!("uid-{config}"),
            discovered: Arc::new(Discovered::parse(printed).unwrap()),
        };
        self.answers.insert(ConfigRef::new("mooring", config), answer);
    }

    fn plan(&self) -> DiscoveredPlan {
        let read = BTreeSet::from(["mooring".to_owned()]);
        plan(&self.entries, &self.answers, self.classes.values(), &read, now())
    }

    /// Carries out a plan, and says what was done. What is given up is deleted if it is not used.
    fn turn(&mut self, used: &[&str]) -> Vec<String> {
        let mut done = Vec::new();
        for action in self.plan().actions {
            let (word, class) = match action {
                ClassAction::Create(class) => {
                    let name = class.metadata.name.as_deref().unwrap();
                    assert!(!self.classes.contains_key(name), "{name} is there already");
                    ("create", *class)
                }
                ClassAction::Update(class) => ("update", *class),
                ClassAction::Replace { new, .. } => ("replace", *new),
                ClassAction::GiveUp(class) => {
                    let name = class.metadata.name.clone().unwrap();
                    if used.contains(&name.as_str()) {
                        done.push(format!("keep {name}"));
                    } else {
                        self.classes.remove(&name);
                        done.push(format!("delete {name}"));
                    }
                    continue;
                }
            };
            let name = class.metadata.name.clone().unwrap();
            done.push(format!("{word} {name}"));
            self.version += 1;
            let mut class = class;
            class.metadata.uid = Some(format!("class-{name}"));
            class.metadata.resource_version = Some(self.version.to_string());
            self.classes.insert(name, class);
        }
        done
    }

    fn note(&self, class: &str, key: &str) -> Option<&str> {
        let notes = self.classes[class].metadata.annotations.as_ref()?;
        notes.get(&format!("mooring.dev/{key}")).map(String::as_str)
    }

    fn is_default(&self, class: &str) -> bool {
        let notes = self.classes[class].metadata.annotations.as_ref().unwrap();
        notes
            .get("storageclass.kubernetes.io/is-default-class")
            .map(String::as_str)
            == Some("true")
    }

    fn names(&self) -> Vec<&str> {
        self.classes.keys().map(String::as_str).collect()
    }
}

const TWO: &str = r#"{"parameter": "pool", "classes": ["ssd", {"name": "hdd", "capacity": 1000}]}"#;
const ONE: &str = r#"{"parameter": "pool", "classes": ["ssd"]}"#;

#[test]
fn classes_come_and_then_nothing_is_written() {
    let mut world = World::of([config("ceph", "gold", 1, ", reclaim-policy: Retain, zone: west")]);
    assert_eq!(world.turn(&[]), [""; 0], "nothing is known yet");
    world.answers(
        "ceph",
        r#"{"classes": [{"name": "ssd", "parameters": {"pool": "ssd"}, "snapshots": true, "expansion": true,
            "mount-options": ["noatime"], "capacity": 1000, "nodes": ["a", "b"],
            "topologies": [{"zone": ["west", "east"]}, {"rack": ["1"]}]},
            {"name": "HDD", "parameters": {"pool": "h"}}]}"#,
    );
    let made = world.turn(&[]);
    assert_eq!(made[0], "create gold-ssd");
    assert!(made[1].starts_with("create gold-hdd-"), "{made:?}");
    assert_eq!(world.turn(&[]), [""; 0]);
    let class = json!(world.classes["gold-ssd"]);
    assert_eq!(
        class["parameters"],
        json!({"pool": "ssd", "mooring.dev/config-namespace": "mooring", "mooring.dev/config-name": "ceph"})
    );
    assert_eq!(class["reclaimPolicy"], "Retain");
    assert_eq!(class["allowVolumeExpansion"], true);
    assert_eq!(class["mountOptions"], json!(["noatime"]));
    let hosts = json!({"key": "kubernetes.io/hostname", "values": ["a", "b"]});
    assert_eq!(
        class["allowedTopologies"],
        json!([
            {"matchLabelExpressions": [{"key": "zone", "values": ["west", "east"]}, hosts]},
            {"matchLabelExpressions": [{"key": "rack", "values": ["1"]}, hosts]},
        ])
    );
    assert_eq!(world.note("gold-ssd", "snapshots"), Some("true"));
    assert_eq!(world.note("gold-ssd", "capacity"), Some("1000"));
    assert_eq!(world.note("gold-ssd", "discovered"), Some("ssd"));
    let shown = &world.plan().shown[&ConfigRef::new("mooring", "ceph")];
    assert_eq!((shown.served, shown.vanished.len()), (2, 0));
}

#[test]
fn what_vanishes_is_marked_kept_while_used_and_comes_back() {
    let mut world = World::of([config("ceph", "gold", 1, "")]);
    world.answers("ceph", TWO);
    world.turn(&[]);
    world.answers("ceph", ONE);
    assert_eq!(world.turn(&["gold-hdd"]), ["update gold-hdd"]);
    assert!(world.note("gold-hdd", "vanished").is_some());
    assert_eq!(world.note("gold-hdd", "capacity"), None);
    assert_eq!(world.turn(&["gold-hdd"]), ["keep gold-hdd"]);
    let shown = world.plan().shown[&ConfigRef::new("mooring", "ceph")].clone();
    assert_eq!((shown.served, shown.vanished.len()), (1, 1));
    // After a restart the mark says it.
    world.answers.clear();
    assert_eq!(world.turn(&["gold-hdd"]), ["keep gold-hdd"]);
    assert_eq!(world.plan().shown[&ConfigRef::new("mooring", "ceph")], shown);
    world.answers("ceph", TWO);
    assert_eq!(world.turn(&["gold-hdd"]), ["update gold-hdd"]);
    assert_eq!(world.note("gold-hdd", "vanished"), None);
    assert_eq!(world.turn(&[]), [""; 0]);
    // It vanishes for good.
    world.answers("ceph", ONE);
    assert_eq!(world.turn(&[]), ["update gold-hdd"]);
    assert_eq!(world.turn(&[]), ["delete gold-hdd"]);
    assert_eq!(world.turn(&[]), [""; 0]);
}

#[test]
fn a_class_goes_with_its_config_map_or_with_the_promise() {
    for promise in [false, true] {
        let mut world = World::of([config("ceph", "gold", 1, "")]);
        world.answers("ceph", ONE);
        world.turn(&[]);
        if promise {
            let (reference, entry) = config("ceph", "gold", 1, "");
            let mut good = entry.good.as_deref().unwrap().clone();
            good.operations
                .remove(&mooring_contract::operation::Operation::Discover);
            let good = Some(Arc::new(good));
            world.entries.insert(reference, Entry { good, ..entry });
        } else {
            world.entries.clear();
        }
        world.answers.clear();
        assert_eq!(world.turn(&["gold-ssd"]), ["keep gold-ssd"]);
        assert_eq!(world.turn(&[]), ["delete gold-ssd"]);
    }
}

#[test]
fn an_unreadable_namespace_or_a_bad_config_map_takes_nothing_away() {
    let mut world = World::of([config("ceph", "gold", 1, "")]);
    world.answers("ceph", ONE);
    world.turn(&[]);
    world.answers.clear();
    let entries = std::mem::take(&mut world.entries);
    let nothing = plan(
        &world.entries,
        &world.answers,
        world.classes.values(),
        &BTreeSet::new(),
        now(),
    );
    assert_eq!(nothing.actions, []);
    let bad = entries.into_keys().map(|reference| (reference, Entry::default()));
    world.entries = bad.collect();
    assert_eq!(world.turn(&[]), [""; 0]);
}

#[test]
fn nobody_else_s_class_is_touched_and_the_older_config_map_has_the_name() {
    let mut world = World::of([
        config("young", "a", 2, ""),
        config("old", "a-b", 1, ""),
        config("third", "", 3, ""),
        config("label", "a-y", 4, ""),
    ]);
    let foreign = json!({"metadata": {"name": "a-x"}, "provisioner": "example.com/x"});
    world
        .classes
        .insert("a-x".into(), serde_json::from_value(foreign.clone()).unwrap());
    world.answers("young", r#"{"parameter": "p", "classes": ["b-c", "x", "y"]}"#);
    world.answers("old", r#"{"parameter": "p", "classes": ["c"]}"#);
    world.answers("third", r#"{"parameter": "p", "classes": ["c"]}"#);
    world.turn(&[]);
    assert_eq!(world.classes["a-x"], serde_json::from_value(foreign).unwrap());
    assert_eq!(
        world.classes["a-b-c"].parameters.as_ref().unwrap()["mooring.dev/config-name"],
        "old"
    );
    assert!(world.classes.contains_key("third-c"));
    let of_young = |thing: &str| {
        let is = |class: &&StorageClass| {
            class.parameters.as_ref().is_some_and(|all| {
                all.get("mooring.dev/config-name").map(String::as_str) == Some("young") && all["p"] == thing
            })
        };
        world
            .classes
            .values()
            .find(is)
            .and_then(|class| class.metadata.name.clone())
            .unwrap()
    };
    for (thing, begin) in [("b-c", "a-b-c-"), ("x", "a-x-"), ("y", "a-y-")] {
        let name = of_young(thing);
        assert!(name.starts_with(begin), "{name}");
    }
    // It keeps its name also when the plain one is free.
    let kept = of_young("b-c");
    world.entries.remove(&ConfigRef::new("mooring", "old"));
    assert_eq!(world.turn(&[]), ["delete a-b-c"]);
    assert_eq!(world.turn(&[]), [""; 0]);
    assert!(world.classes.contains_key(&kept));
}

#[test]
fn a_copy_of_a_class_is_its_author_s() {
    let mut world = World::of([config("ceph", "gold", 1, "")]);
    world.answers("ceph", ONE);
    world.turn(&[]);
    let mut copy = world.classes["gold-ssd"].clone();
    copy.metadata.name = Some("mine".into());
    world.classes.insert("mine".into(), copy);
    world.answers("ceph", r#"{"classes": []}"#);
    world.turn(&[]);
    world.turn(&[]);
    assert_eq!(world.names(), ["mine"]);
}

#[test]
fn changes_are_made_where_they_can_be() {
    for (printed, does) in [
        (
            r#"{"parameter": "pool", "classes": [{"name": "ssd", "capacity": 1000}]}"#,
            "",
        ),
        (
            r#"{"parameter": "pool", "classes": [{"name": "ssd", "capacity": 951}]}"#,
            "",
        ),
        (
            r#"{"parameter": "pool", "classes": [{"name": "ssd", "capacity": 940}]}"#,
            "update",
        ),
        (
            r#"{"parameter": "pool", "classes": [{"name": "ssd", "capacity": 0}]}"#,
            "update",
        ),
        (r#"{"parameter": "pool", "classes": ["ssd"]}"#, "update"),
        (
            r#"{"parameter": "pool", "classes": [{"name": "ssd", "capacity": 1000, "expansion": true}]}"#,
            "update",
        ),
        (
            r#"{"parameter": "pool", "classes": [{"name": "ssd", "capacity": 1000, "nodes": ["a"]}]}"#,
            "update",
        ),
        (
            r#"{"parameter": "p", "classes": [{"name": "ssd", "capacity": 1000}]}"#,
            "replace",
        ),
    ] {
        let mut world = World::of([config("ceph", "gold", 1, "")]);
        world.answers(
            "ceph",
            r#"{"parameter": "pool", "classes": [{"name": "ssd", "capacity": 1000}]}"#,
        );
        world.turn(&[]);
        world.answers("ceph", printed);
        let done: Vec<String> = world.turn(&[]);
        let expected: Vec<String> = (!does.is_empty())
            .then(|| format!("{does} gold-ssd"))
            .into_iter()
            .collect();
        assert_eq!(done, expected, "{printed}");
        assert_eq!(world.turn(&[]), [""; 0], "{printed}");
    }
}

#[test]
fn one_default_at_most_and_never_beside_an_administrator_s() {
    let marked = r#"{"parameter": "p", "classes": [{"name": "a", "default": true}, "b"]}"#;
    let moved = r#"{"parameter": "p", "classes": ["a", {"name": "b", "default": true}]}"#;
    let mut world = World::of([config("young", "young", 2, ""), config("old", "old", 1, "")]);
    world.answers("young", marked);
    world.answers("old", marked);
    world.turn(&[]);
    assert!(world.is_default("old-a") && !world.is_default("young-a"));
    assert_eq!(world.turn(&[]), [""; 0]);
    // While it is not known what the older one has, its mark stays.
    world.answers.remove(&ConfigRef::new("mooring", "old"));
    assert_eq!(world.turn(&[]), [""; 0]);
    world.answers("old", moved);
    world.turn(&[]);
    assert!(world.is_default("old-b") && !world.is_default("old-a"));
    // What an administrator has done to the mark stays.
    let notes = world
        .classes
        .get_mut("old-b")
        .unwrap()
        .metadata
        .annotations
        .as_mut()
        .unwrap();
    notes.remove("storageclass.kubernetes.io/is-default-class");
    assert_eq!(world.turn(&[]), [""; 0]);
    let own = json!({"metadata": {"name": "own", "annotations": {
        "storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "example.com/x"});
    world.classes.insert("own".into(), serde_json::from_value(own).unwrap());
    world.answers("old", marked);
    world.turn(&[]);
    assert!(!world.is_default("old-a") && !world.is_default("old-b") && !world.is_default("young-a"));
    assert_eq!(world.turn(&[]), [""; 0]);
}

#[test]
fn the_last_good_answer_of_a_config_map_that_is_there_is_kept() {
    let discoveries = Discoveries::default();
    let mut woken = discoveries.subscribe();
    let reference = ConfigRef::new("mooring", "ceph");
    let answer = |uid: &str| Listing {
        config_uid: uid.to_owned(),
        discovered: Arc::default(),
    };
    let configs = |uid: &str| BTreeMap::from([(reference.clone(), uid.to_owned())]);
    let failed = Ending {
        config_uid: "u1".to_owned(),
        fingerprint: "f".to_owned(),
        failure: Some("no answer".to_owned()),
    };
    let endings = Endings::from([(reference.clone(), failed)]);
    discoveries.update(&configs("u1"), [(reference.clone(), answer("u1"))].into(), endings);
    assert!(woken.has_changed().unwrap());
    woken.mark_unchanged();
    discoveries.update(&configs("u1"), Listings::new(), Endings::new());
    assert_eq!(discoveries.answers()[&reference], answer("u1"));
    assert!(!woken.has_changed().unwrap());
    let (_, entry) = config("ceph", "", 1, "");
    let mut version = ProvisionerConfig::clone(&entry.good.unwrap());
    (version.uid, version.fingerprint) = ("u1".to_owned(), "f".to_owned());
    assert_eq!(
        discoveries.last(&version),
        LastDiscovery::Failed("no answer".to_owned())
    );
    version.fingerprint = "g".to_owned();
    assert_eq!(discoveries.last(&version), LastDiscovery::UnderWay, "not asked yet");
    discoveries.update(&configs("u2"), Listings::new(), Endings::new());
    assert!(discoveries.answers().is_empty(), "created again, it does not inherit");
}

proptest! {
    /// Whatever is listed and in whatever order it comes and goes: no two classes have one name or stand for one thing,
    /// names stay, and two turns settle everything.
    #[test]
    fn names_never_collide_and_stay(
        lists in prop::collection::vec(prop::collection::btree_set("[abAB. _-]{1,3}", 0..8), 1..6),
        prefixes in ("[ab](-[ab])?", "[ab](-[ab])?"),
    ) {
        let mut world = World::of([config("one", &prefixes.0, 1, ""), config("two", &prefixes.1, 2, "")]);
        let mut names: BTreeMap<(String, String), String> = BTreeMap::new();
        for list in lists {
            for config in ["one", "two"] {
                let printed = json!({"parameter": "p", "classes": list});
                world.answers(config, &printed.to_string());
            }
            for _ in 0..3 {
                world.turn(&[]);
            }
            prop_assert_eq!(world.turn(&[]), [""; 0]);
            let mut found = BTreeMap::new();
            for (name, class) in &world.classes {
                prop_assert!(crate::config::values::object_name(name).is_ok() && name.len() <= 63);
                let all = class.parameters.as_ref().unwrap();
                let thing = (all["mooring.dev/config-name"].clone(), all["p"].clone());
                prop_assert!(found.insert(thing, name.clone()).is_none(), "two for one");
            }
            prop_assert_eq!(found.len(), list.len() * 2);
            for (thing, name) in &found {
                if let Some(before) = names.get(thing) {
                    prop_assert_eq!(before, name);
                }
            }
            names = found;
        }
    }
}
