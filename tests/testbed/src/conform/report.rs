//! What Kubernetes' suite found: the JSON report of Ginkgo (`types.Report` of `github.com/onsi/ginkgo/v2`).

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::progress::say;

/// The specs that were selected, and how they ended.
#[derive(Debug)]
pub struct Report {
    specs: Vec<Spec>,
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "SpecReports")]
    specs: Option<Vec<Spec>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_text: String,
    state: String,
    /// Nanoseconds; only of what ran.
    #[serde(default)]
    run_time: u64,
    failure: Option<Failure>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Failure {
    message: String,
}

impl Spec {
    fn name(&self) -> String {
        let groups = self.container_hierarchy_texts.iter().flatten().map(String::as_str);
        groups
            .chain([self.leaf_node_text.as_str()])
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The first line of why it was skipped or has failed.
    fn reason(&self) -> &str {
        let message = self.failure.as_ref().map_or("", |failure| failure.message.as_str());
        message.lines().next().unwrap_or_default()
    }

    fn is_skipped(&self) -> bool {
        ["skipped", "pending"].contains(&self.state.as_str())
    }

    fn has_passed(&self) -> bool {
        self.state == "passed"
    }
}

impl Report {
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no report of Ginkgo", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let parts: Vec<Part> = serde_json::from_str(text)?;
        let specs = parts.into_iter().filter_map(|part| part.specs).flatten();
        // What surrounds the specs has no name. It counts if it failed.
        let counted = specs.filter(|spec| !spec.leaf_node_text.is_empty() || !spec.has_passed() && !spec.is_skipped());
        // Ginkgo lists every spec of the program; those that were not selected have run for no time.
        let selected = counted.filter(|spec| !spec.is_skipped() || spec.run_time > 0);
        Ok(Self {
            specs: selected.collect(),
        })
    }

    /// How many specs passed or failed.
    pub fn ran(&self) -> usize {
        self.specs.iter().filter(|spec| !spec.is_skipped()).count()
    }

    /// Whether all that ran passed.
    pub fn passed(&self) -> bool {
        self.specs.iter().all(|spec| spec.has_passed() || spec.is_skipped())
    }

    /// The specs that failed, each with its reason.
    pub fn failed(&self) -> Vec<String> {
        let failed = self
            .specs
            .iter()
            .filter(|spec| !spec.is_skipped() && !spec.has_passed());
        failed
            .map(|spec| format!("({}) {}: {}", spec.state, spec.name(), spec.reason()))
            .collect()
    }

    /// Tells what was found: each spec that was skipped or failed with the reason, and the counts in the last line.
    pub fn print(&self) {
        for spec in self.specs.iter().filter(|spec| spec.is_skipped()) {
            say(format!("skipped {}: {}", spec.name(), spec.reason()));
        }
        let failed = self.failed();
        for spec in &failed {
            say(format!("FAILED {spec}"));
        }
        let passed = self.ran() - failed.len();
        let skipped = self.specs.len() - self.ran();
        say(format!("{passed} passed, {} failed, {skipped} skipped", failed.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

    fn report(specs: &str) -> Report {
        Report::parse(&format!(r#"[{{"SpecReports": [{specs}]}}, {{"SpecReports": null}}]"#)).unwrap()
    }

    fn spec(name: &str, state: &str, nanoseconds: u64) -> String {
        format!(
            r#"{{"ContainerHierarchyTexts": ["External"], "LeafNodeText": "{name}", "State": "{state}",
                 "RunTime": {nanoseconds}, "Failure": {{"Message": "since\nit"}}}}"#
        )
    }

    #[test]
    fn what_was_not_selected_does_not_count() {
        let seen = report(&[spec("a", "passed", 5), spec("b", "skipped", 0), spec("c", "skipped", 7)].join(","));
        assert_eq!((seen.specs.len(), seen.ran(), seen.passed()), (2, 1, true));
        assert_eq!(seen.specs[0].name(), "External a");
    }

    #[test]
    fn whatever_did_not_pass_has_failed() {
        for state in ["failed", "panicked", "interrupted", "timedout", "aborted", "unheard of"] {
            assert!(!report(&spec("a", state, 5)).passed(), "{state}");
        }
        // The suite's own set-up.
        assert!(!report(&spec("", "failed", 5)).passed());
        assert_eq!(report(&spec("", "passed", 5)).ran(), 0);
    }
}
