//! Operations `snapshot`, `backup` and what deletes one.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Item, Storage};
use crate::error::OpenstackError;
use crate::http::encoded;
use crate::wait::{LookResult, until};

/// Begins the description of what Mooring made.
const MADE: &str = "Mooring, for claim";

/// A way to save what a volume holds.
#[derive(Debug)]
pub struct Way {
    /// One, as JSON and messages call it.
    one: &'static str,
    /// Several, as paths and JSON call them.
    all: &'static str,
    /// Whether what it is of can't be deleted before it.
    ties: bool,
}

/// Beside the volume.
pub static SNAPSHOT: Way = Way {
    one: "snapshot",
    all: "snapshots",
    ties: true,
};

pub static BACKUP: Way = Way {
    one: "backup",
    all: "backups",
    ties: false,
};

/// A snapshot or a backup.
#[derive(Debug, Deserialize)]
struct Saved {
    id: String,
    status: String,
    #[serde(alias = "share_id")]
    volume_id: String,
    /// Of what it is of, in GiB.
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    created_at: Option<String>,
    /// Of a backup: why it failed.
    #[serde(default)]
    fail_reason: Option<String>,
}

/// A snapshot or a backup that can be restored.
#[derive(Debug)]
pub struct Restorable {
    pub id: String,
    /// Of what it is of, in GiB, if the service says it.
    pub size: Option<u64>,
}

impl Saved {
    fn is_passing(&self) -> bool {
        !self.status.contains("error") && self.status.ends_with("ing")
    }

    /// Whether Mooring made it. One that an administrator has named in Kubernetes is not Mooring's.
    fn is_own(&self) -> bool {
        self.description.as_ref().is_some_and(|text| text.starts_with(MADE))
    }
}

