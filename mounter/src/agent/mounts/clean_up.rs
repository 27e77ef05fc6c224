//! What an agent does after an unmount, and after a mount that failed, until it succeeds or is given up.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mooring_program::error::chain;
use tokio::sync::oneshot;
use tracing::warn;

use super::{AgentError, Busy, Mounts, warn_of};
use crate::agent::protocol::{AgentFailure, MountCall};
use crate::agent::{program, run};
use crate::sys::look::LookedAt;

/// Longest that a caller waits for a cleanup after an unmount or a failed mount.
pub const CLEAR_UP_WAIT: Duration = Duration::from_secs(20);

/// Longest cleanup by a program. While a server is silent, the kernel takes each of its steps until that has a time
/// limit of its own: it writes what it has, gives locks back, and ends its session. Ending the program would interrupt
/// the step, and what the server keeps for this node would stay there.
const UNDO_LIMIT: Duration = Duration::from_mins(5);

/// How many times a clean-up fails before the mounter is told.
const FAILED_FOR_GOOD: u32 = 3;

impl Mounts {
    /// Undoes what a program did besides mounting, within `limit`. The caller repeats it until it succeeds.
    pub(in crate::agent) async fn undo(&self, call: &MountCall, limit: Duration) -> Result<(), AgentError> {
        let volume = self.store.volume(&call.target);
        self.services.release(&volume).await?;
        if program::override_path(&call.client).exists() {
            let mut invocation = program::unmount(call, &self.store.staging(&call.target))?;
            invocation.env.extend(self.services.environment(&volume));
            run::run(&invocation, limit).await?;
        }
        Ok(())
    }

    /// Undoes what a mount did besides mounting, and forgets it. The caller repeats it until it succeeds. It goes on
    /// after `wait`, however the caller ends, and the target is busy until its end: no other try interrupts it.
    pub(super) async fn clear_up(
        self: &Arc<Self>,
        call: &MountCall,
        busy: Busy,
        wait: Duration,
    ) -> Result<(), AgentError> {
        let (mounts, of) = (Arc::clone(self), call.clone());
        let work = async move {
            let done = mounts.clear_up_all(&of).await;
            mounts.note_clean_up(&of.target, &done);
            done
        };
        to_its_end(&call.target, busy, wait, work).await
    }

    async fn clear_up_all(&self, call: &MountCall) -> Result<(), AgentError> {
        self.store.unstage(&call.target)?;
        let _alone = self.one_at_a_time(call).await;
        // What serves it ends with its last Pod.
        if !self.has_sharers(&call.target)? {
            self.undo(call, UNDO_LIMIT).await?;
        }
        self.claims.withdraw(&call.target)?;
        self.store.discard(&call.target)?;
        self.forget(&call.target)
    }

    /// Forgets a volume that is not mounted.
    fn forget(&self, target: &str) -> Result<(), AgentError> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).remove(target);
        self.take_up(target);
        self.dead.forget(target);
        Ok(self.store.forget(target)?)
    }

    pub(super) fn note_clean_up(&self, target: &str, done: &Result<(), AgentError>) {
        let mut unclean = self.unclean.lock().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(()) => drop(unclean.remove(target)),
            Err(error) => {
                let (failures, why) = unclean.entry(target.to_owned()).or_default();
                *failures += 1;
                *why = AgentFailure::from(error).message;
            }
        }
    }

    /// Why the clean-up after a target fails, if it has failed again and again.
    pub(super) fn clean_up_failure(&self, target: &str) -> Option<String> {
        let unclean = self.unclean.lock().unwrap_or_else(PoisonError::into_inner);
        let (failures, why) = unclean.get(target)?;
        (*failures >= FAILED_FOR_GOOD).then(|| why.clone())
    }

    /// Gives up a clean-up that fails again and again: what it should have removed stays. The volume's Secret goes, if
    /// that can be removed.
    pub async fn give_up_clean_up(self: &Arc<Self>, path: &str) -> Result<(), AgentError> {
        let _busy = self.begin(path)?;
        if self.clean_up_failure(path).is_none() || self.look(path).await? != LookedAt::Nothing {
            return Err(AgentError::NotLeft(path.to_owned()));
        }
        if let Err(error) = self.store.remove_secrets(path) {
            warn!(target.path = path, error = %chain(&error), "failed to remove the Secret of a volume that is given up");
        }
        self.claims.withdraw(path)?;
        self.forget(path)?;
        self.note_clean_up(path, &Ok(()));
        Ok(())
    }
}

