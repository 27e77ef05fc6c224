//! How a run was when it went.

use mooring_contract::outcome::Outcome;

use super::input_state::InputState;
use super::observed::Run;
use super::outcome::{Category, Finish, State};

/// What was known of a run when it went. A kubelet says how a Pod ended and removes it at once, so nobody may have
/// looked in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departed {
    /// The attempt that it was made for.
    pub attempt: u32,
    /// See [`Run::input_state`].
    pub state: Option<InputState>,
    pub end: Finish,
}

impl Departed {
    /// Reads a run as it was last.
    pub fn of(run: &Run) -> Self {
        let end = match run.state() {
            State::Finished(end) => end,
            state @ (State::Waiting { .. } | State::Running | State::Leaving) => Finish {
                outcome: Outcome::Retry,
                category: Category::Node,
                why: "its Pod was deleted before it had ended".to_owned(),
                may_have_run: true,
                started: state == State::Running,
                message: String::new(),
                can_be_worker: false,
            },
        };
        Self {
            attempt: run.attempt(),
            state: run.input_state(),
            end,
        }
    }
}
