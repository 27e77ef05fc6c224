//! The request of a run: from the claim, or from what a PV remembers of it, with its class and the ConfigMap.

use kube::ResourceExt as _;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use mooring_contract::CONTRACT_VERSION;
use mooring_contract::attachment::is_for_many;
use mooring_contract::names::annotations;
use mooring_contract::operation::Operation;
use mooring_contract::request::{Request, gib_rounded_up};
use mooring_contract::volume::{keys, split_list};

use super::attributes;
use super::claim_error::ClaimError;
use super::describe::describe;
use super::observed::Surroundings;
use super::parameters::{check_fs_type, class_parameters, fs_type};
use crate::config::{ProvisionerConfig, VolumeSourceKind, values};
use crate::volume::acceptance::asked_bytes;
use crate::volume::persistent_volume;
use crate::volume::topology::{Node, allowed, of_labels};

/// The request of an operation that a claim asks for, which is there. `volume` has the options of the volume, if it has
/// one already.
pub fn for_claim(
    operation: Operation,
    claim: &PersistentVolumeClaim,
    node: Option<&Node>,
    volume: BTreeMap<String, String>,
    around: Surroundings<'_>,
) -> Result<Request, ClaimError> {
    let size = if describe(operation).makes_volume() {
        check_asked(claim, around.config)?;
        around.class.map_or(Ok(()), check_fs_type)?;
        asked_bytes(claim)?
    } else {
        // A claim whose size can't be read was never given a volume that had this size.
        asked_bytes(claim).unwrap_or(0)
    };
    let Surroundings { class, config, .. } = around;
    let meta = &claim.metadata;
    let spec = claim.spec.clone().unwrap_or_default();
    let annotation = |key: &str| claim.annotations().get(key).cloned();
    let uid = meta.uid.clone().unwrap_or_default();
    let mut parameters = config.pass_through.clone();
    let inodes = config.bytes_per_inode.clone();
    parameters.extend(inodes.map(|bytes| (keys::BYTES_PER_INODE.to_owned(), bytes)));
    parameters.extend(class.map(class_parameters).unwrap_or_default());
    if let Some(bytes) = parameters.get(keys::BYTES_PER_INODE) {
        values::bytes_per_inode(bytes).map_err(ClaimError::BytesPerInode)?;
    }
    Ok(Request {
        pv_name: persistent_volume::name_for(&uid),
        username: annotation(annotations::USERNAME).unwrap_or_default(),
        groups: split_list(&annotation(annotations::GROUPS).unwrap_or_default()),
        size,
        size_gi: gib_rounded_up(size),
        pvc_name: meta.name.clone().unwrap_or_default(),
        pvc_namespace: meta.namespace.clone().unwrap_or_default(),
        pvc_uid: uid,
        storage_class: spec.storage_class_name.unwrap_or_default(),
        access_modes: spec.access_modes.unwrap_or_default(),
        volume_mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()),
        fs_type: class.and_then(fs_type).unwrap_or_default(),
        mount_options: class.and_then(|class| class.mount_options.clone()).unwrap_or_default(),
        reclaim_policy: class
            .and_then(|class| class.reclaim_policy.clone())
            .unwrap_or_else(|| "Delete".to_owned()),
        node_name: node.map(|node| node.name.clone()).unwrap_or_default(),
        topology: node.map(|node| of_labels(&node.labels)).unwrap_or_default(),
        allowed_topologies: class.map(allowed).unwrap_or_default(),
        parameters,
        volume,
        attaches: config.offers(Operation::Attach),
        ..unremembered(operation, around)
    })
}

/// Why it is not known what made a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoHistory {
    #[error(
        "annotation {} of PersistentVolume {volume} can't be read or contradicts itself: restore it",
        annotations::REQUEST
    )]
    Unreadable { volume: String },
    /// An administrator gave a volume a second PV, such as one for another namespace.
    #[error(
        "PersistentVolume {volume} is a copy of PersistentVolume {original}, which has the volume: ask for this with the \
         claim of that one"
    )]
    Copy { volume: String, original: String },
}

/// What made a volume, as its PV remembers it. Whichever claim has the PV by now: what the storage knows of the volume
/// is the PV's name.
pub fn made_by(volume: &PersistentVolume) -> Result<Request, NoHistory> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let text = volume.annotations().get(annotations::REQUEST);
    let request: Option<Request> = text.and_then(|text| serde_json::from_str(text).ok());
    match request {
        Some(request) if persistent_volume::name_for(&request.pvc_uid) != request.pv_name => {
            Err(NoHistory::Unreadable { volume: name })
        }
        Some(request) if request.pv_name != name => Err(NoHistory::Copy {
            volume: name,
            original: request.pv_name,
        }),
        Some(request) => Ok(request),
        None => Err(NoHistory::Unreadable { volume: name }),
    }
}

