use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use mooring_contract::pool::PoolRoom;
use serde_json::json;

use super::{CapacityAction, SeenCapacity, UNKNOWN, plan};
use crate::config::ProvisionerConfig;
use crate::config::store::{ConfigStore, Entry};
use crate::config::trust::Trust;
use crate::yaml;

const GI: u64 = 1 << 30;

/// ConfigMaps in force, the classes, what nodes say, and the objects that are there.
struct World {
    configs: ConfigStore,
    classes: Vec<StorageClass>,
    pools: BTreeMap<String, PoolRoom>,
    there: BTreeMap<String, CSIStorageCapacity>,
    made: u32,
}

impl World {
    fn of(configs: &[(&str, &str)], classes: &[&str]) -> Self {
        let world = Self {
            configs: ConfigStore::default(),
            classes: classes.iter().map(|text| yaml::from_str(text).unwrap()).collect(),
            pools: BTreeMap::new(),
            there: BTreeMap::new(),
            made: 0,
        };
        world.configure(configs);
        world
    }

    fn configure(&self, configs: &[(&str, &str)]) {
        let entries = configs.iter().map(|(name, extra)| {
            let config_map: ConfigMap = yaml::from_str(&format!(
                "metadata: {{namespace: mooring, name: {name}, uid: uid-{name}}}\ndata: {{plugin-name: \
                 vcs.mooring.dev, volume-source: csi, image: mooring.dev/x{extra}}}"
            ))
            .unwrap();
            let good = ProvisionerConfig::parse(&config_map, &Trust::offline(None, None)).unwrap();
            let entry = Entry {
                good: Some(Arc::new(good)),
                problems: Vec::new(),
            };
            (entry.good.as_ref().unwrap().reference.clone(), entry)
        });
        self.configs.replace(entries.collect());
    }

    fn pool(&mut self, host: &str, free: u64) {
        let pool = PoolRoom {
            disk: 100 * GI,
            free,
            room: free / 2,
        };
        self.pools.insert(host.to_owned(), pool);
    }

    fn plan(&self) -> Vec<CapacityAction> {
        plan(
            &self.classes,
            |class| self.configs.for_class(class),
            &BTreeSet::from(["mooring".to_owned()]),
            &self.pools,
            self.there.values().cloned().map(SeenCapacity::of),
        )
    }

    /// Does what is decided; returns how many were made, changed and deleted.
    fn turn(&mut self) -> [usize; 3] {
        let mut done = [0; 3];
        for action in self.plan() {
            match action {
                CapacityAction::Create(mut object) => {
                    done[0] += 1;
                    assert_eq!(done[2], 0, "it is deleted before what comes in its place");
                    self.made += 1;
                    object.metadata.uid = Some(format!("u{}", self.made));
                    let name = object.metadata.name.clone().unwrap();
                    assert!(self.there.insert(name, *object).is_none());
                }
                CapacityAction::Change { there, bytes } => {
                    done[1] += 1;
                    let object = self.there.get_mut(&there.name).unwrap();
                    object.capacity = Some(crate::volume::capacity::quantity(bytes));
                }
                CapacityAction::Delete(there) => {
                    done[2] += 1;
                    let gone = self.there.remove(&there.name).unwrap();
                    assert_eq!(gone.metadata.uid.as_deref(), Some(there.uid.as_str()));
                }
            }
        }
        done
    }

    /// What the objects say: class, node, bytes.
    fn says(&self) -> Vec<(String, String, u64)> {
        let says = self.there.values().cloned().map(|object| SeenCapacity::of(object).says);
        let mut says: Vec<_> = says
            .map(|says| {
                let says = says.unwrap();
                (says.class, says.host.unwrap_or_else(|| "*".to_owned()), says.bytes)
            })
            .collect();
        says.sort();
        says
    }
}

fn said(class: &str, host: &str, bytes: u64) -> (String, String, u64) {
    (class.to_owned(), host.to_owned(), bytes)
}

const ON_POOLS: &str = ", backend-volume: client=pool";

const LOCAL: &str = "metadata: {name: local, uid: c1}\nprovisioner: vcs.mooring.dev\nparameters: \
                     {mooring.dev/config-namespace: mooring, mooring.dev/config-name: local}";

#[test]
fn a_class_on_pools_has_an_object_for_each_node_that_says_what_its_pool_has() {
    let thin = LOCAL.replace("name: local, uid: c1", "name: thin, uid: c2").replace(
        "config-name: local}",
        "config-name: local, thin: 'true', reserve: 10Gi}",
    );
    let mut world = World::of(&[("local", &format!("{ON_POOLS}, reserve: 1Gi"))], &[LOCAL, &thin]);
    assert_eq!(world.turn(), [0; 3], "no node says what it has");
    world.pool("a", 40 * GI);
    world.pool("b", GI);
    assert_eq!(world.turn(), [4, 0, 0]);
    let all = [
        said("local", "a", 19 * GI),
        said("local", "b", 0),
        said("thin", "a", 30 * GI),
        said("thin", "b", 0),
    ];
    assert_eq!(world.says(), all);
    assert_eq!(world.turn(), [0; 3], "nothing has changed");

    world.pool("b", 20 * GI);
    assert_eq!(world.turn(), [0, 2, 0], "one write for each class of this node");
    assert_eq!(world.says()[3], said("thin", "b", 10 * GI));
    world.pools.remove("a");
    assert_eq!(world.turn(), [0, 0, 2]);
    world.classes.pop();
    assert_eq!(world.turn(), [0, 0, 1]);
    assert_eq!(world.says(), [said("local", "b", 9 * GI)]);
}

