//! Which images may be client images: those that the ConfigMap names, or without one those of the flag.

use std::sync::{Arc, PoisonError, RwLock};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use mooring_contract::image::{BadImage, BadPattern, ImagePattern, ImageRef};
use mooring_contract::names::CLIENT_IMAGES_CONFIG;
use mooring_contract::volume::split_list;
use mooring_program::error::chain;
use tracing::{info, info_span, warn};

/// The ConfigMap's key: patterns separated by commas.
const KEY: &str = "images";

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Bad(#[from] BadImage),
    #[error(
        "client image {image} matches none of the allowed ones ({allowed}): use one of them, or have the administrator \
         add it to the key {KEY} of ConfigMap {CLIENT_IMAGES_CONFIG} in Mooring's namespace"
    )]
    NotAllowed {
        /// The image, its name in full.
        image: String,
        allowed: String,
    },
}

#[derive(Debug, Clone)]
pub struct Allowed {
    flag: Arc<[ImagePattern]>,
    config: Arc<RwLock<Option<Vec<ImagePattern>>>>,
}

impl Allowed {
    /// With the flag's patterns in force.
    pub fn new(flag: Vec<ImagePattern>) -> Self {
        Self {
            flag: flag.into(),
            config: Arc::default(),
        }
    }

    /// The image's name in full, if it may run.
    pub fn check(&self, image: &str) -> Result<String, ImageError> {
        let image: ImageRef = image.parse()?;
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        let patterns = config.as_deref().unwrap_or(&self.flag);
        if patterns.iter().any(|pattern| pattern.matches(&image)) {
            return Ok(image.to_string());
        }
        let allowed: Vec<_> = patterns.iter().map(ImagePattern::to_string).collect();
        Err(ImageError::NotAllowed {
            image: image.to_string(),
            allowed: allowed.join(", "),
        })
    }

    /// Applies the ConfigMap; a bad pattern changes nothing.
    fn configure(&self, config: Option<&ConfigMap>) -> Result<(), BadPattern> {
        let patterns = match config {
            None => None,
            Some(config) => {
                let list = config.data.as_ref().and_then(|data| data.get(KEY));
                let patterns = split_list(list.map_or("", String::as_str));
                Some(
                    patterns
                        .iter()
                        .map(|pattern| pattern.parse())
                        .collect::<Result<_, _>>()?,
                )
            }
        };
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = patterns;
        Ok(())
    }
}

/// Follows the ConfigMap; never returns.
pub(super) async fn follow(api: Api<ConfigMap>, allowed: Allowed) {
    let mut changes = std::pin::pin!(watch_object(api, CLIENT_IMAGES_CONFIG).default_backoff());
    let mut last = None;
    while let Some(change) = changes.next().await {
        let config = match change {
            Ok(config) => config,
            Err(error) => {
                warn!(
                    error = %chain(&error),
                    "failed to watch ConfigMap {CLIENT_IMAGES_CONFIG}: its last good version stays in force"
                );
                continue;
            }
        };
        let data = config.as_ref().map(|config| config.data.clone());
        if last.as_ref() == Some(&data) {
            continue;
        }
        info_span!("config", config.name = CLIENT_IMAGES_CONFIG).in_scope(|| {
            match allowed.configure(config.as_ref()) {
                Ok(()) => info!(?data, "ConfigMap {CLIENT_IMAGES_CONFIG} is in force"),
                Err(error) => {
                    warn!(
                        "ConfigMap {CLIENT_IMAGES_CONFIG} has an error, so its last good version stays in force: {}",
                        chain(&error)
                    );
                }
            }
        });
        last = Some(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn config(images: &str) -> ConfigMap {
        ConfigMap {
            data: Some(BTreeMap::from([(KEY.to_owned(), images.to_owned())])),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn the_config_map_goes_before_the_flag_and_the_flag_counts_again_without_it() {
        let allowed = Allowed::new(vec!["mooring.dev/*".parse().unwrap()]);
        assert_eq!(allowed.check("mooring.dev/x:1").unwrap(), "mooring.dev/x:1");
        assert!(matches!(allowed.check("custom/x"), Err(ImageError::NotAllowed { .. })));
        assert!(matches!(allowed.check("a b"), Err(ImageError::Bad(_))));
        allowed.configure(Some(&config("custom/*,\n mooring.dev/y"))).unwrap();
        assert_eq!(allowed.check("custom/x").unwrap(), "docker.io/custom/x");
        assert!(allowed.check("mooring.dev/x:1").is_err());
        allowed.configure(Some(&config("custom/ x"))).unwrap_err();
        assert!(allowed.check("custom/x").is_ok());
        allowed.configure(Some(&config(""))).unwrap();
        assert!(allowed.check("custom/x").is_err());
        allowed.configure(None).unwrap();
        assert!(allowed.check("mooring.dev/x:1").is_ok());
    }
}
