//! Operation `delete`. Manila does not delete a share that has snapshots, and those outlive their volume in Kubernetes:
//! such a share is marked, and goes with its last snapshot.

use serde_json::{Value, json};

use super::Manila;
use super::access::{NAMESPACE, secret_name};
use super::share::{DELETED, Share};
use crate::error::Error;
use crate::kube_secret::Secrets;

impl Manila<'_> {
    pub(super) fn delete(&self) -> Result<String, Error> {
        let name = &self.given.request.pv_name;
        let there = self.shares_of(name)?;
        let mut kept = false;
        for share in &there {
            kept |= !self.remove(share)?;
        }
        // The share's client in Ceph goes with the share, and nobody needs its key any more.
        if let Some(namespace) = self.given.property(NAMESPACE)? {
            Secrets::of(self.given, namespace, self.pace)?.delete(&secret_name(name))?;
        }
        Ok(match (there.is_empty(), kept) {
            (true, _) => format!("Manila has no share {name}"),
            (false, true) => format!("share {name} of Manila has snapshots: it goes with the last of them"),
            (false, false) => format!("share {name} of Manila is deleted"),
        })
    }

    /// Deletes a share, or marks it if it has snapshots. Returns whether it is gone.
    pub(super) fn remove(&self, share: &Share) -> Result<bool, Error> {
        let id = &share.id;
        if self.has_snapshots(id)? {
            if !share.is_deleted() {
                let mark = json!({"metadata": {DELETED: "true"}});
                let path = format!("/shares/{id}/metadata");
                self.service
                    .post(&format!("mark share {id} as deleted"), &path, &mark)?;
            }
            // The last snapshot may have gone before the mark was there: one of the two runs sees what the other did.
            if self.has_snapshots(id)? {
                return Ok(false);
            }
        }
        let what = format!("delete share {id}");
        let waiting = format!("Manila's deletion of share {id}");
        let Some(settled) = self.settled(id, &waiting)? else {
            return Ok(true);
        };
        if ["available", "error", "inactive"].contains(&settled.status.as_str()) {
            self.service.delete(&what, &format!("/shares/{id}"))?;
        } else {
            // Of another state only an administrator of the cloud may delete it.
            self.act(&what, id, "force_delete", &Value::Null).map_err(|_| {
                let state = &settled.status;
                let then = format!("its state is {state}: have an administrator of the cloud reset it");
                self.failed(what.clone(), id, &then)
            })?;
        }
        match self.settled(id, &waiting)? {
            None => Ok(true),
            Some(left) => Err(self.failed(what, id, &format!("it is {} and is deleted again", left.status))),
        }
    }

    /// Deletes a share that was left for its snapshots, if the last of them is gone.
    pub(super) fn remove_if_left(&self, id: &str) -> Result<(), Error> {
        match self.share(id)? {
            Some(share) if share.is_deleted() => self.remove(&share).map(drop),
            _ => Ok(()),
        }
    }

    fn has_snapshots(&self, id: &str) -> Result<bool, Error> {
        let what = format!("look for snapshots of share {id}");
        let found = self
            .service
            .list(&what, &format!("/snapshots?share_id={id}"), "snapshots")?;
        Ok(!found.is_empty())
    }
}
