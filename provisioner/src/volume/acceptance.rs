//! Whether a PV is what was asked for. Nothing is bound that does not pass here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, SecretReference};
use mooring_contract::attachment::secret_name;
use mooring_contract::names::{CSI_DRIVER, FLEX_DRIVER};
use mooring_contract::volume::clients::{device_clients, gives_devices};
use mooring_contract::volume::file_system::TooSmall;
use mooring_contract::volume::{CheckError, ClientName, NodeAccess, Speaker, Volume, VolumeError, keys};
use mooring_program::node_selector;

use crate::volume::capacity::{self, CapacityError};
use crate::volume::persistent_volume::{file_system, source_name};
use crate::volume::topology::{self, Node};

/// What a PV must be to be accepted.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    pub claim: &'a PersistentVolumeClaim,
    /// `pvc-<claim uid>`.
    pub pv_name: &'a str,
    /// Namespace of the ConfigMap: one of the two that a `secretRef` can name.
    pub config_namespace: &'a str,
    /// The node that the volume must be usable from, if one was selected.
    pub node: Option<&'a Node>,
    /// Mount options that the StorageClass asks for.
    pub class_options: &'a [String],
    /// The client image that the ConfigMap names.
    pub client_image: Option<&'a str>,
    /// Whether nodes get the volume by operation `attach`.
    pub attaches: bool,
}

/// What an administrator lets an image print.
#[derive(Debug, Clone, Copy)]
pub struct Granted<'a> {
    /// `pvc-<claim uid>`.
    pub pv_name: &'a str,
    /// Mount options that only an administrator may ask for.
    pub mount_options: &'a [String],
    /// The client image that the ConfigMap names.
    pub client_image: Option<&'a str>,
}

