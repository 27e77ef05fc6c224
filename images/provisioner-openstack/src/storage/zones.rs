//! Availability zones: where the ConfigMap names the label by which nodes say theirs, there is a class for each zone,
//! whose volumes are used in it alone.

use serde_json::{Value, json};

use super::Storage;
use crate::error::OpenstackError;

/// Key of the ConfigMap: the label of nodes whose value is the name of a zone.
const LABEL: &str = "zone-label";

impl Storage<'_> {
    /// These classes, or one of each for each zone. `zones` asks the service for the names of its zones.
    pub fn in_zones(
        &self,
        classes: Vec<Value>,
        zones: impl FnOnce() -> Result<Vec<String>, OpenstackError>,
    ) -> Result<Vec<Value>, OpenstackError> {
        let Some(label) = self.given.property(LABEL)? else {
            return Ok(classes);
        };
        let zones = zones()?;
        Ok(classes
            .iter()
            .flat_map(|class| zones.iter().map(|zone| in_zone(class, &label, zone)))
            .collect())
    }
}

/// A class of one zone. Only one of the default class's zones could be the default, so none is.
fn in_zone(class: &Value, label: &str, zone: &str) -> Value {
    let mut class = class.clone();
    let name = class["name"].as_str().unwrap_or_default();
    class["name"] = json!(format!("{name}.{zone}"));
    class["parameters"]["availability-zone"] = json!(zone);
    class["topologies"] = json!([{label: [zone]}]);
    if let Some(class) = class.as_object_mut() {
        class.remove("default");
    }
    class
}
