//! The objects in the API server that a cluster holds: volumes, snapshots, classes, rights, policies, what is in
//! Mooring's namespaces, what Mooring holds by a finalizer, and what it notes on nodes.

use anyhow::{Context, Result};
use mooring_contract::names::{NAMESPACE, annotations, finalizers, labels, parameters};
use mooring_testbed::binaries::Release;
use mooring_testbed::cluster::Cluster;
use mooring_testbed::command::output;
use serde_json::Value;

use super::super::names::{CONFIG_NAMESPACE, TESTS_LABEL};
use super::picture::{Kind, Picture};

/// The place of objects.
const API: &str = "the API server";

/// Where the example `silver.yaml` has its ConfigMap.
const ADMIN_NAMESPACE: &str = "admin";

/// What every cluster serves.
const KINDS: &str = "pods,secrets,configmaps,persistentvolumeclaims,persistentvolumes,storageclasses,\
                     volumeattachments,csistoragecapacities,namespaces,nodes,clusterroles,clusterrolebindings,\
                     validatingadmissionpolicies,validatingadmissionpolicybindings";

/// What a cluster serves from the time when a test needs it: the API group, and its kinds.
const OPTIONAL: [(&str, &str); 2] = [
    (
        "snapshot.storage.k8s.io",
        "volumesnapshotcontents.snapshot.storage.k8s.io,volumesnapshotclasses.snapshot.storage.k8s.io",
    ),
    (
        "groupsnapshot.storage.k8s.io",
        "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io,\
         volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io",
    ),
];

/// What ends the domain of each name that Mooring gives.
const DOMAIN: &str = "mooring.dev";