/// One thing that is wrong with a PV; the message says what was wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not have the name that the image was given.
    #[error("its name is {found:?}, not {wanted:?}: use the property pv-name")]
    Name {
        found: String,
        /// The one property `pv-name` gave.
        wanted: String,
    },
    /// It is tied to no claim, or to another one.
    #[error("its claimRef is {found}, not {wanted}: set namespace, name and uid of the claim")]
    ClaimRef { found: String, wanted: String },
    /// It is of another class than the claim.
    #[error("its storageClassName is {found:?}, not {wanted:?}")]
    Class { found: String, wanted: String },
    /// It has another `VolumeAttributesClass` than the claim, so kube-controller-manager would never bind the two.
    #[error("its volumeAttributesClassName is {found:?}, not {wanted:?}")]
    AttributesClass { found: String, wanted: String },
    /// It does not say how large it is.
    #[error("it has no capacity: set spec.capacity.storage")]
    NoCapacity,
    #[error("its capacity can't be read: {0}")]
    Capacity(#[from] CapacityError),
    /// It is smaller than the claim asks.
    #[error("its capacity is {found} bytes, less than the {wanted} asked for")]
    TooSmall {
        /// The PV's, in bytes.
        found: u64,
        /// The claim's, in bytes.
        wanted: u64,
    },
    /// It can't have its file system, whatever the claim asks for.
    #[error("its capacity is too small: {0}: delete the claim, and create it again with as much")]
    TooSmallToMount(#[from] TooSmall),
    /// It lacks an access mode that the claim asks for.
    #[error("its accessModes do not have {0}, which the claim asks for")]
    AccessMode(String),
    /// It has another volume mode than the claim.
    #[error("its volumeMode is {found}, not {wanted}")]
    VolumeMode { found: String, wanted: String },
    /// It is a raw block volume, and its client or `FlexVolume` has no device to give.
    #[error(
        "it is a raw block volume, and {0} has no device to give: use client {clients} by csi, or ask for volumeMode \
         Filesystem",
        clients = device_clients()
    )]
    NoDevice(String),
    /// Its source would give access to a node, or another driver would act on it.
    #[error(
        "its source is {0}, which a provisioner may not create: use flexVolume with driver {FLEX_DRIVER:?}, csi with \
         driver {CSI_DRIVER:?}, or nfs, iscsi, fc"
    )]
    Source(String),
    /// The kubelet finds a disk of the node by it.
    #[error(
        "its fc source has wwids, no lun or a name that is none: name targetWWNs of 16 hexadecimal digits, and a lun"
    )]
    FibreChannel,
    #[error("its iscsiInterface is {0:?}, and an image can't choose one: leave it out")]
    IscsiInterface(String),
    /// No mounter can mount a volume with its options.
    #[error("its options can't be mounted: {0}")]
    Options(#[from] VolumeError),
    /// Its client exposes the node itself.
    #[error("its client is {0:?}, which gives out a node itself: use client=local")]
    Client(String),
    /// Its options reach for something of the node's own.
    #[error("its options name something of the node itself: {0}")]
    NodeAccess(#[from] NodeAccess),
    /// Its client does not have such options.
    #[error("its options can't be mounted: {0}")]
    Check(CheckError),
    /// Its image file may belong to another volume.
    #[error(
        "its source {found:?} does not contain {wanted:?}, so it may be another claim's volume: name a local volume's \
         file after pv-name"
    )]
    NotItsFile {
        found: String,
        /// The PV's name.
        wanted: String,
    },
    /// The ConfigMap does not name its client image.
    #[error(
        "its option client-image is {0:?}, which its ConfigMap does not name: put it into the ConfigMap's key \
         \"client-image\""
    )]
    ClientImage(String),
    /// Its Secret belongs to somebody else.
    #[error("its secretRef names a Secret in namespace {0:?}: only the claim's or the ConfigMap's namespace will do")]
    Secret(String),
    /// Its Secret is not the one for the connection that operation `attach` makes.
    #[error(
        "its secretRef is {0:?}, but Mooring makes the Secret of a volume that is attached: print no secret-name, and \
         have attach print secrets with pv options --seal"
    )]
    NotItsConnection(String),
    /// Its Secret is one for the connection, and nothing attaches it.
    #[error("its secretRef has the name of a connection, and its ConfigMap does not list attach: use another name")]
    NotAttached,
    /// It has `mountOptions`, which the kubelet refuses with `flexVolume`.
    #[error("it has mountOptions beside its options: put them into the option \"mount-options\"")]
    MountOptions,
    /// It can't be used on the node that was selected.
    #[error("its nodeAffinity leaves out node {0:?}, where the waiting Pod has to run")]
    Node(String),
    #[error("it is being deleted")]
    Deleted,
}

impl Refusal {
    /// Whether what the image makes of the claim is refused each time, until claim, class or ConfigMap ask for something
    /// else: the volume can't have its file system.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::TooSmallToMount(_) | Self::Check(CheckError::FsType { .. }))
    }
}

/// The client that is the host's own mount helper.
const HOST: &str = "host";

/// All that is wrong with a PV; empty if it can be accepted.
pub fn check(pv: &PersistentVolume, expected: &Expected<'_>) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let spec = pv.spec.clone().unwrap_or_default();
    let claim = expected.claim;
    let name = pv.metadata.name.clone().unwrap_or_default();
    if name != expected.pv_name {
        refusals.push(Refusal::Name {
            found: name,
            wanted: expected.pv_name.to_owned(),
        });
    }
    if pv.metadata.deletion_timestamp.is_some() {
        refusals.push(Refusal::Deleted);
    }
    check_claim_ref(&spec, claim, &mut refusals);
    let wanted = claim.spec.clone().unwrap_or_default();
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let [found, asked] = [&spec.storage_class_name, &wanted.storage_class_name].map(text);
    if found != asked {
        refusals.push(Refusal::Class { found, wanted: asked });
    }
    let attributes = [&spec.volume_attributes_class_name, &wanted.volume_attributes_class_name];
    let [found, asked] = attributes.map(text);
    if found != asked {
        refusals.push(Refusal::AttributesClass { found, wanted: asked });
    }
    check_capacity(&spec, claim, &mut refusals);
    let modes = spec.access_modes.clone().unwrap_or_default();
    for mode in wanted.access_modes.unwrap_or_default() {
        if !modes.contains(&mode) {
            refusals.push(Refusal::AccessMode(mode));
        }
    }
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    if mode(&spec.volume_mode) != mode(&wanted.volume_mode) {
        refusals.push(Refusal::VolumeMode {
            found: mode(&spec.volume_mode),
            wanted: mode(&wanted.volume_mode),
        });
    }
    check_source(&spec, expected, &mut refusals);
    check_connection(&spec, expected, &mut refusals);
    let required = spec.node_affinity.and_then(|affinity| affinity.required);
    // Where it can be mounted just now is the scheduler's business: it chooses another node if there is one.
    if let (Some(node), Some(required)) = (expected.node, required)
        && !node_selector::selects(&required, &node.name, &topology::however_able(node))
    {
        refusals.push(Refusal::Node(node.name.clone()));
    }
    refusals
}

