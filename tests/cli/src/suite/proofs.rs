//! Which tests prove each guarantee, and whether they did in this run.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use mooring_e2e::Tier;
use mooring_e2e::guarantees::{Guarantee, Proof, guarantees};

use super::libtest::{End, Ended};

/// The guarantees and their proofs as text, and the ids of those that were not proved: no proof passed, or one failed.
pub(super) fn report(root: &Path, ended: &[Ended]) -> Result<(String, Vec<String>)> {
    Ok(written(&guarantees(root)?, ended))
}

fn written(all: &[Guarantee], ended: &[Ended]) -> (String, Vec<String>) {
    let (mut text, mut unproved) = (String::new(), Vec::new());
    for Guarantee { id, title, proofs } in all {
        let ends: Vec<_> = proofs.iter().map(|proof| end(proof, ended)).collect();
        let is_proved = ends.contains(&Some(End::Passed)) && !ends.contains(&Some(End::Failed));
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
    fn a_guarantee_is_proved_if_a_test_of_it_passed_and_none_failed() {
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
            let (text, unproved) = written(&all, &ends);
            assert_eq!(unproved.is_empty(), is_proved, "{text}");
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(written(&guarantee(&[]), &[]).1, ["M1"]);
    }
}