#[test]
fn an_object_belongs_to_its_class_and_is_for_one_node_or_for_all() {
    let mut world = World::of(&[("local", ON_POOLS)], &[LOCAL]);
    world.pool("a", 40 * GI);
    world.turn();
    let object = json!(world.there.values().next().unwrap());
    assert_eq!(
        object["metadata"]["ownerReferences"],
        json!([{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "name": "local", "uid": "c1"}])
    );
    assert_eq!(
        object["metadata"]["labels"],
        json!({"app.kubernetes.io/managed-by": "mooring"})
    );
    assert_eq!(
        object["nodeTopology"],
        json!({"matchLabels": {"kubernetes.io/hostname": "a"}})
    );
    world.configure(&[("local", "")]);
    world.turn();
    let object = json!(world.there.values().next().unwrap());
    // Without the field it would be for no node.
    assert_eq!(object["nodeTopology"], json!({}));
    assert_eq!(object["capacity"], UNKNOWN.to_string());
}

#[test]
fn what_an_image_has_discovered_is_for_all_nodes_and_what_nobody_knows_refuses_no_pod() {
    let class = |name: &str, more: &str| {
        format!("metadata: {{name: {name}, uid: '{name}'{more}}}\nprovisioner: vcs.mooring.dev\n")
    };
    let named = |config: &str| {
        format!("parameters: {{mooring.dev/config-namespace: mooring, mooring.dev/config-name: {config}}}")
    };
    let note = |text: &str| format!(", annotations: {{mooring.dev/capacity: '{text}'}}");
    let classes = [
        class("ssd", &note("1000")) + &named("ceph"),
        class("odd", &note("many")) + &named("ceph"),
        class("huge", &note(&u64::MAX.to_string())) + &named("ceph"),
        class("silent", "") + &named("ceph"),
        class("lost", "") + &named("gone"),
        class("unclaimed", ""),
        class("half", "") + "parameters: {mooring.dev/config-name: ceph}",
        // What an administrator notes on it is not what the pools have.
        class("pools", &note("1000")) + &named("local"),
        class("elsewhere", "") + "parameters: {mooring.dev/config-namespace: other, mooring.dev/config-name: ceph}",
        class("flex", &note("1000")).replace("vcs.mooring.dev", "mooring.dev/flex-provisioner") + &named("ceph"),
        class("foreign", "").replace("vcs.mooring.dev", "ebs.csi.aws.com"),
    ];
    let classes: Vec<&str> = classes.iter().map(String::as_str).collect();
    let mut world = World::of(&[("ceph", ""), ("local", ON_POOLS)], &classes);
    world.pool("a", 40 * GI);
    world.turn();
    let all = [
        said("half", "*", UNKNOWN),
        said("huge", "*", UNKNOWN),
        said("lost", "*", UNKNOWN),
        said("odd", "*", UNKNOWN),
        said("pools", "a", 15 * GI),
        said("silent", "*", UNKNOWN),
        said("ssd", "*", 1000),
        said("unclaimed", "*", UNKNOWN),
    ];
    assert_eq!(world.says(), all);
    assert_eq!(world.turn(), [0; 3]);
    assert_eq!(
        crate::volume::capacity::bytes(&crate::volume::capacity::quantity(UNKNOWN)),
        Ok(UNKNOWN)
    );
}

#[test]
fn a_config_map_or_a_class_that_becomes_another_gets_other_objects() {
    let mut world = World::of(&[("local", "")], &[LOCAL]);
    world.pool("a", 40 * GI);
    world.pool("b", 40 * GI);
    assert_eq!(world.turn(), [1, 0, 0]);
    world.configure(&[("local", ON_POOLS)]);
    assert_eq!(world.turn(), [2, 0, 1]);
    assert_eq!(world.turn(), [0; 3]);
    // Made again, it is another one, and its objects are collected with the one before.
    world.classes[0].metadata.uid = Some("c2".into());
    assert_eq!(world.turn(), [2, 0, 2]);
    // Somebody has changed one: what can't be changed back is made again.
    let tamper: [fn(&mut CSIStorageCapacity); 4] = [
        |object| object.node_topology = None,
        |object| object.maximum_volume_size = Some(crate::volume::capacity::quantity(1)),
        |object| object.storage_class_name = "other".into(),
        |object| object.node_topology = Some(serde_json::from_value(json!({"matchLabels": {"zone": "x"}})).unwrap()),
    ];
    for tamper in tamper {
        let before = world.says();
        tamper(world.there.values_mut().next().unwrap());
        assert_eq!(world.turn(), [0, 0, 1]);
        assert_eq!(world.turn(), [1, 0, 0]);
        assert_eq!(world.says(), before);
    }
    world.there.values_mut().next().unwrap().capacity = None;
    assert_eq!(world.turn(), [0, 0, 1]);
}
