//! The administrator's settings that are in force: what ConfigMap `mooring-settings` says, and what the flags say where
//! it is silent.

use std::sync::{Arc, PoisonError, RwLock};

use mooring_contract::image::{BadImage, ImagePattern, ImageRef, ImageRegistry};
use mooring_contract::names::SETTINGS_CONFIG;
use mooring_program::settings::keys::ALLOWED_CLIENT_IMAGES;
use mooring_program::settings::{Settings, SettingsArgs};

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Bad(#[from] BadImage),
    #[error(
        "ConfigMap {SETTINGS_CONFIG} in Mooring's namespace was not read yet, so the mounter does not know which client \
         images may run: if the ConfigMap has a mistake, an Event on it names the key to correct"
    )]
    Unread,
    #[error(
        "client image {image} matches none of the allowed ones ({allowed}): use one of them, or have the administrator \
         add it to the key {ALLOWED_CLIENT_IMAGES} of ConfigMap {SETTINGS_CONFIG} in Mooring's namespace"
    )]
    NotAllowed {
        /// The image, its name in full.
        image: String,
        allowed: String,
    },
}

/// What counts where the ConfigMap says nothing.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    pub flags: SettingsArgs,
    /// `--allowed-client-images`.
    pub allowed_client_images: Option<Vec<ImagePattern>>,
    /// The mounter's own namespace.
    pub namespace: String,
}

/// The settings; a clone shares them.
#[derive(Debug, Clone, Default)]
pub struct SettingsInForce {
    defaults: Arc<Defaults>,
    /// Nothing until the ConfigMap was read.
    config: Arc<RwLock<Option<Settings>>>,
}

impl SettingsInForce {
    /// The defaults, without client Pods until [`Self::set`].
    pub fn new(defaults: Defaults) -> Self {
        Self {
            defaults: defaults.into(),
            config: Arc::default(),
        }
    }

    /// Has what the ConfigMap says count.
    pub fn set(&self, settings: Settings) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Some(settings);
    }

    /// Where Mooring's images are.
    pub fn registry(&self) -> ImageRegistry {
        self.defaults.flags.registry(&self.config())
    }

    /// Secrets that client Pods name.
    pub fn pull_secrets(&self) -> Vec<String> {
        self.defaults.flags.pull_secrets(&self.config())
    }

    /// Whether Pods of a namespace may be runs.
    pub fn has_runs_in(&self, namespace: &str) -> bool {
        let Defaults {
            flags, namespace: own, ..
        } = &*self.defaults;
        flags.config_namespaces(&self.config(), own).contains(namespace)
    }

    /// The image's name in full, if client Pods may have it.
    pub fn client_image(&self, image: &str) -> Result<String, ImageError> {
        let image: ImageRef = image.parse()?;
        if !self.is_read() {
            return Err(ImageError::Unread);
        }
        let config = self.config();
        let Defaults {
            flags,
            allowed_client_images: flag,
            ..
        } = &*self.defaults;
        let patterns = flags.allowed(&config, config.allowed_client_images.as_ref(), flag.as_ref());
        if patterns.iter().any(|pattern| pattern.matches(&image)) {
            return Ok(image.to_string());
        }
        let allowed: Vec<_> = patterns.iter().map(ImagePattern::to_string).collect();
        Err(ImageError::NotAllowed {
            image: image.to_string(),
            allowed: allowed.join(", "),
        })
    }

    fn config(&self) -> Settings {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        config.clone().unwrap_or_default()
    }

    fn is_read(&self) -> bool {
        self.config.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// With runs in these namespaces, and all else by default.
impl<const N: usize> From<[String; N]> for SettingsInForce {
    fn from(namespaces: [String; N]) -> Self {
        Self::new(Defaults {
            flags: SettingsArgs {
                config_namespaces: Some(namespaces.into()),
                ..SettingsArgs::default()
            },
            ..Defaults::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use mooring_program::settings::Settings;

    use super::{Defaults, ImageError, SettingsInForce};

    fn config(entries: &[(&str, &str)]) -> Settings {
        let data = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Settings::parse(&data.collect()).unwrap()
    }

    #[test]
    fn the_config_map_goes_before_the_flag_and_the_flag_counts_again_without_it() {
        let settings = SettingsInForce::new(Defaults {
            allowed_client_images: Some(vec!["flag.example.com/*".parse().unwrap()]),
            ..Defaults::default()
        });
        let check = |image: &str| settings.client_image(image);
        assert!(matches!(check("flag.example.com/x:1"), Err(ImageError::Unread)));
        settings.set(Settings::default());
        assert_eq!(check("flag.example.com/x:1").unwrap(), "flag.example.com/x:1");
        assert!(matches!(check("custom/x"), Err(ImageError::NotAllowed { .. })));
        assert!(matches!(check("a b"), Err(ImageError::Bad(_))));
        settings.set(config(&[("allowed-client-images", "custom/*,\n mooring.dev/y")]));
        assert_eq!(check("custom/x").unwrap(), "docker.io/custom/x");
        assert!(check("flag.example.com/x:1").is_err());
        settings.set(config(&[("allowed-client-images", "")]));
        assert!(check("custom/x").is_err());
        settings.set(Settings::default());
        assert!(check("flag.example.com/x:1").is_ok());
    }

    #[test]
    fn without_a_list_the_images_of_the_registry_are_allowed() {
        let settings = SettingsInForce::default();
        settings.set(Settings::default());
        assert!(settings.client_image("mooring.dev/x:1").is_ok());
        settings.set(config(&[("registry", "registry.example.com/mooring")]));
        assert!(settings.client_image("mooring.dev/x:1").is_err());
        assert!(settings.client_image("registry.example.com/mooring/x:1").is_ok());
    }

    #[test]
    fn pods_are_runs_in_the_named_namespaces_or_in_mooring_s_own() {
        let settings = SettingsInForce::new(Defaults {
            namespace: "storage".to_owned(),
            ..Defaults::default()
        });
        assert!(settings.has_runs_in("storage") && !settings.has_runs_in("mooring"));
        settings.set(config(&[("config-namespaces", "mooring,admin")]));
        assert!(settings.has_runs_in("admin") && !settings.has_runs_in("storage"));
    }
}
