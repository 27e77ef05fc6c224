//! Builds the volume: pure functions from the request and the arguments to JSON.

use std::collections::BTreeMap;

use mooring_contract::names::{FLEX_DRIVER, PROVISIONER, annotations};
use mooring_contract::request::Request;
use mooring_contract::volume::{Volume, VolumeError, keys};
use serde_json::{Map, Value, json};

use crate::error::Error;

/// Length in bytes of the longest termination message that Kubernetes keeps.
const TERMINATION_MESSAGE_MAX: usize = 4096;

/// Sources that name a path of the node itself.
const FORBIDDEN_SOURCES: [&str; 2] = ["hostPath", "local"];

/// A Secret that the mount needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretName {
    /// `metadata.name`; never empty.
    pub name: String,
    /// `metadata.namespace`; `None` if the image names the Secret without one.
    pub namespace: Option<String>,
}

impl std::str::FromStr for SecretName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, namespace) = match text.split_once('/') {
            Some((name, namespace)) => (name, Some(namespace)),
            None => (text, None),
        };
        if name.is_empty() || namespace.is_some_and(|namespace| namespace.is_empty() || namespace.contains('/')) {
            return Err(Error::SecretName(text.to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            namespace: namespace.map(str::to_owned),
        })
    }
}

#[derive(Debug)]
pub enum VolumeSource {
    /// Flat options: Mooring mounts the volume.
    Flex {
        options: BTreeMap<String, String>,
        /// The Secret for the mount.
        secret: Option<SecretName>,
        read_only: bool,
    },
    /// Any other source of a `PersistentVolume`, unchanged.
    Other(Value),
}

/// What the arguments add to the request.
#[derive(Debug)]
pub struct Extra {
    pub source: VolumeSource,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// Its capacity as a Kubernetes quantity, if larger than requested.
    pub capacity: Option<String>,
}

/// Reads `KEY=VALUE` arguments. Everything after the first `=` is the value, with any commas.
pub fn options_from_args(args: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let options = pairs_from_args(args)?;
    Volume::from_options(&options).map_err(Error::Options)?;
    Ok(options)
}

/// The same of what need not be a whole volume.
pub fn pairs_from_args(args: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let mut options = BTreeMap::new();
    for arg in args {
        let (key, value) = arg
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| Error::Options(VolumeError::NoEquals(arg.clone())))?;
        if options.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(Error::Options(VolumeError::Twice(key.to_owned())));
        }
    }
    Ok(options)
}

/// The termination message of `volume-source: flexVolume`: the options as one line of JSON.
pub fn termination_message(mut options: BTreeMap<String, String>, secret: Option<SecretName>) -> Result<String, Error> {
    if let Some(secret) = secret {
        options.insert(keys::SECRET_NAME.to_owned(), secret.name);
        if let Some(namespace) = secret.namespace {
            options.insert(keys::SECRET_NAMESPACE.to_owned(), namespace);
        }
    }
    let text = json!(options).to_string();
    if text.len() > TERMINATION_MESSAGE_MAX {
        return Err(Error::OptionsTooLong {
            len: text.len(),
            max: TERMINATION_MESSAGE_MAX,
        });
    }
    Ok(text)
}

pub fn persistent_volume(request: &Request, extra: Extra) -> Result<Value, Error> {
    let mut spec = Map::new();
    let mut put = |key: &str, value: Value| spec.insert(key.to_owned(), value);
    let capacity = extra.capacity.unwrap_or_else(|| quantity(request.size));
    put("capacity", json!({ "storage": capacity }));
    put("accessModes", json!(request.access_modes));
    put("volumeMode", json!(request.volume_mode));
    put("persistentVolumeReclaimPolicy", json!(request.reclaim_policy));
    put("storageClassName", json!(request.storage_class));
    // Because of the uid, no other claim can take the volume, not even a later one of the same name.
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": request.pvc_namespace,
        "name": request.pvc_name,
        "uid": request.pvc_uid,
    });
    put("claimRef", claim);
    if let Some(node) = extra.node {
        put("nodeAffinity", node_affinity(&node));
    }
    let (key, source) = match extra.source {
        VolumeSource::Flex {
            options,
            secret,
            read_only,
        } => (
            "flexVolume".to_owned(),
            flex_volume(request, options, secret, read_only),
        ),
        VolumeSource::Other(source) => {
            let (key, mut source) = only_entry(source)?;
            if FORBIDDEN_SOURCES.contains(&key.as_str()) {
                return Err(Error::SourceForbidden(key));
            }
            if key == "flexVolume" {
                // Another FlexVolume driver has options of its own, but the kubelet refuses mountOptions for it as
                // well.
                let options = source.entry("options").or_insert_with(|| json!({}));
                if let Some(options) = options.as_object_mut().filter(|_| !request.mount_options.is_empty()) {
                    let list = request.mount_options.join(",");
                    options.entry(keys::MOUNT_OPTIONS).or_insert_with(|| json!(list));
                }
            } else if !request.mount_options.is_empty() {
                put("mountOptions", json!(request.mount_options));
            }
            (key, Value::Object(source))
        }
    };
    put(&key, source);
    Ok(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": request.pv_name,
            // Without it, kube-controller-manager takes the volume for its own and fails to delete it.
            "annotations": { annotations::PROVISIONED_BY: PROVISIONER },
        },
        "spec": spec,
    }))
}

