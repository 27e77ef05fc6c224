//! What the parameters of a class say: to the image, and to Mooring.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::storage::v1::StorageClass;
use mooring_contract::property::keys;

use crate::config::near_miss::asks_for_fs_type;

/// How classes ask for a file system: by the parameter that CSI's sidecars read, by our own, and by those of in-tree
/// volumes and of many drivers.
const FS_TYPES: [&str; 4] = ["csi.storage.k8s.io/fstype", keys::FS_TYPE, "fstype", "fsType"];

/// Prefixes of class parameters that are for Mooring, never for the image.
const OWN_PREFIXES: [&str; 2] = ["mooring.dev/", "csi.storage.k8s.io/"];

/// Why it is not clear which file system a class asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FsTypeError {
    #[error("parameter {0} of the class is not known, and volumes would get another file system: write fs-type")]
    Misspelt(String),
    #[error("the class asks for file system {} and for {}: make a class with only one of the two", .0[0], .0[1])]
    Two([String; 2]),
}

/// Checks that a class asks for one file system at most, and in a way that is read.
pub(super) fn check_fs_type(class: &StorageClass) -> Result<(), FsTypeError> {
    let mut keys = class.parameters.iter().flat_map(BTreeMap::keys);
    if let Some(key) = keys.find(|key| asks_for_fs_type(key) && !FS_TYPES.contains(&key.as_str())) {
        return Err(FsTypeError::Misspelt(key.clone()));
    }
    let asked: BTreeSet<_> = asked_fs_types(class).collect();
    match asked.into_iter().collect::<Vec<_>>().as_slice() {
        [one, other, ..] => Err(FsTypeError::Two([(*one).clone(), (*other).clone()])),
        _ => Ok(()),
    }
}

/// The file system that a class asks for.
pub(super) fn fs_type(class: &StorageClass) -> Option<String> {
    asked_fs_types(class).next().cloned()
}

fn asked_fs_types(class: &StorageClass) -> impl Iterator<Item = &String> {
    let parameters = class.parameters.as_ref();
    FS_TYPES.iter().filter_map(move |key| parameters?.get(*key))
}

/// Those of a class's parameters that are for the image.
pub(super) fn class_parameters(class: &StorageClass) -> BTreeMap<String, String> {
    let mut parameters = parameters_of(class.parameters.as_ref());
    parameters.retain(|key, _| !FS_TYPES.contains(&key.as_str()));
    parameters
}

/// Those of a class's parameters that are for the image, whatever it is a class of.
pub fn parameters_of(parameters: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    parameters
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != keys::FS_TYPE && !OWN_PREFIXES.iter().any(|prefix| key.starts_with(prefix)))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{check_fs_type, class_parameters, fs_type};
    use crate::operation::tests::class;

    #[test]
    fn a_file_system_is_asked_for_as_other_drivers_classes_do_and_no_image_sees_the_parameter() {
        for key in ["fs-type", "csi.storage.k8s.io/fstype", "fstype", "fsType"] {
            let class = class(&json!({"parameters": {key: "xfs", "zone": "east"}}));
            assert_eq!(check_fs_type(&class), Ok(()), "{key}");
            assert_eq!(fs_type(&class).as_deref(), Some("xfs"), "{key}");
            let passed: Vec<_> = class_parameters(&class).into_keys().collect();
            assert_eq!(passed, ["zone"], "{key}");
        }
    }

    #[test]
    fn a_file_system_that_would_be_passed_over_is_refused_with_the_cure() {
        for key in [
            "FSType",
            "fs_type",
            "fs.type",
            "csi.storage.k8s.io/fsType",
            "csi.storage.k8s.io/fs-type",
        ] {
            let error = check_fs_type(&class(&json!({"parameters": {key: "xfs"}}))).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(key) && error.contains("write fs-type"), "{error}");
        }
        let two = class(&json!({"parameters": {"fsType": "xfs", "fs-type": "ext4"}}));
        let error = check_fs_type(&two).unwrap_err().to_string();
        assert!(error.contains("ext4") && error.contains("xfs"), "{error}");
        let same = class(&json!({"parameters": {"fsType": "xfs", "fs-type": "xfs", "fs-name": "a"}}));
        assert_eq!(check_fs_type(&same), Ok(()));
    }
}
