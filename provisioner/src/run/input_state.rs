//! Whether what decides a run has changed since it began.

use serde::{Deserialize, Serialize};

/// The state of ConfigMap, class and claim, all that decides a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum InputState {
    /// The ConfigMap was gone.
    Unknown,
    /// A hash.
    Known(String),
}

/// How a record says that the state was not known. No hash reads like this.
const UNKNOWN: &str = "unknown";

impl InputState {
    /// Whether nothing has changed: a state that is not known is like no other.
    pub(crate) fn is_still(&self, now: &Self) -> bool {
        *self != Self::Unknown && self == now
    }

    /// The state of a run that began with `began`, if it says so. That the ConfigMap has gone since is a change, too.
    #[must_use]
    pub(crate) fn when_begun(self, began: Option<Self>) -> Self {
        match (self, began) {
            (Self::Known(_), Some(began)) => began,
            (now, _) => now,
        }
    }

    /// The state with one more fact that decides the run.
    #[must_use]
    pub(crate) fn with(self, fact: &str) -> Self {
        match self {
            Self::Unknown => Self::Unknown,
            Self::Known(hash) => Self::Known(format!("{hash}-{fact}")),
        }
    }
}

impl From<String> for InputState {
    fn from(text: String) -> Self {
        if text == UNKNOWN {
            Self::Unknown
        } else {
            Self::Known(text)
        }
    }
}

impl From<InputState> for String {
    fn from(state: InputState) -> Self {
        match state {
            InputState::Unknown => UNKNOWN.to_owned(),
            InputState::Known(hash) => hash,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::InputState;

    #[test]
    fn a_state_is_written_as_records_have_always_had_it() {
        for (state, text) in [
            (InputState::Unknown, "unknown"),
            (InputState::Known("0a1b".to_owned()), "0a1b"),
        ] {
            assert_eq!(json!(state), text);
            assert_eq!(serde_json::from_value::<InputState>(json!(text)).unwrap(), state);
        }
    }

    #[test]
    fn a_run_failed_with_the_state_that_it_began_with_unless_the_config_map_is_gone() {
        let known = |hash: &str| InputState::Known(hash.to_owned());
        for (now, began, expected) in [
            (known("now"), Some(known("then")), known("then")),
            (known("now"), None, known("now")),
            (InputState::Unknown, Some(known("then")), InputState::Unknown),
        ] {
            assert_eq!(now.clone().when_begun(began.clone()), expected, "{now:?} {began:?}");
        }
    }

    #[test]
    fn a_state_that_is_not_known_has_always_changed() {
        let known = |hash: &str| InputState::Known(hash.to_owned());
        assert!(known("a").is_still(&known("a")) && !known("a").is_still(&known("b")));
        for other in [known("a"), InputState::Unknown] {
            assert!(!InputState::Unknown.is_still(&other) && !other.is_still(&InputState::Unknown));
        }
    }
}
