//! What was found, as a table while it goes on and as XML of `JUnit` at the end.

use std::fmt::Write as _;
use std::time::Duration;

use mooring_program::error::chain;

use super::error::KitError;
use crate::say::say;

#[derive(Debug)]
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

#[derive(Debug)]
struct Tried {
    /// An operation, or what a worker does.
    of: &'static str,
    what: String,
    verdict: Verdict,
    took: Duration,
}

/// What was found so far.
#[derive(Debug)]
pub(super) struct ConformReport {
    tried: Vec<Tried>,
}

impl ConformReport {
    /// Says what is about to be tried.
    pub(super) fn begin(image: &str, promised: &[&str]) -> Self {
        say(&format!("{image}: {}", promised.join(", ")));
        Self::new()
    }

    pub(super) fn new() -> Self {
        Self { tried: Vec::new() }
    }

    /// Notes and tells how something ended.
    pub(super) fn tried(&mut self, of: &'static str, what: &str, result: Result<(), KitError>, took: Duration) {
        let verdict = match result {
            Ok(()) => Verdict::Passed,
            Err(error) => Verdict::Failed(chain(&error)),
        };
        self.note(of, what, verdict, took);
    }

    /// Notes and tells that something was not tried, and what it would take.
    pub(super) fn skipped(&mut self, of: &'static str, why: &str) {
        self.note(of, "not tried", Verdict::Skipped(why.to_owned()), Duration::ZERO);
    }

    /// Notes and tells that the kit was told to stop, so that nobody takes what was tried for all.
    pub(super) fn interrupted(&mut self) {
        let why = "interrupted: what is not listed was not tried".to_owned();
        self.note("kit", "tries all", Verdict::Failed(why), Duration::ZERO);
    }

    fn note(&mut self, of: &'static str, what: &str, verdict: Verdict, took: Duration) {
        let (word, why) = match &verdict {
            Verdict::Passed => ("ok", String::new()),
            Verdict::Failed(why) => ("FAILED", format!(": {why}")),
            Verdict::Skipped(why) => ("skipped", format!(": {why}")),
        };
        say(&format!("{word:8}{of:16}{what} ({:.1} s){why}", took.as_secs_f64()));
        self.tried.push(Tried {
            of,
            what: what.to_owned(),
            verdict,
            took,
        });
    }

    fn count(&self, wanted: impl Fn(&Verdict) -> bool) -> usize {
        self.tried.iter().filter(|tried| wanted(&tried.verdict)).count()
    }

    fn failed(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Failed(_)))
    }

    fn skipped_count(&self) -> usize {
        self.count(|verdict| matches!(verdict, Verdict::Skipped(_)))
    }

    /// Whether nothing failed.
    pub(super) fn passed(&self) -> bool {
        self.failed() == 0
    }

    pub(super) fn end(&self) {
        let passed = self.count(|verdict| matches!(verdict, Verdict::Passed));
        say(&format!(
            "{passed} passed, {} failed, {} skipped",
            self.failed(),
            self.skipped_count()
        ));
    }

    /// As XML of `JUnit` (the form that `https://github.com/testmoapp/junitxml` describes).
    pub(super) fn junit(&self) -> String {
        let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let _ = writeln!(
            text,
            "<testsuite name=\"mooring conform\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">",
            self.tried.len(),
            self.failed(),
            self.skipped_count()
        );
        for tried in &self.tried {
            let _ = write!(
                text,
                "  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"",
                tried.of,
                escaped(&tried.what),
                tried.took.as_secs_f64()
            );
            let _ = match &tried.verdict {
                Verdict::Passed => writeln!(text, "/>"),
                Verdict::Failed(why) => {
                    writeln!(text, "><failure message=\"{}\"/></testcase>", escaped(why))
                }
                Verdict::Skipped(why) => {
                    writeln!(text, "><skipped message=\"{}\"/></testcase>", escaped(why))
                }
            };
        }
        text.push_str("</testsuite>\n");
        text
    }
}

/// For an attribute of XML, which can't have control characters at all.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ConformReport;
    use crate::conform::error::KitError;

    #[test]
    fn what_failed_counts_and_is_in_the_xml_whatever_the_image_said() {
        let mut report = ConformReport::new();
        report.tried("provision", "makes", Ok(()), Duration::ZERO);
        assert!(report.passed());
        let said = KitError::Image("\"a\" < b & c\u{7}\nd".to_owned());
        report.tried("delete", "removes", Err(said), Duration::ZERO);
        report.skipped("clone", "why");
        assert!(!report.passed());
        let xml = report.junit();
        assert!(xml.contains("tests=\"3\" failures=\"1\" skipped=\"1\""), "{xml}");
        assert!(xml.contains("message=\"&quot;a&quot; &lt; b &amp; c  d\""), "{xml}");
    }
}
