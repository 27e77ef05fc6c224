//! Operations `snapshot` and `delete-snapshot`, where the share's type can have snapshots.

use serde::Deserialize;
use serde_json::json;

use super::Manila;
use crate::error::Error;
use crate::http::encoded;
use crate::wait::{Look, until};

#[derive(Debug, Deserialize)]
struct Snapshot {
    id: String,
    status: String,
    share_id: String,
}

impl Snapshot {
    fn is_passing(&self) -> bool {
        !self.status.contains("error") && self.status.ends_with("ing")
    }
}

impl Manila<'_> {
    pub(super) fn snapshot(&self) -> Result<String, Error> {
        let name = self.given.snapshot_name()?;
        let what = format!("take snapshot {name}");
        if self.snapshot_named(name)?.is_none() {
            let share = self.this_share()?;
            let about = json!({
                "name": name,
                "share_id": share.id,
                "description": format!("claim {}", self.given.claim()),
            });
            let taken = self.service.post(&what, "/snapshots", &json!({"snapshot": about}));
            // A type without snapshots is an error of the request, with 422.
            taken.map_err(Error::of_the_request)?;
        }
        let Some(snapshot) = self.snapshot_settled(name, &format!("the making of snapshot {name}"))? else {
            return Err(Error::NotNow(format!(
                "Manila does not list snapshot {name} yet: it is looked for again"
            )));
        };
        if snapshot.status != "available" {
            let failed = self.failed(what, &snapshot.id, "it is taken again");
            self.remove_snapshot(name, &snapshot)?;
            return Err(failed);
        }
        Ok(format!("snapshot {name} of Manila is {}", snapshot.id))
    }

    pub(super) fn delete_snapshot(&self) -> Result<String, Error> {
        let name = self.given.snapshot_name()?;
        let Some(snapshot) = self.snapshot_settled(name, &format!("Manila's work on snapshot {name}"))? else {
            return Ok(format!("Manila has no snapshot {name}"));
        };
        self.remove_snapshot(name, &snapshot)?;
        self.remove_if_left(&snapshot.share_id)?;
        Ok(format!("snapshot {name} of Manila is deleted"))
    }

    /// The id of the snapshot to make a share of.
    pub(super) fn snapshot_to_restore(&self, name: &str) -> Result<String, Error> {
        match self.snapshot_named(name)? {
            Some(snapshot) if snapshot.status == "available" => Ok(snapshot.id),
            Some(snapshot) => Err(Error::NotNow(format!(
                "snapshot {name} of Manila is {}: it can be restored when it is available",
                snapshot.status
            ))),
            None => Err(Error::Refused(format!(
                "Manila has no snapshot {name}: there is nothing to restore"
            ))),
        }
    }

    fn remove_snapshot(&self, name: &str, snapshot: &Snapshot) -> Result<(), Error> {
        let what = format!("delete snapshot {name}");
        self.service.delete(&what, &format!("/snapshots/{}", snapshot.id))?;
        match self.snapshot_settled(name, &format!("Manila's deletion of snapshot {name}"))? {
            None => Ok(()),
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

    fn snapshot_named(&self, name: &str) -> Result<Option<Snapshot>, Error> {
        let what = format!("look for snapshot {name}");
        let path = format!("/snapshots/detail?name={}", encoded(name));
        let found = self.service.list(&what, &path, "snapshots")?;
        let read = found.into_iter().map(|one| self.service.read::<Snapshot>(&what, one));
        let mut all = read.collect::<Result<Vec<_>, _>>()?;
        if all.len() > 1 {
            return Err(Error::Refused(format!(
                "Manila has {} snapshots {name}: rename all but the one that is meant",
                all.len()
            )));
        }
        Ok(all.pop())
    }
}
