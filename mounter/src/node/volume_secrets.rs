//! The Secret that a PersistentVolume has by now, read in the name of this node: the API server gives a node the
//! Secrets of its own Pods' volumes and no others, and the mounter in the namespaces alone where a Role allows it that.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use kube::{Api, Client};
use mooring_contract::names::FLEX_DRIVER;
use mooring_contract::volume::Volume;
use mooring_program::error::answer_of;

use super::node_pods::client_as;
use crate::grant::needs_attachment;
use crate::volume::job::Secrets;
use crate::volume::kubelet_options::of_persistent_volume;
use crate::volume::target::{Driver, Target};

/// Why it is not known which Secret a volume has by now.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("PersistentVolume {0} is not there any more, or not as it was mounted")]
    NoVolume(String),
    #[error("failed to read {attempted}: {}", answer_of(source))]
    Api {
        attempted: String,
        source: Box<kube::Error>,
    },
    #[error("Secret {0} is not of type {FLEX_DRIVER}, so the kubelet would not hand it over either")]
    Type(String),
}

/// A PersistentVolume as it was mounted.
#[derive(Debug, Clone, Copy)]
pub struct MountedVolume<'a> {
    pub target: &'a Target,
    pub client: &'a str,
    pub source: &'a str,
    pub options: &'a BTreeMap<String, String>,
}

/// Reads the Secrets of volumes.
pub struct VolumeSecrets {
    volumes: Api<PersistentVolume>,
    as_node: Client,
}

impl VolumeSecrets {
    /// For `node`, which has to be the node in the configuration's token.
    pub fn new(client: Client, config: kube::Config, node: &str) -> Result<Self, kube::Error> {
        Ok(Self {
            volumes: Api::all(client),
            as_node: client_as(config, node)?,
        })
    }

    /// The Secret that a volume has by now.
    pub async fn newest(&self, mounted: MountedVolume<'_>) -> Result<Secrets, SecretError> {
        let failed = |attempted: String| {
            move |source| SecretError::Api {
                attempted,
                source: Box::new(source),
            }
        };
        let (name, driver) = (mounted.target.name(), mounted.target.driver());
        let found = self.volumes.get_opt(name).await;
        let found = found.map_err(failed(format!("PersistentVolume {name}")))?;
        let found = found.filter(|found| is_what_was(found, mounted, driver));
        let found = found.ok_or_else(|| SecretError::NoVolume(name.to_owned()))?;
        let Some(reference) = SecretReference::of(&found) else {
            return Ok(Secrets::default());
        };
        let SecretReference { namespace, name } = reference;
        let secret = Api::<Secret>::namespaced(self.as_node.clone(), &namespace)
            .get(&name)
            .await;
        let said = format!("{namespace}/{name}");
        let secret = secret.map_err(failed(format!("Secret {said} in the node's name")))?;
        if driver == Driver::FlexVolume && secret.type_.as_deref() != Some(FLEX_DRIVER) {
            return Err(SecretError::Type(said));
        }
        let data = secret.data.unwrap_or_default().into_iter();
        Ok(Secrets(data.map(|(key, value)| (key, value.0)).collect()))
    }
}

/// Whether a PersistentVolume is what was mounted: a newer Secret is not for an older server. The secrets of a volume
/// that has to be attached come with its connection.
fn is_what_was(found: &PersistentVolume, was: MountedVolume<'_>, driver: Driver) -> bool {
    let volume = of_persistent_volume(found, driver).and_then(Result::ok);
    let is_same = |volume: Volume| {
        volume.client.as_str() == was.client && volume.source == was.source && volume.rest == *was.options
    };
    volume.is_some_and(is_same) && !needs_attachment(found)
}

/// A Secret that a PersistentVolume names.
#[derive(Debug, PartialEq, Eq)]
struct SecretReference {
    namespace: String,
    name: String,
}

impl SecretReference {
    fn of(found: &PersistentVolume) -> Option<Self> {
        let spec = found.spec.as_ref()?;
        let csi = spec.csi.as_ref().and_then(|csi| csi.node_publish_secret_ref.as_ref());
        let flex = spec.flex_volume.as_ref().and_then(|flex| flex.secret_ref.as_ref());
        let reference = csi.or(flex)?;
        // The kubelet takes the Pod's, which is the claim's.
        let of_claim = || spec.claim_ref.as_ref()?.namespace.clone();
        Some(Self {
            namespace: reference.namespace.clone().or_else(of_claim)?,
            name: reference.name.clone()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use k8s_openapi::api::core::v1::PersistentVolume;
    use serde_json::{Value, json};

    use super::{MountedVolume, SecretReference, is_what_was};
    use crate::volume::target::{Driver, Target};

    fn volume(spec: &Value) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "pv-1"}, "spec": spec})).unwrap()
    }

    fn csi(source: &str, secret: &Value) -> PersistentVolume {
        volume(&json!({"csi": {
            "driver": "vcs.mooring.dev", "volumeHandle": "h", "nodePublishSecretRef": secret,
            "volumeAttributes": {"client": "sshfs", "source": source}
        }}))
    }

    fn flex(secret: &Value) -> PersistentVolume {
        volume(&json!({
            "claimRef": {"namespace": "shop", "name": "data"},
            "flexVolume": {
                "driver": "mooring.dev/vcs", "secretRef": secret, "options": {"client": "sshfs", "source": "a@h:/x"}
            }
        }))
    }

    #[test]
    fn the_secret_is_the_one_that_the_kubelet_would_read() {
        let of = |found: &PersistentVolume| SecretReference::of(found).map(|it| (it.namespace, it.name));
        let said = json!({"namespace": "vault", "name": "login"});
        let wanted = |namespace: &str| Some((namespace.to_owned(), "login".to_owned()));
        assert_eq!(of(&csi("a@h:/x", &said)), wanted("vault"));
        assert_eq!(of(&flex(&said)), wanted("vault"));
        assert_eq!(of(&flex(&json!({"name": "login"}))), wanted("shop"));
        assert_eq!(of(&flex(&Value::Null)), None);
    }

    #[test]
    fn a_newer_secret_is_for_what_was_mounted_and_for_nothing_else() {
        let path = "/kubelet/pods/11111111-2222-3333-4444-555555555555/volumes/mooring.dev~vcs/pv-1";
        let target = Target::parse(Path::new("/kubelet"), path).unwrap();
        let was = MountedVolume {
            target: &target,
            client: "sshfs",
            source: "a@h:/x",
            options: &BTreeMap::new(),
        };
        let is_it = |found: &PersistentVolume, driver| is_what_was(found, was, driver);
        let said = json!({"namespace": "vault", "name": "login"});
        assert!(is_it(&csi("a@h:/x", &said), Driver::Csi));
        assert!(is_it(&flex(&said), Driver::FlexVolume));
        assert!(!is_it(&csi("a@elsewhere:/x", &said), Driver::Csi));
        let other_port = volume(&json!({"csi": {
            "driver": "vcs.mooring.dev", "volumeHandle": "h",
            "volumeAttributes": {"client": "sshfs", "source": "a@h:/x", "port": "2222"}
        }}));
        assert!(!is_it(&other_port, Driver::Csi));
        assert!(!is_it(&flex(&said), Driver::Csi));
        let attached = json!({"namespace": "vault", "name": "attachment-pv-1"});
        assert!(!is_it(&csi("a@h:/x", &attached), Driver::Csi));
    }
}
