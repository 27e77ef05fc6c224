//! The PV of a claim: its name, whether it is Mooring's, and how it is made where the image only prints the volume's
//! options (`volume-source`).

use kube::ResourceExt as _;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, FlexPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectReference, PersistentVolume, PersistentVolumeSpec, SecretReference, TopologySelectorTerm, VolumeNodeAffinity,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mooring_contract::attachment;
use mooring_contract::names::labels::HOSTNAME;
use mooring_contract::names::{CSI_DRIVER, FLEX_DRIVER, annotations, finalizers, is_provisioner};
use mooring_contract::operation::Operation;
use mooring_contract::request::Request;
use mooring_contract::volume::clients::{self, Growth};
use mooring_contract::volume::file_system::FileSystem;
use mooring_contract::volume::{Volume, VolumeError, keys};
use serde_json::Value;

use crate::config::{ProvisionerConfig, VolumeSourceKind};
use crate::text::owned;
use crate::volume::capacity;
use crate::volume::topology::{self, Node};

/// Name of the PV of the claim `uid`.
pub fn name_for(uid: &str) -> String {
    format!("pvc-{uid}")
}

/// The uid of the claim that a PV was made for, which its name says. Another claim may have it by now: a volume
/// populator hands it over, an administrator binds one that was retained.
pub fn made_for(volume: &PersistentVolume) -> Option<&str> {
    volume.metadata.name.as_deref()?.strip_prefix("pvc-")
}

/// The uid of the claim that has a PV, or had it last.
pub fn claim_uid(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()
}

/// Whether Mooring accepted a PV and holds it.
pub fn is_ours(volume: &PersistentVolume) -> bool {
    let by = volume.annotations().get(annotations::PROVISIONED_BY);
    by.is_some_and(|by| is_provisioner(by)) && volume.finalizers().iter().any(|name| name == finalizers::VOLUME)
}

/// Why what an image printed is no volume.
#[derive(Debug, thiserror::Error)]
pub enum PrintedError {
    #[error(
        "the image exited with 0 but left no termination message: write the volume's options as JSON to \
         /dev/termination-log"
    )]
    Nothing,
    /// It printed something else than a JSON object.
    #[error("the image's termination message is not a JSON object of the volume's options: {0}")]
    NotJson(#[from] serde_json::Error),
    /// An option has a value that is no text.
    #[error("option {0:?} in the image's termination message is neither text, number nor boolean")]
    NotText(String),
    /// No mounter can mount a volume with these options.
    #[error("the image's options can't be mounted: {0}")]
    Options(#[from] VolumeError),
}

/// What an image printed: the volume's options, and the Secret that its mount needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Printed {
    pub options: BTreeMap<String, String>,
    /// The Secret's name and, if it said, namespace.
    pub secret: Option<(String, Option<String>)>,
}

impl Printed {
    /// Reads a termination message.
    pub fn parse(message: &str) -> Result<Self, PrintedError> {
        if message.trim().is_empty() {
            return Err(PrintedError::Nothing);
        }
        let mut options = texts(message)?;
        let namespace = options.remove(keys::SECRET_NAMESPACE).filter(|text| !text.is_empty());
        let secret = options
            .remove(keys::SECRET_NAME)
            .filter(|text| !text.is_empty())
            .map(|name| (name, namespace));
        Volume::from_options(&options)?;
        Ok(Self { options, secret })
    }
}

/// What an image printed of a volume that it attached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answered {
    /// Options of the volume, beside those of its PV.
    pub options: BTreeMap<String, String>,
    /// The connection's secrets, sealed with the run's own key.
    pub sealed: Option<String>,
}

impl Answered {
    /// Reads a termination message. An image need not print anything.
    pub fn parse(message: &str) -> Result<Self, PrintedError> {
        if message.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut options = texts(message)?;
        let sealed = options.remove(keys::SEALED).filter(|text| !text.is_empty());
        Ok(Self { options, sealed })
    }
}

/// The texts in a JSON object.
fn texts(message: &str) -> Result<BTreeMap<String, String>, PrintedError> {
    let object: BTreeMap<String, Value> = serde_json::from_str(message.trim())?;
    let texts = object.into_iter().map(|(key, value)| match text_of(&value) {
        Some(text) => Ok((key, text)),
        None => Err(PrintedError::NotText(key)),
    });
    texts.collect()
}

