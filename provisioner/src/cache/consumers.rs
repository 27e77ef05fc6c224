//! Which nodes have Pods that use a claim. Known only while a ConfigMap has volumes attached. It keeps no more of each
//! Pod than its uid, when it was made, its node and its claims: a cluster has many Pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

/// The Pods that use claims. A clone is another handle on the same.
#[derive(Debug, Clone, Default)]
pub struct Consumers(Arc<RwLock<State>>);

#[derive(Debug, Default)]
struct State {
    listed: bool,
    /// The Pods that are being listed.
    coming: Option<Box<State>>,
    /// Pods by claim, `namespace/name`.
    by_claim: BTreeMap<String, BTreeSet<Consumer>>,
    /// The claims of each Pod, by its uid.
    claims: BTreeMap<String, Vec<String>>,
}

/// A Pod that uses a claim, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Consumer {
    made: Option<Timestamp>,
    uid: String,
    node: Arc<str>,
}

/// The node that a Pod is on, unless it has ended there.
pub fn node_of(pod: &Pod) -> Option<&str> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let node = pod.spec.as_ref()?.node_name.as_deref();
    node.filter(|node| !node.is_empty() && !matches!(phase, Some("Succeeded" | "Failed")))
}

/// Names of the claims that a Pod uses.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        // `VolumeClaimName` in Kubernetes' `component-helpers/storage/ephemeral`.
        (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
        (None, None) => None,
    })
}

/// What a Pod uses, if it counts: it is on a node, and has not ended there.
fn used(pod: &Pod) -> Option<(Consumer, Vec<String>)> {
    let node = node_of(pod)?;
    let namespace = pod.namespace().unwrap_or_default();
    let claims: Vec<_> = claims_of(pod).map(|claim| format!("{namespace}/{claim}")).collect();
    let consumer = Consumer {
        made: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        uid: pod.uid().unwrap_or_default(),
        node: node.into(),
    };
    (!claims.is_empty()).then_some((consumer, claims))
}

impl State {
    /// Forgets a Pod; the claims that it had.
    fn remove(&mut self, uid: &str) -> Vec<String> {
        let claims = self.claims.remove(uid).unwrap_or_default();
        for claim in &claims {
            if let Some(pods) = self.by_claim.get_mut(claim) {
                pods.retain(|pod| pod.uid != uid);
                if pods.is_empty() {
                    self.by_claim.remove(claim);
                }
            }
        }
        claims
    }

    /// Keeps what a Pod uses; the claims for which that is news.
    fn put(&mut self, pod: &Pod) -> Vec<String> {
        let uid = pod.uid().unwrap_or_default();
        let Some((consumer, claims)) = used(pod) else {
            return self.remove(&uid);
        };
        if self.claims.contains_key(&uid) {
            // Neither its node nor its claims ever change.
            return Vec::new();
        }
        for claim in &claims {
            self.by_claim.entry(claim.clone()).or_default().insert(consumer.clone());
        }
        self.claims.insert(uid, claims.clone());
        claims
    }
}

impl Consumers {
    /// The nodes with Pods that use a claim, the one whose Pod was made first at the front. `None` if that is not
    /// known.
    pub fn nodes(&self, namespace: &str, claim: &str) -> Option<Vec<String>> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if !state.listed {
            return None;
        }
        let mut nodes: Vec<String> = Vec::new();
        for pod in state
            .by_claim
            .get(&format!("{namespace}/{claim}"))
            .into_iter()
            .flatten()
        {
            if nodes.iter().all(|node| **node != *pod.node) {
                nodes.push(pod.node.to_string());
            }
        }
        Some(nodes)
    }

    /// Whether a Pod is known that uses this claim.
    pub(super) fn has(&self, namespace: &str, claim: &str) -> bool {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        state.by_claim.contains_key(&format!("{namespace}/{claim}"))
    }

    /// Whether anything is known.
    pub(super) fn is_listed(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).listed
    }

    /// Knows just these Pods, as if they had been listed.
    #[cfg(test)]
    pub(crate) fn know(&self, pods: &[Pod]) {
        self.change(|state| {
            *state = State::default();
            state.listed = true;
            for pod in pods {
                state.put(pod);
            }
        });
    }

    pub(super) fn clear(&self) {
        self.change(|state| *state = State::default());
    }

    /// Takes an event in; the claims for which it is news. A new list replaces what is known only when it is complete.
    pub(super) fn take(&self, event: Event<Pod>) -> Vec<String> {
        self.change(|state| {
            match event {
                Event::Apply(pod) => return state.put(&pod),
                Event::Delete(pod) => return state.remove(&pod.uid().unwrap_or_default()),
                Event::Init => state.coming = Some(Box::default()),
                Event::InitApply(pod) => {
                    state.coming.get_or_insert_default().put(&pod);
                }
                Event::InitDone => {
                    *state = *state.coming.take().unwrap_or_default();
                    state.listed = true;
                }
            }
            Vec::new()
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::{Consumers, State};
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn pod(uid: &str, made: &str, node: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": uid, "creationTimestamp": made},
            "spec": {"nodeName": node, "containers": [], "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "scratch", "ephemeral": {}},
                {"name": "tmp", "emptyDir": {}}]},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn nodes_are_known_by_the_age_of_their_pods() {
        let consumers = Consumers::default();
        assert_eq!(consumers.nodes("shop", "data"), None);
        let early = pod("u2", "2026-11-21T00:00:01Z", "b", "Running");
        let late = pod("u1", "2026-11-21T00:00:02Z", "a", "Pending");
        let news = consumers.change(|state| {
            state.listed = true;
            [state.put(&late), state.put(&early), state.put(&early)]
        });
        let both = vec!["shop/data".to_owned(), "shop/web-scratch".to_owned()];
        assert_eq!(news, [both.clone(), both.clone(), vec![]]);
        assert_eq!(consumers.nodes("shop", "data").unwrap(), ["b", "a"]);
        assert_eq!(consumers.nodes("shop", "web-scratch").unwrap(), ["b", "a"]);
        // One that has ended does not use it any more, whether it is deleted or not.
        let ended = pod("u2", "2026-11-21T00:00:01Z", "b", "Succeeded");
        assert_eq!(consumers.change(|state| state.put(&ended)), both);
        assert_eq!(consumers.nodes("shop", "data").unwrap(), ["a"]);
        assert_eq!(consumers.change(|state| state.remove("u1")), both);
        assert_eq!(consumers.nodes("shop", "data").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_pod_without_a_node_or_a_claim_is_not_kept() {
        let mut state = State::default();
        assert!(state.put(&pod("u1", "2026-11-21T00:00:01Z", "", "Pending")).is_empty());
        let mut without = pod("u1", "2026-11-21T00:00:01Z", "a", "Pending");
        without.spec.as_mut().unwrap().volumes = None;
        assert!(state.put(&without).is_empty());
        assert!(state.claims.is_empty() && state.by_claim.is_empty());
    }
}
