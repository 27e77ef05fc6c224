//! Whether a volume was mounted while a mount of another was under way, by the log of their mounter. A clock can't tell:
//! on a busy machine, a Pod may take longer to start than a mount takes to fail.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use mooring_contract::names::NAMESPACE;
use mooring_testbed::progress::note;

use crate::{Scope, wait_until};

/// Longest until a mount that waits for a silent server is answered, on a busy machine.
const LIMIT: Duration = Duration::from_mins(6);

/// How many times a volume is mounted in search of a moment when the other waits.
const TRIES: usize = 4;

/// A mount that was answered.
#[derive(Debug, PartialEq)]
struct Answered {
    began: Timestamp,
    ended: Timestamp,
    is_success: bool,
}

impl Answered {
    /// Reads a line of the mounter's log, if it is such an answer about a volume.
    fn parse(line: &str, volume: &str) -> Option<Self> {
        let is_it = line.contains("call=\"mount\"") && line.contains(&format!("volume.name=\"{volume}\""));
        let (_, answer) = line.split_once(": answered with ").filter(|_| is_it)?;
        let (_, milliseconds) = answer.rsplit_once("milliseconds=")?;
        let milliseconds = milliseconds.split(' ').next()?.parse().ok()?;
        let ended: Timestamp = line.split(' ').next()?.parse().ok()?;
        Some(Self {
            began: ended.checked_sub(SignedDuration::from_millis(milliseconds)).ok()?,
            ended,
            is_success: answer.starts_with("success"),
        })
    }
}

/// Whether the volume was mounted while a mount of the other was under way; none until the other, too, was answered. A
/// mounter that another test has restarted knows of no mount before.
fn is_beside(log: &str, volume: &str, other: &str) -> Option<bool> {
    let of = |volume: &str| -> Vec<_> { log.lines().filter_map(|line| Answered::parse(line, volume)).collect() };
    let Some(mounted) = of(volume).into_iter().rfind(|answered| answered.is_success) else {
        return Some(false);
    };
    let others = of(other);
    let is_known = others.iter().any(|other| mounted.ended < other.ended);
    let is_within = |other: &Answered| other.began < mounted.ended && mounted.ended < other.ended;
    is_known.then(|| others.iter().any(is_within))
}

impl Scope {
    /// Waits until a claim's volume was mounted while a mount of another's was under way. `again` has both
    /// mounted once more, where none was. Both were to be mounted on a node before.
    pub async fn mounted_beside(
        &self,
        node: &str,
        claim: &str,
        other: &str,
        again: impl AsyncFn() -> Result<()>,
    ) -> Result<()> {
        let (volume, other) = (self.volume_name(claim), self.volume_name(other));
        let what = format!("a mount of {other} to be answered after one of {volume}");
        for _ in 0..TRIES {
            let is_beside = wait_until(&what, LIMIT, async || {
                let log = self.kubectl(["-n", NAMESPACE, "logs", &self.mounter(node).await?])?;
                Ok(is_beside(&log, &volume, &other))
            });
            if is_beside.await.context("failed to compare two mounts")? {
                return Ok(());
            }
            note(format!("no mount of {other} was under way when {volume} was mounted"));
            again().await?;
        }
        bail!("{volume} was never mounted while a mount of {other} was under way")
    }
}

#[cfg(test)]
mod tests {
    use super::is_beside;

    #[test]
    fn a_volume_was_mounted_beside_another_where_that_one_s_mount_began_before_and_ended_after() {
        let line = |second: u32, volume: &str, how: &str, milliseconds: u32| {
            format!(
                "2026-11-29T20:47:{second:02}.500000Z  INFO call{{call=\"mount\" volume.name=\"ns-{volume}\" \
                 pod=\"ns/{volume}\"}}: mooring_mounter::drivers::call_out: answered with {how} \
                 milliseconds={milliseconds} category=\"container\"\n"
            )
        };
        let answers = [
            line(30, "late", "a failure: no server", 20_000),
            line(32, "disk", "success", 1500),
            line(33, "late", "a failure: tripped", 2),
            line(40, "disk", "success", 9000),
            line(59, "late", "a failure: milliseconds=1", 20_000),
        ];
        let after = |count: usize| is_beside(&answers[..count].concat(), "ns-disk", "ns-late");
        assert_eq!(
            [1, 2, 3, 4, 5].map(after),
            [Some(false), None, Some(false), None, Some(true)]
        );
    }
}