/// A text, number or boolean as text.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(bool) => Some(bool.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// What Mooring notes on every PV that it accepts; `config` is `namespace/name` of the ConfigMap, and `by` the
/// provisioner of its classes.
pub fn annotations(request: &Request, config: &str, by: &str) -> BTreeMap<String, String> {
    owned([
        (annotations::PROVISIONED_BY, by.to_owned()),
        (annotations::CONFIG, config.to_owned()),
        (annotations::REQUEST, serde_json::json!(request).to_string()),
    ])
}

/// Which nodes a volume can be used from: the one that it lives on, if it does, or else those that the class `allowed`,
/// and none that says that it can't mount the volumes of this client. `client` is [`client_of`] the volume.
pub fn affinity(
    client: Option<(&str, VolumeSourceKind)>,
    node: Option<&Node>,
    allowed: &[TopologySelectorTerm],
) -> Option<VolumeNodeAffinity> {
    let places = match node {
        Some(node) => vec![vec![NodeSelectorRequirement {
            key: HOSTNAME.to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.labels.get(HOSTNAME).unwrap_or(&node.name).clone()]),
        }]],
        None if allowed.is_empty() => vec![Vec::new()],
        None => allowed.iter().map(topology::within).collect(),
    };
    let able: Vec<_> = client
        .into_iter()
        .flat_map(|(client, by)| topology::able(client, by))
        .collect();
    let requirements = places.into_iter().map(|place| [place, able.clone()].concat());
    let terms = requirements.filter(|all| !all.is_empty()).map(|all| NodeSelectorTerm {
        match_expressions: Some(all),
        match_fields: None,
    });
    let terms: Vec<_> = terms.collect();
    (!terms.is_empty()).then_some(VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: terms,
        }),
    })
}

/// The client that mounts a volume, and the driver by which the kubelet has it mounted; none if the kubelet mounts it
/// itself.
pub fn client_of(spec: &PersistentVolumeSpec) -> Option<(&str, VolumeSourceKind)> {
    let flex = spec.flex_volume.as_ref().filter(|flex| flex.driver == FLEX_DRIVER);
    let csi = spec.csi.as_ref().filter(|csi| csi.driver == CSI_DRIVER);
    let flex = flex.map(|flex| (&flex.options, VolumeSourceKind::FlexVolume));
    let csi = csi.map(|csi| (&csi.volume_attributes, VolumeSourceKind::Csi));
    let (options, by) = flex.or(csi)?;
    Some((options.as_ref()?.get(keys::CLIENT)?, by))
}

/// Who finishes the growth of a volume, once its storage is larger. What the kubelet itself mounts without a driver, it
/// does not expand (`FindNodeExpandablePluginBySpec` in `pkg/volume`).
pub fn growth(spec: &PersistentVolumeSpec) -> Growth {
    match client_and_type(spec) {
        Some((client, fs_type)) => clients::growth(client, fs_type),
        None if spec.flex_volume.is_some() || spec.csi.is_some() => Growth::AtNode,
        None => Growth::AtServer,
    }
}

/// The file system that the mounter makes of a volume's device, if it does.
pub fn file_system(spec: &PersistentVolumeSpec) -> Option<FileSystem> {
    let (client, fs_type) = client_and_type(spec).filter(|_| spec.volume_mode.as_deref() != Some("Block"))?;
    FileSystem::of(client, fs_type)
}

/// The client that mounts a volume, and its type; none if the kubelet itself mounts it.
fn client_and_type(spec: &PersistentVolumeSpec) -> Option<(&str, &str)> {
    let (client, _) = client_of(spec)?;
    let (options, field) = match (&spec.flex_volume, &spec.csi) {
        (Some(flex), _) => (flex.options.as_ref(), flex.fs_type.as_deref()),
        (None, csi) => (
            csi.as_ref()?.volume_attributes.as_ref(),
            csi.as_ref()?.fs_type.as_deref(),
        ),
    };
    let fs_type = options.and_then(|options| options.get(keys::FS_TYPE));
    Some((client, fs_type.map(String::as_str).or(field).unwrap_or_default()))
}

/// The size of a volume, if its PV has one that can be read.
pub fn size(volume: &PersistentVolume) -> Option<u64> {
    let storage = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    capacity::bytes(storage).ok()
}

/// The host name that [`affinity`] ties a volume to, if it does.
pub fn host_of(pv: &PersistentVolume) -> Option<&str> {
    let affinity = pv.spec.as_ref()?.node_affinity.as_ref()?;
    let mut requirements = affinity
        .required
        .iter()
        .flat_map(|selector| &selector.node_selector_terms)
        .flat_map(|term| term.match_expressions.iter().flatten());
    let host = requirements.find(|wanted| wanted.key == HOSTNAME && wanted.operator == "In")?;
    match host.values.as_deref() {
        Some([host]) => Some(host),
        _ => None,
    }
}

