//! Why what a claim asks for can't be done, or not yet.

use mooring_contract::names::CSI_DRIVER;

use super::parameters::FsTypeError;
use super::source::SourceError;
use crate::config::NotOffered;
use crate::config::values::ValueError;
use crate::volume::capacity::CapacityError;

/// What a claim asks for that can't be done; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("the claim's size can't be read: {0}")]
    Size(#[from] CapacityError),
    /// The claim selects among volumes that are there.
    #[error("the claim has a selector, which only existing volumes can match: remove it, or ask for another class")]
    Selector,
    /// It is not clear which file system the class asks for.
    #[error(transparent)]
    FsType(#[from] FsTypeError),
    #[error("parameter bytes-per-inode of the class: {0}")]
    BytesPerInode(ValueError),
    /// The claim asks for a copy of what can't be copied, or not yet.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The claim names a `VolumeAttributesClass`, and its volume does not use CSI (`ValidatePersistentVolumeSpec` in
    /// Kubernetes' `pkg/apis/core/validation`).
    #[error(
        "volumeAttributesClassName works with CSI volumes only: ask for a class whose ConfigMap says \"volume-source: \
         csi\", or create the claim without it"
    )]
    AttributesNotByCsi,
    /// The claim names a `VolumeAttributesClass` that it can't have, or not yet.
    #[error(transparent)]
    Attributes(#[from] AttributesError),
    /// A mode that FlexVolume does not have.
    #[error(
        "volumes of this class use FlexVolume, which has no raw block volumes: ask for volumeMode Filesystem, or for a \
         class whose ConfigMap says \"volume-source: csi\""
    )]
    FlexVolume,
    /// Several nodes would have the volume at once.
    #[error(
        "volumes of this class are attached to one node at a time, and the claim asks for {0}: ask for ReadWriteOnce, \
         or have an administrator set multi-attach in the ConfigMap if its storage can do that"
    )]
    ManyNodes(String),
    /// The ConfigMap says that its image does not do this operation.
    #[error(transparent)]
    NoOperation(#[from] NotOffered),
}

impl ClaimError {
    /// Whether it passes by itself.
    pub(super) fn is_wait(&self) -> bool {
        match self {
            Self::Source(error) => error.is_wait(),
            Self::Attributes(AttributesError::NoClass(_)) => true,
            Self::Attributes(AttributesError::Foreign { .. })
            | Self::Size(_)
            | Self::Selector
            | Self::FsType(_)
            | Self::BytesPerInode(_)
            | Self::AttributesNotByCsi
            | Self::FlexVolume
            | Self::ManyNodes(_)
            | Self::NoOperation(_) => false,
        }
    }
}

/// Why a volume can't have a class.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributesError {
    #[error("VolumeAttributesClass {0:?} does not exist: Mooring waits for it")]
    NoClass(String),
    #[error(
        "VolumeAttributesClass {class:?} is of driver {driver:?}, and the volume is of {CSI_DRIVER:?}: ask for a class \
         of that driver"
    )]
    Foreign { class: String, driver: String },
}