/// Bytes as people write them: with the largest binary suffix that gives a whole number.
fn quantity(bytes: u64) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let shift = (bytes.trailing_zeros() / 10).min(6);
    if bytes == 0 {
        return "0".to_owned();
    }
    format!("{}{}", bytes >> (10 * shift), suffixes[shift as usize])
}

/// The class's mount options and file system are added to the options unless the image has set them: the kubelet
/// refuses a flexVolume with `spec.mountOptions`.
fn flex_volume(
    request: &Request,
    mut options: BTreeMap<String, String>,
    secret: Option<SecretName>,
    read_only: bool,
) -> Value {
    if !request.mount_options.is_empty() {
        options
            .entry(keys::MOUNT_OPTIONS.to_owned())
            .or_insert_with(|| request.mount_options.join(","));
    }
    if !request.fs_type.is_empty() {
        options
            .entry(keys::FS_TYPE.to_owned())
            .or_insert_with(|| request.fs_type.clone());
    }
    let mut source = json!({ "driver": FLEX_DRIVER, "options": options });
    if read_only {
        source["readOnly"] = json!(true);
    }
    if let Some(secret) = secret {
        let namespace = secret.namespace.unwrap_or_else(|| request.pvc_namespace.clone());
        source["secretRef"] = json!({ "name": secret.name, "namespace": namespace });
    }
    source
}

fn node_affinity(node: &str) -> Value {
    json!({ "required": { "nodeSelectorTerms": [{
        "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }],
    }] } })
}