fn check_claim_ref(spec: &PersistentVolumeSpec, claim: &PersistentVolumeClaim, refusals: &mut Vec<Refusal>) {
    let meta = &claim.metadata;
    let wanted = (meta.namespace.as_ref(), meta.name.as_ref(), meta.uid.as_ref());
    let found = spec.claim_ref.as_ref().map(|reference| {
        (
            reference.namespace.as_ref(),
            reference.name.as_ref(),
            reference.uid.as_ref(),
        )
    });
    if found != Some(wanted) {
        let text = |reference: (Option<&String>, Option<&String>, Option<&String>)| {
            let part = |part: Option<&String>| part.map_or("?", String::as_str).to_owned();
            format!(
                "{}/{} (uid {})",
                part(reference.0),
                part(reference.1),
                part(reference.2)
            )
        };
        refusals.push(Refusal::ClaimRef {
            found: found.map_or_else(|| "not set".to_owned(), text),
            wanted: text(wanted),
        });
    }
}

fn check_capacity(spec: &PersistentVolumeSpec, claim: &PersistentVolumeClaim, refusals: &mut Vec<Refusal>) {
    let found = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
    let Some(found) = found else {
        refusals.push(Refusal::NoCapacity);
        return;
    };
    match capacity::bytes(found) {
        // A claim's own size was read before anything was run.
        Ok(found) => {
            let wanted = asked_bytes(claim).unwrap_or(0);
            if found < wanted {
                refusals.push(Refusal::TooSmall { found, wanted });
            }
            let fits = file_system(spec).map_or(Ok(()), |file_system| file_system.check_size(found));
            refusals.extend(fits.err().map(Refusal::from));
        }
        Err(error) => refusals.push(error.into()),
    }
}

/// The size that a claim asks for, in bytes.
pub fn asked_bytes(claim: &PersistentVolumeClaim) -> Result<u64, CapacityError> {
    let requests = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests
        .and_then(|requests| requests.get("storage"))
        .map_or(Ok(0), capacity::bytes)
}

