//! Operations `snapshot` and `delete-snapshot`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Cinder;
use crate::error::Error;
use crate::http::encoded;
use crate::wait::{Look, until};

/// Metadata of a snapshot that Mooring took: its name.
const NAME: &str = "mooring-snapshot-name";

#[derive(Debug, Deserialize)]
struct Snapshot {
    id: String,
    status: String,
    volume_id: String,
    #[serde(default)]
    metadata: BTreeMap<String, Value>,
}

impl Snapshot {
    fn is_passing(&self) -> bool {
        ["creating", "deleting", "backing-up", "restoring", "unmanaging"].contains(&self.status.as_str())
    }
}

impl Cinder<'_> {
    pub(super) fn snapshot(&self) -> Result<String, Error> {
        let name = self.given.snapshot_name()?;
        let what = format!("take snapshot {name}");
        if self.snapshot_named(name)?.is_none() {
            let volume = self.this_volume()?;
            let about = json!({
                "name": name,
                "volume_id": volume.id,
                "description": format!("claim {}", self.given.claim()),
                // Also while a node uses the volume.
                "force": true,
                "metadata": {NAME: name},
            });
            self.service.post(&what, "/snapshots", &json!({"snapshot": about}))?;
        }
        let Some(snapshot) = self.snapshot_settled(name, &format!("the making of snapshot {name}"))? else {
            return Err(Error::NotNow(format!(
                "Cinder does not list snapshot {name} yet: it is looked for again"
            )));
        };
        if snapshot.status != "available" {
            let failed = self.failed(what, &snapshot.id, "it is taken again");
            self.remove_snapshot(name, &snapshot)?;
            return Err(failed);
        }
        Ok(format!("snapshot {name} of Cinder is {}", snapshot.id))
    }

    pub(super) fn delete_snapshot(&self) -> Result<String, Error> {
        let name = self.given.snapshot_name()?;
        let Some(snapshot) = self.snapshot_settled(name, &format!("Cinder's work on snapshot {name}"))? else {
            return Ok(format!("Cinder has no snapshot {name}"));
        };
        self.remove_snapshot(name, &snapshot)?;
        self.remove_if_left(&snapshot.volume_id)?;
        Ok(format!("snapshot {name} of Cinder is deleted"))
    }

    /// The id of the snapshot to make a volume of.
    pub(super) fn snapshot_to_restore(&self, name: &str) -> Result<String, Error> {
        match self.snapshot_named(name)? {
            Some(snapshot) if snapshot.status == "available" => Ok(snapshot.id),
            Some(snapshot) => Err(Error::NotNow(format!(
                "snapshot {name} of Cinder is {}: it can be restored when it is available",
                snapshot.status
            ))),
            None => Err(Error::Refused(format!(
                "Cinder has no snapshot {name}: there is nothing to restore"
            ))),
        }
    }

    fn remove_snapshot(&self, name: &str, snapshot: &Snapshot) -> Result<(), Error> {
        let what = format!("delete snapshot {name}");
        self.service.delete(&what, &format!("/snapshots/{}", snapshot.id))?;
        match self.snapshot_settled(name, &format!("Cinder's deletion of snapshot {name}"))? {
            None => Ok(()),
            // One that volumes still need is available again.
            Some(left) => Err(self.failed(what, &left.id, &format!("it is {} and is deleted again", left.status))),
        }
    }

    fn snapshot_settled(&self, name: &str, what: &str) -> Result<Option<Snapshot>, Error> {
        until(self.pace, what, || {
            Ok(match self.snapshot_named(name)? {
                Some(snapshot) if snapshot.is_passing() => Look::NotYet(snapshot.status),
                found => Look::Ready(found),
            })
        })
    }

    /// The snapshot of this name. One that an administrator named is not Mooring's; of that there may be one only.
    fn snapshot_named(&self, name: &str) -> Result<Option<Snapshot>, Error> {
        let what = format!("look for snapshot {name}");
        let path = format!("/snapshots/detail?name={}", encoded(name));
        let found = self.service.list(&what, &path, "snapshots")?;
        let read = found.into_iter().map(|one| self.service.read::<Snapshot>(&what, one));
        let mut all = read.collect::<Result<Vec<_>, _>>()?;
        let own = |one: &Snapshot| one.metadata.get(NAME).and_then(Value::as_str) == Some(name);
        if let Some(at) = all.iter().position(own) {
            return Ok(Some(all.swap_remove(at)));
        }
        if all.len() > 1 {
            return Err(Error::Refused(format!(
                "Cinder has {} snapshots {name}, none of them taken by Mooring: rename all but the one that is meant",
                all.len()
            )));
        }
        Ok(all.pop())
    }
}
