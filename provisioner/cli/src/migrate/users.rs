//! Which Pods have a claim's volume mounted, or may have.

use std::time::Duration;

use flex_provisioner::cache::consumers::{claims_of, node_of};
use k8s_openapi::api::core::v1::Pod;

/// A Pod that a kubelet may have mounted the volume for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    /// It is being deleted, and has at most this long to end.
    pub ending: Option<Duration>,
}

/// The Pod, if its kubelet may have a claim of this name mounted for it. The kubelet reads the PersistentVolume when
/// the Pod is on its node, and not after the Pod's end.
pub fn of(pod: &Pod, claim: &str) -> Option<User> {
    node_of(pod)?;
    claims_of(pod).find(|name| name == claim)?;
    let meta = &pod.metadata;
    let grace = meta.deletion_grace_period_seconds.unwrap_or_default();
    Some(User {
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        ending: meta
            .deletion_timestamp
            .as_ref()
            .map(|_| Duration::from_secs(grace.try_into().unwrap_or(0))),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::{User, of};

    fn seen(change: impl FnOnce(&mut Value)) -> Option<User> {
        let mut pod = json!({
            "metadata": {"name": "web", "uid": "p1"},
            "spec": {"nodeName": "node-a", "containers": [], "volumes": [
                {"name": "tmp", "emptyDir": {}}, {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "own", "ephemeral": {}}]},
            "status": {"phase": "Running"},
        });
        change(&mut pod);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(of(&pod, "other"), None);
        assert_eq!(of(&pod, "data").is_some(), of(&pod, "web-own").is_some());
        of(&pod, "data")
    }

    #[test]
    fn a_pod_uses_a_claim_from_its_node_s_choice_to_its_end() {
        assert!(seen(|_| {}).is_some_and(|user| user.ending.is_none()));
        let starting = seen(|pod| pod["status"]["phase"] = json!("Pending"));
        assert!(starting.is_some(), "it may be mounting");
        assert_eq!(
            seen(|pod| pod["spec"]["nodeName"] = Value::Null),
            None,
            "no kubelet knows it"
        );
        assert_eq!(seen(|pod| pod["status"]["phase"] = json!("Succeeded")), None);
        let ending = seen(|pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        });
        assert_eq!(ending.unwrap().ending, Some(Duration::from_secs(30)));
    }
}