fn check_source(spec: &PersistentVolumeSpec, expected: &Expected<'_>, refusals: &mut Vec<Refusal>) {
    let source = source_name(spec);
    let mount_options = spec.mount_options.as_deref().unwrap_or_default();
    // Another mode than the claim's is refused as that.
    let asked = expected
        .claim
        .spec
        .as_ref()
        .and_then(|claim| claim.volume_mode.as_deref());
    let raw = [asked, spec.volume_mode.as_deref()] == [Some("Block"); 2];
    if let Some(flex) = &spec.flex_volume {
        if flex.driver != FLEX_DRIVER {
            refusals.push(Refusal::Source(format!("flexVolume with driver {:?}", flex.driver)));
            return;
        }
        check_options(flex.options.as_ref(), flex.fs_type.as_deref(), &[], expected, refusals);
        if !mount_options.is_empty() {
            refusals.push(Refusal::MountOptions);
        }
        if raw {
            refusals.push(Refusal::NoDevice("flexVolume".to_owned()));
        }
        let secret = flex.secret_ref.as_ref().and_then(|secret| secret.namespace.as_deref());
        check_secret(secret, expected, refusals);
    } else if let Some(csi) = &spec.csi {
        if csi.driver != CSI_DRIVER {
            refusals.push(Refusal::Source(format!("csi with driver {:?}", csi.driver)));
            return;
        }
        check_options(
            csi.volume_attributes.as_ref(),
            csi.fs_type.as_deref(),
            mount_options,
            expected,
            refusals,
        );
        let option = |key: &str| csi.volume_attributes.as_ref().and_then(|options| options.get(key));
        let fs_type = option(keys::FS_TYPE).map_or("", String::as_str);
        if let Some(client) = option(keys::CLIENT).filter(|client| raw && !gives_devices(client, fs_type)) {
            refusals.push(Refusal::NoDevice(format!("client {client}")));
        }
        let secrets = [
            &csi.node_stage_secret_ref,
            &csi.node_publish_secret_ref,
            &csi.node_expand_secret_ref,
            &csi.controller_publish_secret_ref,
            &csi.controller_expand_secret_ref,
        ];
        for secret in secrets.into_iter().flatten() {
            check_secret(secret.namespace.as_deref(), expected, refusals);
        }
    } else {
        match in_tree(spec) {
            Some(Ok(options)) => check_options(Some(&options), None, mount_options, expected, refusals),
            Some(Err(refusal)) => refusals.push(refusal),
            None => refusals.push(Refusal::Source(source)),
        }
        let secret = spec.iscsi.as_ref().and_then(|source| source.secret_ref.as_ref());
        check_secret(
            secret.and_then(|secret| secret.namespace.as_deref()),
            expected,
            refusals,
        );
    }
}

/// The options that Mooring's own client for the same would have: the kubelet mounts such a volume by the host's mount,
/// past the mounter, so it is judged in the same way. `None` for what is no storage on the network.
fn in_tree(spec: &PersistentVolumeSpec) -> Option<Result<BTreeMap<String, String>, Refusal>> {
    let options = |pairs: &[(&str, String)]| {
        let pairs = pairs.iter().filter(|(_, value)| !value.is_empty());
        pairs.map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    };
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    if let Some(nfs) = &spec.nfs {
        let source = format!("{}:{}", nfs.server, nfs.path);
        return Some(Ok(options(&[(keys::CLIENT, "nfs".to_owned()), (keys::SOURCE, source)])));
    }
    if let Some(iscsi) = &spec.iscsi {
        let interface = iscsi.iscsi_interface.as_deref().unwrap_or_default();
        if !["", "default"].contains(&interface) {
            return Some(Err(Refusal::IscsiInterface(interface.to_owned())));
        }
        let more = iscsi.portals.iter().flatten();
        let portals: Vec<_> = std::iter::once(&iscsi.target_portal)
            .chain(more)
            .map(String::as_str)
            .collect();
        return Some(Ok(options(&[
            (keys::CLIENT, "iscsi".to_owned()),
            (
                keys::SOURCE,
                format!("iscsi://{}/{}/{}", portals.join(","), iscsi.iqn, iscsi.lun),
            ),
            (keys::FS_TYPE, text(&iscsi.fs_type)),
            ("initiator", text(&iscsi.initiator_name)),
        ])));
    }
    let fc = spec.fc.as_ref()?;
    let is_name = |name: &String| name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit());
    let fs_type = text(&fc.fs_type);
    if fc.wwids.iter().flatten().next().is_some() || fc.lun.is_none() || !fc.target_wwns.iter().flatten().all(is_name) {
        return Some(Err(Refusal::FibreChannel));
    }
    if !["", "ext4", "xfs"].contains(&fs_type.as_str()) {
        return Some(Err(Refusal::Source(format!("fc with fsType {fs_type:?}"))));
    }
    let client = (keys::CLIENT, "fc".to_owned());
    Some(Ok(options(&[
        client,
        (keys::SOURCE, "fc".to_owned()),
        (keys::FS_TYPE, fs_type),
    ])))
}