/// Does something about a target that goes on after `wait`, and after its caller. Until its end, `busy` is kept.
async fn to_its_end(
    target: &str,
    busy: impl Send + 'static,
    wait: Duration,
    work: impl Future<Output = Result<(), AgentError>> + Send + 'static,
) -> Result<(), AgentError> {
    let (sender, done) = oneshot::channel();
    let of = target.to_owned();
    tokio::spawn(async move {
        let ended = work.await;
        drop(busy);
        if let Err(Err(error)) = sender.send(ended) {
            warn_of(&of, "failed to clean up", &error);
        }
    });
    match tokio::time::timeout(wait, done).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(_)) | Err(_) => Err(AgentError::InProgress(target.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use tokio::sync::oneshot;

    use super::{CLEAR_UP_WAIT, FAILED_FOR_GOOD, to_its_end};
    use crate::agent::mounts::{AgentError, Mounts, SETTLED};
    use crate::agent::protocol::{MountCall, MountHealth};
    use crate::agent::run::{OUTPUT_GRACE, REAP};
    use crate::agent::store::{self, Store};
    use crate::deadlines::AgentDeadlines;

    #[tokio::test]
    async fn what_takes_longer_than_its_caller_waits_or_lives_goes_on_and_keeps_the_target_busy() {
        let wait = Duration::from_millis(20);
        // The receiver waits as long as the guard is there.
        let (busy, mut free) = tokio::sync::mpsc::channel::<()>(1);
        let (go, gone) = oneshot::channel::<()>();
        let work = async move {
            let _ = gone.await;
            Ok(())
        };
        let answer = to_its_end("/t", busy, wait, work).await;
        assert!(matches!(answer, Err(AgentError::InProgress(_))), "{answer:?}");
        assert!(tokio::time::timeout(wait, free.recv()).await.is_err());
        go.send(()).unwrap();
        assert_eq!(free.recv().await, None);

        let (go, gone) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let work = async move {
            let _ = gone.await;
            end.send(()).unwrap();
            Ok(())
        };
        let caller = tokio::spawn(to_its_end("/t", (), Duration::from_mins(1), work));
        tokio::time::sleep(wait).await;
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        go.send(()).unwrap();
        ended.await.unwrap();

        let failed = to_its_end("/t", (), wait, async { Err(AgentError::Draining) }).await;
        assert!(matches!(failed, Err(AgentError::Draining)), "{failed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_takes_too_long_and_a_clean_up_that_hangs_leave_the_agent_time_for_its_answer() {
        for limit in [90, 11].map(Duration::from_secs) {
            let began = tokio::time::Instant::now();
            let deadlines = AgentDeadlines::of(limit);
            // The program runs as long as it may, and does not end at once when it is killed.
            tokio::time::sleep(deadlines.for_program().unwrap() + REAP + OUTPUT_GRACE).await;
            let wait = CLEAR_UP_WAIT.min(deadlines.until_answer());
            let answer = to_its_end("/t", (), wait, std::future::pending()).await;
            assert!(matches!(answer, Err(AgentError::InProgress(_))), "{answer:?}");
            let took = began.elapsed();
            // The paused clock counts in milliseconds.
            assert!(took <= limit + Duration::from_millis(1), "{took:?} of {limit:?}");
        }
    }

    /// A volume that was unmounted for good.
    fn unmounted_call(mounts: &Mounts, dir: &std::path::Path) -> MountCall {
        let target = dir.join("pods/u/volumes/mooring.dev~vcs/v");
        std::fs::create_dir_all(&target).unwrap();
        let json = serde_json::json!({"target": target, "client": "nfs", "source": "h:/e", "limit_ms": 1000});
        let call: MountCall = serde_json::from_value(json).unwrap();
        mounts.store.record(&call, &store::id(&call.target)).unwrap();
        let settled = Instant::now().checked_sub(SETTLED).unwrap();
        mounts.gone.lock().unwrap().insert(call.target.clone(), settled);
        call
    }

    /// Its note on the Node is taken back, and the volume detached, once no agent has it.
    #[tokio::test]
    async fn a_volume_that_is_unmounted_stays_the_agent_s_until_it_is_cleaned_up() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap();
        let mounts = Arc::new(mounts);
        let call = unmounted_call(&mounts, dir.path());
        // The staging directory can't be removed.
        let staging = mounts.store.staging(&call.target);
        std::fs::create_dir_all(staging.join("full")).unwrap();
        for failures in 1..5 {
            let hello = mounts.hello().await.unwrap();
            let [mount] = &hello.mounts[..] else {
                panic!("it counts as cleaned up")
            };
            assert_eq!(mount.health, MountHealth::Busy);
            assert_eq!(mount.clean_up_failure.is_some(), failures >= FAILED_FOR_GOOD);
            if failures == 1 {
                let error = mounts.give_up_clean_up(&call.target).await.unwrap_err();
                assert!(matches!(error, AgentError::NotLeft(_)), "{error}");
            }
        }
        assert!(!mounts.is_idle().await);
        std::fs::remove_dir_all(&staging).unwrap();
        assert!(mounts.hello().await.unwrap().mounts.is_empty());
        assert!(mounts.is_idle().await);
        // What failed before does not count against its next mount.
        assert_eq!(mounts.clean_up_failure(&call.target), None);
    }

    #[tokio::test]
    async fn a_clean_up_that_fails_for_good_can_be_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap();
        let mounts = Arc::new(mounts);
        let call = unmounted_call(&mounts, dir.path());
        std::fs::create_dir_all(mounts.store.staging(&call.target).join("full")).unwrap();
        for _ in 0..FAILED_FOR_GOOD {
            assert_eq!(mounts.hello().await.unwrap().mounts.len(), 1);
        }
        mounts.give_up_clean_up(&call.target).await.unwrap();
        assert!(mounts.hello().await.unwrap().mounts.is_empty());
        assert!(mounts.is_idle().await);
        let error = mounts.give_up_clean_up(&call.target).await.unwrap_err();
        assert!(matches!(error, AgentError::NotLeft(_)), "{error}");
    }
}
