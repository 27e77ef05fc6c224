//! The watches before a real API server. Controllers look at what these have brought, and now and then before they have
//! brought all that they may.

use std::time::{Duration, Instant};

use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::super::fake_api::key_of;
use super::World;

/// Longest wait for the watches: the proxy drops them, and their clients wait before they begin again.
const LIMIT: Duration = Duration::from_mins(2);

const LOOK: Duration = Duration::from_millis(2);

/// One in so many looks does not wait for them, until everything is to come to rest.
const HASTE: u64 = 4;

impl World {
    /// The watches bring everything, but for what lags.
    pub(super) async fn watch(&mut self) {
        let Some(real) = self.theatre.api.real() else {
            self.theatre.watch();
            return;
        };
        self.theatre.shared.cache.ready().await;
        if !self.rests && real.draw(HASTE) == 0 {
            tokio::time::sleep(LOOK).await;
            return;
        }
        let begun = Instant::now();
        while let Some(late) = self.late() {
            assert!(begun.elapsed() < LIMIT, "the watches do not bring it: {late}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What the watches show of one object.
    pub(super) fn seen(&self, kind: &'static str, key: &str) -> Option<Value> {
        fn of<K: Resource<DynamicType = ()> + Clone + Serialize>(store: &Store<K>, key: &str) -> Option<Value> {
            let (namespace, name) = key.split_once('/').unwrap();
            let mut wanted = ObjectRef::new(name);
            wanted.namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
            Some(json!(*store.get(&wanted)?))
        }
        let cache = &self.theatre.shared.cache;
        match kind {
            _ if self.watched.is_none() => self.theatre.shown_object(kind, key),
            "claims" => of(&cache.claims, key),
            "volumes" => of(&cache.volumes, key),
            _ => of(&cache.snapshots.contents, key),
        }
    }

    /// What the watches have not brought yet.
    fn late(&self) -> Option<String> {
        let state = self.theatre.api.lock();
        let known = self.theatre.shared.cache.versions();
        let of = |kind: &str| {
            let version = |object: &Value| (key_of(object), object["metadata"]["resourceVersion"].clone());
            state.each(kind).map(version).collect()
        };
        let mut kinds = known
            .into_iter()
            .filter(|(kind, _)| !self.theatre.lagging.contains_key(kind));
        let late = kinds.find(|(kind, known)| *known != of(kind));
        late.map(|(kind, known)| format!("{kind}: {known:?}"))
    }
}
