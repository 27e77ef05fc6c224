//! The administrator's settings that are in force: what ConfigMap `mooring-settings` says.

use std::sync::{Arc, PoisonError, RwLock};

use mooring_contract::image::{BadImage, ImagePattern, ImageRef, ImageRegistry};
use mooring_contract::names::SETTINGS_CONFIG;
use mooring_program::settings::Settings;
use mooring_program::settings::keys::ALLOWED_CLIENT_IMAGES;

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

/// The settings; a clone shares them.
#[derive(Debug, Clone, Default)]
pub struct SettingsInForce {
    /// The mounter's own.
    namespace: Arc<str>,
    /// Nothing until the ConfigMap was read.
    config: Arc<RwLock<Option<Settings>>>,
}

impl SettingsInForce {
    /// Nothing but what counts without settings, and no client Pods, until [`Self::set`].
    pub fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.into(),
            config: Arc::default(),
        }
    }

    /// Has what the ConfigMap says count.
    pub fn set(&self, settings: Settings) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Some(settings);
    }

    /// Where Mooring's images are.
    pub fn registry(&self) -> ImageRegistry {
        self.config().registry()
    }

    /// Secrets that client Pods name.
    pub fn pull_secrets(&self) -> Vec<String> {
        self.config().pull_secrets()
    }

    /// Whether Pods of a namespace may be runs; nothing until the ConfigMap was read.
    pub fn has_runs_in(&self, namespace: &str) -> Option<bool> {
        let own = &self.namespace;
        self.is_read()
            .then(|| self.config().config_namespaces(own).contains(namespace))
    }

    /// The image's name in full, if client Pods may have it.
    pub fn client_image(&self, image: &str) -> Result<String, ImageError> {
        let image: ImageRef = image.parse()?;
        if !self.is_read() {
            return Err(ImageError::Unread);
        }
        let config = self.config();
        let patterns = config.allowed(config.allowed_client_images.as_ref());
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

    /// Whether the ConfigMap was read, and what it says counts.
    pub fn is_read(&self) -> bool {
        self.config.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// With runs in these namespaces, and all else by default.
impl<const N: usize> From<[String; N]> for SettingsInForce {
    fn from(namespaces: [String; N]) -> Self {
        let in_force = Self::default();
        in_force.set(Settings {
            config_namespaces: Some(namespaces.into()),
            ..Settings::default()
        });
        in_force
    }
}

#[cfg(test)]
mod tests {
    use mooring_program::settings::Settings;

    use super::{ImageError, SettingsInForce};

    fn config(entries: &[(&str, &str)]) -> Settings {
        let data = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Settings::parse(&data.collect()).unwrap()
    }

    #[test]
    fn no_client_image_runs_until_the_settings_were_read_and_then_those_that_they_allow() {
        let settings = SettingsInForce::default();
        let check = |image: &str| settings.client_image(image);
        assert!(matches!(check("mooring.dev/x:1"), Err(ImageError::Unread)));
        settings.set(Settings::default());
        assert_eq!(check("mooring.dev/x:1").unwrap(), "mooring.dev/x:1");
        assert!(matches!(check("custom/x"), Err(ImageError::NotAllowed { .. })));
        assert!(matches!(check("a b"), Err(ImageError::Bad(_))));
        settings.set(config(&[("allowed-client-images", "custom/*,\n mooring.dev/y")]));
        assert_eq!(check("custom/x").unwrap(), "docker.io/custom/x");
        assert!(check("mooring.dev/x:1").is_err());
        settings.set(config(&[("allowed-client-images", "")]));
        assert!(check("custom/x").is_err());
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
    fn once_the_settings_were_read_pods_are_runs_in_the_named_namespaces_or_in_mooring_s_own() {
        let settings = SettingsInForce::new("storage");
        let have_runs = |namespaces: [&str; 2]| namespaces.map(|namespace| settings.has_runs_in(namespace));
        assert_eq!(have_runs(["storage", "admin"]), [None, None]);
        settings.set(Settings::default());
        assert_eq!(have_runs(["storage", "mooring"]), [Some(true), Some(false)]);
        settings.set(config(&[("config-namespaces", "mooring,admin")]));
        assert_eq!(have_runs(["admin", "storage"]), [Some(true), Some(false)]);
    }
}
