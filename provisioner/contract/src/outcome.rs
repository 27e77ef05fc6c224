//! What the exit of a provisioning container means.

/// Exit code: try again later (`EX_TEMPFAIL` of `sysexits.h`).
pub const EX_TEMPFAIL: i32 = 75;

/// Exit code: do not try again until the ConfigMap, the class or the claim changes (`EX_CONFIG` of `sysexits.h`).
pub const EX_CONFIG: i32 = 78;

/// The meaning of an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The operation is done.
    Done,
    /// Not done; try again with backoff.
    Retry,
    /// Not done, and trying again does not help until something changes.
    GiveUp,
}

impl Outcome {
    /// Reads a container's exit code.
    pub fn from_exit_code(code: i32) -> Self {
        match code {
            0 => Self::Done,
            EX_CONFIG => Self::GiveUp,
            _ => Self::Retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn only_zero_is_done_and_only_78_gives_up() {
        assert_eq!(Outcome::from_exit_code(0), Outcome::Done);
        assert_eq!(Outcome::from_exit_code(78), Outcome::GiveUp);
        for code in [-1, 1, 2, 75, 77, 79, 126, 127, 137, 143, 255] {
            assert_eq!(Outcome::from_exit_code(code), Outcome::Retry);
        }
    }
}
