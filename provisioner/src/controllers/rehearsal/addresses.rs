//! The kinds that the fake API has, their paths at an API server, and the statuses that both answer.

use http::StatusCode;
use serde_json::{Value, json};

/// What a kind of object is called here.
pub(super) type Kind = &'static str;

/// The `apiVersion` and the `kind` of those kinds that a model has.
pub(super) fn type_of(kind: Kind) -> (&'static str, &'static str) {
    const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1";
    match kind {
        "claims" => ("v1", "PersistentVolumeClaim"),
        "volumes" => ("v1", "PersistentVolume"),
        "pods" => ("v1", "Pod"),
        "secrets" => ("v1", "Secret"),
        "contents" => (SNAPSHOTS, "VolumeSnapshotContent"),
        "snapshots" => (SNAPSHOTS, "VolumeSnapshot"),
        "snapshotclasses" => (SNAPSHOTS, "VolumeSnapshotClass"),
        "attributes" => ("storage.k8s.io/v1", "VolumeAttributesClass"),
        "classes" => ("storage.k8s.io/v1", "StorageClass"),
        other => panic!("no model has {other}"),
    }
}

/// The path of an object, or of all of its kind for `/`.
pub(super) fn path_of(kind: Kind, key: &str) -> String {
    let (api_version, name) = type_of(kind);
    let root = if api_version == "v1" { "api" } else { "apis" };
    let plural = match name {
        "VolumeSnapshotClass" | "VolumeAttributesClass" | "StorageClass" => format!("{name}es"),
        _ => format!("{name}s"),
    };
    let (namespace, name) = key.split_once('/').unwrap();
    let namespace = if namespace.is_empty() {
        String::new()
    } else {
        format!("namespaces/{namespace}/")
    };
    let path = format!("/{root}/{api_version}/{namespace}{}/{name}", plural.to_lowercase());
    path.trim_end_matches('/').to_owned()
}

/// What a path is about.
pub(super) struct Addressed<'a> {
    /// Empty for the core group.
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    /// What Kubernetes calls the kind.
    pub(super) resource: &'a str,
    /// Empty for objects without one.
    pub(super) namespace: &'a str,
    pub(super) kind: Kind,
    /// None for all objects of the kind.
    pub(super) name: Option<&'a str>,
    pub(super) by_status: bool,
}

pub(super) fn addressed(path: &str) -> Option<Addressed<'_>> {
    let (group, path) = match path.strip_prefix("/api/") {
        Some(path) => ("", path),
        None => path.strip_prefix("/apis/")?.split_once('/')?,
    };
    let (version, path) = path.split_once('/')?;
    let mut parts: Vec<&str> = path.split('/').collect();
    let by_status = [3, 5].contains(&parts.len()) && parts.last() == Some(&"status");
    if by_status {
        parts.pop();
    }
    let (namespace, resource, name) = match parts[..] {
        ["namespaces", namespace, resource, name] => (namespace, resource, Some(name)),
        ["namespaces", namespace, resource] => (namespace, resource, None),
        [resource, name] => ("", resource, Some(name)),
        [resource] => ("", resource, None),
        _ => return None,
    };
    let kind = match resource {
        "persistentvolumeclaims" => "claims",
        "persistentvolumes" => "volumes",
        "pods" => "pods",
        "nodes" => "nodes",
        "secrets" => "secrets",
        "configmaps" => "configmaps",
        "volumesnapshotcontents" => "contents",
        "volumesnapshots" => "snapshots",
        "volumesnapshotclasses" => "snapshotclasses",
        "volumegroupsnapshotclasses" => "groupclasses",
        "volumeattributesclasses" => "attributes",
        "volumegroupsnapshotcontents" => "groups",
        "storageclasses" => "classes",
        "referencegrants" => "grants",
        "csistoragecapacities" => "capacities",
        _ => return None,
    };
    Some(Addressed {
        group,
        version,
        resource,
        namespace,
        kind,
        name,
        by_status,
    })
}

pub(super) fn status(code: StatusCode, message: &str) -> (StatusCode, Value) {
    let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { "" };
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
                      "reason": reason, "code": code.as_u16()});
    (code, body)
}
