//! The administrator's settings: ConfigMap [`SETTINGS_CONFIG`] in Mooring's namespace, which both programs watch, and the
//! flags that count where it says nothing.
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
use mooring_contract::names::{REGISTRY, SETTINGS_CONFIG};
use mooring_contract::volume::split_list;
use tracing::warn;

use crate::error::chain;
use crate::namespace::{EmptyNamespace, parse_namespace};

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

    pub(super) const ALL: [&str; 5] = [
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
    #[error("there is no such setting: correct or remove the key; settings are {}", keys::ALL.join(", "))]
    Unknown,
    #[error(transparent)]
    Registry(#[from] BadRegistry),
    #[error("{0:?} is not the name of a Secret: write names with one comma between two")]
    Secret(String),
    #[error(transparent)]
    Namespace(#[from] EmptyNamespace),
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

/// Flags for the settings that both programs have; the ConfigMap overrides them.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings that ConfigMap mooring-settings overrides")]
pub struct SettingsArgs {
    /// Registry with Mooring's images, with their path in it: what mooring.dev/ at the beginning of a name stands for
    #[arg(long, env = "MOORING_REGISTRY", default_value = REGISTRY)]
    pub registry: ImageRegistry,
    /// Secrets with the logins of registries, for every Pod that Mooring makes
    #[arg(long, env = "MOORING_PULL_SECRETS", value_delimiter = ',', value_name = "SECRET,…")]
    pub pull_secrets: Vec<String>,
    /// Namespaces whose provisioner ConfigMaps count [default: Mooring's own]
    ///
    /// All who can write a ConfigMap there can run an allowed image with any service account of that namespace, and
    /// their runs may have the nodes' pools.
    #[arg(
        long,
        env = "MOORING_CONFIG_NAMESPACES",
        value_delimiter = ',',
        value_parser = parse_namespace,
        value_name = "NAMESPACE,…",
    )]
    pub config_namespaces: Option<Vec<String>>,
}

impl SettingsArgs {
    pub fn registry(&self, settings: &Settings) -> ImageRegistry {
        settings.registry.as_ref().unwrap_or(&self.registry).clone()
    }

    pub fn pull_secrets(&self, settings: &Settings) -> Vec<String> {
        settings.pull_secrets.as_ref().unwrap_or(&self.pull_secrets).clone()
    }

    /// Where nobody says which, it is `own_namespace`.
    pub fn config_namespaces(&self, settings: &Settings, own_namespace: &str) -> BTreeSet<String> {
        match (&settings.config_namespaces, &self.config_namespaces) {
            (Some(namespaces), _) => namespaces.clone(),
            (None, Some(namespaces)) => namespaces.iter().cloned().collect(),
            (None, None) => [own_namespace.to_owned()].into(),
        }
    }

    /// The images of a list: as a setting says, else as a flag says, else those of the registry.
    pub fn allowed(
        &self,
        settings: &Settings,
        setting: Option<&Vec<ImagePattern>>,
        flag: Option<&Vec<ImagePattern>>,
    ) -> Vec<ImagePattern> {
        let said = setting.or(flag).cloned();
        said.unwrap_or_else(|| vec![self.registry(settings).pattern()])
    }
}

/// The ConfigMap as it was seen.
pub struct Seen {
    /// Nothing if there is none: then the flags count.
    pub config: Option<ConfigMap>,
    pub settings: Result<Settings, BadSettings>,
}

/// Watches the ConfigMap: what it says at first, and each change. It never ends.
pub fn watch(client: Client, namespace: &str) -> impl Stream<Item = Seen> + Send + use<> {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let mut last = None;
    watch_object(api, SETTINGS_CONFIG)
        .default_backoff()
        .filter_map(move |change| {
            std::future::ready(match change {
                Ok(config) => {
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
                    warn!(
                        error = %chain(&error),
                        "failed to watch ConfigMap {SETTINGS_CONFIG}: what was read last stays in force"
                    );
                    None
                }
            })
        })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;
    use mooring_contract::image::ImagePattern;

    use super::{BadSettings, Settings, SettingsArgs};

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: SettingsArgs,
    }

    fn args(flags: &[&str]) -> SettingsArgs {
        Flags::parse_from([&["program"], flags].concat()).args
    }

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
    fn a_key_goes_before_its_flag_and_the_registry_s_images_are_allowed_where_neither_says_which() {
        let none = Settings::default();
        let plain = args(&[]);
        assert_eq!(settings(&[]), Ok(none.clone()));
        assert_eq!(plain.config_namespaces(&none, "storage"), ["storage".to_owned()].into());
        assert_eq!(texts(&plain.allowed(&none, None, None)), ["mooring.dev/*"]);
        assert_eq!(plain.pull_secrets(&none), Vec::<String>::new());

        let flags = args(&[
            "--registry=a.example.com",
            "--pull-secrets=a",
            "--config-namespaces=a, b",
        ]);
        assert_eq!(texts(&flags.allowed(&none, None, None)), ["a.example.com/*"]);
        assert_eq!(flags.pull_secrets(&none), ["a"]);
        let namespaces = ["a".to_owned(), "b".to_owned()];
        assert_eq!(flags.config_namespaces(&none, "storage"), namespaces.into());

        let said = settings(&[
            ("registry", " b.example.com/mooring\n"),
            ("pull-secrets", "b, c"),
            ("config-namespaces", "mooring, admin"),
            ("allowed-images", "custom/*,\nb.example.com/**"),
        ])
        .unwrap();
        assert_eq!(flags.registry(&said).to_string(), "b.example.com/mooring");
        assert_eq!(flags.pull_secrets(&said), ["b", "c"]);
        let namespaces = ["mooring".to_owned(), "admin".to_owned()];
        assert_eq!(flags.config_namespaces(&said, "storage"), namespaces.into());
        let flag = vec!["flag/*".parse().unwrap()];
        let allowed = flags.allowed(&said, said.allowed_images.as_ref(), Some(&flag));
        assert_eq!(texts(&allowed), ["custom/*", "b.example.com/**"]);
        let allowed = flags.allowed(&said, said.allowed_client_images.as_ref(), Some(&flag));
        assert_eq!(texts(&allowed), ["flag/*"]);
        let allowed = flags.allowed(&said, said.allowed_client_images.as_ref(), None);
        assert_eq!(texts(&allowed), ["b.example.com/mooring/*"]);
    }

    #[test]
    fn an_empty_list_is_one() {
        let said = settings(&[("allowed-images", ""), ("pull-secrets", " ")]).unwrap();
        assert_eq!(args(&[]).allowed(&said, said.allowed_images.as_ref(), None), []);
        assert_eq!(args(&["--pull-secrets=a"]).pull_secrets(&said), Vec::<String>::new());
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
            ("allowed-images", "*", "**"),
            ("allowed-client-images", "a b", "blank"),
        ] {
            let error = settings(&[(key, value)]).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(&format!("key {key} ")), "{error}");
        }
    }
}