/// The request as one of the claim that has the volume now, by which its run is found again. The volume may have been
/// made for another.
pub fn on_behalf_of(request: Request, claim: &PersistentVolumeClaim) -> Request {
    let meta = &claim.metadata;
    Request {
        pvc_name: meta.name.clone().unwrap_or_default(),
        pvc_namespace: meta.namespace.clone().unwrap_or_default(),
        pvc_uid: meta.uid.clone().unwrap_or_default(),
        ..request
    }
}

/// The request of an operation on a volume whose claim may be gone: what was remembered of the claim, with what
/// ConfigMap and class say by now.
pub fn remembered(
    operation: Operation,
    made_by: Request,
    volume: BTreeMap<String, String>,
    around: Surroundings<'_>,
) -> Request {
    let Surroundings { class, config, .. } = around;
    let mut parameters = made_by.parameters;
    parameters.extend(config.pass_through.clone());
    parameters.extend(class.map(class_parameters).unwrap_or_default());
    Request {
        contract: CONTRACT_VERSION,
        operation,
        service_account: config.service_account.clone().unwrap_or_default(),
        kube_api: around.kube_api.to_owned(),
        parameters,
        volume,
        source: None,
        snapshot: None,
        attachment: None,
        ..made_by
    }
}

/// The request of an operation on something of which nothing is remembered but its name.
pub fn unremembered(operation: Operation, around: Surroundings<'_>) -> Request {
    let Surroundings { config, kube_api, .. } = around;
    Request {
        contract: CONTRACT_VERSION,
        operation,
        service_account: config.service_account.clone().unwrap_or_default(),
        kube_api: kube_api.to_owned(),
        parameters: config.pass_through.clone(),
        ..Request::default()
    }
}

pub fn of_size(request: Request, size: u64) -> Request {
    Request {
        size,
        size_gi: gib_rounded_up(size),
        ..request
    }
}

