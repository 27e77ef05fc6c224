//! Deadlines that contain one another. A caller gives up later than its callee, so that the callee's answer, which says
//! what took so long, arrives even if the machine is too busy to run either of them at once.
//!
//! | who gives up | on what | after |
//! | --- | --- | --- |
//! | the kubelet, the shim | a call | [`KUBELET`] |
//! | the mounter | a call | `--call-timeout`, at most [`LONGEST_CALL`] |
//! | the mounter | a worker, an agent | [`inner`] of the call |
//! | an agent | its answer | [`inner`] of that |
//! | an agent | the image's program | [`inner`] of that |
//!
//! Part of a call's time may have gone to something else, such as its volume's attachment, its client Pod, or another
//! mount of the volume. If too little is left, [`AgentDeadlines::for_program`] has the agent start no program, and the
//! kubelet calls again.

use std::time::Duration;

use tokio::time::Instant;

/// How long the kubelet waits for a CSI driver, and the shim for the mounter.
pub const KUBELET: Duration = Duration::from_secs(mooring_shim::DEADLINE_SECONDS);

/// The shortest and the longest `--call-timeout`.
pub const SHORTEST_CALL: Duration = Duration::from_secs(10);
pub const LONGEST_CALL: Duration = Duration::from_secs(110);

/// The least that a server has for its answer before it is taken for one that gives none.
pub const FAIR_LIMIT: Duration = Duration::from_secs(10);

/// What a caller reserves of its time for the answer: this part, within these bounds, and never more than half.
const PART: u32 = 8;
pub const SMALLEST_MARGIN: Duration = Duration::from_secs(2);
pub const LARGEST_MARGIN: Duration = Duration::from_secs(5);

const _: () = assert!(contains(KUBELET, LONGEST_CALL));
const _: () = assert!(!inner(inner(inner(SHORTEST_CALL))).is_zero());

/// How long a callee may take whose caller waits for `outer`.
pub const fn inner(outer: Duration) -> Duration {
    outer.saturating_sub(margin(outer))
}

/// Whether a caller that waits for `outer` hears a callee that takes `limit`.
pub const fn contains(outer: Duration, limit: Duration) -> bool {
    !is_less(inner(outer), limit)
}

/// How long to wait for calls in progress when the mounter ends: `limit` is the time of a call.
pub const fn outer(limit: Duration) -> Duration {
    limit.saturating_add(LARGEST_MARGIN)
}

const fn margin(outer: Duration) -> Duration {
    let part = outer.checked_div(PART);
    let part = match part {
        Some(part) if is_less(part, SMALLEST_MARGIN) => SMALLEST_MARGIN,
        Some(part) if is_less(part, LARGEST_MARGIN) => part,
        _ => LARGEST_MARGIN,
    };
    match outer.checked_div(2) {
        Some(half) if is_less(half, part) => half,
        _ => part,
    }
}

const fn is_less(one: Duration, other: Duration) -> bool {
    one.as_nanos() < other.as_nanos()
}

/// The deadlines of a call to an agent.
#[derive(Debug, Clone, Copy)]
pub struct AgentDeadlines {
    answer: Instant,
    program: Instant,
    /// The least that is worth starting the image's program for; none if the whole call is too short for it.
    least: Option<Duration>,
}

impl AgentDeadlines {
    /// Of a call that begins now and is to be answered within `limit`.
    pub fn of(limit: Duration) -> Self {
        let (now, whole) = (Instant::now(), inner(limit));
        // The agent kills a program whose time is up, and has to say so in time.
        let leaves_time = margin(limit) >= SMALLEST_MARGIN;
        Self {
            answer: now + limit,
            program: now + whole,
            least: leaves_time.then(|| FAIR_LIMIT.min(whole / 2)),
        }
    }

    /// The time that is left until the answer.
    pub fn until_answer(&self) -> Duration {
        self.answer.saturating_duration_since(Instant::now())
    }

    /// The time of the image's program if it starts now. None if that is too little for a server that is well, or for
    /// the agent's answer: the call is to be repeated.
    pub fn for_program(&self) -> Option<Duration> {
        let left = self.until_program();
        self.least.is_some_and(|least| left >= least).then_some(left)
    }

    /// The time that is left for the image's program.
    pub fn until_program(&self) -> Duration {
        self.program.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{AgentDeadlines, KUBELET, LONGEST_CALL, SHORTEST_CALL, SMALLEST_MARGIN, contains, inner, outer};

    #[tokio::test(start_paused = true)]
    async fn a_program_that_is_started_leaves_time_for_its_agent_s_answer_whatever_is_left_of_the_call() {
        for left in (0..=LONGEST_CALL.as_secs() * 20).map(|twentieths| Duration::from_millis(twentieths * 50)) {
            let limit = inner(left);
            let deadlines = AgentDeadlines::of(limit);
            let Some(program) = deadlines.for_program() else {
                assert!(left < Duration::from_secs(6), "{left:?} is enough");
                continue;
            };
            let reserved = [left.saturating_sub(limit), limit.saturating_sub(program)];
            assert!(
                reserved.iter().all(|time| *time >= SMALLEST_MARGIN),
                "{left:?} is too little for the answer: {reserved:?}"
            );
        }
    }

    #[test]
    fn each_deadline_leaves_seconds_for_the_answer_of_the_one_within_it() {
        let seconds = |limit: Duration| [limit, inner(limit), inner(inner(limit)), inner(inner(inner(limit)))];
        let of = |limit| seconds(Duration::from_secs(limit)).map(|limit| limit.as_secs());
        assert_eq!(of(110), [110, 105, 100, 95]);
        assert_eq!(of(100), [100, 95, 90, 85]);
        assert_eq!(of(15), [15, 13, 11, 9]);
        for limit in (SHORTEST_CALL.as_secs()..=LONGEST_CALL.as_secs()).map(Duration::from_secs) {
            let nested = seconds(limit);
            assert!(
                nested.is_sorted_by(|outer, limit| contains(*outer, *limit)),
                "{nested:?}"
            );
            assert!(!nested[3].is_zero());
            assert!(outer(outer(limit)) <= KUBELET);
        }
    }
}
