//! Who waits is told what for, and goes on when it comes: the watch of it wakes whoever waits. No clock wakes anybody
//! here, and nobody looks again unasked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{BoxStream, StreamExt as _, select_all};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::departures::{LIMIT, look_at, watched};
use super::fake_api::{FakeApi, FakeState};
use super::{Offers, Script, configs, shared};
use crate::apply::Shared;
use crate::cache::limiter::Limiter;
use crate::cache::work_queue::{Queued, WorkItem};
use crate::config::store::Entry;
use crate::operation::tests::{class, config, record};
use crate::process::events::{EventRecorder, Writer};
use crate::run::properties::tests::silver;
use crate::volume::grant::tests::grant;
use crate::volume::group_snapshot::tests::group_content;
use crate::volume::snapshot::tests::content;

/// For so long the watches are silent before what is waited for comes, so that nothing else wakes who waits.
const QUIET: Duration = Duration::from_millis(300);

const SCRIPT: Script = Script::plain(Offers::Changes);

/// Who waits, by its kind and key.
#[derive(Debug, Clone, Copy)]
struct Waiter {
    kind: &'static str,
    key: &'static str,
}

const CLAIM: Waiter = Waiter {
    kind: "claims",
    key: "default/data",
};
const VOLUME: Waiter = Waiter {
    kind: "volumes",
    key: "/pvc-u0",
};
const CONTENT: Waiter = Waiter {
    kind: "contents",
    key: "/snapcontent-s1",
};
const GROUP: Waiter = Waiter {
    kind: "groups",
    key: "/groupsnapcontent-g1",
};

impl Waiter {
    fn item(self) -> WorkItem {
        let (namespace, name) = self.key.split_once('/').unwrap();
        match self.kind {
            "claims" => WorkItem::Claim(namespace.to_owned(), name.to_owned()),
            "volumes" => WorkItem::Volume(name.to_owned()),
            "contents" => WorkItem::Snapshot(name.to_owned()),
            _ => WorkItem::Group(name.to_owned()),
        }
    }
}

struct Stage {
    api: FakeApi,
    shared: Shared,
    /// What the watches have looked at.
    queued: BoxStream<'static, WorkItem>,
    told: Writer,
    _watches: AbortOnDropHandle<()>,
}

impl Stage {
    /// All watches run, and this is what they find.
    async fn open(there: impl FnOnce(&mut FakeState)) -> Self {
        let api = FakeApi::default();
        there(&mut api.lock());
        let mut shared = shared(&api, SCRIPT);
        shared.limiter = Arc::new(Limiter::new(8));
        let (events, told) = EventRecorder::new(shared.context.metrics.clone());
        shared.context.events = events;
        let (queued, watches) = watched(&mut shared).await;
        let Queued {
            claims,
            volumes,
            snapshots: contents,
            groups,
        } = queued;
        let queued = select_all([
            claims
                .map(|claim| WorkItem::Claim(claim.namespace.unwrap_or_default(), claim.name))
                .boxed(),
            volumes.map(|volume| WorkItem::Volume(volume.name)).boxed(),
            contents.map(|content| WorkItem::Snapshot(content.name)).boxed(),
            groups.map(|content| WorkItem::Group(content.name)).boxed(),
        ]);
        Self {
            api,
            shared,
            queued: queued.boxed(),
            told,
            _watches: watches,
        }
    }

    fn writes(&self) -> usize {
        self.api.lock().log.len()
    }

    async fn look(&self, waiter: Waiter) {
        look_at(&self.api, &self.shared, waiter.kind, waiter.key).await;
    }

