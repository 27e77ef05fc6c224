//! The administrator's settings: ConfigMap [`SETTINGS_CONFIG`] in Mooring's namespace, which both programs watch.
//!
//! Whoever may write it can have any image run with privilege on each node. That was so before: the same people may
//! write provisioner ConfigMaps there, and `mounter-config`.

use std::collections::{BTreeMap, BTreeSet};

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use mooring_contract::image::{BadPattern, BadRegistry, ImagePattern, ImageRegistry};
use mooring_contract::names::SETTINGS_CONFIG;
use mooring_contract::volume::split_list;
use tracing::warn;

use crate::error::chain;
use crate::namespace::{BadNamespace, parse_namespace};
use crate::repeated::Repeated;

/// The keys of the ConfigMap.
pub mod keys {
    /// The registry with Mooring's images.
    pub const REGISTRY: &str = "registry";
    /// Secrets with the logins of registries.
    pub const PULL_SECRETS: &str = "pull-secrets";
    /// Namespaces whose provisioner ConfigMaps count.
    pub const CONFIG_NAMESPACES: &str = "config-namespaces";
    /// Images that provisioner ConfigMaps may run.
    pub const ALLOWED_IMAGES: &str = "allowed-images";
    /// Images that client Pods may run. An admission policy enforces it.
    pub const ALLOWED_CLIENT_IMAGES: &str = "allowed-client-images";

    pub const ALL: [&str; 5] = [
        REGISTRY,
        PULL_SECRETS,
        CONFIG_NAMESPACES,
        ALLOWED_IMAGES,
        ALLOWED_CLIENT_IMAGES,
    ];
}

/// What is wrong with a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    #[error(
        "there is no such setting: correct or remove the key, or install the version that has it; settings are {}",
        keys::ALL.join(", ")
    )]
    Unknown,
    #[error(transparent)]
    Registry(#[from] BadRegistry),
    #[error("{0:?} is not the name of a Secret: write names with one comma between two")]
    Secret(String),
    #[error(transparent)]
    Namespace(#[from] BadNamespace),
    #[error(transparent)]
    Pattern(#[from] BadPattern),
}

/// Settings with a mistake: none of them counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key {key} of ConfigMap {SETTINGS_CONFIG}: {error}")]
pub struct BadSettings {
    key: String,
    error: BadValue,
}

/// What the ConfigMap says; nothing where it has no key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub registry: Option<ImageRegistry>,
    pub pull_secrets: Option<Vec<String>>,
    pub config_namespaces: Option<BTreeSet<String>>,
    pub allowed_images: Option<Vec<ImagePattern>>,
    pub allowed_client_images: Option<Vec<ImagePattern>>,
}

impl Settings {
    /// Reads the data of the ConfigMap.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self, BadSettings> {
        let mut settings = Self::default();
        for (key, value) in data {
            settings.set(key, value).map_err(|error| BadSettings {
                key: key.clone(),
                error,
            })?;
        }
        Ok(settings)
    }

    /// Where Mooring's images are.
    pub fn registry(&self) -> ImageRegistry {
        self.registry.clone().unwrap_or_default()
    }

    /// Secrets with the logins of registries.
    pub fn pull_secrets(&self) -> Vec<String> {
        self.pull_secrets.clone().unwrap_or_default()
    }

    /// Namespaces whose provisioner ConfigMaps count; where nothing says which, it is `own_namespace`.
    pub fn config_namespaces(&self, own_namespace: &str) -> BTreeSet<String> {
        let said = self.config_namespaces.clone();
        said.unwrap_or_else(|| [own_namespace.to_owned()].into())
    }

    /// The images of a list of these settings, or else those of the registry.
    pub fn allowed(&self, list: Option<&Vec<ImagePattern>>) -> Vec<ImagePattern> {
        list.cloned().unwrap_or_else(|| vec![self.registry().pattern()])
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), BadValue> {
        match key {
            keys::REGISTRY => self.registry = Some(value.trim().parse()?),
            keys::PULL_SECRETS => {
                let names = split_list(value).into_iter();
                self.pull_secrets = Some(names.map(parse_secret).collect::<Result<_, _>>()?);
            }
            keys::CONFIG_NAMESPACES => {
                self.config_namespaces = Some(value.split(',').map(parse_namespace).collect::<Result<_, _>>()?);
            }
            keys::ALLOWED_IMAGES => self.allowed_images = Some(patterns(value)?),
            keys::ALLOWED_CLIENT_IMAGES => self.allowed_client_images = Some(patterns(value)?),
            _ => return Err(BadValue::Unknown),
        }
        Ok(())
    }
}

