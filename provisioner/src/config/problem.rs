//! What can be wrong with a provisioner ConfigMap.

use std::fmt;

use mooring_contract::named;

/// Whether a problem keeps a ConfigMap from coming into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The ConfigMap is refused.
    Error,
    /// The ConfigMap comes into force, and its author is warned.
    Warning,
}

named! {
    /// The kinds of problem: few, since they are metric labels.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ProblemKind {
        /// The file is not what `kubectl apply` would take.
        Syntax = "syntax",
        MissingKey = "missing-key",
        BadValue = "bad-value",
        /// A key that all but spells a known one.
        NearMiss = "near-miss",
        /// What a colon without a space behind it leaves.
        MissingSpace = "missing-space",
        /// Two properties that an image could not tell apart, or one that only Mooring may set.
        Collision = "collision",
        /// Two settings that can't both hold.
        Contradiction = "contradiction",
        /// Something that the administrator of the cluster does not allow.
        Untrusted = "untrusted",
        /// The ConfigMap is too long for its last good version to be kept.
        TooLong = "too-long",
    }
}

/// One problem of a ConfigMap; the message ends with the cure. Never holds a value of `service-token`.
///
/// It is what people read: `lint` and the ConfigMap's status print it, and nothing goes by what caused it. So it has
/// its text, and not the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The key of `data` that it is about, or `metadata.labels` and the like.
    pub key: String,
    /// What is wrong and what to do, without the key.
    pub message: String,
    pub kind: ProblemKind,
    /// Whether it keeps the ConfigMap from coming into force.
    pub severity: Severity,
}

impl ConfigProblem {
    /// A problem that keeps the ConfigMap from coming into force.
    pub fn error(kind: ProblemKind, key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
            kind,
            severity: Severity::Error,
        }
    }

    /// A problem that the author is warned of; the ConfigMap comes into force all the same.
    pub fn warning(kind: ProblemKind, key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(kind, key, message)
        }
    }

    /// Bounded name for metrics.
    pub fn category(&self) -> &'static str {
        self.kind.as_str()
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// All problems in one line, as an Event and the status annotation say them.
pub fn join(problems: &[ConfigProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