    /// It waits, does nothing, and is told these words about it.
    async fn waits(&mut self, waiter: Waiter, words: &str) {
        let begun = Instant::now();
        let mut heard = Vec::new();
        loop {
            self.look(waiter).await;
            assert_eq!(
                self.writes(),
                0,
                "{words}: {waiter:?} goes on: {:#?}",
                self.api.lock().log
            );
            heard.extend(std::iter::from_fn(|| self.told.try_next()).map(|(_, note)| note.text));
            if heard.iter().any(|text: &String| text.contains(words)) {
                return;
            }
            // A watch may have listed nothing yet.
            assert!(begun.elapsed() < LIMIT, "{words}: {waiter:?} is told {heard:#?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// What is waited for comes: the waiter is woken, and goes on.
    async fn comes(&mut self, waiter: Waiter, words: &str, thing: impl FnOnce(&Self)) {
        while timeout(QUIET, self.queued.next()).await.is_ok() {}
        thing(self);
        let item = waiter.item();
        while self.writes() == 0 {
            let woken = timeout(LIMIT, self.queued.next()).await;
            let woken = woken.unwrap_or_else(|_| panic!("{words}: it came, and {waiter:?} was not woken for it"));
            if woken.as_ref() == Some(&item) {
                self.look(waiter).await;
            }
        }
    }
}

/// What is there in the beginning waits with these words for the thing, and goes on when that comes.
async fn waits_for(
    waiter: Waiter,
    words: &str,
    there: impl FnOnce(&mut FakeState),
    thing: impl FnOnce(&mut FakeState),
) {
    let mut stage = Stage::open(there).await;
    stage.waits(waiter, words).await;
    stage.comes(waiter, words, |stage| thing(&mut stage.api.lock())).await;
}

/// The same where the ConfigMap's volumes are in the pools of nodes.
async fn waits_for_node(waiter: Waiter, words: &str, there: impl FnOnce(&mut FakeState)) {
    let mut stage = Stage::open(|state| {
        there(state);
        change(state, "volumes", VOLUME.key, |volume| {
            volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"]}]}]}});
        });
    })
    .await;
    let good = Arc::new(config(&[
        ("volume-source", "csi"),
        ("backend-volume", "client=pool"),
        ("operations", "provision,delete,snapshot,delete-snapshot"),
    ]));
    let entry = Entry {
        good: Some(good.clone()),
        problems: vec![],
    };
    stage
        .shared
        .context
        .configs
        .replace([(good.reference.clone(), entry)].into());
    stage.waits(waiter, words).await;
    let node = json!({"metadata": {"name": "node-a", "labels": {"kubernetes.io/hostname": "node-a"}}});
    stage
        .comes(waiter, words, |stage| stage.api.lock().put("nodes", node))
        .await;
}

/// The same for the ConfigMap.
async fn waits_for_config(waiter: Waiter, words: &str, there: impl FnOnce(&mut FakeState)) {
    let mut stage = Stage::open(there).await;
    stage.shared.context.configs.replace([].into());
    stage.waits(waiter, words).await;
    stage
        .comes(waiter, words, |stage| {
            stage.shared.context.configs.replace(configs(SCRIPT));
        })
        .await;
}

/// A claim, with this in its spec.
fn claim(spec: &Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "u1", "annotations": {
            "volume.kubernetes.io/storage-provisioner": "mooring.dev/flex-provisioner"}},
        "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}},
    });
    for (key, value) in spec.as_object().unwrap() {
        claim["spec"][key] = value.clone();
    }
    claim
}

/// A class that names its ConfigMap.
fn named_class() -> Value {
    json!(class(&json!({"parameters": {
        "mooring.dev/config-namespace": "admin", "mooring.dev/config-name": "custom-isci-provisioner"}})))
}