fn check_options(
    options: Option<&BTreeMap<String, String>>,
    fs_type: Option<&str>,
    mount_options: &[String],
    expected: &Expected<'_>,
    refusals: &mut Vec<Refusal>,
) {
    let mut volume = match Volume::from_options(options.unwrap_or(&BTreeMap::new())) {
        Ok(volume) => volume,
        Err(error) => return refusals.push(Refusal::Options(error)),
    };
    if volume.fs_type.is_empty() {
        // The mounter then uses the source's own field.
        fs_type.unwrap_or_default().clone_into(&mut volume.fs_type);
    }
    volume.mount_options.extend_from_slice(mount_options);
    let granted = Granted {
        pv_name: expected.pv_name,
        mount_options: expected.class_options,
        client_image: expected.client_image,
    };
    refusals.extend(check_volume(&volume, Speaker::Image, &granted));
}

/// All that is wrong with a volume's options, as an image printed them for `provision` or `attach`.
pub fn check_volume(volume: &Volume, speaker: Speaker, granted: &Granted<'_>) -> Vec<Refusal> {
    if speaker != Speaker::Attach && [ClientName::POOL, HOST].contains(&volume.client.as_str()) {
        return vec![Refusal::Client(volume.client.to_string())];
    }
    let mut refusals = Vec::new();
    match volume.check(speaker, granted.mount_options) {
        Ok(()) => {}
        Err(CheckError::Node(error)) => refusals.push(Refusal::NodeAccess(error)),
        Err(error) => refusals.push(Refusal::Check(error)),
    }
    if volume.client.as_str() == ClientName::LOCAL && !volume.source.contains(granted.pv_name) {
        refusals.push(Refusal::NotItsFile {
            found: volume.source.clone(),
            wanted: granted.pv_name.to_owned(),
        });
    }
    if let Some(image) = &volume.client_image
        && Some(image.as_str()) != granted.client_image
    {
        refusals.push(Refusal::ClientImage(image.clone()));
    }
    refusals
}

fn check_secret(namespace: Option<&str>, expected: &Expected<'_>, refusals: &mut Vec<Refusal>) {
    let Some(namespace) = namespace.filter(|namespace| !namespace.is_empty()) else {
        return;
    };
    let claim = expected.claim.metadata.namespace.as_deref();
    if namespace != expected.config_namespace && Some(namespace) != claim {
        refusals.push(Refusal::Secret(namespace.to_owned()));
    }
}

/// The Secret that its mount needs.
pub fn secret_ref(spec: &PersistentVolumeSpec) -> Option<&SecretReference> {
    let flex = spec.flex_volume.as_ref().and_then(|flex| flex.secret_ref.as_ref());
    flex.or_else(|| spec.csi.as_ref()?.node_publish_secret_ref.as_ref())
}

