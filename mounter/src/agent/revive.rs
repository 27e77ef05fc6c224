//! Mounts dead volumes again: FUSE file systems whose daemon ended, alone or with the whole container.
//!
//! The volume's record is that of its first mount, its secrets are the newest that the mounter was given, and the
//! program is the same. The new mount replaces the dead one on the target. The mounter does the same in the containers
//! that use it, and then tells the agent so ([`super::protocol::Call::Revived`]). The agent tries as long as the dead
//! mount is on its target, with growing pauses: the server may come back.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mooring_program::error::chain;
use tokio::signal::unix::Signal;
use tracing::{info, warn};

use super::mounts::{AgentError, CLEAR_UP_WAIT, Mounts, ask, flags, in_thread};
use super::program::{self, Brings};
use super::protocol::{AgentFailure, MountCall};
use super::revivals::End;
use super::{record, target_mounts};
use crate::sys::look::LookedAt;
use crate::volume::mount_table::DeviceNumber;

/// Time limit of a mount program for a volume that is in use already.
const LIMIT: Duration = Duration::from_secs(30);

/// How long to wait for further deaths: a daemon's helpers end with it.
const BURST: Duration = Duration::from_millis(20);

/// Checks all mounts now, and whenever process 1 or one of the agent's daemons reports that a process ended.
pub async fn watch(mut deaths: Signal, mounts: Arc<Mounts>) {
    loop {
        match mounts.store.all() {
            Ok(records) => {
                let looks = records.calls.into_iter().map(|call| mounts.revive_if_dead(call));
                futures::future::join_all(looks).await;
            }
            Err(error) => warn!(error = %chain(&error), "failed to look for dead mounts"),
        }
        tokio::select! {
            _ = deaths.recv() => {}
            () = mounts.services.ended() => {}
        }
        tokio::time::sleep(BURST).await;
    }
}

impl Mounts {
    async fn revive_if_dead(self: &Arc<Self>, call: MountCall) {
        match self.look(&call.target).await {
            Ok(LookedAt::Dead) => self.revive(call),
            Ok(LookedAt::Alive | LookedAt::Nothing) => {}
            Err(error) => warn!(target.path = call.target, "{}", AgentFailure::from(&error).message),
        }
    }

    /// Starts to mount a dead volume again, unless that has begun.
    pub(super) fn revive(self: &Arc<Self>, call: MountCall) {
        // What a Pod has open is a device that goes with its program: another one could not take its place.
        if self.target(&call.target).is_ok_and(|target| target.is_device()) {
            return;
        }
        if self.is_given_up(&call.target) || !self.reviving.begin(&call.target) {
            return;
        }
        warn!(
            target.path = call.target,
            "the program that served it ended: the agent mounts it again"
        );
        let mounts = Arc::clone(self);
        tokio::spawn(async move {
            mounts.pause(&call.target).await;
            let end = loop {
                match mounts.try_to_revive(&call).await {
                    Ok(end) => break end,
                    // Another call is checking or unmounting it.
                    Err(AgentError::InProgress(_)) => tokio::time::sleep(BURST).await,
                    Err(error) => {
                        let AgentFailure { message, .. } = AgentFailure::from(&error);
                        warn!(target.path = call.target, "failed to mount again: {message}");
                        mounts
                            .reviving
                            .failed(&call.target, message, mounts.blamed_secret(&call.target, &error));
                        mounts.pause(&call.target).await;
                    }
                }
            };
            info!(target.path = call.target, ?end, "no longer to be mounted again");
            mounts.reviving.done(&call.target, end);
        });
    }

    /// Waits until a volume may be tried again, or a Secret was changed.
    async fn pause(&self, target: &str) {
        let renewed = self.renewed.notified();
        let _ = tokio::time::timeout(self.reviving.wait(target), renewed).await;
    }

    /// When the Secret was given that a program may have failed for; see [`super::protocol::Reviving`].
    fn blamed_secret(&self, target: &str, error: &AgentError) -> Option<u64> {
        let call = self.store.recorded(target)?;
        let secrets = self.store.read_secrets(target).ok()?;
        let may_be = matches!(error, AgentError::Program(_)) && !record::read_by_client(&call, &secrets).is_empty();
        call.secrets_at.filter(|_| may_be)
    }

    async fn try_to_revive(self: &Arc<Self>, call: &MountCall) -> Result<End, AgentError> {
        let target = self.target(&call.target)?;
        let _busy = self.begin(&call.target)?;
        if self.store.recorded(&call.target).is_none() {
            return Ok(End::Gone);
        }
        match ask(target.clone(), ()).await? {
            LookedAt::Nothing => return Ok(End::Gone),
            LookedAt::Alive => return Ok(End::Alive),
            LookedAt::Dead => {}
        }
        let Some(dead) = target_mounts::dead_mount(&target)? else {
            return Ok(End::Gone);
        };
        // Another client Pod may have had its device.
        self.claim(call)?;
        let device = dead.device;
        // Before it is replaced: after that, nothing tells which mounts in containers belong to this volume.
        self.dead.record(&call.target, dead, now_ms());
        let brings = Brings::of(call);
        let staging = self.store.staging(&call.target);
        if brings == Brings::Program {
            // What the program did besides mounting may prevent it from doing so again.
            self.undo(call, CLEAR_UP_WAIT).await?;
        }
        self.store.restage(&call.target)?;
        let secrets = self.store.secrets(&call.target);
        let invocation = program::mount(call, brings, &staging, &secrets)?;
        let flags = flags(call)?;
        let replaced = async {
            self.run_mount(call, invocation, || Ok(LIMIT)).await?;
            let (staging, target) = (staging.clone(), target.clone());
            let replace = move || target_mounts::replace(&staging, &target, device, flags);
            in_thread(&call.target, replace).await
        };
        let replaced = replaced.await;
        // It was moved to the target, or is not wanted: it is not needed here.
        self.store.unstage(&call.target)?;
        if replaced? {
            self.seen_alive(&call.target);
        }
        Ok(match ask(target.clone(), ()).await? {
            LookedAt::Nothing => End::Gone,
            LookedAt::Alive => End::Alive,
            LookedAt::Dead => return Err(AgentError::Dead(call.target.clone())),
        })
    }

    /// Drops dead mounts that are no longer in use.
    pub fn revived(&self, target: &str, devices: &[DeviceNumber]) -> Result<(), AgentError> {
        let target = self.target(target)?;
        self.dead.drop_unused(&target.to_string(), devices);
        Ok(())
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
