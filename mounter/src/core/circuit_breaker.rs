//! A circuit breaker per server: a server that does not answer delays only its own volumes, and those not for long.
//!
//! After a mount from a server has timed out, the breaker refuses further ones at once for a while. Then it lets one
//! through; if that is answered, it lets all through. Of those that began before, only a success shows that the server
//! answers again. Only a few operations per server run at a time, so that a dead server can't take up all workers. A
//! tripped server that no mount asks for any more is no longer reported: nothing would notice that it answers again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::volume::job::MountError;

/// How long a breaker stays open: the server is left alone.
const OPEN_FOR: Duration = Duration::from_secs(30);

/// How long a tripped server is reported after the last mount that asked for it: longer than the kubelet's longest
/// pause between two tries, which is two minutes.
const FORGET: Duration = Duration::from_mins(5);

/// Most operations of one server at a time.
const MOST: usize = 32;

#[derive(Debug, Default)]
struct Server {
    running: usize,
    /// Since when its breaker is open.
    tripped: Option<Instant>,
    /// When a mount last asked for it, whether or not it was let through.
    asked: Option<Instant>,
    /// Whether a mount is testing if the server answers again.
    probing: bool,
}

/// One for each server that has something running or is tripped.
#[derive(Debug, Clone, Default)]
pub struct CircuitBreakers(Arc<Mutex<HashMap<String, Server>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    Mounted,
    /// It failed otherwise than by its time limit. A client that gave up by itself looks the same.
    Failed,
    Late,
}

impl CircuitBreakers {
    /// Begins an operation of a server, unless it is tripped or busy.
    pub fn enter(&self, name: &str, now: Instant) -> Result<Permit, MountError> {
        let mut servers = self.lock();
        forget(&mut servers, now);
        let server = servers.entry(name.to_owned()).or_default();
        server.asked = Some(now);
        let mut probe = false;
        if let Some(since) = server.tripped {
            let age = now.saturating_duration_since(since);
            if age < OPEN_FOR || server.probing {
                return Err(MountError::Tripped {
                    server: name.to_owned(),
                    seconds_ago: age.as_secs(),
                    seconds_left: OPEN_FOR.saturating_sub(age).as_secs().max(1),
                });
            }
            server.probing = true;
            probe = true;
        } else if server.running >= MOST {
            return Err(MountError::failed(
                format!("mount from server {name}"),
                format!("{MOST} operations of it are running on this node: the kubelet tries again"),
            ));
        }
        server.running += 1;
        Ok(Permit {
            breakers: self.clone(),
            name: name.to_owned(),
            probe,
            ended: None,
        })
    }

