//! A provisioning Pod that is gone: what was known of it last.

use k8s_openapi::api::core::v1::Pod;
use mooring_contract::outcome::Outcome;

use super::outcome::{Category, Finish, PodState, observe};
use super::pod;

/// What was known of a provisioning Pod in the moment when it went. A kubelet says how a Pod ended and lets it go at
/// once, so nobody may have looked in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departed {
    /// The attempt that it was made for.
    pub attempt: u32,
    /// How it ended.
    pub end: Finish,
}

impl Departed {
    /// Reads a Pod as it was last.
    pub fn of(pod: &Pod) -> Self {
        let end = match observe(pod) {
            PodState::Finished(end) => end,
            state => Finish {
                outcome: Outcome::Retry,
                category: Category::Node,
                words: "its Pod was deleted before it had ended".to_owned(),
                may_have_run: true,
                started: state == PodState::Running,
                message: String::new(),
            },
        };
        Self {
            attempt: pod::attempt(pod),
            end,
        }
    }
}
