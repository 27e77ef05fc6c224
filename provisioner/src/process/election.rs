//! Which replica works: the one that holds a Lease.
//!
//! A Lease counts as run out when its holder has not renewed it for its whole duration *as seen from here*, so clocks
//! need not agree; and each write names the version that it replaces, so of two that try at once one fails. A leader
//! that can't renew stops well before another may take over. Should two work at once all the same, names that derive
//! from uids make that harmless.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::ObjectMeta;
use mooring_contract::names::annotations;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::process::call::{CallError, TAKEN, Tolerant as _};
use crate::process::objects::Objects;

/// Times of an election, all parts of the Lease's duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long the Lease is good for without renewal.
    pub duration: Duration,
    /// How long a leader goes on without having renewed.
    pub deadline: Duration,
    /// How long one attempt may take.
    pub attempt: Duration,
    /// Time between two attempts.
    pub period: Duration,
}

/// Parts of the duration, in fifteenths.
const DEADLINE: u32 = 10;
const ATTEMPT: u32 = 3;
const PERIOD: u32 = 2;

// A leader tries more than once before it stops, and has stopped, with an attempt under way, before another may take
// over.
const _: () = assert!(2 * (ATTEMPT + PERIOD) <= DEADLINE);
const _: () = assert!(DEADLINE + ATTEMPT < 15);

impl Timing {
    /// The times for a Lease of this duration.
    pub fn of(duration: Duration) -> Self {
        let part = |fifteenths: u32| duration * fifteenths / 15;
        Self {
            duration,
            deadline: part(DEADLINE),
            attempt: part(ATTEMPT),
            period: part(PERIOD),
        }
    }
}

/// The version of the records in the API that this controller writes, and the newest that it reads: on claims,
/// PVs, contents of snapshots, and its Pods. It goes up when an earlier controller would take one for something else.
const RECORDS: u32 = 1;

/// What one attempt at the Lease has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// This replica holds it.
    Leading,
    /// Another one does.
    StandingBy,
    /// A controller has led whose records this one can't read.
    Outdated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Its leaders may have left records that this one can't read.
    Refuse,
    /// There is none: make it.
    Create,
    /// It is free, or has run out: take it.
    Take,
    /// It is ours: renew it.
    Renew,
    /// Another holds it.
    Wait,
}

/// When the Lease was last seen to change, and what it said.
#[derive(Debug, Clone)]
struct Seen {
    spec: LeaseSpec,
    at: Instant,
}

fn step(lease: Option<&Lease>, me: &str, seen: Option<&Seen>, now: Instant, timing: Timing) -> Step {
    let Some(lease) = lease else { return Step::Create };
    if records(lease) > RECORDS {
        return Step::Refuse;
    }
    let spec = lease.spec.clone().unwrap_or_default();
    match spec.holder_identity.as_deref() {
        None | Some("") => Step::Take,
        Some(holder) if holder == me => Step::Renew,
        Some(_) => {
            // The holder's own word on the duration, should it have been started with another.
            let duration = spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map_or(timing.duration, Duration::from_secs);
            match seen {
                Some(seen) if seen.spec == spec && now.duration_since(seen.at) > duration => Step::Take,
                _ => Step::Wait,
            }
        }
    }
}

/// The version of the records that those who held the Lease may have written. One that can't be read is a later one's.
fn records(lease: &Lease) -> u32 {
    let annotations = lease.metadata.annotations.as_ref();
    let noted = annotations.and_then(|all| all.get(annotations::RECORDS));
    noted.map_or(0, |noted| noted.parse().unwrap_or(u32::MAX))
}

#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// The API server refused the call, or did not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("no answer about lease {name:?} within {} ms", limit.as_millis())]
    Slow { name: String, limit: Duration },
}

/// One replica's part in the election.
#[derive(Debug)]
pub struct Election {
    leases: Objects<Lease>,
    name: String,
    me: String,
    timing: Timing,
    seen: Option<Seen>,
}