    /// The tripped servers that mounts have asked for lately.
    pub fn tripped(&self, now: Instant) -> Vec<String> {
        let mut servers = self.lock();
        forget(&mut servers, now);
        let tripped = servers.iter().filter(|(_, server)| server.tripped.is_some());
        let mut names: Vec<_> = tripped.map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Server>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forget(servers: &mut HashMap<String, Server>, now: Instant) {
    servers.retain(|_, server| {
        let asked = server
            .asked
            .is_some_and(|at| now.saturating_duration_since(at) < FORGET);
        server.running > 0 || asked
    });
}

/// One running operation of a server.
#[derive(Debug)]
pub struct Permit {
    breakers: CircuitBreakers,
    name: String,
    probe: bool,
    ended: Option<(CallEnd, Instant)>,
}

impl Permit {
    /// Notes how it ended. Dropping it instead says nothing about the server.
    pub fn end(mut self, ended: CallEnd, now: Instant) {
        self.ended = Some((ended, now));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut servers = self.breakers.lock();
        let Some(server) = servers.get_mut(&self.name) else {
            return;
        };
        server.running = server.running.saturating_sub(1);
        if self.probe {
            server.probing = false;
        }
        match self.ended {
            Some((CallEnd::Late, now)) => (server.tripped, server.asked) = (Some(now), Some(now)),
            Some((CallEnd::Mounted, _)) => server.tripped = None,
            Some((CallEnd::Failed, _)) if self.probe => server.tripped = None,
            Some((CallEnd::Failed, _)) | None => {}
        }
        if server.running == 0 && server.tripped.is_none() {
            servers.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CallEnd, CircuitBreakers, FORGET, MOST, OPEN_FOR};
    use crate::volume::job::MountError;
    use std::time::{Duration, Instant};

    #[test]
    fn a_server_that_was_late_is_refused_by_name_and_others_are_not() {
        let (breakers, now) = (CircuitBreakers::default(), Instant::now());
        breakers.enter("a", now).unwrap().end(CallEnd::Late, now);
        let error = breakers.enter("a", now + Duration::from_secs(1)).unwrap_err();
        assert!(
            matches!(&error, MountError::Tripped { server, .. } if server == "a"),
            "{error}"
        );
        breakers.enter("b", now).unwrap();
        assert_eq!(breakers.tripped(now), ["a"]);
    }

    #[test]
    fn after_a_while_one_is_let_through_and_decides_for_all() {
        let (breakers, now) = (CircuitBreakers::default(), Instant::now());
        breakers.enter("a", now).unwrap().end(CallEnd::Late, now);
        let later = now + OPEN_FOR;
        let probe = breakers.enter("a", later).unwrap();
        assert!(breakers.enter("a", later).is_err());
        probe.end(CallEnd::Late, later);
        assert!(breakers.enter("a", later).is_err());
        let probe = breakers.enter("a", later + OPEN_FOR).unwrap();
        probe.end(CallEnd::Failed, later + OPEN_FOR);
        let _one = breakers.enter("a", later + OPEN_FOR).unwrap();
        let _two = breakers.enter("a", later + OPEN_FOR).unwrap();
        assert!(breakers.tripped(later + OPEN_FOR).is_empty());
    }

    #[test]
    fn of_the_mounts_that_began_before_only_a_success_shows_that_a_server_answers_again() {
        let (breakers, now) = (CircuitBreakers::default(), Instant::now());
        let [late, gives_up, succeeds] = [0; 3].map(|_| breakers.enter("a", now).unwrap());
        late.end(CallEnd::Late, now);
        gives_up.end(CallEnd::Failed, now);
        assert_eq!(breakers.tripped(now), ["a"]);
        breakers.enter("a", now).unwrap_err();
        succeeds.end(CallEnd::Mounted, now);
        breakers.enter("a", now).unwrap();
    }

    #[test]
    fn a_server_that_no_mount_asks_for_is_no_longer_reported() {
        let (breakers, now) = (CircuitBreakers::default(), Instant::now());
        breakers.enter("a", now).unwrap().end(CallEnd::Late, now);
        // Refused, so it is wanted still.
        let refused = now + Duration::from_secs(29);
        breakers.enter("a", refused).unwrap_err();
        let meanwhile = refused + FORGET / 2;
        assert_eq!(breakers.tripped(meanwhile), ["a"]);
        assert!(breakers.tripped(refused + FORGET).is_empty());
        // One that waits for its answer is not forgotten, however long it takes.
        let permit = breakers.enter("b", now).unwrap();
        breakers.enter("c", now + FORGET * 2).unwrap();
        permit.end(CallEnd::Late, now + FORGET * 2);
        assert_eq!(breakers.tripped(now + FORGET * 2), ["b"]);
    }

    #[test]
    fn one_server_can_t_take_all_the_room() {
        let (breakers, now) = (CircuitBreakers::default(), Instant::now());
        let mut permits: Vec<_> = (0..MOST).map(|_| breakers.enter("a", now).unwrap()).collect();
        assert!(breakers.enter("a", now).is_err());
        permits.pop();
        assert!(breakers.enter("a", now).is_ok());
    }
}
