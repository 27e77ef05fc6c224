//! One run's properties: the request, and from it the Secret that carries every value and the variables that refer to
//! it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, SecretKeySelector};
use mooring_contract::property::{env_name, keys};
use mooring_contract::request::Request;
use secrecy::{ExposeSecret, SecretString};

use crate::config::problem::{ConfigProblem, join};
use crate::config::properties as names;

/// Key of the Secret that holds `request.json`; no property can have this name.
pub const REQUEST_KEY: &str = "request.json";

/// Most bytes of all properties together; a Secret holds 1 MiB.
const MAX_BYTES: usize = 512 * 1024;

/// Why a run's properties can't be handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PropertiesError {
    /// Names or values that can be no file or no variable, or two names that are one variable.
    #[error("properties of ConfigMap, StorageClass and Secret can't be handed to the image: {}", join(.0))]
    Bad(Vec<ConfigProblem>),
    /// A name that Mooring needs itself.
    #[error("property \"request.json\" is Mooring's own file: name it otherwise")]
    Reserved,
    /// A value of the Secret is not text.
    #[error("key {0:?} of the Secret is not UTF-8 text: encode it (base64)")]
    NotText(String),
    #[error("the properties take {0} bytes, more than {MAX_BYTES}: shorten them")]
    TooLarge(usize),
}

pub struct Properties {
    values: BTreeMap<String, SecretString>,
    request: String,
}

impl Properties {
    /// Puts together a run's properties: the secret's win over the request's parameters (the class's over the
    /// ConfigMap's, as they were merged), and those of its attributes over all; none of them can have the name of one
    /// of Mooring's own.
    ///
    /// `token` is property `service-token`; there is none if the run has no rights.
    pub fn new(
        request: &Request,
        secret: &BTreeMap<String, ByteString>,
        token: Option<SecretString>,
    ) -> Result<Self, PropertiesError> {
        let mut values: BTreeMap<String, SecretString> = BTreeMap::new();
        for (key, value) in &request.parameters {
            values.insert(key.clone(), SecretString::from(value.clone()));
        }
        for (key, value) in secret {
            let text = String::from_utf8(value.0.clone()).map_err(|_| PropertiesError::NotText(key.clone()))?;
            values.insert(key.clone(), SecretString::from(text));
        }
        for (key, value) in request.attributes.iter().flat_map(|attributes| &attributes.parameters) {
            let name = format!("{}{key}", keys::ATTRIBUTE_PREFIX);
            values.insert(name, SecretString::from(value.clone()));
        }
        check(&values)?;
        for (key, value) in own(request) {
            values.insert(key.to_owned(), SecretString::from(value));
        }
        if let Some(token) = token {
            values.insert(keys::SERVICE_TOKEN.to_owned(), token);
        }
        let request = serde_json::json!(request).to_string();
        let size = request.len()
            + values
                .iter()
                .map(|(key, value)| key.len() + value.expose_secret().len())
                .sum::<usize>();
        if size > MAX_BYTES {
            return Err(PropertiesError::TooLarge(size));
        }
        Ok(Self { values, request })
    }

    /// With what an image seals the secrets of its answer with, if it has any to give.
    #[must_use]
    pub fn with_answer_key(mut self, key: Option<SecretString>) -> Self {
        self.values.extend(key.map(|key| (keys::ANSWER_KEY.to_owned(), key)));
        self
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.values.keys().cloned().collect()
    }

    /// Each property, and the request, for a worker.
    pub fn into_texts(self) -> (BTreeMap<String, String>, String) {
        let values = self.values.into_iter();
        let values = values
            .map(|(key, value)| (key, value.expose_secret().to_owned()))
            .collect();
        (values, self.request)
    }

    /// The Secret's data: each property, and the request.
    pub fn into_secret_data(self) -> BTreeMap<String, ByteString> {
        let mut data: BTreeMap<_, _> = self
            .values
            .into_iter()
            .map(|(key, value)| (key, ByteString(value.expose_secret().as_bytes().to_vec())))
            .collect();
        data.insert(REQUEST_KEY.to_owned(), ByteString(self.request.into_bytes()));
        data
    }
}

