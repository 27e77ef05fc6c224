//! What goes wrong, and at which of a run's calls.

use std::fmt;
use std::time::Duration;

/// How long a slow answer takes longer.
pub(super) const SLOW: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The run is killed before the service hears of the call.
    KilledBefore,
    /// The run is killed while the service is at work; the next one begins at once.
    KilledAtWork,
    /// The run is killed, and the service hears of the call when the next run has ended.
    Late,
    /// The run is killed when the service has done it, before it knows.
    KilledAfter,
    /// The service answers 500, and has done nothing.
    Refused,
    /// The service answers 500, and has done it.
    Lost,
    /// The connection ends without an answer, and the service has done it.
    Cut,
    /// The token has run out.
    Expired,
    /// The service is busy, and says for how long.
    Busy,
    /// The answer takes long.
    Slow,
    /// What the call shows is in error, as an administrator of the cloud can set it.
    Broken,
}

/// How many kinds of faults a scene has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    All,
    /// For what has most of its code in common with another scene, from the call on by which the two differ.
    Few,
}

impl Choice {
    /// The first call that goes wrong: behind the login and the question for versions, if those are the same elsewhere.
    pub(super) fn first(self, of: Of) -> usize {
        match (self, of) {
            (Self::Few, Of::Calls) => 3,
            _ => 1,
        }
    }
}

/// Those at each call, one after the other: where nothing is written, nothing can be half done.
const AT_CALLS: [Kind; 6] = [
    Kind::Refused,
    Kind::Cut,
    Kind::Expired,
    Kind::Busy,
    Kind::KilledBefore,
    Kind::Slow,
];

/// Those at each call that writes.
const AT_WRITES: [Kind; 9] = [
    Kind::Late,
    Kind::KilledAtWork,
    Kind::Lost,
    Kind::KilledBefore,
    Kind::Refused,
    Kind::Cut,
    Kind::Expired,
    Kind::Busy,
    Kind::Slow,
];

/// Those at each call that writes, after which nobody tries again.
const GIVEN_UP: [Kind; 2] = [Kind::KilledAfter, Kind::Lost];

/// Which calls are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Calls,
    /// Calls that change something.
    Writes,
    /// Calls that show what the run is about.
    Looks,
}

impl Of {
    pub(super) const ALL: [Self; 3] = [Self::Calls, Self::Writes, Self::Looks];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Writes => "writes",
            Self::Looks => "looks",
        }
    }
}

/// A fault, from the first call on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) of: Of,
    /// Counted from 1.
    pub(super) at: usize,
    /// The operation is not done again, but what undoes it.
    pub(super) given_up: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given_up = if self.given_up { ", and given up" } else { "" };
        write!(f, "{:?} at {} of the {}{given_up}", self.kind, self.at, self.of.name())
    }
}

impl Fault {
    /// The faults at the calls of this number. `makes` says whether the scene makes something that can be given up.
    pub(super) fn at(of: Of, at: usize, choice: Choice, makes: bool) -> Vec<Self> {
        let fault = |kind, given_up| Self { kind, of, at, given_up };
        let few = |all: &[Kind], few: usize| match choice {
            Choice::All => all.to_vec(),
            Choice::Few => all[..few].to_vec(),
        };
        let (again, given_up) = match of {
            Of::Calls => (few(&[Kind::KilledAfter, AT_CALLS[at % AT_CALLS.len()]], 1), Vec::new()),
            Of::Writes => (few(&AT_WRITES, 3), few(&GIVEN_UP, 1)),
            Of::Looks => (vec![Kind::Broken], Vec::new()),
        };
        let given_up = given_up.into_iter().filter(|_| makes);
        let again = again.into_iter().map(|kind| fault(kind, false));
        again.chain(given_up.map(|kind| fault(kind, true))).collect()
    }
}
