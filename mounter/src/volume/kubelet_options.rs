//! The options of a volume as the kubelet hands them on: with some of its own among them, which are about the Pod, and
//! with the file system's type and the mount options beside them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;
use mooring_contract::names::{CSI_DRIVER, FLEX_DRIVER};
use mooring_contract::volume::{Volume, VolumeError, keys};

use crate::volume::selinux_label::SelinuxLabel;
use crate::volume::target::Driver;

/// Options that the kubelet adds for a `FlexVolume` begin like this.
pub const FLEX_PREFIX: &str = "kubernetes.io/";

/// Those that it adds for a CSI volume (`podInfoOnMount`).
pub const CSI_PREFIX: &str = "csi.storage.k8s.io/";

/// The volume. Options that begin with `prefix` are the kubelet's own. `fs_type` (`fsType` of the PersistentVolume)
/// counts where the options have no `fs-type`; `mount_options` (`mountOptions` of the PersistentVolume) come after
/// those that the options have, without a [`SelinuxLabel`].
pub fn volume(
    mut options: BTreeMap<String, String>,
    prefix: &str,
    fs_type: &str,
    mount_options: &[String],
) -> Result<Volume, VolumeError> {
    options.retain(|key, _| !key.starts_with(prefix));
    let stated = options.entry(keys::FS_TYPE.to_owned()).or_default();
    if stated.is_empty() {
        fs_type.clone_into(stated);
    }
    // A label is the Pod's, and has commas.
    let of_volume = mount_options.iter().filter(|option| SelinuxLabel::of(option).is_none());
    let of_volume: Vec<_> = of_volume.map(String::as_str).collect();
    if !of_volume.is_empty() {
        let stated = options.entry(keys::MOUNT_OPTIONS.to_owned()).or_default();
        let all = std::iter::once(stated.as_str()).chain(of_volume);
        *stated = all.filter(|some| !some.is_empty()).collect::<Vec<_>>().join(",");
    }
    Volume::from_options(&options)
}

/// The volume of a `PersistentVolume`, read as the kubelet's call by this driver is; none if it is of another driver. A
/// raw block volume has no file system, so what is beside its options says nothing of it.
pub fn of_persistent_volume(found: &PersistentVolume, driver: Driver) -> Option<Result<Volume, VolumeError>> {
    let spec = found.spec.as_ref()?;
    if driver == Driver::FlexVolume {
        let flex = spec.flex_volume.as_ref().filter(|flex| flex.driver == FLEX_DRIVER)?;
        let fs_type = flex.fs_type.as_deref().unwrap_or_default();
        let options = flex.options.clone().unwrap_or_default();
        return Some(volume(options, FLEX_PREFIX, fs_type, &[]));
    }
    let csi = spec.csi.as_ref().filter(|csi| csi.driver == CSI_DRIVER)?;
    let options = csi.volume_attributes.clone().unwrap_or_default();
    if driver == Driver::CsiDevice {
        return Some(volume(options, CSI_PREFIX, "", &[]));
    }
    let fs_type = csi.fs_type.as_deref().unwrap_or_default();
    let mount_options = spec.mount_options.as_deref().unwrap_or_default();
    Some(volume(options, CSI_PREFIX, fs_type, mount_options))
}

#[cfg(test)]
mod tests {
    use super::{CSI_PREFIX, volume};

    #[test]
    fn what_stands_beside_the_options_joins_them_and_what_the_kubelet_added_goes() {
        let options = [
            ("client", "nfs"),
            ("source", "h:/x"),
            ("mount-options", "noatime"),
            ("csi.storage.k8s.io/ephemeral", "false"),
        ];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let found = volume(
            options.clone().into(),
            CSI_PREFIX,
            "nfs4",
            &["hard", "context=\"u:r:t:s0:c1,c2\"", "vers=4.2"].map(str::to_owned),
        )
        .unwrap();
        assert_eq!(found.mount_options, ["noatime", "hard", "vers=4.2"]);
        assert_eq!(found.fs_type, "nfs4");
        assert!(found.rest.is_empty());
        let mut own = std::collections::BTreeMap::from(options);
        own.insert("fs-type".to_owned(), "nfs".to_owned());
        assert_eq!(volume(own, CSI_PREFIX, "nfs4", &[]).unwrap().fs_type, "nfs");
    }
}