/// Whether it has the Secret of its connection if, and only if, it has to be attached.
fn check_connection(spec: &PersistentVolumeSpec, expected: &Expected<'_>, refusals: &mut Vec<Refusal>) {
    let secret = secret_ref(spec);
    let name = secret.and_then(|secret| secret.name.as_deref()).unwrap_or_default();
    let namespace = secret
        .and_then(|secret| secret.namespace.as_deref())
        .unwrap_or_default();
    let is_connection = name == secret_name(expected.pv_name);
    if expected.attaches && !(is_connection && namespace == expected.config_namespace) {
        refusals.push(Refusal::NotItsConnection(format!("{namespace}/{name}")));
    } else if is_connection && !expected.attaches {
        refusals.push(Refusal::NotAttached);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Expected, Refusal, check};
    use crate::config::VolumeSourceKind;
    use crate::volume::topology::{self, Node};
    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use serde_json::{Value, json};

    pub(crate) fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "u1", "resourceVersion": "7"},
            "spec": {"storageClassName": "silver", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                     "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .unwrap()
    }

    pub(crate) fn volume() -> Value {
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

    type Change = fn(&mut Value);

    fn refusals(change: impl FnOnce(&mut Value)) -> Vec<Refusal> {
        let mut value = volume();
        change(&mut value);
        let pv: PersistentVolume = serde_json::from_value(value).unwrap();
        let node = Node {
            name: "node-a".into(),
            labels: [
                ("kubernetes.io/hostname", "node-a"),
                ("client.mooring.dev/nfs", "not-ready"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        };
        let expected = Expected {
            claim: &claim(),
            pv_name: "pvc-u1",
            config_namespace: "admin",
            node: Some(&node),
            class_options: &["suid".to_owned()],
            client_image: Some("mooring.dev/client-nfs"),
            attaches: false,
        };
        check(&pv, &expected)
    }

    #[test]
    fn a_volume_that_is_to_be_attached_has_the_secret_of_its_connection_and_no_other() {
        let said = |attaches: bool, secret: Value| {
            let mut pv = volume();
            pv["spec"]["flexVolume"]["secretRef"] = secret;
            let expected = Expected {
                claim: &claim(),
                pv_name: "pvc-u1",
                config_namespace: "admin",
                node: None,
                class_options: &[],
                client_image: None,
                attaches,
            };
            check(&serde_json::from_value(pv).unwrap(), &expected)
        };
        let its = json!({"name": "attachment-pvc-u1", "namespace": "admin"});
        assert_eq!(said(true, its.clone()), []);
        assert_eq!(said(false, its), [Refusal::NotAttached]);
        assert_eq!(said(false, Value::Null), []);
        for (secret, found) in [
            (Value::Null, "/"),
            (json!({"name": "chap", "namespace": "admin"}), "admin/chap"),
            (
                json!({"name": "attachment-pvc-u1", "namespace": "default"}),
                "default/attachment-pvc-u1",
            ),
        ] {
            assert_eq!(said(true, secret), [Refusal::NotItsConnection(found.into())]);
        }
    }

    #[test]
    fn a_raw_block_volume_is_accepted_where_something_can_give_a_pod_its_device() {
        let mut claim = claim();
        claim.spec.as_mut().unwrap().volume_mode = Some("Block".into());
        let expected = Expected {
            claim: &claim,
            pv_name: "pvc-u1",
            config_namespace: "admin",
            node: None,
            class_options: &[],
            client_image: None,
            attaches: false,
        };
        let said = |driver: &str, value: Value| {
            let mut pv = volume();
            pv["spec"]["volumeMode"] = json!("Block");
            pv["spec"].as_object_mut().unwrap().remove("flexVolume");
            pv["spec"][driver] = value;
            let refusals = check(&serde_json::from_value(pv).unwrap(), &expected);
            refusals.iter().map(ToString::to_string).collect::<String>()
        };
        let csi =
            |options: Value| json!({"driver": "vcs.mooring.dev", "volumeHandle": "x", "volumeAttributes": options});
        let local = json!({"client": "local", "source": "pvc-u1.img"});
        assert_eq!(said("csi", csi(local.clone())), "");
        let iscsi = json!({"client": "iscsi", "source": "iscsi://10.0.0.1/iqn.2020-01.com.example:pvc-u1/1"});
        assert_eq!(said("csi", csi(iscsi)), "");
        let nfs = said("csi", csi(json!({"client": "nfs", "source": "h:/x"})));
        assert!(nfs.contains("client nfs has no device to give"), "{nfs}");
        let flex = said("flexVolume", json!({"driver": "mooring.dev/vcs", "options": local}));
        assert!(flex.contains("flexVolume has no device to give"), "{flex}");
    }

    #[test]
    fn a_volume_that_could_never_be_mounted_is_refused_with_the_least_size() {
        let said = |client: &str, fs_type: &str, size: &str, mode: &str| {
            let mut claim = claim();
            let spec = claim.spec.as_mut().unwrap();
            let asked = json!({"requests": {"storage": size}});
            spec.resources = serde_json::from_value(asked).unwrap();
            spec.volume_mode = Some(mode.to_owned());
            let expected = Expected {
                claim: &claim,
                pv_name: "pvc-u1",
                config_namespace: "admin",
                node: None,
                class_options: &[],
                client_image: None,
                attaches: false,
            };
            let mut pv = volume();
            pv["spec"]["capacity"]["storage"] = json!(size);
            pv["spec"]["volumeMode"] = json!(mode);
            pv["spec"].as_object_mut().unwrap().remove("flexVolume");
            let source = if client == "local" { "pvc-u1.img" } else { "h:/pvc-u1" };
            let options = json!({"client": client, "source": source, "fs-type": fs_type});
            pv["spec"]["csi"] = json!({"driver": "vcs.mooring.dev", "volumeHandle": "x", "volumeAttributes": options});
            let refusals = check(&serde_json::from_value(pv).unwrap(), &expected);
            refusals.iter().map(ToString::to_string).collect::<String>()
        };
        for (fs_type, size, least) in [("", "1", "8Mi"), ("ext4", "8191Ki", "8Mi"), ("xfs", "299Mi", "300Mi")] {
            let text = said("local", fs_type, size, "Filesystem");
            assert!(
                text.contains("too small") && text.contains(least),
                "{fs_type} of {size}: {text}"
            );
        }
        for (client, fs_type, size, mode) in [
            ("local", "", "8Mi", "Filesystem"),
            ("local", "xfs", "300Mi", "Filesystem"),
            ("local", "", "1", "Block"),
            ("nfs", "", "1", "Filesystem"),
        ] {
            assert_eq!(said(client, fs_type, size, mode), "", "{client} {fs_type} of {size}");
        }
    }

    #[test]
    fn what_was_asked_for_is_accepted() {
        assert_eq!(refusals(|_| {}), []);
        assert_eq!(refusals(|pv| pv["spec"]["capacity"]["storage"] = json!("2G")), []);
        assert_eq!(refusals(|pv| pv["spec"]["volumeMode"] = json!("Filesystem")), []);
        for namespace in ["default", "admin", ""] {
            let secret = json!({"name": "s", "namespace": namespace});
            assert_eq!(refusals(|pv| pv["spec"]["flexVolume"]["secretRef"] = secret), []);
        }
        for (key, value) in [
            ("client-image", "mooring.dev/client-nfs"),
            ("mount-options", "ro,suid"),
            ("fs-type", "nfs4"),
        ] {
            assert_eq!(
                refusals(|pv| pv["spec"]["flexVolume"]["options"][key] = json!(value)),
                [],
                "{key}"
            );
        }
        let local = json!({"client": "local", "source": "acme-pvc-u1.img"});
        assert_eq!(refusals(|pv| pv["spec"]["flexVolume"]["options"] = local), []);
        let nfs = json!({"server": "10.10.2.4", "path": "/x"});
        assert_eq!(
            refusals(|pv| {
                pv["spec"].as_object_mut().unwrap().remove("flexVolume");
                pv["spec"]["nfs"] = nfs;
                pv["spec"]["mountOptions"] = json!(["ro"]);
            }),
            []
        );
        // One that only the class may give, and one that an image may give.
        let by_csi = |pv: &mut Value| {
            let options = pv["spec"]["flexVolume"]["options"].clone();
            pv["spec"].as_object_mut().unwrap().remove("flexVolume");
            pv["spec"]["csi"] = json!({"driver": "vcs.mooring.dev", "volumeHandle": "x", "volumeAttributes": options});
            pv["spec"]["mountOptions"] = json!(["suid", "ro"]);
        };
        assert_eq!(refusals(by_csi), []);
        let here = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"]}]}]}});
        assert_eq!(refusals(|pv| pv["spec"]["nodeAffinity"] = here), []);
        let able = topology::able("nfs", VolumeSourceKind::FlexVolume);
        let unable = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": able}]}});
        assert_eq!(refusals(|pv| pv["spec"]["nodeAffinity"] = unable), []);
    }

    fn options(pv: &mut Value) -> &mut Value {
        &mut pv["spec"]["flexVolume"]["options"]
    }

    const BAD_OPTIONS: &[(Change, &str)] = &[
        (|pv| options(pv)["client"] = json!("pool"), "gives out a node"),
        (|pv| *options(pv) = json!({}), "option \"client\" is missing"),
        (
            |pv| options(pv)["source"] = json!("/dev/vda1"),
            "path or a device of the node",
        ),
        (
            |pv| {
                *options(pv) = json!({"client": "ext4", "source": "//dev/loop1"});
            },
            "path or a device of the node",
        ),
        (
            |pv| options(pv)["port"] = json!("2049"),
            "client nfs has no option \"port\"",
        ),
        (
            |pv| {
                *options(pv) = json!({"client": "glusterfs", "source": "h:/x", "backup-servers": "-x"});
            },
            "write servers' names",
        ),
        (|pv| options(pv)["source"] = json!("h:/x/../../etc"), "part \"..\""),
        (|pv| options(pv)["fs-type"] = json!("cgroup"), "view of the node"),
        (
            |pv| options(pv)["mount-options"] = json!("suid,dev"),
            "\"dev\" removes a protection",
        ),
        (
            |pv| options(pv)["client-image"] = json!("mooring.dev/other"),
            "which its ConfigMap does not name",
        ),
        (
            |pv| {
                *options(pv) = json!({"client": "local", "source": "pvc-u2.img"});
            },
            "another claim's volume",
        ),
    ];

    fn swap(pv: &mut Value, source: &str, value: Value) {
        pv["spec"].as_object_mut().unwrap().remove("flexVolume");
        pv["spec"][source] = value;
    }

    /// Proves: P2
    #[test]
    fn anything_else_is_refused_and_named() {
        let table: &[(Change, &str)] = &[
            (|pv| pv["metadata"]["name"] = json!("mine"), "its name is \"mine\""),
            (|pv| pv["spec"]["claimRef"]["uid"] = json!("u2"), "(uid u2)"),
            (|pv| pv["spec"]["claimRef"]["namespace"] = json!("other"), "other/data"),
            (|pv| drop(pv["spec"]["claimRef"].take()), "claimRef is not set"),
            (
                |pv| pv["spec"]["storageClassName"] = json!("gold"),
                "\"gold\", not \"silver\"",
            ),
            (
                |pv| pv["spec"]["volumeAttributesClassName"] = json!("fast"),
                "its volumeAttributesClassName is \"fast\", not \"\"",
            ),
            (
                |pv| pv["spec"]["capacity"]["storage"] = json!("1G"),
                "1000000000 bytes, less than",
            ),
            (|pv| pv["spec"]["capacity"] = json!({}), "it has no capacity"),
            (
                |pv| pv["spec"]["accessModes"] = json!(["ReadOnlyMany"]),
                "ReadWriteOnce",
            ),
            (|pv| pv["spec"]["volumeMode"] = json!("Block"), "Block, not Filesystem"),
            (
                |pv| swap(pv, "hostPath", json!({"path": "/"})),
                "its source is hostPath",
            ),
            (|pv| swap(pv, "local", json!({"path": "/"})), "its source is local"),
            (
                |pv| swap(pv, "csi", json!({"driver": "ebs.csi.aws.com", "volumeHandle": "x"})),
                "csi with driver",
            ),
            (
                |pv| pv["spec"]["flexVolume"]["driver"] = json!("evil/driver"),
                "flexVolume with driver \"evil/driver\"",
            ),
            (
                |pv| pv["spec"]["flexVolume"]["fsType"] = json!("overlay"),
                "view of the node",
            ),
            (
                |pv| pv["spec"]["flexVolume"]["secretRef"] = json!({"name": "s", "namespace": "kube-system"}),
                "kube-system",
            ),
            (|pv| pv["spec"]["mountOptions"] = json!(["ro"]), "mountOptions"),
            (
                |pv| {
                    let options = pv["spec"]["flexVolume"]["options"].clone();
                    let by_csi = json!({"driver": "vcs.mooring.dev", "volumeHandle": "x", "volumeAttributes": options});
                    swap(pv, "csi", by_csi);
                    pv["spec"]["mountOptions"] = json!(["dev"]);
                },
                "\"dev\"",
            ),
            (
                |pv| {
                    pv["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchFields": [
                        {"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}]}});
                },
                "leaves out node \"node-a\"",
            ),
            (
                |pv| pv["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z"),
                "being deleted",
            ),
        ];
        for &(change, words) in table.iter().chain(BAD_OPTIONS) {
            let refusals = refusals(change);
            assert_eq!(refusals.len(), 1, "{words}: {refusals:?}");
            assert!(refusals[0].to_string().contains(words), "{words}: {}", refusals[0]);
        }
    }
}
