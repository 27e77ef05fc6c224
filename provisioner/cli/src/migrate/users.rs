//! Which Pods have a claim's volume mounted, or may have.

use std::time::Duration;

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
    let spec = pod.spec.as_ref()?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let on_a_node = spec.node_name.as_ref().is_some_and(|name| !name.is_empty());
    if !on_a_node || matches!(phase, Some("Succeeded" | "Failed")) || !claims(pod).any(|name| name == claim) {
        return None;
    }
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

/// Names of the claims that a Pod uses; a generic ephemeral volume's claim has the Pod's name in its own.
pub fn claims(pod: &Pod) -> impl Iterator<Item = String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(move |volume| {
        let named = volume
            .persistent_volume_claim
            .as_ref()
            .map(|claim| claim.claim_name.clone());
        named.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{name}-{}", volume.name)))
    })
}

#[cfg(test)]
mod tests {
    use super::{User, of};
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};
    use std::time::Duration;

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
