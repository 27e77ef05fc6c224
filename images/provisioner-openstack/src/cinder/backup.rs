//! Operations `backup` and `delete-backup`.

use serde::Deserialize;
use serde_json::json;

use super::{CINDER, Cinder};
use crate::error::Error;
use crate::http::encoded;
use crate::wait::{Look, until};

#[derive(Debug, Deserialize)]
struct Backup {
    id: String,
    status: String,
    /// In GiB.
    #[serde(default)]
    size: u64,
    #[serde(default)]
    fail_reason: Option<String>,
}

impl Backup {
    fn is_passing(&self) -> bool {
        ["creating", "deleting", "restoring"].contains(&self.status.as_str())
    }
}

impl Cinder<'_> {
    pub(super) fn backup(&self) -> Result<String, Error> {
        let name = self.storage.given.snapshot_name()?;
        let what = format!("make backup {name}");
        if self.backup_named(name)?.is_none() {
            let volume = self.this_volume()?;
            let about = json!({
                "name": name,
                "volume_id": volume.id,
                "description": format!("claim {}", self.storage.given.claim()),
                // Also while a node uses the volume.
                "force": volume.status == "in-use",
            });
            self.storage
                .service
                .post(&what, "/backups", &json!({"backup": about}))?;
        }
        let Some(backup) = self.backup_settled(name, &format!("the making of backup {name}"))? else {
            return Err(Error::NotNow(format!(
                "Cinder does not list backup {name} yet: it is looked for again"
            )));
        };
        if backup.status != "available" {
            let failed = self.backup_failed(&what, &backup, "it is made again");
            self.remove_backup(name, &backup)?;
            return Err(failed);
        }
        Ok(format!("backup {name} of Cinder is {}", backup.id))
    }

    pub(super) fn delete_backup(&self) -> Result<String, Error> {
        let name = self.storage.given.snapshot_name()?;
        let Some(backup) = self.backup_settled(name, &format!("Cinder's work on backup {name}"))? else {
            return Ok(format!("Cinder has no backup {name}"));
        };
        self.remove_backup(name, &backup)?;
        Ok(format!("backup {name} of Cinder is deleted"))
    }

    /// The id of the backup to make a volume of.
    pub(super) fn backup_to_restore(&self, name: &str) -> Result<String, Error> {
        let Some(backup) = self.backup_named(name)? else {
            return Err(Error::Refused(format!(
                "Cinder has no backup {name}: there is nothing to restore"
            )));
        };
        if backup.size > self.storage.given.gib() {
            return Err(Error::Refused(format!(
                "backup {name} of Cinder is of a volume of {} GiB: ask for that much",
                backup.size
            )));
        }
        if backup.status != "available" {
            return Err(Error::NotNow(format!(
                "backup {name} of Cinder is {}: it can be restored when it is available",
                backup.status
            )));
        }
        Ok(backup.id)
    }

    fn remove_backup(&self, name: &str, backup: &Backup) -> Result<(), Error> {
        let what = format!("delete backup {name}");
        self.storage.service.delete(&what, &format!("/backups/{}", backup.id))?;
        match self.backup_settled(name, &format!("Cinder's deletion of backup {name}"))? {
            None => Ok(()),
            Some(left) => Err(self.backup_failed(&what, &left, "it is deleted again")),
        }
    }

    fn backup_failed(&self, what: &str, backup: &Backup, then: &str) -> Error {
        let reason = backup.fail_reason.as_deref().filter(|reason| !reason.is_empty());
        reason.map_or_else(
            || self.storage.failed(what, &backup.id, then),
            |reason| Error::Failed {
                what: what.to_owned(),
                server: CINDER,
                words: format!("{}: {then}", reason.trim_end_matches('.')),
            },
        )
    }

    fn backup_settled(&self, name: &str, what: &str) -> Result<Option<Backup>, Error> {
        until(self.storage.pace, what, || {
            Ok(match self.backup_named(name)? {
                Some(backup) if backup.is_passing() => Look::NotYet(backup.status),
                found => Look::Ready(found),
            })
        })
    }

    /// The backup of this name; the names are Mooring's, or an administrator's who wants that one.
    fn backup_named(&self, name: &str) -> Result<Option<Backup>, Error> {
        let what = format!("look for backup {name}");
        let path = format!("/backups/detail?name={}", encoded(name));
        let found = self.storage.service.list(&what, &path, "backups")?;
        let read = found
            .into_iter()
            .map(|one| self.storage.service.read::<Backup>(&what, one));
        let mut all = read.collect::<Result<Vec<_>, _>>()?;
        if all.len() > 1 {
            return Err(Error::Refused(format!(
                "Cinder has {} backups {name}: rename all but the one that is meant",
                all.len()
            )));
        }
        Ok(all.pop())
    }
}