fn only_entry(source: Value) -> Result<(String, Map<String, Value>), Error> {
    let Value::Object(map) = source else {
        return Err(Error::SourceShape);
    };
    let mut entries = map.into_iter();
    match (entries.next(), entries.next()) {
        (Some((key, Value::Object(source))), None) => Ok((key, source)),
        _ => Err(Error::SourceShape),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Extra, SecretName, VolumeSource, options_from_args, persistent_volume, termination_message};
    use crate::error::Error;
    use mooring_contract::request::Request;
    use serde_json::{Value, json};

    pub(crate) fn request() -> Request {
        serde_json::from_value(json!({
            "contract": 1, "operation": "provision", "pv-name": "pvc-u1", "username": "tom", "groups": ["dev"],
            "size": 1_073_741_824, "size-gi": 1, "pvc-name": "data", "pvc-namespace": "shop", "pvc-uid": "u1",
            "storage-class": "silver", "access-modes": ["ReadWriteOnce"], "volume-mode": "Filesystem", "fs-type": "",
            "mount-options": [], "reclaim-policy": "Delete", "node-name": "", "topology": {}, "service-account": "foo",
            "kube-api": "https://10.0.0.1:443", "parameters": {"zone": "west"},
        }))
        .unwrap()
    }

    fn args(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    fn flex(options: &[&str], secret: Option<&str>) -> Extra {
        Extra {
            source: VolumeSource::Flex {
                options: options_from_args(&args(options)).unwrap(),
                secret: secret.map(|secret| secret.parse().unwrap()),
                read_only: false,
            },
            node: None,
            capacity: None,
        }
    }

    fn other(source: Value) -> Extra {
        Extra {
            source: VolumeSource::Other(source),
            node: None,
            capacity: None,
        }
    }

    #[test]
    fn the_volume_is_the_claim_s_and_no_other_s() {
        let volume = persistent_volume(&request(), flex(&["client=nfs", "source=s:/x"], None)).unwrap();
        assert_eq!(
            volume,
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {
                    "name": "pvc-u1",
                    "annotations": {"pv.kubernetes.io/provisioned-by": "mooring.dev/flex-provisioner"},
                },
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "volumeMode": "Filesystem",
                    "persistentVolumeReclaimPolicy": "Delete",
                    "storageClassName": "silver",
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data", "uid": "u1"},
                    "flexVolume": {"driver": "mooring.dev/vcs", "options": {"client": "nfs", "source": "s:/x"}},
                },
            })
        );
    }

    #[test]
    fn a_capacity_is_written_as_it_was_requested() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1 << 10, "1Ki"),
            (1536 << 20, "1536Mi"),
            (5 << 30, "5Gi"),
            (1 << 60, "1Ei"),
            ((1 << 30) + 1, "1073741825"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(super::quantity(bytes), text);
        }
    }

    #[test]
    fn mount_options_of_a_flexvolume_are_in_its_options() {
        let mut request = request();
        request.mount_options = vec!["noatime".into(), "ro".into()];
        request.fs_type = "xfs".into();
        let spec = &persistent_volume(&request, flex(&["client=local"], None)).unwrap()["spec"];
        assert_eq!(
            spec["flexVolume"]["options"],
            json!({"client": "local", "mount-options": "noatime,ro", "fs-type": "xfs"})
        );
        assert_eq!(spec.get("mountOptions"), None);
        let spec = &persistent_volume(&request, flex(&["client=local", "mount-options=rw"], None)).unwrap()["spec"];
        assert_eq!(spec["flexVolume"]["options"]["mount-options"], "rw");
        let source = json!({"flexVolume": {"driver": "x/y"}});
        let spec = &persistent_volume(&request, other(source)).unwrap()["spec"];
        assert_eq!(spec["flexVolume"]["options"]["mount-options"], "noatime,ro");
        assert_eq!(spec.get("mountOptions"), None);
    }

    #[test]
    fn another_source_is_used_unchanged_with_the_class_s_mount_options() {
        let mut request = request();
        request.mount_options = vec!["noatime".into()];
        let source = json!({"iscsi": {"targetPortal": "10.10.2.4:3260", "iqn": "iqn.x", "lun": 0}});
        let spec = &persistent_volume(&request, other(source.clone())).unwrap()["spec"];
        assert_eq!(spec["iscsi"], source["iscsi"]);
        assert_eq!(spec["mountOptions"], json!(["noatime"]));
    }

    #[test]
    fn a_source_of_the_node_s_own_files_is_refused() {
        for source in [json!({"hostPath": {"path": "/"}}), json!({"local": {"path": "/"}})] {
            assert!(matches!(
                persistent_volume(&request(), other(source)),
                Err(Error::SourceForbidden(_))
            ));
        }
    }

    #[test]
    fn a_source_has_one_key_and_cannot_overwrite_the_rest_of_the_spec() {
        for source in [
            json!([]),
            json!("iscsi"),
            json!({}),
            json!({"iscsi": 1}),
            json!({"iscsi": {}, "claimRef": {}}),
        ] {
            assert!(matches!(
                persistent_volume(&request(), other(source)),
                Err(Error::SourceShape)
            ));
        }
    }

    #[test]
    fn a_secret_is_in_the_claim_s_namespace_unless_said() {
        let secret_of = |text| {
            persistent_volume(&request(), flex(&["client=sshfs"], Some(text))).unwrap()["spec"]["flexVolume"]["secretRef"]
                .clone()
        };
        assert_eq!(secret_of("key"), json!({"name": "key", "namespace": "shop"}));
        assert_eq!(secret_of("key/admin"), json!({"name": "key", "namespace": "admin"}));
        for text in ["", "/", "key/", "/admin", "a/b/c"] {
            assert!(text.parse::<SecretName>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_volume_of_one_node_and_a_larger_one() {
        let mut extra = flex(&["client=local"], None);
        extra.node = Some("a".into());
        extra.capacity = Some("2Gi".into());
        let spec = &persistent_volume(&request(), extra).unwrap()["spec"];
        assert_eq!(spec["capacity"]["storage"], "2Gi");
        assert_eq!(
            spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0],
            json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]})
        );
    }

    #[test]
    fn options_are_key_and_value_whatever_the_value_contains() {
        let options = options_from_args(&args(&["client=nfs", "source=a=b,\"c\" 'd'\\"])).unwrap();
        assert_eq!(options["source"], "a=b,\"c\" 'd'\\");
        let text = termination_message(options.clone(), Some("key/admin".parse().unwrap())).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["source"], options["source"]);
        assert_eq!(read["secret-name"], "key");
        assert_eq!(read["secret-namespace"], "admin");
        for list in [
            &["client"][..],
            &["=x"],
            &["client=nfs", "client=nfs"],
            &["source=x"],
            &["client=nfs", "source=a\nb"],
        ] {
            assert!(
                matches!(options_from_args(&args(list)), Err(Error::Options(_))),
                "{list:?}"
            );
        }
    }

    #[test]
    fn options_that_kubernetes_would_cut_short_are_refused() {
        let long = format!("source={}", "x".repeat(4096));
        let options = options_from_args(&args(&["client=nfs", &long])).unwrap();
        assert!(matches!(
            termination_message(options, None),
            Err(Error::OptionsTooLong { .. })
        ));
    }
}
