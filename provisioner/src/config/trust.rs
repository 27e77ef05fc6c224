//! What the administrator of the cluster lets a ConfigMap ask for: in which namespaces ConfigMaps are honoured, and
//! which images they may run.

use std::collections::BTreeSet;
use std::fmt;

use mooring_contract::names;

pub use mooring_contract::image::{BadImage, ImagePattern, ImageRef};

/// The administrator's word, from `--config-namespaces` and `--allowed-images`.
#[derive(Debug, Clone)]
pub struct Trust {
    own_namespace: String,
    namespaces: Option<BTreeSet<String>>,
    images: Option<Vec<ImagePattern>>,
}

/// Why a ConfigMap asks for more than it may.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The ConfigMap is in a namespace whose ConfigMaps are not honoured.
    #[error(
        "the controller does not honour provisioner ConfigMaps of namespace {namespace:?} (only of {allowed}): move \
         the ConfigMap, or have the cluster's administrator add the namespace to --config-namespaces"
    )]
    Namespace {
        namespace: String,
        /// What `--config-namespaces` says.
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
    /// No pattern of `--allowed-images` allows the image.
    #[error(
        "{image:?} ({normal}) matches none of the allowed images ({allowed}): use one of them, or have the cluster's \
         administrator add it to --allowed-images"
    )]
    Image {
        /// As the ConfigMap has it.
        image: String,
        /// With registry and repository in full.
        normal: String,
        /// What `--allowed-images` says.
        allowed: String,
    },
}

impl Trust {
    /// Trust in these namespaces and images, and in no others.
    pub fn new(namespaces: impl IntoIterator<Item = String>, images: impl IntoIterator<Item = ImagePattern>) -> Self {
        Self {
            own_namespace: names::NAMESPACE.to_owned(),
            namespaces: Some(namespaces.into_iter().collect()),
            images: Some(images.into_iter().collect()),
        }
    }

    /// What `lint` knows of a cluster: only what it has been told. Never for a controller.
    pub fn offline(namespaces: Option<BTreeSet<String>>, images: Option<Vec<ImagePattern>>) -> Self {
        Self {
            own_namespace: names::NAMESPACE.to_owned(),
            namespaces,
            images,
        }
    }

    /// The same, for a Mooring that runs in another namespace than [`names::NAMESPACE`].
    #[must_use]
    pub fn running_in(self, own_namespace: String) -> Self {
        Self { own_namespace, ..self }
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

    /// Checks an image that a ConfigMap wants to run. Its form is checked in any case.
    pub fn check_image(&self, image: &str) -> Result<(), TrustError> {
        let parsed: ImageRef = image.parse()?;
        match &self.images {
            Some(allowed) if !allowed.iter().any(|pattern| pattern.matches(&parsed)) => Err(TrustError::Image {
                image: image.to_owned(),
                normal: parsed.to_string(),
                allowed: list(allowed),
            }),
            _ => Ok(()),
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
    use super::{Trust, TrustError};

    #[test]
    fn only_named_namespaces_and_images_are_trusted() {
        let trust = Trust::new(["mooring".to_owned()], ["mooring.dev/*".parse().unwrap()]);
        assert!(trust.check_namespace("mooring").is_ok());
        assert!(matches!(
            trust.check_namespace("tom"),
            Err(TrustError::Namespace { .. })
        ));
        assert!(trust.check_image("mooring.dev/provisioner-local:0.1.0").is_ok());
        let error = trust.check_image("custom/iscsi-provision").unwrap_err().to_string();
        assert!(error.contains("docker.io/custom/iscsi-provision"), "{error}");
        assert!(error.contains("--allowed-images"), "{error}");
        assert!(matches!(trust.check_image("a b"), Err(TrustError::BadImage(_))));
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
        assert!(trust.check_image("mooring.dev/x").is_err());
    }
}
