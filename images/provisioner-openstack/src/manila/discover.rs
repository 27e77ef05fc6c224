//! Operation `discover`: a class for each share type that the project may use, and each protocol that it serves.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Manila;
use super::attach::CIFS_USER;
use super::protocol::Protocol;
use crate::error::OpenstackError;

#[derive(Debug, Deserialize)]
struct Type {
    name: String,
    #[serde(default)]
    extra_specs: BTreeMap<String, Value>,
    #[serde(default)]
    required_extra_specs: BTreeMap<String, Value>,
    #[serde(default)]
    is_default: bool,
}

#[derive(Debug, Deserialize)]
struct Zone {
    name: String,
}

impl Type {
    fn says(&self, spec: &str) -> Option<&str> {
        let said = self
            .extra_specs
            .get(spec)
            .or_else(|| self.required_extra_specs.get(spec));
        said.and_then(Value::as_str)
    }

    fn is_true(&self, spec: &str) -> bool {
        self.says(spec)
            .is_some_and(|said| said.to_ascii_lowercase().trim_start_matches("<is> ") == "true")
    }

    /// Its protocols, if they are told to this user.
    fn protocols(&self) -> Option<Vec<Protocol>> {
        self.says("storage_protocol").map(Protocol::among)
    }
}

impl Manila<'_> {
    pub(super) fn discover(&self) -> Result<String, OpenstackError> {
        let what = "list share types";
        let mut found = self.storage.service.get(what, "/types?is_public=all")?;
        let types: Vec<Type> = self.storage.service.read(what, found["share_types"].take())?;
        let usual = Protocol::among(&self.storage.given.property("protocols")?.unwrap_or_default());
        if usual.is_empty() {
            return Err(OpenstackError::NoProperty {
                name: "protocols",
                what: "CEPHFS, NFS or CIFS, or several with commas: what types serve that do not say it,",
            });
        }
        let only = self.storage.given.list("share-types")?;
        let network = self.storage.given.property("share-network")?.is_some();
        let has_login = self.storage.given.property(CIFS_USER)?.is_some();
        let mut classes = Vec::new();
        for one in types.iter().filter(|one| only.is_empty() || only.contains(&one.name)) {
            // A type with servers of its own needs a network for them.
            if one.is_true("driver_handles_share_servers") && !network {
                continue;
            }
            let mut protocols = one.protocols().unwrap_or_else(|| usual.clone());
            // Without a login, no node could mount such a share.
            protocols.retain(|protocol| *protocol != Protocol::Cifs || has_login);
            for (at, protocol) in protocols.into_iter().enumerate() {
                classes.push(class(one, protocol, at == 0));
            }
        }
        let classes = self.storage.in_zones(classes, || self.zones())?;
        let count = self
            .storage
            .answer
            .classes(&json!({"defaults": {"expansion": true}, "classes": classes}))?;
        Ok(format!("Manila has {count} kinds of share for this project"))
    }

    fn zones(&self) -> Result<Vec<String>, OpenstackError> {
        let what = "list Manila's availability zones";
        let mut found = self.storage.service.get(what, "/availability-zones")?;
        let zones: Vec<Zone> = self.storage.service.read(what, found["availability_zones"].take())?;
        Ok(zones.into_iter().map(|zone| zone.name).collect())
    }
}

/// The protocols' names have no dash, so no two classes have one name.
fn class(one: &Type, protocol: Protocol, is_first: bool) -> Value {
    let mut class = json!({
        "name": format!("{}-{}", one.name, protocol.client()),
        "parameters": {"share-type": one.name, "share-protocol": protocol.name()},
    });
    if one.is_default && is_first {
        class["default"] = json!(true);
    }
    if one.is_true("snapshot_support") && one.is_true("create_share_from_snapshot_support") {
        class["snapshots"] = json!(true);
    }
    class
}