/// A claim with a volume, of the claim `old` of this namespace.
fn put_source(state: &mut FakeState, namespace: &str) {
    let mut made_by = silver();
    (made_by.pv_name, made_by.pvc_uid) = ("pvc-u0".into(), "u0".into());
    (made_by.pvc_namespace, made_by.pvc_name) = (namespace.into(), "old".into());
    let mut volume = crate::volume::acceptance::tests::volume();
    volume["metadata"] = json!({"name": "pvc-u0", "finalizers": ["mooring.dev/volume"], "annotations": {
        "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
        "mooring.dev/config": "admin/custom-isci-provisioner",
        "mooring.dev/request": json!(made_by).to_string(),
    }});
    volume["spec"].as_object_mut().unwrap().remove("flexVolume");
    volume["spec"]["csi"] = json!({"driver": "vcs.mooring.dev", "volumeHandle": "pvc-u0",
                                   "volumeAttributes": {"client": "nfs", "source": "h:/x"}});
    volume["spec"]["claimRef"] = json!({"namespace": namespace, "name": "old", "uid": "u0"});
    volume["status"] = json!({"phase": "Bound"});
    state.put("volumes", volume);
    let mut old = claim(&json!({"volumeName": "pvc-u0"}));
    (old["metadata"]["name"], old["metadata"]["namespace"]) = (json!("old"), json!(namespace));
    old["metadata"]["uid"] = json!("u0");
    old["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    state.put("claims", old);
}

fn change(state: &mut FakeState, kind: &'static str, key: &str, change: impl FnOnce(&mut Value)) {
    let mut object = state.get(kind, key).unwrap();
    change(&mut object);
    state.put(kind, object);
}

/// Proves: P4
#[tokio::test]
async fn a_claim_goes_on_when_its_configmap_comes() {
    waits_for_config(CLAIM, "ConfigMap admin/custom-isci-provisioner", |state| {
        state.put("classes", named_class());
        state.put("claims", claim(&json!({})));
    })
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_claim_goes_on_when_its_class_comes() {
    waits_for(
        CLAIM,
        "StorageClass \"silver\" is gone",
        |state| {
            let mut begun = claim(&json!({}));
            begun["metadata"]["annotations"]["mooring.dev/operation"] = json!(record(&json!({})).to_text());
            begun["metadata"]["finalizers"] = json!(["mooring.dev/provisioning"]);
            state.put("claims", begun);
        },
        |state| state.put("classes", named_class()),
    )
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_claim_goes_on_when_its_attributes_class_comes() {
    const GOLD: &str = "gold";
    let waiter = Waiter {
        key: "default/old",
        ..CLAIM
    };
    waits_for(
        waiter,
        "VolumeAttributesClass \"gold\" does not exist",
        |state| {
            state.put("classes", named_class());
            put_source(state, "default");
            change(state, "claims", waiter.key, |claim| {
                claim["spec"]["volumeAttributesClassName"] = json!(GOLD);
                claim["status"]["modifyVolumeStatus"] =
                    json!({"targetVolumeAttributesClassName": GOLD, "status": "Pending"});
            });
        },
        |state| {
            state.put(
                "attributes",
                json!({"metadata": {"name": GOLD}, "driverName": "vcs.mooring.dev", "parameters": {"tier": GOLD}}),
            );
        },
    )
    .await;
}

/// A claim that copies the claim `old` of this namespace.
fn put_copy(state: &mut FakeState, namespace: &str) {
    let from = json!({"kind": "PersistentVolumeClaim", "name": "old"});
    let copy = if namespace == "default" {
        json!({"dataSource": from, "dataSourceRef": from})
    } else {
        json!({"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "old", "namespace": namespace}})
    };
    state.put("classes", named_class());
    state.put("claims", claim(&copy));
}

/// Proves: P4
#[tokio::test]
async fn a_copy_goes_on_when_its_source_comes() {
    waits_for(
        CLAIM,
        "source claim \"old\" does not exist yet",
        |state| put_copy(state, "default"),
        |state| put_source(state, "default"),
    )
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_copy_goes_on_when_its_source_is_bound() {
    waits_for(
        CLAIM,
        "source claim \"old\" is not bound",
        |state| {
            put_copy(state, "default");
            put_source(state, "default");
            change(state, "claims", "default/old", |claim| {
                claim["spec"].as_object_mut().unwrap().remove("volumeName");
            });
        },
        |state| {
            change(state, "claims", "default/old", |claim| {
                claim["spec"]["volumeName"] = json!("pvc-u0");
            });
        },
    )
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_copy_from_another_namespace_goes_on_when_the_grant_comes() {
    waits_for(
        CLAIM,
        "no ReferenceGrant in namespace \"prod\"",
        |state| {
            put_copy(state, "prod");
            put_source(state, "prod");
        },
        |state| {
            let all = json!({"group": "", "kind": "PersistentVolumeClaim"});
            state.put("grants", json!(grant(&all)));
        },
    )
    .await;
}

/// A claim that is made of the snapshot `monday`.
fn put_restore(state: &mut FakeState) {
    let from = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"});
    state.put("classes", named_class());
    state.put("claims", claim(&json!({"dataSource": from, "dataSourceRef": from})));
}

fn put_snapshot(state: &mut FakeState) {
    state.put(
        "snapshots",
        json!({"metadata": {"namespace": "default", "name": "monday", "uid": "v1"},
               "status": {"boundVolumeSnapshotContentName": "snapcontent-s1", "readyToUse": true}}),
    );
}

/// What the snapshot is bound to.
fn taken() -> Value {
    content(&json!({
        "spec": {"source": {"volumeHandle": "pvc-u0"}},
        "status": {"snapshotHandle": "admin/custom-isci-provisioner/snapshot-v1", "readyToUse": true,
                   "restoreSize": 1_u64 << 30},
    }))
}

/// Proves: P4
#[tokio::test]
async fn a_restore_goes_on_when_its_snapshot_comes() {
    waits_for(
        CLAIM,
        "VolumeSnapshot \"monday\", which the claim asks to restore, does not exist",
        |state| {
            put_restore(state);
            state.put("contents", taken());
        },
        put_snapshot,
    )
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_restore_goes_on_when_its_snapshot_s_content_comes() {
    waits_for(
        CLAIM,
        "is not ready yet",
        |state| {
            put_restore(state);
            put_snapshot(state);
        },
        |state| state.put("contents", taken()),
    )
    .await;
}

/// A snapshot to be taken of the volume of the claim `old`, without its class.
fn put_content(state: &mut FakeState) {
    state.put("classes", named_class());
    put_source(state, "default");
    put_unbound_snapshot(state);
    state.put(
        "contents",
        content(&json!({"spec": {"source": {"volumeHandle": "pvc-u0"}}})),
    );
}

fn put_unbound_snapshot(state: &mut FakeState) {
    state.put(
        "snapshots",
        json!({"metadata": {"namespace": "default", "name": "monday", "uid": "v1"}}),
    );
}

fn put_snapshot_class(state: &mut FakeState) {
    state.put(
        "snapshotclasses",
        json!({"metadata": {"name": "silver"}, "driver": "vcs.mooring.dev"}),
    );
}

/// Proves: P4
#[tokio::test]
async fn a_snapshot_goes_on_when_its_class_comes() {
    waits_for(
        CONTENT,
        "VolumeSnapshotClass \"silver\" does not exist",
        put_content,
        put_snapshot_class,
    )
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_snapshot_goes_on_when_its_configmap_comes() {
    waits_for_config(CONTENT, "admin/custom-isci-provisioner", |state| {
        put_content(state);
        put_snapshot_class(state);
    })
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_snapshot_goes_on_when_the_operation_on_its_volume_has_ended() {
    waits_for(
        CONTENT,
        "has an operation in progress",
        |state| {
            put_content(state);
            put_snapshot_class(state);
            change(state, "claims", "default/old", |claim| {
                let expanding = record(&json!({"operation": "expand", "pod": "admin/expand-u0"})).to_text();
                claim["metadata"]["annotations"] = json!({"mooring.dev/operation": expanding});
            });
        },
        |state| {
            change(state, "claims", "default/old", |claim| {
                claim["metadata"]["annotations"] = json!({});
            });
        },
    )
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_snapshot_goes_on_when_the_node_of_its_volume_comes() {
    waits_for_node(CONTENT, "on node node-a, which is not in the cluster", |state| {
        put_content(state);
        put_snapshot_class(state);
    })
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_group_goes_on_when_its_class_comes() {
    waits_for(
        GROUP,
        "VolumeGroupSnapshotClass \"silver\" does not exist",
        |state| {
            state.put("classes", named_class());
            put_source(state, "default");
            state.put(
                "groups",
                group_content(&json!({"spec": {"source": {"volumeHandles": ["pvc-u0"]}}})),
            );
        },
        |state| {
            state.put(
                "groupclasses",
                json!({"metadata": {"name": "silver"}, "driver": "vcs.mooring.dev"}),
            );
        },
    )
    .await;
}

/// The volume of a claim that is gone.
fn put_released(state: &mut FakeState) {
    put_source(state, "default");
    state.delete("claims", "default/old");
    change(state, "volumes", VOLUME.key, |volume| {
        volume["status"]["phase"] = json!("Released");
    });
}

/// Proves: P4
#[tokio::test]
async fn a_released_volume_goes_on_when_its_configmap_comes() {
    waits_for_config(VOLUME, "admin/custom-isci-provisioner", put_released).await;
}

/// Proves: P4
#[tokio::test]
async fn a_released_volume_goes_on_when_its_copy_is_given_up() {
    waits_for(
        VOLUME,
        "default/data",
        |state| {
            put_copy(state, "default");
            put_released(state);
            change(state, "claims", CLAIM.key, |claim| {
                let copying = record(&json!({"operation": "clone", "pod": "admin/clone-u1", "source": "pvc-u0"}));
                claim["metadata"]["annotations"]["mooring.dev/operation"] = json!(copying.to_text());
            });
        },
        |state| state.take_away("claims", CLAIM.key),
    )
    .await;
}

/// Proves: P4
#[tokio::test]
async fn a_released_volume_goes_on_when_its_node_comes() {
    waits_for_node(VOLUME, "node-a", put_released).await;
}
