//! Operation `delete`. Cinder does not delete a volume that has snapshots, and those outlive their volume in
//! Kubernetes: such a volume is marked, and goes with its last snapshot.

use serde_json::{Value, json};

use super::provision::deleting;
use super::volume::{DELETED, PV_NAME, Volume};
use super::{Cinder, place};
use crate::error::Error;

impl Cinder<'_> {
    pub(super) fn delete(&self) -> Result<String, Error> {
        let name = &self.given.request.pv_name;
        let mut there = self.volumes_of(name)?;
        // It may have been given another name.
        let id = place::id(self.given.option("source")).filter(|id| there.iter().all(|one| one.id != *id));
        if let Some(volume) = id.map(|id| self.volume(id)).transpose()?.flatten() {
            if !volume.is_of(name) {
                return Err(Error::NotOurs {
                    what: format!("volume {} of Cinder", volume.id),
                    key: PV_NAME,
                    name: name.clone(),
                });
            }
            there.push(volume);
        }
        let mut kept = false;
        for volume in &there {
            kept |= !self.remove(volume)?;
        }
        Ok(match (there.is_empty(), kept) {
            (true, _) => format!("Cinder has no volume {name}"),
            (false, true) => format!("volume {name} of Cinder has snapshots: it goes with the last of them"),
            (false, false) => format!("volume {name} of Cinder is deleted"),
        })
    }

    /// Deletes a volume, or marks it if it has snapshots. Returns whether it is gone.
    pub(super) fn remove(&self, volume: &Volume) -> Result<bool, Error> {
        let id = &volume.id;
        if self.has_snapshots(id)? {
            if !volume.is_deleted() {
                let mark = json!({"metadata": {DELETED: "true"}});
                let path = format!("/volumes/{id}/metadata");
                self.service
                    .post(&format!("mark volume {id} as deleted"), &path, &mark)?;
            }
            // The last snapshot may have gone before the mark was there: one of the two runs sees what the other did.
            if self.has_snapshots(id)? {
                return Ok(false);
            }
        }
        let what = format!("delete volume {id}");
        let Some(settled) = self.settled(id, &deleting(id))? else {
            return Ok(true);
        };
        if settled.status == "error_deleting" {
            // It may not be deleted as others are. An administrator of the cloud may do this.
            self.act(&what, id, "os-force_delete", &Value::Null).map_err(|_| {
                self.failed(
                    what.clone(),
                    id,
                    "have an administrator of the cloud reset its state, and it is deleted",
                )
            })?;
        } else {
            self.service.delete(&what, &format!("/volumes/{id}"))?;
        }
        match self.settled(id, &deleting(id))? {
            None => Ok(true),
            Some(left) => Err(self.failed(what, id, &format!("it is {} and is deleted again", left.status))),
        }
    }

    /// Deletes a volume that was left for its snapshots, if the last of them is gone.
    pub(super) fn remove_if_left(&self, id: &str) -> Result<(), Error> {
        match self.volume(id)? {
            Some(volume) if volume.is_deleted() => self.remove(&volume).map(drop),
            _ => Ok(()),
        }
    }

    fn has_snapshots(&self, id: &str) -> Result<bool, Error> {
        let what = format!("look for snapshots of volume {id}");
        let found = self
            .service
            .list(&what, &format!("/snapshots?volume_id={id}"), "snapshots")?;
        Ok(!found.is_empty())
    }
}
