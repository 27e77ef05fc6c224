//! Operation `discover`: a class for each volume type that the project may use.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Cinder;
use crate::error::OpenstackError;

#[derive(Debug, Deserialize)]
struct Type {
    id: String,
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Zone {
    zone_name: String,
    zone_state: ZoneState,
}

#[derive(Debug, Deserialize)]
struct ZoneState {
    available: bool,
}

impl Cinder<'_> {
    pub(super) fn discover(&self) -> Result<String, OpenstackError> {
        let what = "list volume types";
        // Those that the project may use: public ones, and private ones that it was given.
        let types = self
            .storage
            .service
            .list(what, "/types?is_public=None", "volume_types")?;
        let types = types
            .into_iter()
            .map(|one| self.storage.service.read::<Type>(what, one));
        let types = types.collect::<Result<Vec<_>, _>>()?;
        let default = self
            .storage
            .service
            .find("ask for the default volume type", "/types/default")?;
        let default = default.as_ref().and_then(|found| found["volume_type"]["id"].as_str());
        let only = self.storage.given.list("volume-types")?;
        let classes: Vec<_> = types
            .iter()
            .filter(|one| only.is_empty() || only.contains(&one.name))
            .map(|one| class(one, default == Some(&one.id)))
            .collect();
        let mut defaults = Map::from_iter([("expansion".to_owned(), json!(true))]);
        if self.storage.given.property("snapshots")?.as_deref() == Some("true") {
            defaults.insert("snapshots".to_owned(), json!(true));
        }
        let classes = self.storage.in_zones(classes, || self.zones())?;
        let printed = json!({"defaults": defaults, "classes": classes});
        let count = self.storage.answer.classes(&printed)?;
        Ok(format!("Cinder has {count} kinds of volume for this project"))
    }

    fn zones(&self) -> Result<Vec<String>, OpenstackError> {
        let what = "list Cinder's availability zones";
        let mut found = self.storage.service.get(what, "/os-availability-zone")?;
        let zones: Vec<Zone> = self.storage.service.read(what, found["availabilityZoneInfo"].take())?;
        let zones = zones.into_iter().filter(|zone| zone.zone_state.available);
        Ok(zones.map(|zone| zone.zone_name).collect())
    }
}

fn class(one: &Type, is_default: bool) -> Value {
    let mut class = json!({"name": one.name, "parameters": {"volume-type": one.name}});
    if is_default {
        class["default"] = json!(true);
    }
    class
}