fn parse_secret(name: String) -> Result<String, BadValue> {
    let is_part_of_a_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if name.bytes().all(is_part_of_a_name) {
        Ok(name)
    } else {
        Err(BadValue::Secret(name))
    }
}

fn patterns(list: &str) -> Result<Vec<ImagePattern>, BadPattern> {
    split_list(list).iter().map(|pattern| pattern.parse()).collect()
}

/// The ConfigMap as it was seen.
pub struct Seen {
    /// Nothing if there is none.
    pub config: Option<ConfigMap>,
    pub settings: Result<Settings, BadSettings>,
}

/// Watches the ConfigMap: what it says at first, and each change. It never ends.
pub fn watch(client: Client, namespace: &str) -> impl Stream<Item = Seen> + Send + use<> {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let (mut last, mut logged) = (None, Repeated::default());
    watch_object(api, SETTINGS_CONFIG)
        .default_backoff()
        .filter_map(move |change| {
            std::future::ready(match change {
                Ok(config) => {
                    logged.end();
                    let data = config.as_ref().and_then(|config| config.data.clone());
                    let data = data.unwrap_or_default();
                    // A restarted watch reports the same again.
                    (last.as_ref() != Some(&data)).then(|| {
                        let settings = Settings::parse(&data);
                        last = Some(data);
                        Seen { config, settings }
                    })
                }
                Err(error) => {
                    let error = chain(&error);
                    if logged.is_due(&error) {
                        warn!(
                            error,
                            "failed to watch ConfigMap {SETTINGS_CONFIG}: what was read last stays in force"
                        );
                    }
                    None
                }
            })
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mooring_contract::image::ImagePattern;

    use super::{BadSettings, Settings};

    fn settings(entries: &[(&str, &str)]) -> Result<Settings, BadSettings> {
        let data: BTreeMap<_, _> = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Settings::parse(&data)
    }

    fn texts(patterns: &[ImagePattern]) -> Vec<String> {
        patterns.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn where_nothing_is_said_the_registry_s_images_are_allowed_and_mooring_s_own_namespace_counts() {
        let none = settings(&[]).unwrap();
        assert_eq!(none, Settings::default());
        assert_eq!(none.config_namespaces("storage"), ["storage".to_owned()].into());
        assert_eq!(texts(&none.allowed(None)), ["mooring.dev/*"]);
        assert_eq!(none.pull_secrets(), Vec::<String>::new());

        let said = settings(&[
            ("registry", " b.example.com/mooring\n"),
            ("pull-secrets", "b, c"),
            ("config-namespaces", "mooring, admin"),
            ("allowed-images", "custom/*,\nb.example.com/**"),
        ])
        .unwrap();
        assert_eq!(said.registry().to_string(), "b.example.com/mooring");
        assert_eq!(said.pull_secrets(), ["b", "c"]);
        let namespaces = ["mooring".to_owned(), "admin".to_owned()];
        assert_eq!(said.config_namespaces("storage"), namespaces.into());
        let allowed = said.allowed(said.allowed_images.as_ref());
        assert_eq!(texts(&allowed), ["custom/*", "b.example.com/**"]);
        let allowed = said.allowed(said.allowed_client_images.as_ref());
        assert_eq!(texts(&allowed), ["b.example.com/mooring/*"]);
    }

    #[test]
    fn an_empty_list_is_one() {
        let said = settings(&[("allowed-images", ""), ("pull-secrets", " ")]).unwrap();
        assert_eq!(said.allowed(said.allowed_images.as_ref()), []);
        assert_eq!(said.pull_secrets, Some(Vec::new()));
    }

    #[test]
    fn one_mistake_and_no_setting_counts_and_the_key_is_named() {
        for (key, value, why) in [
            ("config-namespace", "mooring", "no such setting"),
            ("registry", "https://a", "is not a registry"),
            ("registry", "**", "is not a registry"),
            ("registry", "", "is not a registry"),
            ("pull-secrets", "a b", "is not the name of a Secret"),
            ("config-namespaces", "", "one comma between two"),
            ("config-namespaces", "mooring,", "one comma between two"),
            ("config-namespaces", "mooring admin", "is not the name of a namespace"),
            ("allowed-images", "*", "**"),
            ("allowed-client-images", "a b", "blank"),
        ] {
            let error = settings(&[(key, value)]).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(&format!("key {key} ")), "{error}");
        }
    }
}
