//! Operation `modify`: a volume of another type.

use serde_json::json;

use super::Cinder;
use crate::error::OpenstackError;

/// Attributes that a claim can ask for.
const TYPE: &str = "volume-type";
const POLICY: &str = "migration-policy";

impl Cinder<'_> {
    pub(super) fn modify(&self) -> Result<String, OpenstackError> {
        let name = &self.storage.given.request.pv_name;
        self.check_attributes()?;
        let Some(wanted) = self.storage.given.attribute(TYPE) else {
            return Ok(format!("volume {name} keeps its type: there is no attribute {TYPE}"));
        };
        let what = format!("give volume {name} type {wanted}");
        let waiting = format!("the change of volume {name}");
        let id = self.this_volume()?.id;
        let gone = || self.storage.gone(name);
        let volume = self.storage.settled(&id, &waiting)?.ok_or_else(gone)?;
        if volume.kind.as_deref() == Some(wanted) {
            return Ok(format!("volume {name} of Cinder has type {wanted} already"));
        }
        if volume.is_failed() {
            return Err(self
                .storage
                .failed(&what, &id, &format!("its state is {}", volume.status)));
        }
        let policy = self.storage.given.attribute(POLICY).unwrap_or("never");
        let about = json!({"new_type": wanted, "migration_policy": policy});
        let asked = self.storage.act(&what, &id, "os-retype", &about);
        asked.map_err(|error| match error.status() {
            // There is no such type.
            Some(404) => error.of_the_request(),
            _ => error,
        })?;
        let volume = self.storage.settled(&id, &waiting)?.ok_or_else(gone)?;
        if volume.kind.as_deref() != Some(wanted) {
            let then = if policy == "never" {
                "it keeps its type; with attribute migration-policy=on-demand it may move to another back end"
            } else {
                "it keeps its type"
            };
            return Err(self.storage.failed(&what, &id, then));
        }
        Ok(format!("volume {name} of Cinder has type {wanted}"))
    }

    /// Refuses attributes that nobody would heed.
    pub(super) fn check_attributes(&self) -> Result<(), OpenstackError> {
        let attributes = self.storage.given.request.attributes.as_ref();
        let asked = attributes.into_iter().flat_map(|attributes| &attributes.parameters);
        for (name, value) in asked {
            let known = match name.as_str() {
                TYPE => !value.is_empty(),
                POLICY => ["never", "on-demand"].contains(&value.as_str()),
                _ => false,
            };
            if !known {
                return Err(OpenstackError::Refused(format!(
                    "there is no attribute {name}={value}: write {TYPE} with a volume type of Cinder's, or {POLICY} \
                     with never or on-demand, into the VolumeAttributesClass"
                )));
            }
        }
        Ok(())
    }
}