/// Lists what can be compared, by two requests of kubectl's.
pub(super) fn list(cluster: &Cluster) -> Result<Vec<Value>> {
    let served = json_of(cluster, &["get", "--raw", "/apis"])?;
    let kinds = kinds(cluster.description.releases.control_plane, &served);
    let mut listed = json_of(cluster, &["get", &kinds, "--all-namespaces", "-o", "json"])?;
    match listed["items"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

fn json_of(cluster: &Cluster, args: &[&str]) -> Result<Value> {
    let args = ["--request-timeout=20s"].iter().chain(args);
    let said = output(&mut cluster.kubectl(args))?;
    serde_json::from_str(&said).context("kubectl printed no JSON")
}

/// The kinds to list, by the version of Kubernetes and the API groups that are served.
fn kinds(release: Release, served: &Value) -> String {
    let groups = served["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_served = |name: &str| groups.iter().any(|group| group["name"] == name);
    let optional = OPTIONAL.iter().filter(|(group, _)| is_served(group));
    let optional = optional.map(|(_, kinds)| kinds);
    let all = [KINDS].iter().chain(release.later_kinds()).chain(optional);
    all.copied().collect::<Vec<_>>().join(",")
}

/// Part of an object; empty if it is missing.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Adds what must not become more.
pub(super) fn add(objects: &[Value], picture: &mut Picture) {
    picture.look_at(Kind::Object, API);
    for object in objects {
        let name = name_of(object);
        if is_compared(object) && !has_config(object, objects) {
            let finalizers = if text(object, "/metadata/deletionTimestamp").is_empty() {
                String::new()
            } else {
                format!(
                    ", being deleted, with the finalizers {}",
                    object["metadata"]["finalizers"]
                )
            };
            picture.add(Kind::Object, API, format!("{name}{finalizers}"));
        }
        for finalizer in held_by(object) {
            picture.add(Kind::Object, API, format!("{name}, held by the finalizer {finalizer}"));
        }
        for note in notes(object) {
            picture.add(Kind::Object, API, format!("{name}, with the {note}"));
        }
    }
}

fn name_of(object: &Value) -> String {
    let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
    match text(object, "/metadata/namespace") {
        "" => format!("{kind} {name}"),
        namespace => format!("{kind} {namespace}/{name}"),
    }
}

/// Mooring's finalizers on an object that is not being deleted: each is there for an operation only. A PersistentVolume
/// has one of its own for as long as it lives.
fn held_by(object: &Value) -> impl Iterator<Item = &str> {
    let deleted = !text(object, "/metadata/deletionTimestamp").is_empty();
    let all = object["metadata"]["finalizers"].as_array().filter(|_| !deleted);
    all.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|finalizer| is_mooring_s(finalizer) && *finalizer != finalizers::VOLUME)
}

fn is_mooring_s(name: &str) -> bool {
    let domain = name.split('/').next().unwrap_or_default();
    let before = domain.strip_suffix(DOMAIN);
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Labels and annotations of Mooring's on a node.
fn notes(object: &Value) -> Vec<String> {
    if object["kind"] != "Node" {
        return Vec::new();
    }
    let mut notes = Vec::new();
    for (part, word) in [("labels", "label"), ("annotations", "annotation")] {
        for (key, value) in object["metadata"][part].as_object().into_iter().flatten() {
            if is_mooring_s(key) && !follows_node(key, value) {
                notes.push(format!("{word} {key}"));
            }
        }
    }
    notes
}

/// Whether it says how the node is: what it can mount and what its pool has left, which a mounter may not have written yet or changes while it
/// starts, and that no client Pod is of an earlier version.
fn follows_node(key: &str, value: &Value) -> bool {
    key.starts_with(labels::NODE_CLIENT_PREFIX)
        || [
            labels::NODE_MOUNTER,
            annotations::NODE_NOTES_ATTACHED,
            annotations::NODE_POOL,
        ]
        .contains(&key)
        || (key == labels::NODE_OLD_CLIENT_PODS && value == "0")
}

/// Whether it is the class of a ConfigMap that is there, or belongs to that. Several tests share the examples' ConfigMaps, which stay.
fn has_config(object: &Value, objects: &[Value]) -> bool {
    if text(object, "/kind") == "CSIStorageCapacity" {
        let class = text(object, "/storageClassName");
        let is_its = |other: &&Value| other["kind"] == "StorageClass" && text(other, "/metadata/name") == class;
        return objects
            .iter()
            .find(is_its)
            .is_some_and(|class| has_config(class, objects));
    }
    let found = match text(object, "/kind") {
        "StorageClass" => {
            let parameter = |name: &str| object["parameters"][name].as_str();
            parameter(parameters::CONFIG_NAMESPACE).zip(parameter(parameters::CONFIG_NAME))
        }
        "VolumeSnapshotClass" => object["metadata"]["annotations"][annotations::CONFIG]
            .as_str()
            .and_then(|config| config.split_once('/')),
        _ => None,
    };
    let Some((namespace, name)) = found else {
        return false;
    };
    objects.iter().any(|other| {
        other["kind"] == "ConfigMap"
            && text(other, "/metadata/namespace") == namespace
            && text(other, "/metadata/name") == name
    })
}

fn is_compared(object: &Value) -> bool {
    let deleted = !text(object, "/metadata/deletionTimestamp").is_empty();
    let in_ours = [NAMESPACE, CONFIG_NAMESPACE, ADMIN_NAMESPACE].contains(&text(object, "/metadata/namespace"));
    match text(object, "/kind") {
        // A Pod of a DaemonSet or Deployment is replaced, at its controller's pace.
        "Pod" => {
            in_ours
                && !matches!(
                    text(object, "/metadata/ownerReferences/0/kind"),
                    "DaemonSet" | "ReplicaSet"
                )
        }
        "Secret" | "PersistentVolumeClaim" => in_ours,
        "StorageClass"
        | "CSIStorageCapacity"
        | "VolumeAttributesClass"
        | "VolumeAttachment"
        | "VolumeSnapshotContent"
        | "VolumeSnapshotClass"
        | "VolumeGroupSnapshotContent"
        | "VolumeGroupSnapshotClass"
        | "ClusterRole"
        | "ClusterRoleBinding"
        | "ValidatingAdmissionPolicy"
        | "ValidatingAdmissionPolicyBinding"
        | "MutatingAdmissionPolicy"
        | "MutatingAdmissionPolicyBinding" => true,
        // Another installation of Mooring may add a ConfigMap; one that can't be deleted is a leak.
        "ConfigMap" => in_ours && deleted,
        // A retained volume stays on purpose.
        "PersistentVolume" => deleted || text(object, "/spec/persistentVolumeReclaimPolicy") != "Retain",
        "Namespace" => object["metadata"]["labels"].get(TESTS_LABEL).is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::picture::Picture;
    use super::{Release, add, has_config, is_compared, kinds};

    fn leaks(before: &[Value], after: &[Value]) -> Vec<String> {
        let picture = |objects: &[Value]| {
            let mut picture = Picture::default();
            add(objects, &mut picture);
            picture
        };
        picture(after).more_than(&picture(before))
    }

    #[test]
    fn a_class_whose_configmap_is_there_is_not_left_over() {
        let config = json!({"kind": "ConfigMap", "metadata": {"namespace": "mooring", "name": "local"}});
        let class = |parameters| json!({"kind": "StorageClass", "metadata": {"name": "x"}, "parameters": parameters});
        let named = |name: &str| json!({"mooring.dev/config-namespace": "mooring", "mooring.dev/config-name": name});
        let all = [config];
        assert!(has_config(&class(named("local")), &all));
        assert!(!has_config(&class(named("gone")), &all));
        assert!(!has_config(&class(json!({})), &all));
        let of_snapshots = |config: &str| {
            let annotations = json!({"mooring.dev/config": config});
            json!({"kind": "VolumeSnapshotClass", "metadata": {"name": "x", "annotations": annotations}})
        };
        assert!(has_config(&of_snapshots("mooring/local"), &all));
        assert!(!has_config(&of_snapshots("mooring/gone"), &all));
        assert!(!has_config(&all[0], &all));
    }

    #[test]
    fn objects_that_come_and_go_by_themselves_are_left_out() {
        let object =
            |kind: &str, namespace: &str| json!({"kind": kind, "metadata": {"name": "x", "namespace": namespace}});
        assert!(is_compared(&object("Pod", "mooring")));
        assert!(is_compared(&object("Secret", "mooring-e2e")));
        assert!(!is_compared(&object("Secret", "kube-system")));
        assert!(is_compared(&object("StorageClass", "")));
        assert!(!is_compared(&object("PersistentVolumeClaim", "of-a-test")));
        assert!(!is_compared(&object("Namespace", "")));
        let mut pod = object("Pod", "mooring");
        pod["metadata"]["ownerReferences"] = json!([{"kind": "DaemonSet"}]);
        assert!(!is_compared(&pod));
        // As in a client Pod.
        pod["metadata"]["ownerReferences"] = json!([{"kind": "ServiceAccount"}]);
        assert!(is_compared(&pod));
        let mut config = object("ConfigMap", "mooring-e2e");
        assert!(!is_compared(&config));
        config["metadata"]["deletionTimestamp"] = "now".into();
        assert!(is_compared(&config));
        let mut volume = json!({"kind": "PersistentVolume", "spec": {"persistentVolumeReclaimPolicy": "Retain"}});
        assert!(!is_compared(&volume));
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Delete".into();
        assert!(is_compared(&volume));
    }

    #[test]
    fn each_kind_of_object_that_is_left_is_a_leak() {
        for kind in [
            "CSIStorageCapacity",
            "VolumeSnapshotContent",
            "VolumeSnapshotClass",
            "VolumeGroupSnapshotContent",
            "VolumeGroupSnapshotClass",
            "VolumeAttributesClass",
            "ClusterRole",
            "ClusterRoleBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
        ] {
            let object = |name: &str| json!({"kind": kind, "metadata": {"name": name}});
            let was_there = [object("old")];
            assert!(leaks(&was_there, &was_there).is_empty());
            assert_eq!(
                leaks(&was_there, &[object("old"), object("new")]),
                [format!("the API server: object {kind} new")]
            );
        }
    }

    #[test]
    fn a_note_of_mooring_s_that_stays_on_a_node_is_a_leak_and_what_it_says_of_the_node_is_none() {
        let node = |labels: Value, annotations: Value| {
            let metadata = json!({"name": "node-1", "labels": labels, "annotations": annotations});
            [json!({"kind": "Node", "metadata": metadata})]
        };
        let before = node(json!({"kubernetes.io/hostname": "node-1"}), json!({}));
        let usual = json!({
            "client.mooring.dev/nfs": "not-ready", "mooring.dev/mounter": "ready", "mooring.dev/old-client-pods": "0",
            "example.com/notmooring.dev": "x", "notmooring.dev/x": "x",
        });
        let ready = json!({"client.mooring.dev/nfs": "no", "attached.mooring.dev/noted-by-mounter": "yes", "mooring.dev/pool": "{}"});
        assert!(leaks(&before, &node(usual, ready)).is_empty());
        let prefix = "the API server: object Node node-1, with the";
        assert_eq!(
            leaks(
                &before,
                &node(
                    json!({"mooring.dev/old-client-pods": "1"}),
                    json!({"attached.mooring.dev/pvc-1": "{}"})
                )
            ),
            [
                format!("{prefix} annotation attached.mooring.dev/pvc-1"),
                format!("{prefix} label mooring.dev/old-client-pods"),
            ]
        );
    }

    #[test]
    fn a_finalizer_of_mooring_s_that_outlives_its_operation_is_a_leak() {
        let held = |finalizers: Value| {
            [
                json!({
                    "kind": "PersistentVolume", "metadata": {"name": "pvc-1", "finalizers": finalizers},
                    "spec": {"persistentVolumeReclaimPolicy": "Retain"},
                }),
                json!({
                    "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "admin", "finalizers": finalizers},
                }),
            ]
        };
        let before = held(json!([]));
        let at_rest = json!(["kubernetes.io/pv-protection", "mooring.dev/volume", "notmooring.dev/x"]);
        assert!(leaks(&before, &held(at_rest)).is_empty());
        let words = "held by the finalizer mooring.dev/provisioning";
        assert_eq!(
            leaks(&before, &held(json!(["mooring.dev/provisioning"]))),
            [
                format!("the API server: object ConfigMap admin/c, {words}"),
                format!("the API server: object PersistentVolume pvc-1, {words}"),
            ]
        );
    }

    #[test]
    fn snapshots_are_listed_where_the_cluster_serves_them() {
        let served = |groups: &[&str]| {
            let groups: Vec<_> = groups.iter().map(|name| json!({"name": name})).collect();
            kinds(Release::Newest, &json!({"groups": groups}))
        };
        assert!(!served(&["apps"]).contains("snapshot"));
        assert!(served(&["apps"]).contains("mutating") && !kinds(Release::Oldest, &json!({})).contains("mutating"));
        let one = served(&["apps", "snapshot.storage.k8s.io"]);
        assert!(one.contains("volumesnapshotcontents") && !one.contains("volumegroup"));
        let both = served(&["groupsnapshot.storage.k8s.io", "snapshot.storage.k8s.io"]);
        assert!(both.contains(",volumegroupsnapshotcontents.") && both.contains(",volumesnapshotclasses."));
    }
}
