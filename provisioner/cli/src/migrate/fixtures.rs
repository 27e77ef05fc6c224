//! A claim and its PersistentVolume, for the tests.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

pub(super) fn claim() -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "u1", "resourceVersion": "7"},
        "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                 "resources": {"requests": {"storage": "1Gi"}}},
    }))
    .unwrap()
}

pub(super) fn volume() -> Value {
    json!({
        "metadata": {"name": "pvc-u1", "resourceVersion": "9", "uid": "v1"},
        "spec": {
            "storageClassName": "silver", "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": "u1"},
            "flexVolume": {"driver": "mooring.dev/vcs", "options": {"client": "nfs", "source": "h:/x"}},
        },
    })
}