impl Election {
    /// An election by the Lease `name`; `me` must be no other replica's name.
    pub fn new(client: &Client, namespace: &str, name: &str, me: &str, timing: Timing) -> Self {
        Self {
            leases: Objects::within(client, namespace),
            name: name.to_owned(),
            me: me.to_owned(),
            timing,
            seen: None,
        }
    }

    /// Waits until this replica leads; false if `stop` came first. Calls `told` with what each attempt has shown.
    pub async fn win(&mut self, stop: &CancellationToken, told: impl Fn(Standing)) -> bool {
        let mut reported = None;
        loop {
            let won = tokio::select! {
                () = stop.cancelled() => return false,
                won = self.attempt() => won,
            };
            match won {
                Ok(standing) => {
                    if reported.replace(standing) != Some(standing) {
                        self.report(standing);
                    }
                    told(standing);
                    if standing == Standing::Leading {
                        return true;
                    }
                }
                Err(error) => warn!(error = &error as &dyn std::error::Error, "failed to take the lease"),
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = sleep(self.timing.period) => {}
            }
        }
    }

    /// Renews for as long as that works; returns when this replica no longer leads.
    pub async fn hold(&mut self) {
        let mut renewed = Instant::now();
        loop {
            sleep(self.timing.period).await;
            let begun = Instant::now();
            match self.attempt().await {
                Ok(Standing::Leading) => renewed = begun,
                Ok(Standing::StandingBy) => {
                    warn!(lease.name = self.name, "another replica holds the lease");
                    return;
                }
                Ok(Standing::Outdated) => return self.report(Standing::Outdated),
                Err(error) => warn!(error = &error as &dyn std::error::Error, "failed to renew the lease"),
            }
            if renewed.elapsed() >= self.timing.deadline {
                warn!(lease.name = self.name, "failed to renew the lease in time");
                return;
            }
        }
    }

    /// Frees the Lease, so that another replica need not wait for it to run out.
    pub async fn release(&mut self) {
        let freed = timeout(self.timing.attempt, async {
            let Some(mut lease) = self.leases.read(&self.name).await? else {
                return Ok(());
            };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() != Some(&self.me) {
                return Ok(());
            }
            spec.holder_identity = Some(String::new());
            spec.renew_time = Some(MicroTime(Timestamp::now()));
            self.leases.replace(&lease).await.map(drop)
        });
        match freed.await {
            Ok(Ok(())) => info!(lease.name = self.name, "freed the lease"),
            Ok(Err(error)) => warn!(error = &error as &dyn std::error::Error, "failed to free the lease"),
            Err(_) => warn!(lease.name = self.name, "failed to free the lease in time"),
        }
    }

    fn report(&self, standing: Standing) {
        match standing {
            Standing::Leading => info!(lease.name = self.name, lease.holder = self.me, "leading"),
            Standing::StandingBy => info!(lease.name = self.name, "standing by"),
            Standing::Outdated => error!(
                lease.name = self.name,
                "a controller of a later version has led, whose records this one can't read, so this replica does not \
                 lead: install that version again. The Lease's annotation {} says so",
                annotations::RECORDS
            ),
        }
    }

    /// Takes or renews the Lease if that can be.
    async fn attempt(&mut self) -> Result<Standing, ElectionError> {
        let limit = self.timing.attempt;
        match timeout(limit, self.attempt_unlimited()).await {
            Ok(held) => held,
            Err(_) => Err(ElectionError::Slow {
                name: self.name.clone(),
                limit,
            }),
        }
    }

