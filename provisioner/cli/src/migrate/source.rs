//! The two ways by which the kubelet reaches a volume, and the same PersistentVolume by the other way.

use flex_provisioner::config::VolumeSourceKind;
use flex_provisioner::volume::persistent_volume::source_name;
use flex_provisioner::volume::topology;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, FlexPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mooring_contract::names::{CSI_DRIVER, FLEX_DRIVER, finalizers, labels};
use mooring_contract::volume::keys;

/// By which way the kubelet reaches a volume; none if it is not Mooring's.
pub fn of(volume: &PersistentVolume) -> Option<VolumeSourceKind> {
    let spec = volume.spec.as_ref()?;
    if spec.flex_volume.as_ref().is_some_and(|flex| flex.driver == FLEX_DRIVER) {
        return Some(VolumeSourceKind::FlexVolume);
    }
    let csi = spec.csi.as_ref().filter(|csi| csi.driver == CSI_DRIVER);
    csi.map(|_| VolumeSourceKind::Csi)
}

/// What is known of the Secret that a volume's mount needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSeen {
    Unneeded,
    Missing(String),
    There {
        /// `namespace/name`.
        name: String,
        /// Its type.
        kind: String,
        /// Whether all its values are UTF-8.
        is_text: bool,
    },
}

/// Why a volume stays as it is. No later run changes that by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmovable {
    #[error("its source is {0}, and not Mooring's")]
    Foreign(String),
    #[error("it is a raw block volume, and FlexVolume has none")]
    Raw,
    #[error("its access mode is ReadWriteOncePod, which the kubelet does not enforce for FlexVolume")]
    OnePod,
    #[error("it has a VolumeAttributesClass, which Kubernetes allows for CSI alone")]
    Attributes,
    #[error("its {0} has no place in a FlexVolume")]
    Secret(&'static str),
    /// A Secret that the kubelet would refuse.
    #[error("its Secret {name} has the type {kind:?}, and for FlexVolume it needs {FLEX_DRIVER:?}")]
    SecretType {
        /// `namespace/name`.
        name: String,
        /// Its type.
        kind: String,
    },
    /// A Secret that CSI can't carry.
    #[error("its Secret {0} has a value that is not UTF-8, which CSI can't carry")]
    SecretBytes(String),
    #[error("its Secret {0} does not exist: create it first")]
    NoSecret(String),
    #[error("no claim is bound to it: delete it, and create it with the other source")]
    Unbound,
    #[error("its claim is being deleted")]
    ClaimGoing,
    #[error("it is being deleted")]
    Going,
    #[error("its claim belongs to a Pod and is deleted with it")]
    OfPod,
}

