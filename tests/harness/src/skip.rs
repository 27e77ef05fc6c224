//! A skipped test says so, and why: the summary must not count it as passed.

use mooring_testbed::progress::note;

/// The beginning of the line that the runner counts.
pub const SKIPPED_MARK: &str = "testbed-skipped: ";

/// Reports that the test of this thread is skipped, in one line of standard error. Call it before the test creates
/// anything, and return.
pub fn skip(reason: &str) {
    note(line(&test_name(), reason));
}

/// Environment variable: set in a run of the suite with `--all`.
const ALL_VARIABLE: &str = "MOORING_TESTBED_ALL";

/// Whether long forms of tests are to run: whole matrices, and repetition.
pub fn is_whole_suite() -> bool {
    std::env::var_os(ALL_VARIABLE).is_some()
}

/// Whether this test is skipped, since it runs with `--all` only. It says so.
pub fn skipped_without_all() -> bool {
    let skipped = !is_whole_suite();
    if skipped {
        skip("it takes minutes: --all runs it");
    }
    skipped
}

fn line(test: &str, reason: &str) -> String {
    // The runner counts lines.
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{SKIPPED_MARK}{test}: {reason}")
}

/// The test that this thread runs, as `module::function`: libtest names its threads so.
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
