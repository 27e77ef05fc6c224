//! The second step of a grant, for a volume that the storage has to let its node have: what the PersistentVolume says of
//! the connection, opened with the key that only Pods with this PersistentVolume have.

use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::attachment::{Connection, VolumeKey, secret_name};
use mooring_contract::names::annotations;
use mooring_contract::volume::{Speaker, VolumeError};
use mooring_seal::signature::Verified;
use mooring_seal::{Purpose, SealError, open};

use super::Grant;
use super::author::{Misfit, check};
use crate::volume::cause::Cause;
use crate::volume::job::{MountError, Secrets};
use crate::volume::target::Target;

/// Whether a PersistentVolume needs an attachment: it refers to the Secret with the key of its volume. That reference
/// can't be changed once the PersistentVolume is there.
pub(crate) fn needs_attachment(found: &PersistentVolume) -> bool {
    let reference = || {
        let spec = found.spec.as_ref()?;
        let flex = spec.flex_volume.as_ref().and_then(|flex| flex.secret_ref.as_ref());
        let csi = || spec.csi.as_ref().and_then(|csi| csi.node_publish_secret_ref.as_ref());
        flex.or_else(csi)?.name.as_deref()
    };
    let name = found.metadata.name.as_deref().unwrap_or_default();
    reference().is_some_and(|reference| reference == secret_name(name))
}

/// A volume that may be mounted once its node has it, and in no other way than the controller said.
pub struct ToAttach {
    /// With what the PersistentVolume says itself, and no secret.
    grant: Grant,
    found: PersistentVolume,
    key: VolumeKey,
}

impl std::fmt::Debug for ToAttach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ToAttach").field(&self.grant).finish()
    }
}

/// Why a connection is not used; the message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error(
        "the Secret of the Pod's volume does not open the volume's connection ({0}): only a Pod that uses the \
         PersistentVolume has the key. If this Pod does, the volume has just been taken from another node, and the \
         kubelet tries again with the new key; if that goes on, remove annotation {annotation} from the \
         PersistentVolume, and Mooring attaches the volume again", annotation = annotations::ATTACHED_TO
    )]
    NotOpened(SealError),
    #[error("the options in the volume's connection are not valid: {0}")]
    Options(#[from] VolumeError),
    #[error(transparent)]
    Misfit(#[from] Misfit),
}

impl From<ConnectionError> for MountError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::NotOpened(_) => Self::Forbidden(Cause::of(error)),
            ConnectionError::Options(_) => Self::bad_options(error),
            ConnectionError::Misfit(misfit) => misfit.into(),
        }
    }
}

impl ToAttach {
    pub(super) fn new(mut grant: Grant, found: PersistentVolume, key: VolumeKey) -> Self {
        grant.asked.secrets = Secrets::default();
        Self { grant, found, key }
    }

    pub fn target(&self) -> &Target {
        self.grant.target()
    }

    /// The PersistentVolume, as it was when this was granted.
    pub fn persistent_volume(&self) -> &PersistentVolume {
        &self.found
    }

    /// The PersistentVolume's uid.
    pub fn uid(&self) -> &str {
        self.found.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The volume as the storage said that this node reaches it, as far as an image may say that. What the PersistentVolume
    /// itself has stays where the connection says nothing.
    pub fn connected(&self, connection: &Verified<Connection>) -> Result<Grant, ConnectionError> {
        let connection = connection.get();
        let purpose = Purpose {
            pv_name: &connection.volume,
            node: &connection.node,
        };
        let opened = open(&self.key.key, purpose, &connection.sealed);
        let secrets = opened.map_err(ConnectionError::NotOpened)?.into_iter();
        let mut grant = self.grant.clone();
        grant.asked.secrets = Secrets(secrets.map(|(key, text)| (key, text.into_bytes())).collect());
        if !connection.options.is_empty() {
            let own = self.grant.volume();
            grant.asked.volume = own.connected(connection.options.clone())?;
            // As the controller does when it accepts the connection.
            check(grant.volume(), Speaker::Attach, &own.mount_options)?;
        }
        Ok(grant)
    }
}