/// The container's variables: each a reference into the Secret, so that no value is in the Pod.
pub fn variables(names: &BTreeSet<String>, secret: &str) -> Vec<EnvVar> {
    names
        .iter()
        .map(|name| EnvVar {
            name: env_name(name),
            value_from: Some(EnvVarSource {
                secret_key_ref: Some(SecretKeySelector {
                    name: secret.to_owned(),
                    key: name.clone(),
                    optional: None,
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        })
        .collect()
}

/// Mooring's own properties of a request, in text.
fn own(request: &Request) -> Vec<(&'static str, String)> {
    let topology = serde_json::Value::from_iter(request.topology.clone()).to_string();
    let mut own = vec![
        (keys::OPERATION, request.operation.to_string()),
        (keys::CONTRACT, request.contract.to_string()),
        (keys::PV_NAME, request.pv_name.clone()),
        (keys::USERNAME, request.username.clone()),
        (keys::GROUPS, request.groups.join(",")),
        (keys::SIZE, request.size.to_string()),
        (keys::SIZE_GI, request.size_gi.to_string()),
        (keys::PVC_NAME, request.pvc_name.clone()),
        (keys::PVC_NAMESPACE, request.pvc_namespace.clone()),
        (keys::STORAGE_CLASS, request.storage_class.clone()),
        (keys::ACCESS_MODES, request.access_modes.join(",")),
        (keys::VOLUME_MODE, request.volume_mode.clone()),
        (keys::FS_TYPE, request.fs_type.clone()),
        (keys::MOUNT_OPTIONS, request.mount_options.join(",")),
        (keys::RECLAIM_POLICY, request.reclaim_policy.clone()),
        (keys::NODE_NAME, request.node_name.clone()),
        (keys::TOPOLOGY, topology),
        (keys::SERVICE_ACCOUNT, request.service_account.clone()),
        (keys::KUBE_API, request.kube_api.clone()),
    ];
    if !request.allowed_topologies.is_empty() {
        let allowed = serde_json::json!(request.allowed_topologies).to_string();
        own.push((keys::ALLOWED_TOPOLOGIES, allowed));
    }
    if let Some(source) = &request.source {
        own.push((keys::SOURCE_PV_NAME, source.pv_name.clone()));
        own.push((keys::SOURCE_SIZE, source.size.to_string()));
    }
    if let Some(snapshot) = &request.snapshot {
        let key = if snapshot.members.is_some() {
            keys::SNAPSHOT_GROUP
        } else if snapshot.backup {
            keys::BACKUP_NAME
        } else {
            keys::SNAPSHOT_NAME
        };
        own.push((key, snapshot.name.clone()));
    }
    if let Some(attachment) = &request.attachment {
        own.push((keys::NODE_ADDRESSES, attachment.addresses.join(",")));
        own.push((keys::INITIATOR_NAME, attachment.initiator.clone()));
        own.push((keys::NODE_GONE, attachment.gone.to_string()));
        if !attachment.provider_id.is_empty() {
            own.push((keys::NODE_PROVIDER_ID, attachment.provider_id.clone()));
        }
    }
    if let Some(attributes) = &request.attributes {
        own.push((keys::ATTRIBUTES_CLASS, attributes.class.clone()));
    }
    own
}

/// Whether what is not Mooring's own can be handed over.
fn check(values: &BTreeMap<String, SecretString>) -> Result<(), PropertiesError> {
    if values.contains_key(REQUEST_KEY) {
        return Err(PropertiesError::Reserved);
    }
    let mut problems = names::check(values.keys().map(String::as_str));
    problems.extend(
        values
            .iter()
            .filter_map(|(key, value)| names::check_value(key, value.expose_secret())),
    );
    if problems.is_empty() {
        Ok(())
    } else {
        Err(PropertiesError::Bad(problems))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::{Properties, PropertiesError, REQUEST_KEY, variables};
    use k8s_openapi::ByteString;
    use mooring_contract::operation::Operation;
    use mooring_contract::request::{Member, Request, Snapshot, Source};
    use proptest::prelude::*;
    use secrecy::SecretString;

    /// What user tom asks for in the original design.
    pub(crate) fn silver() -> Request {
        Request {
            contract: 1,
            operation: Operation::Provision,
            pv_name: "pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca427".into(),
            username: "tom".into(),
            groups: vec!["users".into(), "system:authenticated".into()],
            size: 5 << 30,
            size_gi: 5,
            pvc_name: "data".into(),
            pvc_namespace: "default".into(),
            pvc_uid: "1b4e28ba-2fa1-11d2-883f-0016d3cca427".into(),
            storage_class: "silver".into(),
            access_modes: vec!["ReadWriteOnce".into()],
            volume_mode: "Filesystem".into(),
            fs_type: String::new(),
            mount_options: vec![],
            reclaim_policy: "Delete".into(),
            deletion_policy: String::new(),
            node_name: String::new(),
            topology: BTreeMap::new(),
            allowed_topologies: Vec::new(),
            service_account: "foo".into(),
            kube_api: "https://10.96.0.1:443".into(),
            parameters: [("zone", "west"), ("use-nfs-server", "10.10.2.4")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            volume: BTreeMap::new(),
            source: None,
            snapshot: None,
            attributes: None,
            attaches: false,
            attachment: None,
        }
    }

    fn data(properties: Properties) -> BTreeMap<String, String> {
        properties
            .into_secret_data()
            .into_iter()
            .map(|(key, value)| (key, String::from_utf8(value.0).unwrap()))
            .collect()
    }

    fn none() -> BTreeMap<String, ByteString> {
        BTreeMap::new()
    }

    #[test]
    fn the_silver_config_gives_the_original_s_table() {
        let token = SecretString::from("23092390532lksf90kwelklfw".to_owned());
        let properties = data(Properties::new(&silver(), &none(), Some(token)).unwrap());
        for (name, value) in [
            ("pv-name", "pvc-1b4e28ba-2fa1-11d2-883f-0016d3cca427"),
            ("username", "tom"),
            ("storage-class", "silver"),
            ("zone", "west"),
            ("use-nfs-server", "10.10.2.4"),
            ("service-account", "foo"),
            ("service-token", "23092390532lksf90kwelklfw"),
            ("kube-api", "https://10.96.0.1:443"),
        ] {
            assert_eq!(properties.get(name).map(String::as_str), Some(value), "{name}");
        }
        let request: Request = serde_json::from_str(&properties[REQUEST_KEY]).unwrap();
        assert_eq!(request, silver());
        assert!(!properties[REQUEST_KEY].contains("23092390532lksf90kwelklfw"));
    }

    #[test]
    fn a_clone_is_told_its_source_and_nothing_else_is() {
        let mut request = silver();
        assert!(!data(Properties::new(&request, &none(), None).unwrap()).contains_key("source-pv-name"));
        request.source = Some(Source {
            pv_name: "pvc-old".into(),
            pvc_name: "old".into(),
            pvc_namespace: "default".into(),
            pvc_uid: "old".into(),
            size: 1 << 30,
            volume: [("source".to_owned(), "pvc-old.img".to_owned())].into(),
        });
        request.snapshot = Some(Snapshot {
            name: "snapshot-1".into(),
            content_name: "snapcontent-1".into(),
            content_uid: "s1".into(),
            backup: false,
            members: None,
        });
        let properties = data(Properties::new(&request, &none(), None).unwrap());
        assert_eq!(properties["source-pv-name"], "pvc-old");
        assert_eq!(properties["snapshot-name"], "snapshot-1");
        assert_eq!(properties["source-size"], "1073741824");
        assert!(!properties.contains_key("backup-name"));
        let read: Request = serde_json::from_str(&properties[REQUEST_KEY]).unwrap();
        assert_eq!(read, request);
        // An image that knows no backups takes none for a snapshot.
        request.snapshot.as_mut().unwrap().backup = true;
        let properties = data(Properties::new(&request, &none(), None).unwrap());
        assert_eq!(properties["backup-name"], "snapshot-1");
        assert!(!properties.contains_key("snapshot-name"));
        // Nor one that knows no groups.
        let snapshot = request.snapshot.as_mut().unwrap();
        (snapshot.backup, snapshot.members) = (false, Some(vec![Member::default()]));
        let properties = data(Properties::new(&request, &none(), None).unwrap());
        assert_eq!(properties["snapshot-group"], "snapshot-1");
        assert!(!properties.contains_key("snapshot-name") && !properties.contains_key("backup-name"));
    }

    #[test]
    fn a_volume_for_some_topologies_only_is_told_which() {
        let mut request = silver();
        assert!(!data(Properties::new(&request, &none(), None).unwrap()).contains_key("allowed-topologies"));
        let zones = ["a", "b"].map(str::to_owned).to_vec();
        request.allowed_topologies = vec![[("topology.kubernetes.io/zone".to_owned(), zones)].into()];
        let properties = data(Properties::new(&request, &none(), None).unwrap());
        let expected = r#"[{"topology.kubernetes.io/zone":["a","b"]}]"#;
        assert_eq!(properties["allowed-topologies"], expected);
        let read: Request = serde_json::from_str(&properties[REQUEST_KEY]).unwrap();
        assert_eq!(read, request);
    }

    #[test]
    fn the_secret_wins_over_parameters() {
        let secret = [("zone", "east"), ("password", "line 1\nline 2")]
            .map(|(key, value)| (key.to_owned(), ByteString(value.into())))
            .into();
        let properties = data(Properties::new(&silver(), &secret, None).unwrap());
        assert_eq!(properties["zone"], "east");
        assert_eq!(properties["password"], "line 1\nline 2");
        assert!(!properties.contains_key("service-token"));
        assert!(!properties[REQUEST_KEY].contains("line 1"));
    }

    #[test]
    fn what_can_t_be_handed_over_is_named() {
        let with = |key: &str, value: &str| {
            let mut request = silver();
            request.parameters.insert(key.into(), value.into());
            Properties::new(&request, &none(), None).err().unwrap()
        };
        assert_eq!(with("request.json", ""), PropertiesError::Reserved);
        for (key, value) in [
            ("a/b", ""),
            ("..data", ""),
            ("x", "a\0b"),
            ("pv.name", "x"),
            ("size", "1"),
            ("path", "/"),
        ] {
            assert!(
                matches!(with(key, value), PropertiesError::Bad(problems) if problems[0].key == key),
                "{key}"
            );
        }
        let mut request = silver();
        for n in 0..6 {
            request.parameters.insert(format!("key-{n}"), "x".repeat(100 * 1024));
        }
        let error = Properties::new(&request, &none(), None).err().unwrap();
        assert!(matches!(error, PropertiesError::TooLarge(_)));
        let binary = [("key".to_owned(), ByteString(vec![0xff]))].into();
        let error = Properties::new(&silver(), &binary, None).err().unwrap();
        assert_eq!(error, PropertiesError::NotText("key".into()));
    }

    proptest! {
        /// Proves: P6
        #[test]
        fn every_value_is_in_the_secret_and_none_in_a_variable(key in "[a-z][a-z0-9-]{0,20}", value in "[^\0]{0,40}") {
            let mut request = silver();
            request.parameters.insert(key.clone(), value.clone());
            let Ok(properties) = Properties::new(&request, &none(), None) else { return Ok(()) };
            for variable in variables(&properties.names(), "secret") {
                prop_assert!(variable.value.is_none());
            }
            let data = data(properties);
            prop_assert_eq!(&data[&key], &value);
        }
    }
}
