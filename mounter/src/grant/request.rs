//! A mount as the kubelet asks for it. What it says of the volume may be its author's forgery, so it is judged by the
//! [`super::granter`] and used by nobody else.

use mooring_contract::volume::Volume;
use serde::{Deserialize, Serialize};

use crate::volume::job::{Access, PodRef, Secrets};
use crate::volume::pod_group::PodGroup;
use crate::volume::selinux_label::SelinuxLabel;
use crate::volume::target::Target;

/// What the kubelet says about which volume it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// Nothing: a `FlexVolume`'s options may be a Pod's or a PersistentVolume's.
    Nothing,
    /// Of a CSI volume.
    Csi {
        /// Whether a Pod has the volume in its own spec. The kubelet says so after the volume's own attributes, which
        /// can't forge it (`mergeMap` in `pkg/volume/csi`); `None` if it says nothing, since nobody asked for that
        /// (`podInfoOnMount`).
        ephemeral: Option<bool>,
        /// The PersistentVolume's `volumeHandle`, or a hash that the kubelet makes.
        volume_id: String,
    },
}

/// One mount that is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountRequest {
    pub told: Told,
    /// The volume, as the options of the call describe it.
    #[serde(with = "flat_options")]
    pub volume: Volume,
    pub secrets: Secrets,
    pub target: Target,
    pub access: Access,
    /// See [`super::Grant::is_sole`].
    pub sole: bool,
    /// Whether the kubelet wants it read-only.
    pub read_only: bool,
    /// See [`super::Grant::is_only_read`].
    pub only_read: bool,
    /// See [`super::Grant::fs_group`]. By CSI, the kubelet says it. The Pod in the API also has its policy.
    pub fs_group: Option<PodGroup>,
    /// See [`super::Grant::label`].
    pub label: Option<SelinuxLabel>,
    /// The Pod that the mount is for. Its uid comes from the target, and so from the kubelet; name and namespace may be
    /// forged.
    pub pod: PodRef,
}

/// A volume as its flat options.
mod flat_options {
    use std::collections::BTreeMap;

    use mooring_contract::volume::Volume;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(volume: &Volume, to: S) -> Result<S::Ok, S::Error> {
        volume.to_options().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Volume, D::Error> {
        Volume::from_options(&BTreeMap::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mooring_contract::volume::Volume;

    use super::{MountRequest, Told};
    use crate::volume::job::{Access, PodRef, Secrets};
    use crate::volume::target::{Driver, Target};

    /// A plain request for a volume, by the driver whose target this is. The Pod is `shop/web`.
    pub(crate) fn request(volume: Volume, target: Target) -> MountRequest {
        MountRequest {
            told: match target.driver() {
                Driver::FlexVolume => Told::Nothing,
                Driver::Csi | Driver::CsiDevice => Told::Csi {
                    ephemeral: Some(false),
                    volume_id: target.name().to_owned(),
                },
            },
            volume,
            secrets: Secrets::default(),
            access: if target.is_device() {
                Access::Device
            } else {
                Access::FileSystem
            },
            sole: false,
            read_only: false,
            only_read: false,
            fs_group: None,
            label: None,
            pod: PodRef {
                name: "web".to_owned(),
                namespace: "shop".to_owned(),
                uid: target.pod_uid().to_owned(),
            },
            target,
        }
    }
}
