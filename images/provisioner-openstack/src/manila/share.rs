//! Shares as Manila shows them, how they are found, and the waiting for their state.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{MANILA, Manila};
use crate::error::Error;
use crate::http::encoded;
use crate::wait::{Look, until};

/// Metadata of a share: the name of its PersistentVolume.
pub(super) const PV_NAME: &str = "mooring-pv-name";

/// Metadata of a share that is deleted but for its snapshots.
pub(super) const DELETED: &str = "mooring-deleted";

/// States that pass by themselves, beside those that end in "ing".
const PASSING: [&str; 5] = [
    "backup_creating",
    "creating_from_snapshot",
    "awaiting_transfer",
    "migrating_to",
    "replication_change",
];

/// A share.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Share {
    pub(super) id: String,
    pub(super) status: String,
    /// In GiB.
    pub(super) size: u64,
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, Value>,
    #[serde(default)]
    created_at: Option<String>,
}

impl Share {
    /// Whether it was made for a PersistentVolume of this name.
    pub(super) fn is_of(&self, pv_name: &str) -> bool {
        self.metadata.get(PV_NAME).and_then(Value::as_str) == Some(pv_name)
    }

    /// Whether it is to go with its last snapshot.
    pub(super) fn is_deleted(&self) -> bool {
        self.metadata.contains_key(DELETED)
    }

    pub(super) fn is_failed(&self) -> bool {
        self.status.contains("error")
    }

    fn is_passing(&self) -> bool {
        !self.is_failed() && (self.status.ends_with("ing") || PASSING.contains(&self.status.as_str()))
    }
}

impl Manila<'_> {
    /// Those that were made for a PersistentVolume of this name, the oldest first.
    pub(super) fn shares_of(&self, pv_name: &str) -> Result<Vec<Share>, Error> {
        let what = format!("look for share {pv_name}");
        let path = format!("/shares/detail?name={}", encoded(pv_name));
        let found = self.service.list(&what, &path, "shares")?;
        let shares = found.into_iter().map(|one| self.service.read::<Share>(&what, one));
        let mut shares = shares.collect::<Result<Vec<_>, _>>()?;
        shares.retain(|share| share.is_of(pv_name));
        shares.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        Ok(shares)
    }

    /// A share by its id.
    pub(super) fn share(&self, id: &str) -> Result<Option<Share>, Error> {
        let what = format!("look at share {id}");
        let found = self.service.find(&what, &format!("/shares/{}", encoded(id)))?;
        let read = |mut found: Value| self.service.read(&what, found["share"].take());
        found.map(read).transpose()
    }

    /// The share that this run is about.
    pub(super) fn this_share(&self) -> Result<Share, Error> {
        let name = &self.given.request.pv_name;
        let found = self.shares_of(name)?.into_iter().find(|share| !share.is_deleted());
        found.ok_or_else(|| Error::Refused(format!("Manila has no share {name} any more: its content is gone")))
    }

    /// Waits until the share's state does not change by itself any more; none if it is gone.
    pub(super) fn settled(&self, id: &str, what: &str) -> Result<Option<Share>, Error> {
        until(self.pace, what, || {
            Ok(match self.share(id)? {
                None => Look::Ready(None),
                Some(share) if share.is_passing() => Look::NotYet(share.status),
                Some(share) => Look::Ready(Some(share)),
            })
        })
    }

    /// Asks for something to be done with a share.
    pub(super) fn act(&self, what: &str, id: &str, action: &str, about: &Value) -> Result<Value, Error> {
        self.service
            .post(what, &format!("/shares/{id}/action"), &json!({action: about}))
    }

    /// Why the last thing with this id failed, in Manila's words to its users.
    pub(super) fn words(&self, id: &str) -> String {
        let path = format!("/messages?resource_id={id}&sort_key=created_at&sort_dir=desc");
        let found = self.service.get("read Manila's messages", &path).ok();
        let message = found
            .as_ref()
            .and_then(|found| found["messages"][0]["user_message"].as_str());
        message.map_or_else(
            || "it does not say why; the log of the service does".to_owned(),
            |words| words.trim_end_matches('.').to_owned(),
        )
    }

    /// The error of something that ended badly.
    pub(super) fn failed(&self, what: String, id: &str, then: &str) -> Error {
        let words = self.words(id);
        Error::Failed {
            what,
            server: MANILA,
            words: format!("{words}: {then}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Share;
    use serde_json::json;

    #[test]
    fn a_state_passes_or_stays() {
        for (status, passes) in [
            ("creating", true),
            ("creating_from_snapshot", true),
            ("deferred_deleting", true),
            ("available", false),
            ("error", false),
            ("extending_error", false),
            ("error_deleting", false),
        ] {
            let share: Share = serde_json::from_value(json!({"id": "s", "status": status, "size": 1})).unwrap();
            assert_eq!(share.is_passing(), passes, "{status}");
        }
    }
}