    async fn attempt_unlimited(&mut self) -> Result<Standing, ElectionError> {
        let lease = self.leases.read(&self.name).await?;
        let step = step(
            lease.as_ref(),
            &self.me,
            self.seen.as_ref(),
            Instant::now(),
            self.timing,
        );
        let written = match (step, lease) {
            (Step::Refuse, _) => return Ok(Standing::Outdated),
            (Step::Wait, lease) => {
                let spec = lease.and_then(|lease| lease.spec).unwrap_or_default();
                if self.seen.as_ref().is_none_or(|seen| seen.spec != spec) {
                    self.seen = Some(Seen {
                        spec,
                        at: Instant::now(),
                    });
                }
                return Ok(Standing::StandingBy);
            }
            (Step::Renew, Some(lease)) => self.leases.replace(&self.claimed(lease, false)).await,
            (Step::Take, Some(lease)) => self.leases.replace(&self.claimed(lease, true)).await,
            (_, None) | (Step::Create, Some(_)) => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec: None,
                };
                self.leases.create(&self.claimed(lease, true)).await
            }
        };
        // Another may be quicker.
        Ok(match written.unless(TAKEN)? {
            Some(_) => Standing::Leading,
            None => Standing::StandingBy,
        })
    }

    /// The Lease as ours from now on; `anew` counts a change of holder.
    fn claimed(&self, mut lease: Lease, anew: bool) -> Lease {
        let now = MicroTime(Timestamp::now());
        let noted = lease.metadata.annotations.get_or_insert_default();
        noted.insert(annotations::RECORDS.to_owned(), RECORDS.to_string());
        let spec = lease.spec.get_or_insert_default();
        if anew {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1)));
        }
        spec.holder_identity = Some(self.me.clone());
        spec.lease_duration_seconds = Some(i32::try_from(self.timing.duration.as_secs().max(1)).unwrap_or(i32::MAX));
        spec.renew_time = Some(now);
        lease
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use k8s_openapi::jiff::Timestamp;
    use tokio::time::Instant;

    use super::{Seen, Step, Timing, step};

    fn lease(holder: &str, renewed: i64) -> Lease {
        Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.into()),
                lease_duration_seconds: Some(15),
                renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        }
    }

    #[test]
    fn a_lease_is_taken_only_when_free_or_run_out_as_seen_from_here() {
        let start = Instant::now();
        let timing = Timing::of(Duration::from_secs(15));
        let at = |seconds| start + Duration::from_secs(seconds);
        let seen = |lease: &Lease| Seen {
            spec: lease.spec.clone().unwrap(),
            at: start,
        };
        // Renewed in 1970 by its holder's clock, which counts for nothing.
        let other = lease("other", 0);
        let renewed = lease("other", 1);
        let with_records = |holder: &str, version: &str| {
            let mut lease = lease(holder, 0);
            let noted = [("mooring.dev/records".to_owned(), version.to_owned())];
            lease.metadata.annotations = Some(noted.into());
            lease
        };
        for (lease, known, now, expected) in [
            (None, None, 0, Step::Create),
            (Some(lease("", 0)), None, 0, Step::Take),
            (Some(Lease::default()), None, 0, Step::Take),
            (Some(lease("me", 0)), None, 0, Step::Renew),
            (Some(other.clone()), None, 99, Step::Wait),
            (Some(other.clone()), Some(seen(&other)), 14, Step::Wait),
            (Some(other.clone()), Some(seen(&other)), 16, Step::Take),
            (Some(renewed), Some(seen(&other)), 16, Step::Wait),
            (Some(with_records("", "1")), None, 0, Step::Take),
            // Whoever holds it, and whether it has run out.
            (Some(with_records("", "2")), None, 0, Step::Refuse),
            (Some(with_records("me", "2")), None, 0, Step::Refuse),
            (Some(with_records("other", "x")), Some(seen(&other)), 16, Step::Refuse),
        ] {
            let found = step(lease.as_ref(), "me", known.as_ref(), at(now), timing);
            assert_eq!(found, expected, "{lease:?} at {now}");
        }
    }

    #[test]
    fn the_times_of_a_fifteen_second_lease() {
        let timing = Timing::of(Duration::from_secs(15));
        let seconds = [timing.deadline, timing.attempt, timing.period].map(|time| time.as_secs());
        assert_eq!(seconds, [10, 3, 2]);
    }
}
