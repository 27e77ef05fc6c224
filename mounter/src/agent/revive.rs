//! Mounts anew what has died: a FUSE file system whose daemon ended, alone or with the whole container.
//!
//! The volume's record and secrets are those of its first mount, and the program is the same. The new mount takes the place
//! of the dead one on the target; the mounter does the same in the containers that use it, and then tells the agent so
//! ([`super::protocol::Call::Revived`]). A mount is tried again for as long as the dead one lies on its target, ever more
//! seldom: its server may come back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::Signal;
use tracing::{info, warn};

use super::kernel::{self, Found};
use super::mounts::{AgentError, CLEAR_UP_LIMIT, LOOK_LIMIT, Mounts, flags, no_thread};
use super::program::{self, Brings};
use super::protocol::{Failure, MountCall, Reviving};
use super::run;
use crate::sys::thread;
use crate::volume::mount_table::DeviceNumber;
use crate::volume::target::Target;

/// Longest that a mount program may take for a volume that is in use already.
const LIMIT: Duration = Duration::from_secs(30);

/// Wait after the first failure; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A volume that has lived for so long begins anew with its waits.
const HEALTHY: Duration = Duration::from_mins(5);

/// How long more deaths are waited for: a daemon's helpers end with it.
const BURST: Duration = Duration::from_millis(20);

/// What is being mounted anew, and what was of late.
#[derive(Debug, Default)]
pub struct Revivals(Mutex<BTreeMap<String, Pace>>);

/// How often a target may be tried.
#[derive(Debug, Default)]
struct Pace {
    /// While it is being mounted anew.
    now: Option<Reviving>,
    /// Tries since it was last healthy.
    tries: u32,
    /// When it was last mounted anew.
    alive: Option<Instant>,
}

impl Pace {
    /// How long the next try waits.
    fn wait(&mut self, now: Instant) -> Duration {
        let lived = self.alive.take().map(|since| now.saturating_duration_since(since));
        if lived.is_some_and(|lived| lived >= HEALTHY) {
            self.tries = 0;
        }
        let wait = match self.tries {
            0 => Duration::ZERO,
            tries => FIRST_WAIT
                .saturating_mul(1 << (tries - 1).min(16))
                .min(LONGEST_WAIT)
                // What it lived it need not wait.
                .saturating_sub(lived.unwrap_or_default()),
        };
        self.tries = self.tries.saturating_add(1);
        wait
    }
}

impl Revivals {
    /// How a target is being mounted anew.
    pub fn of(&self, target: &str) -> Option<Reviving> {
        self.lock().get(target).and_then(|pace| pace.now.clone())
    }

    /// Whether it is the caller who is to mount a target anew.
    fn begin(&self, target: &str) -> bool {
        let mut all = self.lock();
        let pace = all.entry(target.to_owned()).or_default();
        let first = pace.now.is_none();
        pace.now.get_or_insert_default();
        first
    }

    fn wait(&self, target: &str) -> Duration {
        let mut all = self.lock();
        all.entry(target.to_owned()).or_default().wait(Instant::now())
    }

    fn failed(&self, target: &str, message: String) {
        if let Some(now) = self.lock().get_mut(target).and_then(|pace| pace.now.as_mut()) {
            now.failures += 1;
            now.message = message;
        }
    }

