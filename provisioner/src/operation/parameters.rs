//! What the parameters of a class say: to the image, and to Mooring.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::StorageClass;
use mooring_contract::property::keys;

/// Parameter of a class by which CSI drivers are told the file system; read here as well.
const CSI_FS_TYPE: &str = "csi.storage.k8s.io/fstype";

/// Prefixes of class parameters that are for Mooring, never for the image.
const OWN_PREFIXES: [&str; 2] = ["mooring.dev/", "csi.storage.k8s.io/"];

/// The file system that a class asks for.
pub(super) fn fs_type(class: &StorageClass) -> Option<String> {
    let parameters = class.parameters.as_ref()?;
    parameters
        .get(CSI_FS_TYPE)
        .or_else(|| parameters.get(keys::FS_TYPE))
        .cloned()
}

/// Those of a class's parameters that are for the image.
pub(super) fn class_parameters(class: &StorageClass) -> BTreeMap<String, String> {
    parameters_of(class.parameters.as_ref())
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
