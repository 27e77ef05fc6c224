//! Operations `snapshot` and `delete-snapshot`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Storage;
use crate::error::Error;
use crate::http::encoded;
use crate::wait::{Look, until};

/// Begins the description of a snapshot that Mooring took.
const TAKEN: &str = "Mooring, for claim";

#[derive(Debug, Deserialize)]
struct Snapshot {
    id: String,
    status: String,
    #[serde(alias = "share_id")]
    volume_id: String,
    #[serde(default)]
    description: Option<String>,
}

impl Snapshot {
    fn is_passing(&self) -> bool {
        !self.status.contains("error") && self.status.ends_with("ing")
    }

    /// Whether Mooring took it. One that an administrator has named in Kubernetes is not Mooring's.
    fn is_own(&self) -> bool {
        self.description.as_ref().is_some_and(|text| text.starts_with(TAKEN))
    }
}

impl Storage<'_> {
    /// Takes the snapshot of the one with this id, unless it is there. `about` adds to what is asked for.
    pub fn snapshot(&self, id: impl FnOnce() -> Result<String, Error>, about: &Value) -> Result<String, Error> {
        let name = self.given.snapshot_name()?;
        let what = format!("take snapshot {name}");
        if self.snapshot_named(name)?.is_none() {
            let mut asked = json!({
                "name": name,
                "description": format!("{TAKEN} {}", self.given.claim()),
                self.words.of: id()?,
            });
            for (key, value) in about.as_object().into_iter().flatten() {
                asked[key] = value.clone();
            }
            let taken = self.service.post(&what, "/snapshots", &json!({"snapshot": asked}));
            // Where a type has no snapshots, that is an error of the request; a state that may pass is not.
            taken.map_err(|error| match error.status() {
                Some(400) => error,
                _ => error.of_the_request(),
            })?;
        }
        let server = self.server();
        let Some(snapshot) = self.snapshot_settled(name, &format!("the making of snapshot {name}"))? else {
            return Err(Error::NotNow(format!(
                "{server} does not list snapshot {name} yet: it is looked for again"
            )));
        };
        if snapshot.status != "available" {
            let failed = self.failed(&what, &snapshot.id, "it is taken again");
            self.remove_snapshot(name, &snapshot)?;
            return Err(failed);
        }
        Ok(format!("snapshot {name} of {server} is {}", snapshot.id))
    }

    /// Deletes the snapshot, and what it was of if that was left for it.
    pub fn delete_snapshot(&self) -> Result<String, Error> {
        let name = self.given.snapshot_name()?;
        let server = self.server();
        let Some(snapshot) = self.snapshot_settled(name, &format!("{server}'s work on snapshot {name}"))? else {
            return Ok(format!("{server} has no snapshot {name}"));
        };
        self.remove_snapshot(name, &snapshot)?;
        self.remove_if_left(&snapshot.volume_id)?;
        Ok(format!("snapshot {name} of {server} is deleted"))
    }

    /// The id of the snapshot to restore.
    pub fn snapshot_to_restore(&self, name: &str) -> Result<String, Error> {
        let server = self.server();
        match self.snapshot_named(name)? {
            Some(snapshot) if snapshot.status == "available" => Ok(snapshot.id),
            Some(snapshot) => Err(Error::NotNow(format!(
                "snapshot {name} of {server} is {}: it can be restored when it is available",
                snapshot.status
            ))),
            None => Err(Error::Refused(format!(
                "{server} has no snapshot {name}: there is nothing to restore"
            ))),
        }
    }

    fn remove_snapshot(&self, name: &str, snapshot: &Snapshot) -> Result<(), Error> {
        let what = format!("delete snapshot {name}");
        self.service.delete(&what, &format!("/snapshots/{}", snapshot.id))?;
        match self.snapshot_settled(name, &format!("{}'s deletion of snapshot {name}", self.server()))? {
            None => Ok(()),
            // One that volumes still need is available again.
            Some(left) => Err(self.failed(&what, &left.id, &format!("it is {} and is deleted again", left.status))),
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

    /// The snapshot of this name: Mooring's, or else the only one.
    fn snapshot_named(&self, name: &str) -> Result<Option<Snapshot>, Error> {
        let what = format!("look for snapshot {name}");
        let path = format!("/snapshots/detail?name={}", encoded(name));
        let found = self.service.list(&what, &path, "snapshots")?;
        let read = found.into_iter().map(|one| self.service.read::<Snapshot>(&what, one));
        let mut all = read.collect::<Result<Vec<_>, _>>()?;
        if let Some(at) = all.iter().position(Snapshot::is_own) {
            return Ok(Some(all.swap_remove(at)));
        }
        if all.len() > 1 {
            return Err(Error::Refused(format!(
                "{} has {} snapshots {name}, none of them taken by Mooring: rename all but the one that is meant",
                self.server(),
                all.len()
            )));
        }
        Ok(all.pop())
    }
}
