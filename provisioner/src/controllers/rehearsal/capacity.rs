//! What the scheduler reads of classes, rehearsed like the life of a claim: each call fails in turn, and the loop is
//! restarted. Classes and nodes come, change and go. Nothing is written while nothing changes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fake_api::FakeApi;
use super::{Offers, Script, read, shared, with_every_fault};
use crate::apply::Shared;
use crate::cache::store::Cache;
use crate::config::store::Entry;
use crate::config::trust::Trust;
use crate::config::{ConfigRef, ProvisionerConfig};
use crate::controllers::storage_capacity::look;

const SCRIPT: Script = Script {
    image_makes_pv: false,
    first_fails: false,
    quick_binder: false,
    deleted_after: None,
    offers: Offers::Changes,
};

const GI: u64 = 1 << 30;

struct Stage {
    api: FakeApi,
    shared: Shared,
}

/// The ConfigMap of all classes is in force.
fn configured(shared: &Shared, on_pools: bool) {
    let mut config_map = json!({
        "metadata": {"name": "local", "namespace": "admin", "uid": "c1"},
        "data": {"plugin-name": "vcs.mooring.dev", "image": "mooring.dev/x", "volume-source": "csi"},
    });
    if on_pools {
        config_map["data"]["backend-volume"] = json!("client=pool");
    }
    let trust = Trust::offline(None, None);
    let good = ProvisionerConfig::parse(&serde_json::from_value(config_map).unwrap(), &trust).unwrap();
    let entry = Entry {
        good: Some(good.into()),
        problems: vec![],
    };
    let entries: BTreeMap<ConfigRef, Entry> = [(ConfigRef::new("admin", "local"), entry)].into();
    shared.context.configs.replace(entries);
}

impl Stage {
    fn open() -> Self {
        let api = FakeApi::default();
        let shared = shared(&api, SCRIPT);
        configured(&shared, false);
        Self { api, shared }
    }

    fn class(&self, name: &str, capacity: Option<&str>) {
        let notes = capacity.map(|left| json!({"mooring.dev/capacity": left}));
        self.api.lock().put(
            "classes",
            json!({
                "metadata": {"name": name, "uid": format!("uid-{name}"), "annotations": notes},
                "provisioner": "vcs.mooring.dev",
                "parameters": {"mooring.dev/config-namespace": "admin", "mooring.dev/config-name": "local"},
            }),
        );
    }

    fn node(&self, name: &str, room: u64) {
        let pool = json!({"disk": 100 * GI, "free": room, "room": room}).to_string();
        self.api.lock().put(
            "nodes",
            json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": format!("host-{name}")},
                                "annotations": {"mooring.dev/pool": pool}}}),
        );
    }

    /// One look, after the watches have brought everything.
    async fn turn(&mut self, on_pools: bool) {
        let cache = Cache::new(&self.shared.context.settings.config_namespaces);
        {
            let state = self.api.lock();
            cache.know_nodes(read(state.each("nodes")));
            cache.capacities.know(read(state.each("capacities")));
            let classes = read(state.each("classes"));
            self.shared.cache = cache.filled(vec![], vec![], &[], (classes, vec![]), (vec![], vec![], vec![]));
        }
        look(&self.shared).await;
        if std::mem::take(&mut self.api.lock().tripped) {
            self.shared = shared(&self.api, SCRIPT);
            configured(&self.shared, on_pools);
        }
    }

    /// Looks until nothing changes any more; how many writes there were.
    async fn settled(&mut self, on_pools: bool) -> usize {
        configured(&self.shared, on_pools);
        let begun = self.api.lock().log.len();
        for _ in 0..20 {
            let (before, faults) = {
                let state = self.api.lock();
                (state.log.len(), state.faults)
            };
            self.turn(on_pools).await;
            let state = self.api.lock();
            if before == state.log.len() && faults == state.faults {
                return before - begun;
            }
        }
        panic!("it does not come to rest: {:#?}", self.api.lock());
    }

    /// What the objects say: class, host, capacity.
    fn says(&self) -> Vec<String> {
        let state = self.api.lock();
        let text = |value: &Value| value.as_str().unwrap_or("*").to_owned();
        let mut all: Vec<_> = state
            .each("capacities")
            .map(|object| {
                assert_eq!(object["metadata"]["ownerReferences"][0]["kind"], "StorageClass");
                let host = &object["nodeTopology"]["matchLabels"]["kubernetes.io/hostname"];
                format!(
                    "{} {} {}",
                    text(&object["storageClassName"]),
                    text(host),
                    text(&object["capacity"])
                )
            })
            .collect();
        all.sort();
        all
    }

    /// The whole play; returns its writes where no call fails.
    async fn whole(&mut self, what: &str) -> [usize; 5] {
        let most = "9223372036854775807";
        self.class("fast", None);
        self.class("told", Some("1024"));
        let made = self.settled(false).await;
        assert_eq!(
            self.says(),
            [format!("fast * {most}"), "told * 1Ki".to_owned()],
            "{what}"
        );

        self.class("told", Some("2048"));
        let changed = self.settled(false).await;
        assert_eq!(self.says()[1], "told * 2Ki", "{what}");

        // The ConfigMap's volumes are on pools now.
        self.node("a", 20 * GI);
        self.node("b", 30 * GI);
        self.api.lock().delete("classes", "/told");
        let other = self.settled(true).await;
        assert_eq!(self.says(), ["fast host-a 15Gi", "fast host-b 25Gi"], "{what}");

        self.node("a", 21 * GI);
        self.api.lock().delete("nodes", "/b");
        let fewer = self.settled(true).await;
        assert_eq!(self.says(), ["fast host-a 16Gi"], "{what}");

        self.api.lock().delete("classes", "/fast");
        let gone = self.settled(true).await;
        assert_eq!(self.says(), [""; 0], "{what}");
        [made, changed, other, fewer, gone]
    }
}

#[tokio::test]
async fn the_scheduler_reads_what_is_left_whatever_fails() {
    with_every_fault(&"capacities", async |fault, what| {
        let mut stage = Stage::open();
        if let Some((nth, fault)) = fault {
            stage.api.fail(nth, fault);
        }
        stage.whole(what).await;
        stage.api.lock().calls()
    })
    .await;
}

/// Proves: P7
#[tokio::test]
async fn each_change_is_one_write_and_no_change_is_none() {
    let mut stage = Stage::open();
    let writes = stage.whole("without a fault").await;
    // Two made; one changed; two made and two deleted; one changed and one deleted; one deleted.
    assert_eq!(writes, [2, 1, 4, 2, 1], "{:#?}", stage.api.lock().log);
}

#[tokio::test]
async fn what_is_not_listed_yet_is_neither_made_nor_deleted() {
    let stage = Stage::open();
    stage.class("fast", None);
    // As it is at the start: no object, class or ConfigMap has been listed.
    assert!(look(&stage.shared).await);
    let mut unread = shared(&stage.api, SCRIPT);
    unread.context.configs = crate::config::store::ConfigStore::default();
    unread.cache.capacities.know(vec![]);
    assert!(look(&unread).await);
    assert_eq!(stage.api.lock().log, [""; 0]);
}

/// An object that was made behind the loop's back is not made twice.
#[tokio::test]
async fn an_object_that_is_there_already_is_left_to_the_watch() {
    let mut stage = Stage::open();
    stage.class("fast", None);
    stage.settled(false).await;
    stage.shared.cache.capacities.know(vec![]);
    assert!(look(&stage.shared).await, "a conflict is no failure");
    assert_eq!(stage.says().len(), 1);
    assert_eq!(stage.settled(false).await, 0);
}
