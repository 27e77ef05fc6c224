//! How a run was when it went.

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
                started: state == State::Running,
                ..Finish::unseen(Category::Node, "its Pod was deleted before it had ended", true)
            },
        };
        Self {
            attempt: run.attempt(),
            state: run.input_state(),
            end,
        }
    }
}