/// Checks that a claim asks for nothing that no image can make.
fn check_asked(claim: &PersistentVolumeClaim, config: &ProvisionerConfig) -> Result<(), ClaimError> {
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.selector.is_some() {
        return Err(ClaimError::Selector);
    }
    if !attributes::wanted(claim).is_empty() {
        if config.volume_source != Some(VolumeSourceKind::Csi) {
            return Err(ClaimError::AttributesNotByCsi);
        }
        config.check_offered(Operation::Modify)?;
    }
    let mut modes = spec.access_modes.iter().flatten();
    if config.offers(Operation::Attach)
        && !config.multi_attach
        && let Some(mode) = modes.find(|mode| is_for_many(std::slice::from_ref(mode)))
    {
        return Err(ClaimError::ManyNodes(mode.clone()));
    }
    // FlexVolume can keep ReadWriteOncePod: the scheduler enforces it, by the claim.
    let by_flex = config.volume_source == Some(VolumeSourceKind::FlexVolume);
    if by_flex && spec.volume_mode.as_deref() == Some("Block") {
        return Err(ClaimError::FlexVolume);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ClaimError, Surroundings, for_claim, remembered};
    use crate::operation::tests::{class, config};
    use crate::volume::acceptance::tests::claim;
    use crate::volume::topology::Node;
    use mooring_contract::operation::Operation;
    use serde_json::json;

    #[test]
    fn claim_class_config_and_node_make_the_request() {
        let mut claim = claim();
        claim.metadata.annotations = Some(
            [("mooring.dev/username", "tom"), ("mooring.dev/groups", "a, b")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        );
        let topologies = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]);
        let class = class(
            &json!({"mountOptions": ["ro"], "allowedTopologies": topologies, "parameters": {
            "zone": "east", "tier": "1", "mooring.dev/config-name": "x", "csi.storage.k8s.io/fstype": "xfs"}}),
        );
        let node = Node {
            name: "n".into(),
            labels: [("topology.kubernetes.io/zone".to_owned(), "z".to_owned())].into(),
        };
        let around = Surroundings {
            class: Some(&class),
            config: &config(&[]),
            kube_api: "https://k:1",
        };
        let request = for_claim(Operation::Provision, &claim, Some(&node), [].into(), around).unwrap();
        assert_eq!((request.username.as_str(), request.groups.len()), ("tom", 2));
        assert_eq!(
            (request.size, request.size_gi, request.pv_name.as_str()),
            (1 << 30, 1, "pvc-u1")
        );
        assert_eq!((request.fs_type.as_str(), request.mount_options.len()), ("xfs", 1));
        assert_eq!((request.node_name.as_str(), request.topology.len()), ("n", 1));
        let zones = [("zone".to_owned(), vec!["a".to_owned(), "b".to_owned()])];
        assert_eq!(request.allowed_topologies, [zones.into()]);
        assert_eq!(request.service_account, "foo");
        let parameters: Vec<_> = request.parameters.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(parameters, ["tier=1", "use-nfs-server=10.10.2.4", "zone=east"]);

        let moved = Surroundings {
            class: None,
            config: &config(&[("use-nfs-server", "10.10.2.5")]),
            kube_api: "https://k:2",
        };
        let moved = remembered(Operation::Delete, request, [].into(), moved);
        assert_eq!(moved.operation, Operation::Delete);
        assert_eq!(moved.parameters["use-nfs-server"], "10.10.2.5");
        assert_eq!((moved.parameters["tier"].as_str(), moved.size), ("1", 1 << 30));
    }

    #[test]
    fn bytes_per_inode_are_the_config_map_s_unless_the_class_says_them_and_are_checked() {
        let asked = |of_config: &[(&str, &str)], of_class: serde_json::Value| {
            let around = Surroundings {
                class: Some(&class(&json!({"parameters": of_class}))),
                config: &config(of_config),
                kube_api: "",
            };
            let request = for_claim(Operation::Provision, &claim(), None, [].into(), around);
            request.map(|request| request.parameters.get("bytes-per-inode").cloned())
        };
        let of_config = [("bytes-per-inode", "8192")];
        assert_eq!(asked(&of_config, json!({})), Ok(Some("8192".to_owned())));
        let both = asked(&of_config, json!({"bytes-per-inode": "4096"}));
        assert_eq!(both, Ok(Some("4096".to_owned())));
        let error = asked(&of_config, json!({"bytes-per-inode": "4k"})).unwrap_err();
        assert!(error.to_string().contains("4096, 8192"), "{error}");
        assert_eq!(asked(&[], json!({})), Ok(None));
    }

    #[test]
    fn what_can_t_be_done_is_said_before_anything_is_run() {
        let ask = |change: serde_json::Value, extra: &[(&str, &str)]| {
            let mut value = json!(claim());
            for (key, new) in change.as_object().unwrap() {
                value["spec"][key] = new.clone();
            }
            let around = Surroundings {
                class: None,
                config: &config(extra),
                kube_api: "",
            };
            let claim = serde_json::from_value(value).unwrap();
            for_claim(Operation::Provision, &claim, None, [].into(), around).err()
        };
        let flex = [("volume-source", "flexVolume")];
        assert_eq!(ask(json!({}), &flex), None);
        assert_eq!(
            ask(json!({"selector": {"matchLabels": {"a": "b"}}}), &[]),
            Some(ClaimError::Selector)
        );
        assert_eq!(
            ask(json!({"volumeAttributesClassName": "fast"}), &flex),
            Some(ClaimError::AttributesNotByCsi)
        );
        let csi = ("volume-source", "csi");
        assert!(matches!(
            ask(json!({"volumeAttributesClassName": "fast"}), &[csi]),
            Some(ClaimError::NoOperation(_))
        ));
        let offered = [csi, ("operations", "provision,delete,modify")];
        assert_eq!(ask(json!({"volumeAttributesClassName": "fast"}), &offered), None);
        assert_eq!(ask(json!({"volumeAttributesClassName": ""}), &flex), None);
        assert!(matches!(
            ask(json!({"resources": {"requests": {"storage": "x"}}}), &[]),
            Some(ClaimError::Size(_))
        ));
        assert!(matches!(
            ask(json!({"volumeMode": "Block"}), &flex),
            Some(ClaimError::FlexVolume)
        ));
        assert_eq!(ask(json!({"volumeMode": "Block"}), &[("volume-source", "csi")]), None);
        assert_eq!(ask(json!({"accessModes": ["ReadWriteOncePod"]}), &flex), None);
        let many = json!({"accessModes": ["ReadWriteMany"]});
        let attaching = [csi, ("operations", "provision,delete,attach,detach")];
        assert_eq!(ask(many.clone(), &[csi]), None);
        assert!(matches!(ask(many.clone(), &attaching), Some(ClaimError::ManyNodes(_))));
        assert_eq!(ask(many, &[attaching[0], attaching[1], ("multi-attach", "true")]), None);
    }
}
