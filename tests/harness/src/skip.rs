//! A test that is not run says so, and why: the summary must not count it as one that passed.

use mooring_testbed::progress::note;

/// How the line begins by which the runner counts.
pub const SKIPPED_MARK: &str = "testbed-skipped: ";

/// Says that the test of this thread is skipped, in one line of standard error. Call it before the test makes anything, and return.
pub fn skip(reason: &str) {
    note(line(&test_name(), reason));
}

fn line(test: &str, reason: &str) -> String {
    // The runner counts lines.
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{SKIPPED_MARK}{test}: {reason}")
}

/// The test that this thread runs, `module::function`: libtest calls its thread so.
pub(super) fn test_name() -> String {
    std::thread::current().name().unwrap_or("no test").to_owned()
}

#[cfg(test)]
mod tests {
    use super::{line, test_name};

    #[test]
    fn a_skipped_test_is_one_line() {
        assert!(test_name().ends_with("skip::tests::a_skipped_test_is_one_line"));
        assert_eq!(
            line("local::grows", "no\n  nodes"),
            "testbed-skipped: local::grows: no nodes"
        );
    }
}
