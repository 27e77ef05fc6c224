//! Whether what is mounted answers, and since when it does not.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{AgentError, Mounts, in_thread};
use crate::sys::look::{self, LookedAt};
use crate::volume::target::Target;

/// How long a mounted file system may take to answer. If it takes longer, its server is slow, but its daemon is not
/// dead.
pub(in crate::agent) const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// How long a target must have been without its mount before the agent cleans up unasked. A file system first leaves
/// the mount table, and then writes what it has in memory; its program has to live until then. The mounter, which
/// unmounts, knows when that is done, and says so.
pub const SETTLED: Duration = Duration::from_secs(15);

/// How long a mount that answered counts as alive. A look keeps the mount busy for a moment, and an unmount fails
/// meanwhile.
const ALIVE_FOR: Duration = Duration::from_mins(1);

impl Mounts {
    /// Notes that a target has just answered.
    pub(in crate::agent) fn seen_alive(&self, target: &str) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.insert(target.to_owned(), Instant::now());
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).remove(target);
    }

    /// Whether a target has been without its mount for long enough.
    pub(super) fn is_gone_for_good(&self, target: &str) -> bool {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.entry(target.to_owned()).or_insert_with(Instant::now).elapsed() >= SETTLED
    }

    pub(in crate::agent) async fn look(self: &Arc<Self>, path: &str) -> Result<LookedAt, AgentError> {
        let target = self.target(path)?;
        if !look::is_mounted(&target)? {
            return Ok(LookedAt::Nothing);
        }
        // A thread still waits for an answer from this one. Further threads would use up all that there are, and keep
        // mounts of other servers from being made.
        match self.looked_at().entry(path.to_owned()) {
            Entry::Occupied(_) => return Ok(LookedAt::Alive),
            Entry::Vacant(entry) => entry.insert(Instant::now()),
        };
        let looking = Looking {
            mounts: Arc::clone(self),
            target: path.to_owned(),
        };
        ask(target, looking).await
    }

    /// [`Self::look`], but a target that answered lately is not asked again.
    pub(super) async fn look_seldom(self: &Arc<Self>, path: &str) -> Result<LookedAt, AgentError> {
        let alive = || self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        if !look::is_mounted(&self.target(path)?)? {
            alive().remove(path);
            return Ok(LookedAt::Nothing);
        }
        if alive().get(path).is_some_and(|since| since.elapsed() < ALIVE_FOR) {
            return Ok(LookedAt::Alive);
        }
        let found = self.look(path).await?;
        if found == LookedAt::Alive {
            alive().insert(path.to_owned(), Instant::now());
        }
        Ok(found)
    }

    pub(in crate::agent) fn looked_at(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.looking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks a mounted target, even if another call is asking it, and keeps `held` until it answers. If it does not answer in
/// time, it is alive: a dead one answers at once.
pub(in crate::agent) async fn ask(target: Target, held: impl Send + 'static) -> Result<LookedAt, AgentError> {
    let path = target.to_string();
    let asked = in_thread(&path, move || {
        let found = look::look(&target);
        drop(held);
        found
    });
    let answered = tokio::time::timeout(LOOK_LIMIT, asked).await;
    answered.unwrap_or(Ok(LookedAt::Alive))
}

/// Marks a target as asked and silent until it is dropped.
struct Looking {
    mounts: Arc<Mounts>,
    target: String,
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.mounts.looked_at().remove(&self.target);
    }
}