/// The PersistentVolume to create: without the fields that the API server sets.
pub fn plain(volume: &PersistentVolume) -> PersistentVolume {
    let meta = &volume.metadata;
    let held = meta.finalizers.iter().flatten();
    let held: Vec<_> = held
        .filter(|name| *name != finalizers::PV_PROTECTION)
        .cloned()
        .collect();
    let mut spec = volume.spec.clone();
    if let Some(claim) = spec.as_mut().and_then(|spec| spec.claim_ref.as_mut()) {
        claim.resource_version = None;
    }
    PersistentVolume {
        metadata: ObjectMeta {
            name: meta.name.clone(),
            labels: meta.labels.clone(),
            annotations: meta.annotations.clone(),
            owner_references: meta.owner_references.clone(),
            finalizers: Some(held).filter(|held| !held.is_empty()),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// Whether a volume can be reached the other way.
pub fn check(
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
    secret: &SecretSeen,
    to: VolumeSourceKind,
) -> Result<(), Unmovable> {
    if let SecretSeen::Missing(name) = secret {
        return Err(Unmovable::NoSecret(name.clone()));
    }
    if to == VolumeSourceKind::Csi {
        return match secret {
            SecretSeen::There {
                name, is_text: false, ..
            } => Err(Unmovable::SecretBytes(name.clone())),
            _ => Ok(()),
        };
    }
    if let SecretSeen::There { name, kind, .. } = secret
        && kind != FLEX_DRIVER
    {
        return Err(Unmovable::SecretType {
            name: name.clone(),
            kind: kind.clone(),
        });
    }
    let Some(spec) = &volume.spec else { return Ok(()) };
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(Unmovable::Raw);
    }
    if spec
        .access_modes
        .iter()
        .flatten()
        .any(|mode| mode == "ReadWriteOncePod")
    {
        return Err(Unmovable::OnePod);
    }
    let asked = claim.and_then(|claim| claim.spec.as_ref()?.volume_attributes_class_name.as_deref());
    let has = spec.volume_attributes_class_name.as_deref();
    if [asked, has].into_iter().flatten().any(|name| !name.is_empty()) {
        return Err(Unmovable::Attributes);
    }
    let Some(csi) = &spec.csi else { return Ok(()) };
    let others = [
        ("nodeStageSecretRef", &csi.node_stage_secret_ref),
        ("nodeExpandSecretRef", &csi.node_expand_secret_ref),
        ("controllerPublishSecretRef", &csi.controller_publish_secret_ref),
        ("controllerExpandSecretRef", &csi.controller_expand_secret_ref),
    ];
    match others.into_iter().find(|(_, secret)| secret.is_some()) {
        Some((name, _)) => Err(Unmovable::Secret(name)),
        None => Ok(()),
    }
}

/// The same volume, reached the other way. What [`check`] refuses is lost in it.
pub fn through(volume: &PersistentVolume, to: VolumeSourceKind) -> Result<PersistentVolume, Unmovable> {
    let mut moved = plain(volume);
    let name = moved.metadata.name.clone().unwrap_or_default();
    let spec = moved.spec.get_or_insert_default();
    match (to, of(volume)) {
        (_, None) => return Err(Unmovable::Foreign(source_name(spec))),
        (VolumeSourceKind::Csi, Some(VolumeSourceKind::FlexVolume)) => {
            let flex = spec.flex_volume.take().unwrap_or_default();
            spec.csi = Some(CSIPersistentVolumeSource {
                driver: CSI_DRIVER.to_owned(),
                // As the controller has it, and a VolumeSnapshotContent's handle names it.
                volume_handle: name,
                volume_attributes: flex.options,
                fs_type: flex.fs_type,
                read_only: flex.read_only,
                node_publish_secret_ref: flex.secret_ref,
                ..CSIPersistentVolumeSource::default()
            });
        }
        (VolumeSourceKind::FlexVolume, Some(VolumeSourceKind::Csi)) => {
            let csi = spec.csi.take().unwrap_or_default();
            let mut options = csi.volume_attributes.unwrap_or_default();
            // The kubelet refuses a FlexVolume that has them beside its options.
            let beside = spec.mount_options.take().unwrap_or_default();
            let within = options.get(keys::MOUNT_OPTIONS).filter(|own| !own.is_empty()).cloned();
            let all: Vec<_> = within.into_iter().chain(beside).collect();
            if !all.is_empty() {
                options.insert(keys::MOUNT_OPTIONS.to_owned(), all.join(","));
            }
            spec.flex_volume = Some(FlexPersistentVolumeSource {
                driver: FLEX_DRIVER.to_owned(),
                options: Some(options),
                fs_type: csi.fs_type,
                read_only: csi.read_only,
                secret_ref: csi.node_publish_secret_ref,
            });
        }
        (VolumeSourceKind::Csi, Some(VolumeSourceKind::Csi))
        | (VolumeSourceKind::FlexVolume, Some(VolumeSourceKind::FlexVolume)) => return Ok(moved),
    }
    move_affinity(spec, to);
    Ok(moved)
}

/// Has Mooring's own terms of the node affinity ask of a node what this source needs there.
fn move_affinity(spec: &mut PersistentVolumeSpec, to: VolumeSourceKind) {
    let by_flex_volume = topology::by_flex_volume();
    let required = spec
        .node_affinity
        .iter_mut()
        .filter_map(|affinity| affinity.required.as_mut());
    let terms = required.flat_map(|required| &mut required.node_selector_terms);
    for wanted in terms.filter_map(|term| term.match_expressions.as_mut()) {
        wanted.retain(|wanted| *wanted != by_flex_volume);
        let is_ours = wanted.iter().any(|wanted| wanted.key == labels::NODE_MOUNTER);
        wanted.extend((is_ours && to == VolumeSourceKind::FlexVolume).then(|| by_flex_volume.clone()));
    }
}

#[cfg(test)]
mod tests {
    use flex_provisioner::config::VolumeSourceKind::{Csi, FlexVolume};
    use k8s_openapi::api::core::v1::PersistentVolume;
    use mooring_contract::names::FLEX_DRIVER;
    use serde_json::{Value, json};

    use super::{SecretSeen, Unmovable, check, of, plain, through};
    use crate::migrate::fixtures::{claim, volume};

    fn read(value: Value) -> PersistentVolume {
        serde_json::from_value(value).unwrap()
    }

    fn by_flex() -> Value {
        let mut value = volume();
        value["metadata"] = json!({
            "name": "pvc-u1", "uid": "v1", "resourceVersion": "9", "creationTimestamp": "2026-11-21T00:00:00Z",
            "deletionTimestamp": "2026-11-22T00:00:00Z", "annotations": {"mooring.dev/config": "a/b"},
            "labels": {"a": "b"}, "finalizers": ["kubernetes.io/pv-protection", "mooring.dev/volume"],
        });
        value["spec"]["claimRef"]["resourceVersion"] = json!("7");
        value["spec"]["flexVolume"]["secretRef"] = json!({"name": "s", "namespace": "n"});
        value["spec"]["flexVolume"]["fsType"] = json!("xfs");
        value["spec"]["flexVolume"]["options"]["mount-options"] = json!("noatime");
        value["status"] = json!({"phase": "Bound"});
        value
    }

    #[test]
    fn a_volume_keeps_all_but_its_source_and_comes_back_as_it_was() {
        let flex = read(by_flex());
        let csi = through(&flex, Csi).unwrap();
        assert_eq!((of(&flex), of(&csi)), (Some(FlexVolume), Some(Csi)));
        let seen = json!(csi);
        assert_eq!(
            seen["metadata"],
            json!({
                "name": "pvc-u1", "annotations": {"mooring.dev/config": "a/b"}, "labels": {"a": "b"},
                "finalizers": ["mooring.dev/volume"],
            })
        );
        assert_eq!(
            seen["spec"]["csi"],
            json!({
                "driver": "vcs.mooring.dev", "volumeHandle": "pvc-u1", "fsType": "xfs",
                "nodePublishSecretRef": {"name": "s", "namespace": "n"},
                "volumeAttributes": {"client": "nfs", "source": "h:/x", "mount-options": "noatime"},
            })
        );
        for field in [
            "accessModes",
            "capacity",
            "persistentVolumeReclaimPolicy",
            "storageClassName",
        ] {
            assert_eq!(seen["spec"][field], by_flex()["spec"][field], "{field}");
        }
        assert_eq!(seen["spec"]["claimRef"]["uid"], "u1");
        assert!(seen["spec"]["claimRef"]["resourceVersion"].is_null() && seen["spec"]["flexVolume"].is_null());
        assert_eq!(through(&csi, FlexVolume).unwrap(), plain(&flex));
        assert_eq!(through(&flex, FlexVolume).unwrap(), plain(&flex));
    }

    #[test]
    fn only_by_flexvolume_does_a_volume_need_a_node_with_a_plugin_directory() {
        let is_not = |key: &str| json!({"key": key, "operator": "NotIn", "values": ["not-ready"]});
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]});
        let any = [is_not("mooring.dev/mounter"), is_not("client.mooring.dev/nfs")];
        let affinity = |all: &[Value]| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": all}]}});
        let mut value = by_flex();
        let by_csi = [std::slice::from_ref(&here), &any].concat();
        let by_both = [&by_csi[..], &[is_not("client.mooring.dev/FlexVolume")]].concat();
        value["spec"]["nodeAffinity"] = affinity(&by_both);
        let flex = read(value);
        let csi = through(&flex, Csi).unwrap();
        assert_eq!(json!(csi)["spec"]["nodeAffinity"], affinity(&by_csi));
        assert_eq!(through(&csi, FlexVolume).unwrap(), plain(&flex));
        // An image's own stays as it is.
        let mut own = json!(csi);
        own["spec"]["nodeAffinity"] = affinity(std::slice::from_ref(&here));
        let moved = through(&read(own), FlexVolume).unwrap();
        assert_eq!(json!(moved)["spec"]["nodeAffinity"], affinity(&[here]));
    }

    #[test]
    fn mount_options_move_to_where_the_kubelet_takes_them() {
        let mut csi = json!(through(&read(by_flex()), Csi).unwrap());
        csi["spec"]["mountOptions"] = json!(["nodiratime", "sync"]);
        let flex = json!(through(&read(csi), FlexVolume).unwrap());
        assert!(flex["spec"]["mountOptions"].is_null());
        assert_eq!(
            flex["spec"]["flexVolume"]["options"]["mount-options"],
            "noatime,nodiratime,sync"
        );
    }

    #[test]
    fn what_flexvolume_lacks_stays_with_the_reason() {
        let there = |kind: &str, is_text| SecretSeen::There {
            name: "n/s".into(),
            kind: kind.into(),
            is_text,
        };
        let csi = || json!(through(&read(by_flex()), Csi).unwrap());
        let judged = |change: &dyn Fn(&mut Value), secret: &SecretSeen, to| {
            let mut value = csi();
            change(&mut value);
            check(&read(value), Some(&claim()), secret, to)
        };
        let none = SecretSeen::Unneeded;
        assert_eq!(judged(&|_| {}, &none, FlexVolume), Ok(()));
        assert_eq!(
            judged(&|pv| pv["spec"]["volumeMode"] = json!("Block"), &none, FlexVolume),
            Err(Unmovable::Raw)
        );
        let one = |pv: &mut Value| pv["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
        assert_eq!(judged(&one, &none, FlexVolume), Err(Unmovable::OnePod));
        assert_eq!(judged(&one, &none, Csi), Ok(()));
        let class = |pv: &mut Value| pv["spec"]["volumeAttributesClassName"] = json!("gold");
        assert_eq!(judged(&class, &none, FlexVolume), Err(Unmovable::Attributes));
        let staged = |pv: &mut Value| pv["spec"]["csi"]["nodeStageSecretRef"] = json!({"name": "x"});
        assert_eq!(
            judged(&staged, &none, FlexVolume),
            Err(Unmovable::Secret("nodeStageSecretRef"))
        );
        assert_eq!(judged(&|_| {}, &there(FLEX_DRIVER, false), FlexVolume), Ok(()));
        assert!(judged(&|_| {}, &there("Opaque", true), FlexVolume).is_err());
        assert_eq!(judged(&|_| {}, &there("Opaque", true), Csi), Ok(()));
        assert!(judged(&|_| {}, &there(FLEX_DRIVER, false), Csi).is_err());
        assert!(judged(&|_| {}, &SecretSeen::Missing("n/s".into()), Csi).is_err());
        let foreign = read(json!({"metadata": {"name": "x"}, "spec": {"nfs": {"server": "h", "path": "/"}}}));
        assert_eq!(through(&foreign, Csi), Err(Unmovable::Foreign("nfs".into())));
    }
}