    fn done(&self, target: &str, end: End) {
        let mut all = self.lock();
        match (end, all.get_mut(target)) {
            (End::Alive, Some(pace)) => {
                pace.now = None;
                pace.alive = Some(Instant::now());
            }
            _ => drop(all.remove(target)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Pace>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a volume's revival ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It can be used.
    Alive,
    /// It was unmounted meanwhile.
    Gone,
}

/// Looks at all mounts now, and whenever process 1 says that something ended.
pub async fn watch(mut deaths: Signal, mounts: Arc<Mounts>) {
    loop {
        match mounts.store.all() {
            Ok(calls) => {
                let looks = calls.into_iter().map(|call| mounts.revive_if_dead(call));
                futures::future::join_all(looks).await;
            }
            Err(error) => warn!(%error, "could not look for dead mounts"),
        }
        deaths.recv().await;
        tokio::time::sleep(BURST).await;
    }
}

impl Mounts {
    async fn revive_if_dead(self: &Arc<Self>, call: MountCall) {
        match self.look(&call.target).await {
            Ok(Found::Dead) => self.revive(call),
            Ok(Found::Alive | Found::Nothing) => {}
            Err(error) => warn!(target.path = call.target, "{}", Failure::from(&error).message),
        }
    }

    /// Begins to mount a dead volume anew, if that is not under way.
    pub(super) fn revive(self: &Arc<Self>, call: MountCall) {
        if self.is_given_up(&call.target) || !self.reviving.begin(&call.target) {
            return;
        }
        warn!(
            target.path = call.target,
            "the program that served it ended: it is mounted anew"
        );
        let mounts = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(mounts.reviving.wait(&call.target)).await;
            let end = loop {
                match mounts.try_to_revive(&call).await {
                    Ok(end) => break end,
                    // Somebody looks at it, or unmounts it.
                    Err(AgentError::InProgress(_)) => tokio::time::sleep(BURST).await,
                    Err(error) => {
                        let Failure { message, .. } = Failure::from(&error);
                        warn!(target.path = call.target, "could not mount anew: {message}");
                        mounts.reviving.failed(&call.target, message);
                        tokio::time::sleep(mounts.reviving.wait(&call.target)).await;
                    }
                }
            };
            info!(target.path = call.target, ?end, "no longer to be mounted anew");
            mounts.reviving.done(&call.target, end);
        });
    }

    async fn try_to_revive(self: &Arc<Self>, call: &MountCall) -> Result<End, AgentError> {
        let target = self.target(&call.target)?;
        let _busy = self.begin(&call.target)?;
        if self.store.recorded(&call.target).is_none() {
            return Ok(End::Gone);
        }
        match look_now(&target).await? {
            Found::Nothing => return Ok(End::Gone),
            Found::Alive => return Ok(End::Alive),
            Found::Dead => {}
        }
        let Some(device) = kernel::device(&target)? else {
            return Ok(End::Gone);
        };
        // Before it is replaced: after that nobody could tell which mounts in containers are this volume's.
        self.store.died(&call.target, device, now_ms())?;
        let brings = Brings::of(call);
        let staging = self.store.staging(&call.target);
        if brings == Brings::Program {
            // What the program did beside mounting may be in the way of its doing so again.
            run::run(&program::unmount(call, &staging)?, CLEAR_UP_LIMIT).await?;
        }
        self.store.restage(&call.target)?;
        let secrets = self.store.secrets(&call.target);
        let invocation = program::mount(call, brings, &staging, &secrets)?;
        let flags = flags(call)?;
        let replaced = async {
            run::run(&invocation, LIMIT).await?;
            let (staging, target) = (staging.clone(), target.clone());
            let replaced = thread::run(move || kernel::replace(&staging, &target, device, flags));
            replaced
                .await
                .map_err(no_thread(&call.target))?
                .map_err(AgentError::from)
        };
        let replaced = replaced.await;
        // Moved to the target or not wanted: it is not needed here.
        self.store.unstage(&call.target)?;
        if replaced? {
            self.seen_alive(&call.target);
        }
        Ok(match look_now(&target).await? {
            Found::Nothing => End::Gone,
            Found::Alive => End::Alive,
            Found::Dead => return Err(AgentError::Dead(call.target.clone())),
        })
    }

    /// Forgets dead mounts that nobody uses any more.
    pub fn revived(&self, target: &str, devices: &[DeviceNumber]) -> Result<(), AgentError> {
        let target = self.target(target)?;
        Ok(self.store.revived(&target.to_string(), devices)?)
    }
}

/// Looks at a target whoever else is looking. One that does not answer in time is alive: a dead one answers at once.
async fn look_now(target: &Target) -> Result<Found, AgentError> {
    let path = target.clone();
    let looked = thread::run(move || kernel::look(&path));
    match tokio::time::timeout(LOOK_LIMIT, looked).await {
        Ok(Ok(found)) => Ok(found?),
        Ok(Err(source)) => Err(no_thread(&target.to_string())(source)),
        Err(_) => Ok(Found::Alive),
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_try_is_made_at_once_and_later_ones_ever_more_seldom() {
        let mut pace = Pace::default();
        let now = Instant::now();
        let waits: Vec<_> = (0..20).map(|_| pace.wait(now)).collect();
        assert_eq!(waits[..3], [Duration::ZERO, FIRST_WAIT, FIRST_WAIT * 2]);
        assert_eq!(waits[19], LONGEST_WAIT);
    }

    #[test]
    fn what_dies_soon_after_it_was_mounted_anew_waits_and_what_has_lived_does_not() {
        let revivals = Revivals::default();
        let start = Instant::now();
        let wait = |alive: Duration| {
            let mut all = revivals.lock();
            let pace = all.get_mut("t").unwrap();
            pace.alive = Some(start);
            pace.wait(start + alive)
        };
        assert!(revivals.begin("t"));
        assert!(!revivals.begin("t"));
        assert_eq!(revivals.wait("t"), Duration::ZERO);
        revivals.done("t", End::Alive);
        assert_eq!(revivals.of("t"), None);
        assert!(revivals.begin("t"));
        assert_eq!(wait(Duration::ZERO), FIRST_WAIT);
        assert_eq!(wait(Duration::ZERO), FIRST_WAIT * 2);
        assert_eq!(wait(Duration::from_secs(9)), Duration::ZERO);
        wait(Duration::ZERO);
        assert_eq!(wait(HEALTHY), Duration::ZERO);
        assert_eq!(wait(Duration::ZERO), FIRST_WAIT);
    }

    #[test]
    fn what_went_wrong_is_told_until_it_is_over() {
        let revivals = Revivals::default();
        revivals.begin("t");
        revivals.failed("t", "no server".into());
        revivals.failed("t", "still no server".into());
        let now = revivals.of("t").unwrap();
        assert_eq!((now.failures, now.message.as_str()), (2, "still no server"));
        revivals.done("t", End::Gone);
        assert!(revivals.lock().is_empty());
    }
}