/// Builds the PV from what the image printed. The class's mount options and file system hold where the image did not
/// say its own. `node` is given if the volume lives on that node; `allowed` are the class's `allowedTopologies`.
pub fn build(
    request: &Request,
    config: &ProvisionerConfig,
    source: VolumeSourceKind,
    printed: Printed,
    node: Option<&Node>,
    allowed: &[TopologySelectorTerm],
) -> PersistentVolume {
    let has_mount_options = printed.options.contains_key(keys::MOUNT_OPTIONS);
    let options = all_options(request, config, source, printed.options);
    let secret_ref = secret_ref(request, config, printed.secret);
    let client = options.get(keys::CLIENT).map(|client| (client.as_str(), source));
    let node_affinity = affinity(client, node, allowed);
    let (mut flex_volume, mut csi, mut mount_options, mut attributes) = (None, None, None, None);
    match source {
        VolumeSourceKind::FlexVolume => {
            flex_volume = Some(FlexPersistentVolumeSource {
                driver: FLEX_DRIVER.to_owned(),
                options: Some(options),
                secret_ref,
                ..FlexPersistentVolumeSource::default()
            });
        }
        VolumeSourceKind::Csi => {
            // Where users and other tools look for them. The kubelet takes them there by this driver alone.
            let asked = mount_options_of_class(request);
            mount_options = Some(asked).filter(|asked| !asked.is_empty() && !has_mount_options && !is_raw(request));
            attributes = request.attributes.as_ref().map(|attributes| attributes.class.clone());
            csi = Some(CSIPersistentVolumeSource {
                driver: CSI_DRIVER.to_owned(),
                volume_handle: request.pv_name.clone(),
                volume_attributes: Some(options),
                node_publish_secret_ref: secret_ref,
                ..CSIPersistentVolumeSource::default()
            });
        }
    }
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(request.pv_name.clone()),
            annotations: Some(annotations(request, &config.reference.to_string(), config.provisioner)),
            finalizers: Some(vec![finalizers::VOLUME.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(request.access_modes.clone()),
            capacity: Some([("storage".to_owned(), capacity::quantity(request.size))].into()),
            claim_ref: Some(claim_ref(request)),
            flex_volume,
            csi,
            mount_options,
            node_affinity,
            persistent_volume_reclaim_policy: Some(request.reclaim_policy.clone()),
            storage_class_name: Some(request.storage_class.clone()),
            volume_attributes_class_name: attributes,
            volume_mode: Some(request.volume_mode.clone()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

fn is_raw(request: &Request) -> bool {
    request.volume_mode == "Block"
}

/// Whether Pods are to read the volume only: with nothing in it, somebody has to write it first. The kubelet tells a
/// driver the access mode at most, and leaves it to others whether that keeps a Pod from writing.
fn is_for_readers(request: &Request) -> bool {
    let is_copy = matches!(request.operation, Operation::Clone | Operation::Restore);
    is_copy && !request.access_modes.is_empty() && request.access_modes.iter().all(|mode| mode == "ReadOnlyMany")
}

fn mount_options_of_class(request: &Request) -> Vec<String> {
    let mut options = request.mount_options.clone();
    if is_for_readers(request) {
        options.retain(|option| option != "rw");
    }
    options
}

/// These mount options, for reading.
fn read_only(options: &str) -> String {
    let others = options.split(',').filter(|option| !matches!(*option, "" | "rw" | "ro"));
    others.chain(["ro"]).collect::<Vec<_>>().join(",")
}

/// What the image printed, and where it said nothing what class and ConfigMap say.
fn all_options(
    request: &Request,
    config: &ProvisionerConfig,
    source: VolumeSourceKind,
    mut options: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut unless_said = |key: &str, value: String| {
        if !value.is_empty() {
            options.entry(key.to_owned()).or_insert(value);
        }
    };
    if source == VolumeSourceKind::FlexVolume {
        unless_said(keys::MOUNT_OPTIONS, request.mount_options.join(","));
    }
    unless_said(keys::FS_TYPE, request.fs_type.clone());
    unless_said(keys::CLIENT_IMAGE, config.client_image.clone().unwrap_or_default());
    let inodes = request
        .parameters
        .get(keys::BYTES_PER_INODE)
        .cloned()
        .unwrap_or_default();
    if has_inodes(&options) && !inodes.is_empty() {
        options.entry(keys::BYTES_PER_INODE.to_owned()).or_insert(inodes);
    }
    if is_for_readers(request) {
        let all = options.entry(keys::MOUNT_OPTIONS.to_owned()).or_default();
        *all = read_only(all);
    }
    if is_raw(request) {
        // The mounter refuses them with a device. Images print the file system that they would have made.
        options.remove(keys::FS_TYPE);
        options.remove(keys::MOUNT_OPTIONS);
        options.remove(keys::BYTES_PER_INODE);
    }
    options
}

/// Whether a volume with these options gets a file system that has a fixed number of inodes.
fn has_inodes(options: &BTreeMap<String, String>) -> bool {
    let option = |key: &str| options.get(key).map_or("", String::as_str);
    let (client, fs_type) = (option(keys::CLIENT), option(keys::FS_TYPE));
    FileSystem::of(client, fs_type) == Some(FileSystem::Ext4)
        && clients::has_option(client, fs_type, keys::BYTES_PER_INODE)
}

/// The Secret that the kubelet hands to the mounter: the image's, or that of the connection if the volume has to be
/// attached.
fn secret_ref(
    request: &Request,
    config: &ProvisionerConfig,
    printed: Option<(String, Option<String>)>,
) -> Option<SecretReference> {
    let connection = || {
        let attached = config.offers(Operation::Attach);
        attached.then(|| {
            (
                attachment::secret_name(&request.pv_name),
                Some(config.reference.namespace.clone()),
            )
        })
    };
    let (name, namespace) = printed.or_else(connection)?;
    Some(SecretReference {
        name: Some(name),
        namespace: Some(namespace.unwrap_or_else(|| request.pvc_namespace.clone())),
    })
}

fn claim_ref(request: &Request) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(request.pvc_namespace.clone()),
        name: Some(request.pvc_name.clone()),
        uid: Some(request.pvc_uid.clone()),
        ..ObjectReference::default()
    }
}

/// The options of the volume that a PV describes, for property `volume` of a later operation.
pub fn options(pv: &PersistentVolume) -> BTreeMap<String, String> {
    let Some(spec) = &pv.spec else {
        return BTreeMap::new();
    };
    let options = spec
        .flex_volume
        .as_ref()
        .and_then(|source| source.options.clone())
        .or_else(|| spec.csi.as_ref().and_then(|source| source.volume_attributes.clone()));
    options.unwrap_or_else(|| source_fields(spec))
}

/// Name of the source that a PV has, as the API spells it: the one key of its spec that is no other field.
pub fn source_name(spec: &PersistentVolumeSpec) -> String {
    const FIELDS: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    let value = serde_json::to_value(spec).unwrap_or_default();
    value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| key.as_str())
        .find(|key| !FIELDS.contains(key))
        .unwrap_or("none")
        .to_owned()
}

/// A network source's plain fields (`server`, `path`, `iqn`, …) as options.
fn source_fields(spec: &PersistentVolumeSpec) -> BTreeMap<String, String> {
    let name = source_name(spec);
    let value = serde_json::to_value(spec).unwrap_or_default();
    value
        .get(&name)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), text_of(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Printed, PrintedError, build, client_of, host_of, is_ours, options};
    use crate::config::VolumeSourceKind;
    use crate::operation::tests::config;
    use crate::run::properties::tests::silver;
    use crate::volume::acceptance::{self, Expected};
    use crate::volume::topology::Node;
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use mooring_contract::operation::Operation;
    use mooring_contract::request::Request;
    use serde_json::json;

    #[test]
    fn a_termination_message_is_read_or_its_fault_named() {
        let printed = Printed::parse(
            "{\"client\": \"nfs\", \"port\": 2049, \"secret-name\": \"s\", \"secret-namespace\": \"a\"}\n",
        )
        .unwrap();
        assert_eq!(printed.options["port"], "2049");
        assert_eq!(printed.secret, Some(("s".into(), Some("a".into()))));
        assert!(!printed.options.contains_key("secret-name"));
        assert!(matches!(Printed::parse(" "), Err(PrintedError::Nothing)));
        assert!(matches!(Printed::parse("done"), Err(PrintedError::NotJson(_))));
        assert!(matches!(Printed::parse("[]"), Err(PrintedError::NotJson(_))));
        let nested = Printed::parse("{\"client\": {}}");
        assert!(matches!(nested, Err(PrintedError::NotText(option)) if option == "client"));
        assert!(matches!(Printed::parse("{}"), Err(PrintedError::Options(_))));
    }

    #[test]
    fn a_pv_made_from_printed_options_is_one_that_is_accepted() {
        for source in [VolumeSourceKind::FlexVolume, VolumeSourceKind::Csi] {
            is_accepted(source);
        }
    }

    #[test]
    fn a_pv_for_csi_has_what_one_for_flex_volume_has() {
        let printed = || Printed::parse(r#"{"client": "nfs", "source": "h:/x", "secret-name": "s"}"#).unwrap();
        let made = |source| {
            build(&silver(), &config(&[]), source, printed(), None, &[])
                .spec
                .unwrap()
        };
        let flex = made(VolumeSourceKind::FlexVolume).flex_volume.unwrap();
        let csi = made(VolumeSourceKind::Csi).csi.unwrap();
        assert_eq!(csi.volume_attributes, flex.options);
        assert_eq!(csi.node_publish_secret_ref, flex.secret_ref);
        assert_eq!(csi.volume_handle, silver().pv_name);
    }

    #[test]
    fn only_a_volume_with_an_ext4_of_mooring_s_says_how_many_inodes_it_gets() {
        let mut request = silver();
        request.parameters = [("bytes-per-inode".to_owned(), "4096".to_owned())].into();
        let mut said = |mode: &str, printed: &str| {
            request.volume_mode = mode.to_owned();
            let printed = Printed::parse(printed).unwrap();
            let pv = build(&request, &config(&[]), VolumeSourceKind::Csi, printed, None, &[]);
            options(&pv).remove("bytes-per-inode").unwrap_or_default()
        };
        for (mode, printed, want) in [
            ("Filesystem", r#"{"client": "local", "source": "x"}"#, "4096"),
            ("Filesystem", r#"{"client": "rbd", "fs-type": "ext4"}"#, "4096"),
            ("Filesystem", r#"{"client": "rbd", "bytes-per-inode": "8192"}"#, "8192"),
            ("Filesystem", r#"{"client": "local", "fs-type": "xfs"}"#, ""),
            ("Filesystem", r#"{"client": "nfs", "source": "h:/x"}"#, ""),
            ("Filesystem", r#"{"client": "vendor", "fs-type": "ext4"}"#, ""),
            ("Block", r#"{"client": "local", "source": "x"}"#, ""),
        ] {
            assert_eq!(said(mode, printed), want, "{mode} {printed}");
        }
    }

    #[test]
    fn a_raw_volume_has_no_file_system_of_its_class() {
        let mut request = silver();
        request.volume_mode = "Block".into();
        request.fs_type = "xfs".into();
        request.mount_options = vec!["noatime".into()];
        let printed = r#"{"client": "local", "source": "x", "fs-type": "ext4", "mount-options": "ro"}"#;
        let printed = Printed::parse(printed).unwrap();
        let pv = build(&request, &config(&[]), VolumeSourceKind::Csi, printed, None, &[]);
        assert_eq!(options(&pv).keys().collect::<Vec<_>>(), ["client", "source"]);
        assert_eq!(pv.spec.unwrap().mount_options, None);
    }

    /// The mount options of a volume, and those of its PV.
    fn mount_options(request: &Request, source: VolumeSourceKind, printed: &str) -> (Option<String>, Option<String>) {
        let printed = Printed::parse(printed).unwrap();
        let pv = build(request, &config(&[]), source, printed, None, &[]);
        let of_pv = pv.spec.as_ref().and_then(|spec| spec.mount_options.clone());
        (options(&pv).remove("mount-options"), of_pv.map(|all| all.join(",")))
    }

    #[test]
    fn a_copy_that_many_nodes_are_to_read_is_written_by_none() {
        let plain = r#"{"client": "rbd", "source": "rbd://m/p/i"}"#;
        let own = r#"{"client": "rbd", "source": "rbd://m/p/i", "mount-options": "rw,discard"}"#;
        let mut request = silver();
        request.mount_options = vec!["rw".into(), "noatime".into()];
        let mut found = |operation, modes: &[&str]| {
            request.operation = operation;
            request.access_modes = modes.iter().map(|mode| (*mode).to_owned()).collect();
            let of = |source, printed| mount_options(&request, source, printed);
            [
                of(VolumeSourceKind::FlexVolume, plain),
                of(VolumeSourceKind::FlexVolume, own),
                of(VolumeSourceKind::Csi, plain),
                of(VolumeSourceKind::Csi, own),
            ]
        };
        let pair = |of_volume: &str, of_pv: &str| {
            [of_volume, of_pv].map(|text| Some(text.to_owned()).filter(|text| !text.is_empty()))
        };
        for operation in [Operation::Clone, Operation::Restore] {
            let expected = [
                pair("noatime,ro", ""),
                pair("discard,ro", ""),
                // Where those of the class are looked for.
                pair("ro", "noatime"),
                pair("discard,ro", ""),
            ];
            assert_eq!(found(operation, &["ReadOnlyMany"]).map(<[_; 2]>::from), expected);
        }
        let written = [
            pair("rw,noatime", ""),
            pair("rw,discard", ""),
            pair("", "rw,noatime"),
            pair("rw,discard", ""),
        ];
        let others = [
            (Operation::Clone, &["ReadOnlyMany", "ReadWriteOnce"][..]),
            // Somebody has to write it first.
            (Operation::Provision, &["ReadOnlyMany"]),
        ];
        for (operation, modes) in others {
            assert_eq!(found(operation, modes).map(<[_; 2]>::from), written);
        }
    }

    #[test]
    fn a_volume_says_which_provisioner_made_it_and_either_is_mooring() {
        let printed = || Printed::parse(r#"{"client": "nfs", "source": "h:/x"}"#).unwrap();
        for by in ["mooring.dev/flex-provisioner", "vcs.mooring.dev"] {
            let mut config = config(&[("volume-source", "csi")]);
            config.provisioner = by;
            let mut pv = build(&silver(), &config, VolumeSourceKind::Csi, printed(), None, &[]);
            assert!(is_ours(&pv), "{by}");
            let notes = pv.metadata.annotations.as_mut().unwrap();
            assert_eq!(notes["pv.kubernetes.io/provisioned-by"], by);
            notes.insert("pv.kubernetes.io/provisioned-by".into(), "example.com/x".into());
            assert!(!is_ours(&pv));
        }
    }

    fn is_accepted(source: VolumeSourceKind) {
        let mut request = silver();
        request.mount_options = vec!["noatime".into()];
        request.fs_type = "xfs".into();
        request.access_modes = vec!["ReadWriteOncePod".into()];
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": request.pvc_name, "namespace": request.pvc_namespace, "uid": request.pvc_uid},
            "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOncePod"],
                     "resources": {"requests": {"storage": "5Gi"}}},
        }))
        .unwrap();
        let node = Node {
            name: "node-a".into(),
            labels: [("kubernetes.io/hostname".to_owned(), "host-a".to_owned())].into(),
        };
        let printed = Printed::parse(
            r#"{"client": "local", "source": "pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca427.img", "fs-type": "ext4"}"#,
        )
        .unwrap();
        let pv = build(&request, &config(&[]), source, printed, Some(&node), &[]);
        let expected = Expected {
            claim: &claim,
            pv_name: &request.pv_name,
            config_namespace: "admin",
            node: Some(&node),
            class_options: &[],
            client_image: None,
            attaches: false,
        };
        assert_eq!(acceptance::check(&pv, &expected), []);
        assert_eq!(host_of(&pv), Some("host-a"));
        let spec = pv.spec.as_ref().unwrap();
        assert_eq!(client_of(spec), Some(("local", source)));
        // The API server takes this mode alone only.
        assert_eq!(spec.access_modes, Some(vec!["ReadWriteOncePod".to_owned()]));
        let affinity = serde_json::to_value(&spec.node_affinity).unwrap();
        let mut expected = vec![
            json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-a"]}),
            json!({"key": "mooring.dev/mounter", "operator": "NotIn", "values": ["not-ready"]}),
            json!({"key": "client.mooring.dev/local", "operator": "NotIn", "values": ["not-ready"]}),
        ];
        if source == VolumeSourceKind::FlexVolume {
            expected
                .push(json!({"key": "client.mooring.dev/FlexVolume", "operator": "NotIn", "values": ["not-ready"]}));
        }
        assert_eq!(
            affinity["required"]["nodeSelectorTerms"],
            json!([{"matchExpressions": expected}]),
            "one term: all of it has to hold"
        );
        let options = options(&pv);
        assert_eq!(options["fs-type"], "ext4");
        let (option, field) = (options.get("mount-options"), &spec.mount_options);
        match source {
            VolumeSourceKind::FlexVolume => assert_eq!((option.map(String::as_str), field), (Some("noatime"), &None)),
            VolumeSourceKind::Csi => assert_eq!((option, field), (None, &Some(vec!["noatime".to_owned()]))),
        }
    }
}