impl Storage<'_> {
    /// Saves the one with this id, unless that is done. `about` adds to what is asked for.
    pub fn save(
        &self,
        way: &Way,
        id: impl FnOnce() -> Result<String, OpenstackError>,
        about: &Value,
    ) -> Result<String, OpenstackError> {
        self.save_as(way, self.given.snapshot_name()?, id, about)
    }

    /// The same, under a name of the image's own.
    pub fn save_as(
        &self,
        way: &Way,
        name: &str,
        id: impl FnOnce() -> Result<String, OpenstackError>,
        about: &Value,
    ) -> Result<String, OpenstackError> {
        let (server, one) = (self.server(), way.one);
        let what = format!("make {one} {name}");
        if self.all_saved(way, name)?.is_empty() {
            let mut asked = json!({
                "name": name,
                "description": format!("{MADE} {}", self.given.claim()),
                self.words.of: id()?,
            });
            for (key, value) in about.as_object().into_iter().flatten() {
                asked[key] = value.clone();
            }
            let made = self.service.post(&what, &format!("/{}", way.all), &json!({one: asked}));
            // Where a type has no snapshots, that is an error of the request; a state that may pass is not, and a missing
            // volume neither.
            made.map_err(|error| match error.status() {
                Some(400 | 404) => error,
                _ => error.of_the_request(),
            })?;
        }
        let all = self.all_saved_settled(way, name, &format!("the making of {one} {name}"))?;
        let Some((saved, others)) = all.split_first() else {
            return Err(OpenstackError::NotNow(format!(
                "{server} does not list {one} {name} yet: it is looked for again"
            )));
        };
        // Of a run that was cut off, whose call came late.
        for other in others {
            self.remove_saved(way, name, other)?;
        }
        if saved.status != "available" {
            let failed = self.not_saved(&what, saved, "it is made again");
            self.remove_saved(way, name, saved)?;
            return Err(failed);
        }
        Ok(format!("{one} {name} of {server} is {}", saved.id))
    }

    /// Deletes it, and what it was of if that was left for it.
    pub fn delete_saved(&self, way: &Way) -> Result<String, OpenstackError> {
        let name = self.given.snapshot_name()?;
        let (server, one) = (self.server(), way.one);
        let all = self.all_saved_settled(way, name, &format!("{server}'s work on {one} {name}"))?;
        for saved in &all {
            self.remove_saved(way, name, saved)?;
        }
        if way.ties {
            // A run that was cut off may have come no further than to the snapshot.
            self.remove_left(all.first().map(|saved| saved.volume_id.as_str()))?;
        }
        Ok(match all.first() {
            Some(_) => format!("{one} {name} of {server} is deleted"),
            None => format!("{server} has no {one} {name}"),
        })
    }

    /// Deletes a snapshot that was taken for a copy, and what it was of if that was left for it.
    pub fn delete_copied(&self, name: &str) -> Result<(), OpenstackError> {
        let waiting = format!("{}'s work on snapshot {name}", self.server());
        let mut all = self.all_saved_settled(&SNAPSHOT, name, &waiting)?;
        all.retain(Saved::is_own);
        for saved in &all {
            self.remove_saved(&SNAPSHOT, name, saved)?;
        }
        let source = all.first().map(|saved| self.item(&saved.volume_id)).transpose()?;
        if let Some(source) = source.flatten().filter(Item::is_deleted) {
            self.remove(&source)?;
        }
        Ok(())
    }

    /// The snapshot or backup of this name, to be restored.
    pub fn to_restore(&self, way: &Way, name: &str) -> Result<Restorable, OpenstackError> {
        let (server, one) = (self.server(), way.one);
        let mut all = self.all_saved(way, name)?;
        if all.is_empty() {
            return Err(OpenstackError::NotNow(format!(
                "{server} has no {one} {name}: there is nothing to restore"
            )));
        }
        let saved = all.swap_remove(0);
        if let Some(size) = saved.size.filter(|size| *size > self.given.gib()) {
            return Err(OpenstackError::Refused(format!(
                "{one} {name} of {server} is of {size} GiB: ask for that much"
            )));
        }
        if saved.status != "available" {
            return Err(OpenstackError::NotNow(format!(
                "{one} {name} of {server} is {}: it can be restored when it is available",
                saved.status
            )));
        }
        Ok(Restorable {
            id: saved.id,
            size: saved.size,
        })
    }

    fn remove_saved(&self, way: &Way, name: &str, saved: &Saved) -> Result<(), OpenstackError> {
        let what = format!("delete {} {name}", way.one);
        self.service.delete(&what, &format!("/{}/{}", way.all, saved.id))?;
        let waiting = format!("{}'s deletion of {} {name}", self.server(), way.one);
        let all = self.all_saved_settled(way, name, &waiting)?;
        match all.into_iter().find(|one| one.id == saved.id) {
            None => Ok(()),
            // A snapshot that volumes still need is available again.
            Some(left) => Err(self.not_saved(&what, &left, &format!("it is {} and is deleted again", left.status))),
        }
    }

    fn not_saved(&self, what: &str, saved: &Saved, then: &str) -> OpenstackError {
        match saved.fail_reason.as_deref().filter(|reason| !reason.is_empty()) {
            Some(reason) => self.failed_with(what, reason, then),
            None => self.failed(what, &saved.id, then),
        }
    }

    fn all_saved_settled(&self, way: &Way, name: &str, what: &str) -> Result<Vec<Saved>, OpenstackError> {
        until(self.pace, what, || {
            let all = self.all_saved(way, name)?;
            Ok(match all.iter().find(|saved| saved.is_passing()) {
                Some(saved) => LookResult::NotYet(saved.status.clone()),
                None => LookResult::Ready(all),
            })
        })
    }

    /// Those of this name: Mooring's, the oldest first, or else the only one. A run that was cut off while it asked for
    /// one may leave a second.
    fn all_saved(&self, way: &Way, name: &str) -> Result<Vec<Saved>, OpenstackError> {
        let what = format!("look for {} {name}", way.one);
        let path = format!("/{}/detail?name={}", way.all, encoded(name));
        let found = self.service.list(&what, &path, way.all)?;
        let read = found.into_iter().map(|one| self.service.read::<Saved>(&what, one));
        let mut all = read.collect::<Result<Vec<_>, _>>()?;
        if all.iter().any(Saved::is_own) {
            all.retain(Saved::is_own);
            all.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        } else if all.len() > 1 {
            return Err(OpenstackError::NotNow(format!(
                "{} has {} {} {name}, none of them made by Mooring: rename all but the one that is meant",
                self.server(),
                all.len(),
                way.all
            )));
        }
        Ok(all)
    }
}
