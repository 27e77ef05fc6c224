//! Keeps `docs/security.md` true: every test that it names is there.

use std::collections::BTreeSet;
use std::path::Path;

use crate::layout::repository;

/// Names of the tests in the files of a folder.
fn tests_in(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            // `fn name() {` after `#[test]`, or the first word of a line in a macro that makes tests.
            let line = line.trim();
            let function = (line == "#[test]").then(|| lines.next().unwrap_or_default().trim());
            let name = function
                .and_then(|line| line.strip_prefix("fn ")?.split_once('('))
                .or_else(|| line.split_once(", \"").filter(|(name, _)| is_test_name(name)));
            found.extend(name.map(|(name, _)| name.to_owned()));
        }
    }
    found
}

/// A sentence, as names of tests are, rather than a name of something else.
fn is_test_name(word: &str) -> bool {
    word.matches('_').count() >= 3
        && word
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit())
}

#[test]
fn every_test_that_the_threat_model_names_is_there_and_every_security_test_is_named() {
    let page = std::fs::read_to_string(repository().join("docs/security.md")).unwrap();
    let named: BTreeSet<_> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| is_test_name(word))
        .map(str::to_owned)
        .collect();
    assert!(named.len() > 20, "{named:?}");
    let end_to_end = tests_in(&repository().join("tests/tests"));
    let there: BTreeSet<_> = end_to_end
        .union(&tests_in(&repository().join("mounter/shim/tests")))
        .cloned()
        .collect();
    assert_eq!(named.difference(&there).collect::<Vec<_>>(), Vec::<&String>::new());

    let folder = repository().join("tests/tests");
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    for file in files.filter(|file| file.file_name().unwrap().to_string_lossy().starts_with("security_")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let tests = text
            .split("#[test]\nfn ")
            .skip(1)
            .filter_map(|rest| rest.split_once('('));
        for (name, _) in tests {
            assert!(named.contains(name), "{name} is not in docs/security.md");
        }
    }
}

#[test]
fn the_policy_refuses_the_same_file_systems_as_the_controller() {
    let policy = std::fs::read_to_string(repository().join("configmaps/install/admission.yaml")).unwrap();
    let list = policy
        .split("type.matches('^(")
        .nth(1)
        .and_then(|rest| rest.split_once(")$'"))
        .unwrap()
        .0;
    let in_policy: BTreeSet<_> = list.split('|').collect();
    assert_eq!(in_policy, mooring_contract::volume::VIEWS.iter().copied().collect());
}
