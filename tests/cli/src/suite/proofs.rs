//! Which tests prove each guarantee, and whether they did in this run.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use mooring_e2e::Tier;
use mooring_e2e::guarantees::{Guarantee, Proof, guarantees};

use super::libtest::{End, Ended};

/// The guarantees and their proofs as text, and the ids of those that were not proved: no proof passed, or one failed,
/// or one was skipped that this run, with or without `--all`, should have.
pub(super) fn report(root: &Path, ended: &[Ended], with_all: bool) -> Result<(String, Vec<String>)> {
    Ok(written(&guarantees(root)?, ended, with_all))
}

fn written(all: &[Guarantee], ended: &[Ended], with_all: bool) -> (String, Vec<String>) {
    let (mut text, mut unproved) = (String::new(), Vec::new());
    for Guarantee { id, title, proofs } in all {
        let ends: Vec<_> = proofs.iter().map(|proof| end(proof, ended)).collect();
        let lacks = |(proof, end): (&Proof, &Option<End>)| match end {
            Some(End::Failed) => true,
            Some(End::Skipped) => with_all || proof.tier() == Tier::Default,
            Some(End::Passed) | None => false,
        };
        let is_proved = ends.contains(&Some(End::Passed)) && !proofs.iter().zip(&ends).any(lacks);
        let word = if is_proved { "proved" } else { "UNPROVED" };
        let _ = writeln!(text, "{id:<4}{word}: {title}");
        if !is_proved {
            unproved.push(id.clone());
        }
        for (proof, end) in proofs.iter().zip(ends) {
            let end = match end {
                Some(End::Passed) => "passed",
                Some(End::Failed) => "FAILED",
                Some(End::Skipped) => "skipped",
                None => "not run",
            };
            let tier = match proof.tier() {
                Tier::Default => "default",
                Tier::All => "--all",
            };
            let file = proof.file.strip_prefix("tests/e2e/tests").unwrap_or(&proof.file);
            let file = file.with_extension("");
            let _ = writeln!(text, "    {end:<8}{tier:<8}{}: {}", file.display(), proof.test);
        }
    }
    if unproved.is_empty() {
        text.push_str("All guarantees were proved.");
    } else {
        let _ = write!(text, "Unproved in this run: {}", unproved.join(", "));
    }
    (text, unproved)
}

/// How a proof ended: in the worst of its rounds; none if it did not run.
fn end(proof: &Proof, ended: &[Ended]) -> Option<End> {
    let its = ended.iter().filter(|ended| proof.is(&ended.folder, &ended.test));
    its.map(|ended| ended.end).max()
}

#[cfg(test)]
mod tests {
    use mooring_e2e::guarantees::{Guarantee, Proof};

    use super::written;
    use crate::suite::libtest::{End, Ended};

    fn guarantee(tests: &[&str]) -> Vec<Guarantee> {
        let proof = |test: &&str| Proof {
            file: "mounter/src/core.rs".into(),
            test: (*test).to_owned(),
            all_only: test.starts_with("long"),
        };
        vec![Guarantee {
            id: "M1".to_owned(),
            title: "It answers".to_owned(),
            proofs: tests.iter().map(proof).collect(),
        }]
    }

    fn ended(test: &str, end: End) -> Ended {
        Ended {
            folder: "mounter".into(),
            test: format!("core::tests::{test}"),
            end,
        }
    }

    #[test]
    fn a_guarantee_is_proved_if_a_test_of_it_passed_and_none_failed_or_was_skipped() {
        let all = guarantee(&["a", "b"]);
        for (ends, is_proved, line) in [
            (
                vec![ended("a", End::Passed)],
                true,
                "not run default mounter/src/core: b",
            ),
            (
                vec![ended("a", End::Skipped)],
                false,
                "skipped default mounter/src/core: a",
            ),
            (
                vec![ended("a", End::Passed), ended("b", End::Skipped)],
                false,
                "skipped default mounter/src/core: b",
            ),
            (
                vec![ended("other", End::Passed)],
                false,
                "not run default mounter/src/core: a",
            ),
            (
                vec![
                    ended("a", End::Passed),
                    ended("b", End::Passed),
                    ended("b", End::Failed),
                ],
                false,
                "FAILED  default mounter/src/core: b",
            ),
        ] {
            let (text, unproved) = written(&all, &ends, false);
            assert_eq!(unproved.is_empty(), is_proved, "{text}");
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(written(&guarantee(&[]), &[], false).1, ["M1"]);
    }

    #[test]
    fn a_long_proof_may_be_skipped_without_all_only() {
        let all = guarantee(&["a", "long"]);
        let ends = [ended("a", End::Passed), ended("long", End::Skipped)];
        let (text, unproved) = written(&all, &ends, false);
        assert!(
            unproved.is_empty() && text.contains("skipped --all   mounter/src/core: long"),
            "{text}"
        );
        let (text, unproved) = written(&all, &ends, true);
        assert_eq!(unproved, ["M1"], "{text}");
    }
}
