//! The `VolumeAttributesClass` that a claim names: whether its volume can have it, and what the image is told of it.

use mooring_contract::names::CSI_DRIVER;
use mooring_contract::request::Attributes;

use super::wanted;
use crate::config::ProvisionerConfig;
use crate::operation::observed::ObservedClaim;
use crate::operation::request::{ClaimError, parameters_of};
use crate::run::Kind;

/// Why a volume can't have a class.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributesError {
    /// There is none.
    #[error("VolumeAttributesClass {0:?} does not exist: it is waited for")]
    NoClass(String),
    /// It is another driver's.
    #[error(
        "VolumeAttributesClass {class:?} is of driver {driver:?}, and the volume is of {CSI_DRIVER:?}: ask for a class of \
         that driver"
    )]
    Foreign {
        /// The class.
        class: String,
        /// Its driver.
        driver: String,
    },
}

/// What the image is told of this class.
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

/// Whether the ConfigMap says that the image gives volumes other attributes.
pub(crate) fn check_offered(config: &ProvisionerConfig) -> Result<(), ClaimError> {
    if config.operations.contains(&Kind::Modify.into()) {
        return Ok(());
    }
    Err(ClaimError::NoOperation(
        config.reference.to_string(),
        Kind::Modify.as_str(),
    ))
}
