//! What a watch has seen: the part that matters of each object that matters.

use std::collections::BTreeMap;

use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

/// Key of an object: namespace (empty for a cluster's own) and name.
pub type Key = (String, String);

/// The objects of one watch, reduced to `V`.
#[derive(Debug, Default)]
pub struct Mirror<V> {
    synced: bool,
    known: BTreeMap<Key, V>,
    coming: BTreeMap<Key, V>,
}

impl<V> Mirror<V> {
    /// Takes an event in; `pick` is what to remember of an object, if anything. A new list replaces what is known only
    /// when it is complete.
    pub fn take<K: Resource>(&mut self, event: Event<K>, pick: impl Fn(K) -> Option<V>) {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            Event::Init => self.coming.clear(),
            Event::InitApply(object) => {
                let key = key(&object);
                if let Some(value) = pick(object) {
                    self.coming.insert(key, value);
                }
            }
            Event::InitDone => {
                self.known = std::mem::take(&mut self.coming);
                self.synced = true;
            }
            Event::Apply(object) => {
                let key = key(&object);
                match pick(object) {
                    Some(value) => self.known.insert(key, value),
                    None => self.known.remove(&key),
                };
            }
            Event::Delete(object) => {
                self.known.remove(&key(&object));
            }
        }
    }

    /// Whether the first list is complete: before that, what is not known may be there all the same.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.known.values()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use kube::runtime::watcher::Event;

    use super::Mirror;

    fn object(name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.into());
        object
    }

    #[test]
    fn a_list_counts_when_it_is_complete_and_changes_at_once() {
        let mut mirror = Mirror::default();
        let mut take = |event| {
            mirror.take(event, |object: ConfigMap| {
                Some(object.name_any()).filter(|name| name != "other")
            });
            (
                mirror.is_synced(),
                mirror.values().cloned().collect::<Vec<_>>().join(","),
            )
        };
        for (event, synced, known) in [
            (Event::Init, false, ""),
            (Event::InitApply(object("a")), false, ""),
            (Event::InitApply(object("other")), false, ""),
            (Event::InitDone, true, "a"),
            (Event::Apply(object("b")), true, "a,b"),
            (Event::Apply(object("other")), true, "a,b"),
            (Event::Delete(object("a")), true, "b"),
            (Event::Init, true, "b"),
            (Event::InitApply(object("c")), true, "b"),
            (Event::InitDone, true, "c"),
        ] {
            assert_eq!(take(event), (synced, known.to_owned()));
        }
    }
}
