//! What of [`Grafts`] an agent needs, in one mount namespace.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::{Fake, handle};
use crate::sys::graft::{Grafts, Likeness};
use crate::sys::{Result, Sys as _, SysError};
use crate::volume::mount_table::Table;
use crate::volume::target::{Target, TargetError};

/// A call that only a worker makes, which changes to another mount namespace.
fn unsupported<T>(call: &str) -> Result<T> {
    Err(SysError::call(call, Errno::ENOSYS))
}

impl Grafts for Fake {
    /// The path of what lies uppermost there.
    type Place = PathBuf;
    type Mount = std::os::fd::OwnedFd;
    type Container = ();

    fn table(&self) -> Result<Table> {
        self.mount_table()
    }

    fn open_container(&self, _: i32, _: u64) -> Result<()> {
        unsupported("open_container")
    }

    fn pod_of(&self, (): &()) -> Result<Option<String>> {
        unsupported("pod_of")
    }

    fn is_of_root(&self, (): &()) -> Result<bool> {
        unsupported("is_of_root")
    }

    fn table_of(&self, (): &()) -> Result<Table> {
        unsupported("table_of")
    }

    fn open_target(&self, target: &Target) -> Result<PathBuf, TargetError> {
        Ok(target.path())
    }

    fn open_at(&self, path: &Path) -> Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn open_within(&self, _: &PathBuf, _: &Path) -> Result<PathBuf> {
        unsupported("open_within")
    }

    fn mount_id(&self, place: &PathBuf) -> Result<u64> {
        self.enter("mount_id")?;
        let state = self.0.borrow();
        let top = state.table.top(place);
        Ok(top.map(|entry| entry.id).unwrap_or_default())
    }

    fn is_dead(&self, place: &PathBuf) -> Result<bool> {
        self.enter("is_dead")?;
        let state = self.0.borrow();
        let top = state.table.top(place);
        Ok(top.is_some_and(|entry| state.faults.dead.as_ref() == Some(&entry.source)))
    }

    fn copy(&self, _: &PathBuf, _: Likeness) -> Result<Self::Mount> {
        self.enter("copy")?;
        Ok(handle())
    }

    fn enter(&mut self, (): &()) -> Result<()> {
        unsupported("enter")
    }

    fn put_beneath(&self, _: &Self::Mount, top: &PathBuf) -> Result<bool> {
        self.enter("put_beneath")?;
        let mut state = self.0.borrow_mut();
        if state.faults.old {
            return Ok(false);
        }
        let place = state.table.0.iter().rposition(|entry| entry.mount_point == *top);
        let mut entry = state.pending.take().unwrap();
        entry.mount_point.clone_from(top);
        state.table.0.insert(place.unwrap(), entry);
        Ok(true)
    }

    fn put_onto(&self, _: &Self::Mount, place: &PathBuf) -> Result<()> {
        self.enter("put_onto")?;
        let mut state = self.0.borrow_mut();
        let mut entry = state.pending.take().unwrap();
        entry.mount_point.clone_from(place);
        state.table.0.push(entry);
        Ok(())
    }

    fn detach(&self, top: &PathBuf) -> Result<()> {
        self.enter("detach")?;
        let mut state = self.0.borrow_mut();
        let place = state.table.0.iter().rposition(|entry| entry.mount_point == *top);
        state.table.0.remove(place.unwrap());
        Ok(())
    }
}
