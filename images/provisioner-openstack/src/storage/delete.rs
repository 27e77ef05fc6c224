//! Operation `delete`. Neither service deletes what has snapshots, and those outlive their volume in Kubernetes: such a
//! one is marked, and goes with its last snapshot.

use serde_json::{Value, json};

use super::{DELETED, Item, Storage};
use crate::error::OpenstackError;

impl Storage<'_> {
    /// Deletes those of this PersistentVolume, and the one with this id if it is its own.
    pub fn delete(&self, id: Option<&str>) -> Result<String, OpenstackError> {
        let name = &self.given.request.pv_name;
        let mut there = self.items_of(name)?;
        // It may have been given another name.
        let id = id.filter(|id| there.iter().all(|one| one.id != *id));
        if let Some(item) = id.map(|id| self.item(id)).transpose()?.flatten() {
            self.check_own(&item, name)?;
            there.push(item);
        }
        let mut kept = false;
        for item in &there {
            kept |= !self.remove(item)?;
        }
        let (server, one) = (self.server(), self.words.one);
        Ok(match (there.is_empty(), kept) {
            (true, _) => format!("{server} has no {one} {name}"),
            (false, true) => format!("{one} {name} of {server} has snapshots: it goes with the last of them"),
            (false, false) => format!("{one} {name} of {server} is deleted"),
        })
    }

    /// Deletes one, or marks it if it has snapshots. Returns whether it is gone.
    pub fn remove(&self, item: &Item) -> Result<bool, OpenstackError> {
        let (id, one, all) = (&item.id, self.words.one, self.words.all);
        if self.has_snapshots(id)? {
            if !item.is_deleted() {
                let mark = json!({"metadata": {DELETED: "true"}});
                let what = format!("mark {one} {id} as deleted");
                self.service.post(&what, &format!("/{all}/{id}/metadata"), &mark)?;
            }
            // The last snapshot may have gone before the mark was there: one of the two runs sees what the other did.
            if self.has_snapshots(id)? {
                return Ok(false);
            }
        }
        let what = format!("delete {one} {id}");
        let waiting = format!("{}'s deletion of {one} {id}", self.server());
        let Some(settled) = self.settled(id, &waiting)? else {
            return Ok(true);
        };
        if settled.is_failed() && !self.words.deletable.contains(&settled.status.as_str()) {
            let forced = self.act(&what, id, self.words.force_delete, &Value::Null);
            forced.map_err(|_| {
                let state = &settled.status;
                let then = format!("its state is {state}: have an administrator of the cloud reset it");
                self.failed(&what, id, &then)
            })?;
        } else {
            self.service.delete(&what, &format!("/{all}/{id}"))?;
        }
        match self.settled(id, &waiting)? {
            None => Ok(true),
            Some(left) => Err(self.failed(&what, id, &format!("it is {} and is deleted again", left.status))),
        }
    }

    /// Deletes what was left for its snapshots, if the last of them is gone: those of this PersistentVolume or, where
    /// nobody knows it, the one with this id.
    pub(super) fn remove_left(&self, id: Option<&str>) -> Result<(), OpenstackError> {
        let name = &self.given.request.pv_name;
        let there = match id {
            Some(id) if name.is_empty() => self.item(id)?.into_iter().collect(),
            None if name.is_empty() => Vec::new(),
            _ => self.items_of(name)?,
        };
        for item in there.iter().filter(|item| item.is_deleted()) {
            self.remove(item)?;
        }
        Ok(())
    }

    fn has_snapshots(&self, id: &str) -> Result<bool, OpenstackError> {
        let what = format!("look for snapshots of {} {id}", self.words.one);
        let path = format!("/snapshots?{}={id}", self.words.of);
        Ok(!self.service.list(&what, &path, "snapshots")?.is_empty())
    }
}
