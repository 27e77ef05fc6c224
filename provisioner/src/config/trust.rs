//! What the administrator of the cluster lets a ConfigMap ask for: in which namespaces ConfigMaps are honoured, and
//! which images they may run.

use std::collections::BTreeSet;
use std::fmt;

use mooring_contract::image::ImageRegistry;
use mooring_contract::names;

pub use mooring_contract::image::{BadImage, ImagePattern, ImageRef};

/// The administrator's word, from the settings.
#[derive(Debug, Clone)]
pub struct Trust {
    own_namespace: String,
    registry: ImageRegistry,
    pull_secrets: Vec<String>,
    namespaces: Option<BTreeSet<String>>,
    images: Option<Vec<ImagePattern>>,
}

/// Why a ConfigMap asks for more than it may.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The ConfigMap is in a namespace whose ConfigMaps are not honoured.
    #[error(
        "the controller does not honour provisioner ConfigMaps of namespace {namespace:?} (only of {allowed}): move \
         the ConfigMap, or have the cluster's administrator add the namespace to the key config-namespaces of ConfigMap \
         mooring-settings in Mooring's namespace"
    )]
    Namespace {
        namespace: String,
        /// What the settings say.
        allowed: String,
    },
    /// A service account of one of Mooring's own parts, which no image may use.
    #[error(
        "service account {account:?} belongs to a part of Mooring, and no image may have its rights: create a service \
         account for the image, and name that"
    )]
    OwnServiceAccount { account: String },
    #[error(transparent)]
    BadImage(#[from] BadImage),
    /// No pattern of the settings allows the image.
    #[error(
        "{image:?} ({normal}) matches none of the allowed images ({allowed}): use one of them, or have the cluster's \
         administrator add it to the key allowed-images of ConfigMap mooring-settings in Mooring's namespace"
    )]
    Image {
        /// As the ConfigMap has it.
        image: String,
        /// With registry and repository in full.
        normal: String,
        /// What the settings say.
        allowed: String,
    },
}

impl Trust {
    /// Trust in these namespaces and images, and in no others.
    pub fn new(namespaces: impl IntoIterator<Item = String>, images: impl IntoIterator<Item = ImagePattern>) -> Self {
        Self::offline(
            Some(namespaces.into_iter().collect()),
            Some(images.into_iter().collect()),
        )
    }

    /// What `lint` knows of a cluster: only what it has been told. Never for a controller.
    pub fn offline(namespaces: Option<BTreeSet<String>>, images: Option<Vec<ImagePattern>>) -> Self {
        Self {
            own_namespace: names::NAMESPACE.to_owned(),
            registry: ImageRegistry::default(),
            pull_secrets: Vec::new(),
            namespaces,
            images,
        }
    }

    /// The same, for a Mooring that runs in another namespace than [`names::NAMESPACE`].
    #[must_use]
    pub fn running_in(self, own_namespace: String) -> Self {
        Self { own_namespace, ..self }
    }

    /// The same, with Mooring's images in this registry, and these Secrets with the logins of registries.
    #[must_use]
    pub fn pulling_from(self, registry: ImageRegistry, pull_secrets: Vec<String>) -> Self {
        Self {
            registry,
            pull_secrets,
            ..self
        }
    }

    /// Secrets with the logins of registries, which every run names.
    pub fn pull_secrets(&self) -> &[String] {
        &self.pull_secrets
    }

    /// Namespaces whose ConfigMaps are honoured; empty offline.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.namespaces.iter().flatten().map(String::as_str)
    }

    /// Checks a ConfigMap's namespace.
    pub fn check_namespace(&self, namespace: &str) -> Result<(), TrustError> {
        match &self.namespaces {
            Some(allowed) if !allowed.contains(namespace) => Err(TrustError::Namespace {
                namespace: namespace.to_owned(),
                allowed: list(allowed),
            }),
            _ => Ok(()),
        }
    }

    /// Checks the service account that a ConfigMap of `namespace` wants its image to run as.
    pub fn check_service_account(&self, namespace: &str, account: &str) -> Result<(), TrustError> {
        if namespace == self.own_namespace && names::OWN_SERVICE_ACCOUNTS.contains(&account) {
            return Err(TrustError::OwnServiceAccount {
                account: account.to_owned(),
            });
        }
        Ok(())
    }

    /// The name in this cluster of an image that a ConfigMap wants to run, if it may. Its form is checked in any case.
    pub fn image(&self, image: &str) -> Result<String, TrustError> {
        let name = self.registry.resolve(image);
        let parsed: ImageRef = name.parse()?;
        match &self.images {
            Some(allowed) if !allowed.iter().any(|pattern| pattern.matches(&parsed)) => Err(TrustError::Image {
                image: image.to_owned(),
                normal: parsed.to_string(),
                allowed: list(allowed),
            }),
            _ => Ok(name),
        }
    }
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() {
        "none".to_owned()
    } else {
        items.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::{ImageRegistry, Trust, TrustError};

    #[test]
    fn only_named_namespaces_and_images_are_trusted() {
        let trust = Trust::new(["mooring".to_owned()], ["mooring.dev/*".parse().unwrap()]);
        assert!(trust.check_namespace("mooring").is_ok());
        assert!(matches!(
            trust.check_namespace("tom"),
            Err(TrustError::Namespace { .. })
        ));
        assert!(trust.image("mooring.dev/provisioner-local:0.1.0").is_ok());
        let error = trust.image("custom/iscsi-provision").unwrap_err().to_string();
        assert!(error.contains("docker.io/custom/iscsi-provision"), "{error}");
        assert!(
            error.contains("key allowed-images of ConfigMap mooring-settings"),
            "{error}"
        );
        assert!(matches!(trust.image("a b"), Err(TrustError::BadImage(_))));
    }

    #[test]
    fn mooring_s_images_are_looked_for_in_the_registry_of_the_cluster_and_have_to_be_allowed_there() {
        let registry: ImageRegistry = "registry.example.com/mooring".parse().unwrap();
        let trust = Trust::new([], [registry.pattern()]).pulling_from(registry, vec!["login".to_owned()]);
        let image = trust.image("mooring.dev/provisioner-local:0.1.0").unwrap();
        assert_eq!(image, "registry.example.com/mooring/provisioner-local:0.1.0");
        assert_eq!(trust.image(&image).unwrap(), image);
        let error = Trust::new([], ["mooring.dev/*".parse().unwrap()])
            .pulling_from("registry.example.com/mooring".parse().unwrap(), vec![])
            .image("mooring.dev/provisioner-local:0.1.0")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("registry.example.com/mooring/provisioner-local:0.1.0"),
            "{error}"
        );
    }

    #[test]
    fn no_image_runs_as_a_part_of_mooring() {
        let trust = Trust::new([], []).running_in("storage".to_owned());
        for account in ["flex-provisioner", "mounter", "client"] {
            assert!(trust.check_service_account("storage", account).is_err());
            assert!(trust.check_service_account("admin", account).is_ok());
        }
        assert!(trust.check_service_account("storage", "foo").is_ok());
    }

    #[test]
    fn a_controller_told_nothing_trusts_nothing() {
        let trust = Trust::new([], []);
        assert!(trust.check_namespace("mooring").is_err());
        assert!(trust.image("mooring.dev/x").is_err());
    }
}
