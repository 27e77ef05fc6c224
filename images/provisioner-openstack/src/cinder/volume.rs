//! Volumes as Cinder shows them, how they are found, and the waiting for their state.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{CINDER, Cinder, place};
use crate::error::Error;
use crate::http::encoded;
use crate::wait::{Look, until};

/// Metadata of a volume: the name of its PersistentVolume.
pub(super) const PV_NAME: &str = "mooring-pv-name";

/// Metadata of a volume that is deleted but for its snapshots.
pub(super) const DELETED: &str = "mooring-deleted";

/// States that pass by themselves.
const PASSING: [&str; 13] = [
    "attaching",
    "awaiting-transfer",
    "backing-up",
    "creating",
    "deleting",
    "detaching",
    "downloading",
    "extending",
    "maintenance",
    "reserved",
    "restoring-backup",
    "retyping",
    "uploading",
];

/// A volume.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) status: String,
    /// In GiB.
    pub(super) size: u64,
    /// Name of its volume type.
    #[serde(rename = "volume_type", default)]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, Value>,
    #[serde(default)]
    pub(super) attachments: Vec<Held>,
    #[serde(default)]
    created_at: String,
}

/// An attachment that is complete, as a volume shows it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Held {
    pub(super) attachment_id: String,
    #[serde(default)]
    pub(super) device: Option<String>,
}

impl Volume {
    /// Whether it was made for a PersistentVolume of this name.
    pub(super) fn is_of(&self, pv_name: &str) -> bool {
        self.metadata.get(PV_NAME).and_then(Value::as_str) == Some(pv_name)
    }

    /// Whether it is to go with its last snapshot.
    pub(super) fn is_deleted(&self) -> bool {
        self.metadata.contains_key(DELETED)
    }

    pub(super) fn is_failed(&self) -> bool {
        self.status.starts_with("error")
    }

    fn is_passing(&self) -> bool {
        PASSING.contains(&self.status.as_str())
    }
}

impl Cinder<'_> {
    /// Those that were made for a PersistentVolume of this name, the oldest first. A run that was cut off while it
    /// asked for one may leave a second.
    pub(super) fn volumes_of(&self, pv_name: &str) -> Result<Vec<Volume>, Error> {
        let what = format!("look for volume {pv_name}");
        let path = format!("/volumes/detail?name={}", encoded(pv_name));
        let found = self.service.list(&what, &path, "volumes")?;
        let volumes = found.into_iter().map(|one| self.service.read::<Volume>(&what, one));
        let mut volumes = volumes.collect::<Result<Vec<_>, _>>()?;
        volumes.retain(|volume| volume.is_of(pv_name));
        volumes.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        Ok(volumes)
    }

    /// A volume by its id.
    pub(super) fn volume(&self, id: &str) -> Result<Option<Volume>, Error> {
        let what = format!("look at volume {id}");
        let found = self.service.find(&what, &format!("/volumes/{}", encoded(id)))?;
        let read = |mut found: Value| self.service.read(&what, found["volume"].take());
        found.map(read).transpose()
    }

    /// The volume of a PersistentVolume with this name and this source, if it is there.
    pub(super) fn standing(&self, pv_name: &str, source: &str) -> Result<Option<Volume>, Error> {
        if let Some(id) = place::id(source)
            && let Some(volume) = self.volume(id)?
        {
            // Those who may write a PersistentVolume can write anything there.
            if !volume.is_of(pv_name) {
                return Err(Error::NotOurs {
                    what: format!("volume {id} of Cinder"),
                    key: PV_NAME,
                    name: pv_name.to_owned(),
                });
            }
            return Ok(Some(volume));
        }
        let kept = |volume: &Volume| !volume.is_deleted();
        Ok(self.volumes_of(pv_name)?.into_iter().find(kept))
    }

    /// The volume that this run is about.
    pub(super) fn this_volume(&self) -> Result<Volume, Error> {
        let pv_name = &self.given.request.pv_name;
        let found = self.standing(pv_name, self.given.option("source"))?;
        found.ok_or_else(|| Error::Refused(format!("Cinder has no volume {pv_name} any more: its content is gone")))
    }

    /// Waits until the volume's state does not change by itself any more; none if it is gone.
    pub(super) fn settled(&self, id: &str, what: &str) -> Result<Option<Volume>, Error> {
        until(self.pace, what, || {
            Ok(match self.volume(id)? {
                None => Look::Ready(None),
                Some(volume) if volume.is_passing() => Look::NotYet(volume.status),
                Some(volume) => Look::Ready(Some(volume)),
            })
        })
    }

    /// Asks for something to be done with a volume.
    pub(super) fn act(&self, what: &str, id: &str, action: &str, about: &Value) -> Result<(), Error> {
        let path = format!("/volumes/{id}/action");
        self.service.post(what, &path, &json!({action: about})).map(drop)
    }

    /// Why the last thing with this id failed, in Cinder's words to its users.
    pub(super) fn words(&self, id: &str) -> String {
        let path = format!("/messages?resource_uuid={id}&sort=created_at:desc");
        let found = self.service.get("read Cinder's messages", &path).ok();
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
            server: CINDER,
            words: format!("{words}: {then}"),
        }
    }
}
