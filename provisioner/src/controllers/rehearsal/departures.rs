//! Objects that are taken away while they wait for a place: whoever waits behind them goes on, also where the watch has
//! missed the deletion.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_contract::names::annotations;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::fake_api::FakeApi;
use super::{Offers, Script, shared};
use crate::apply::Shared;
use crate::cache::store::Cache;
use crate::cache::watches::watch;
use crate::cache::work_queue::{Queued, WorkQueue};
use crate::operation::tests::class;
use crate::run::properties::tests::silver;
use crate::volume::group_snapshot::tests::group_content;
use crate::volume::snapshot::tests::content;

pub(super) const LIMIT: Duration = Duration::from_mins(1);

/// What watches wake, for as long as this is kept.
pub(super) type Watched = (Queued, AbortOnDropHandle<()>);

struct Stage {
    api: FakeApi,
    shared: Shared,
    _watches: AbortOnDropHandle<()>,
}

pub(super) fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-of-{name}"), "annotations": {
            "volume.kubernetes.io/storage-provisioner": "mooring.dev/flex-provisioner"}},
        "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}},
    })
}

/// A PV whose claim is gone.
fn released() -> Value {
    let mut volume = crate::volume::acceptance::tests::volume();
    let mut made_by = silver();
    (made_by.pv_name, made_by.pvc_uid) = ("pvc-u1".into(), "u1".into());
    volume["metadata"]["finalizers"] = json!(["mooring.dev/volume"]);
    volume["metadata"]["annotations"] = json!({
        "pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner",
        "mooring.dev/config": "admin/custom-isci-provisioner",
        "mooring.dev/request": json!(made_by).to_string(),
    });
    volume["status"] = json!({"phase": "Released"});
    volume
}

/// Has all watches run; gives what they wake. Returns when they have listed everything.
pub(super) async fn watched(shared: &mut Shared) -> Watched {
    let watched = watching(shared);
    shared.cache.ready().await;
    watched
}

/// Has all watches run, which have not listed anything yet.
pub(super) fn watching(shared: &mut Shared) -> Watched {
    let cache = Cache::new(&shared.context.settings.config_namespaces);
    let (queue, queued) = WorkQueue::new();
    shared.cache = cache.clone();
    let watches = tokio::spawn(watch(
        shared.context.clone(),
        cache,
        queue,
        Arc::clone(&shared.limiter),
        Arc::clone(&shared.expectations),
    ));
    (queued, AbortOnDropHandle::new(watches))
}

/// Has the controllers look at an object.
pub(super) async fn look_at(api: &FakeApi, shared: &Shared, kind: &str, key: &str) {
    let object = api.lock().get(kind, key).unwrap();
    super::look_at(kind, object, shared).await.unwrap();
}

impl Stage {
    /// All watches run, and one run has the only place.
    async fn open() -> Self {
        let api = FakeApi::default();
        let mut shared = shared(&api, Script::plain(Offers::Changes));
        let being_deleted =
            |mark: &str| json!({"deletionTimestamp": "2026-11-21T00:00:00Z", "annotations": {mark: "yes"}});
        let snapshot = json!({
            "metadata": being_deleted(annotations::SNAPSHOT_BEING_DELETED),
            "spec": {"source": {"snapshotHandle": "admin/custom-isci-provisioner/snapshot-v1"}},
        });
        let group = json!({
            "metadata": being_deleted(annotations::GROUP_BEING_DELETED),
            "spec": {"source": {"groupSnapshotHandles": {
                "volumeGroupSnapshotHandle": "group:admin/custom-isci-provisioner/groupsnapshot-v1",
                "volumeSnapshotHandles": ["admin/custom-isci-provisioner/groupsnapshot-v1.pvc-u1"]}}},
        });
        {
            let mut state = api.lock();
            state.put("classes", json!(class(&json!({}))));
            state.put("claims", claim("first"));
            state.put("claims", claim("second"));
            state.put("volumes", released());
            state.put("contents", content(&snapshot));
            let mut group = group_content(&group);
            group["metadata"]["uid"] = json!("s2");
            state.put("groups", group);
        }
        let (_, watches) = watched(&mut shared).await;
        let stage = Self {
            api,
            shared,
            _watches: watches,
        };
        stage
            .until("everything is known", || {
                let cache = &stage.shared.cache;
                cache.snapshots.content("snapcontent-s1").is_some()
                    && cache.groups.content("groupsnapcontent-g1").is_some()
            })
            .await;
        stage.ask("claims", "default/first").await;
        stage
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LIMIT, "it did not happen: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Has the controllers look at an object, which asks for a place.
    async fn ask(&self, kind: &str, key: &str) {
        look_at(&self.api, &self.shared, kind, key).await;
    }

    /// An object waits for a place, and is taken away.
    async fn wait_and_vanish(&self, kind: &'static str, key: &str) {
        let limiter = &self.shared.limiter;
        self.ask(kind, key).await;
        assert_eq!(limiter.next().len(), 1, "{kind}: it does not wait");
        self.api.lock().take_away(kind, key);
        self.until(&format!("{kind}: it leaves the queue"), || limiter.next().is_empty())
            .await;
    }
}

async fn vanish(kind: &'static str, key: &str) {
    for missed in [false, true] {
        let stage = Stage::open().await;
        stage.api.lock().watches_expire = missed;
        stage.wait_and_vanish(kind, key).await;
    }
}

#[tokio::test]
async fn a_claim_that_is_gone_waits_for_no_place() {
    vanish("claims", "default/second").await;
}

#[tokio::test]
async fn a_volume_that_is_gone_waits_for_no_place() {
    vanish("volumes", "/pvc-u1").await;
}

#[tokio::test]
async fn a_snapshot_that_is_gone_waits_for_no_place() {
    vanish("contents", "/snapcontent-s1").await;
}

#[tokio::test]
async fn a_group_that_is_gone_waits_for_no_place() {
    vanish("groups", "/groupsnapcontent-g1").await;
}
