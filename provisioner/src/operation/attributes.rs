//! The `VolumeAttributesClass` that a claim names: whether its volume can have it, and what the image gets about it.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use mooring_contract::names::CSI_DRIVER;
use mooring_contract::request::Attributes;

use super::claim_error::AttributesError;
use super::observed::ObservedClaim;
use super::parameters::parameters_of;

/// The class that a claim names; empty for none.
pub(crate) fn wanted(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    let named = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    named.unwrap_or_default()
}

/// What the image gets about this class.
pub(super) fn find(seen: &ObservedClaim<'_>, name: &str) -> Result<Attributes, AttributesError> {
    let class = (seen.attributes)(name).ok_or_else(|| AttributesError::NoClass(name.to_owned()))?;
    if class.driver_name != CSI_DRIVER {
        return Err(AttributesError::Foreign {
            class: name.to_owned(),
            driver: class.driver_name.clone(),
        });
    }
    Ok(Attributes {
        class: name.to_owned(),
        parameters: parameters_of(class.parameters.as_ref()),
    })
}

/// The attributes that a claim asks for; `None` if it names no class.
pub(crate) fn of_claim(seen: &ObservedClaim<'_>) -> Result<Option<Attributes>, AttributesError> {
    match wanted(seen.claim) {
        "" => Ok(None),
        name => find(seen, name).map(Some),
    }
}
