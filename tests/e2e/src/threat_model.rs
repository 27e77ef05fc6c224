//! Keeps `docs/security.md` and `docs/faults-of-others.md` true: every test that they name exists, end-to-end tests and
//! unit tests. And every source file that a page names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mooring_testbed::layout::repository;

const THREATS: &str = "docs/security.md";
const FAULTS: &str = "docs/faults-of-others.md";

fn read(page: &str) -> String {
    std::fs::read_to_string(repository().join(page)).unwrap()
}

/// The end-to-end tests that a page names, as code.
fn end_to_end_tests(page: &str) -> BTreeSet<String> {
    let words = page.split('`').skip(1).step_by(2);
    words.filter(|word| is_test_name(word)).map(str::to_owned).collect()
}

/// The files in a folder and in its subfolders.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_in(&path));
        } else {
            found.push(path);
        }
    }
    found
}

fn tests_in(files: &[PathBuf]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            // `fn name() {` after `#[test]`, or the first word of a line in a macro that defines tests.
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

/// The unit tests in a file, also those of another runtime or with generated values.
fn unit_tests_in(file: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut found = BTreeSet::new();
    for mark in ["#[test]", "#[tokio::test"] {
        // Other attributes of the test may follow.
        let names = text.match_indices(mark).filter_map(|(at, _)| {
            let (_, rest) = text[at..].split_once("fn ")?;
            rest.split_once('(').map(|(name, _)| name.to_owned())
        });
        found.extend(names);
    }
    found
}

/// The tests that a page names in italics, each with the file that is named before it: of `` `a.rs` (*b*, *c*) `` both
/// `b` and `c`, of file `a.rs`. Without such a file the name is of any.
fn in_italics(page: &str) -> Vec<(Option<&str>, &str)> {
    let mut found = Vec::new();
    let mut code = None;
    for (index, part) in page.split('`').enumerate() {
        if index % 2 == 1 {
            code = Some(part).filter(|word| is_source(word));
            continue;
        }
        let (listed, after) = match part.strip_prefix(" (").and_then(|part| part.split_once(')')) {
            Some((listed, after)) => (listed, after),
            None => ("", part),
        };
        for (text, file) in [(listed, code), (after, None)] {
            let words = text.split('*').filter(|word| is_test_name(word));
            found.extend(words.map(|word| (file, word)));
        }
    }
    found
}

/// Whether it is the path of a source file, from the repository's root.
fn is_source(word: &str) -> bool {
    let from_the_root = ["tests/", "provisioner/", "mounter/", "program/", "images/"]
        .iter()
        .any(|folder| word.starts_with(folder));
    let is_source = Path::new(word).extension().is_some_and(|end| end == "rs");
    from_the_root && is_source && !word.contains(char::is_whitespace)
}

/// Whether it is long enough for a test's name, which is a sentence, rather than the name of something else.
fn is_test_name(word: &str) -> bool {
    word.matches('_').count() >= 3
        && word
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit())
}

#[test]
fn every_test_that_a_page_names_exists_and_every_security_test_is_in_the_threat_model() {
    let end_to_end = files_in(&repository().join("tests/e2e/tests"));
    let there: BTreeSet<_> = tests_in(&end_to_end)
        .union(&tests_in(&files_in(&repository().join("mounter/shim/tests"))))
        .cloned()
        .collect();
    for (page, least) in [(THREATS, 20), (FAULTS, 7)] {
        let named = end_to_end_tests(&read(page));
        assert!(named.len() > least, "{page}: {named:?}");
        assert_eq!(
            named.difference(&there).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{page}"
        );
    }

    let named = end_to_end_tests(&read(THREATS));
    for file in files_in(&repository().join("tests/e2e/tests/security")) {
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
fn every_unit_test_that_a_page_names_exists_in_its_file() {
    let all: BTreeSet<_> = ["mounter", "provisioner", "images"]
        .iter()
        .flat_map(|folder| files_in(&repository().join(folder)))
        .filter(|file| file.extension().is_some_and(|end| end == "rs"))
        .flat_map(|file| unit_tests_in(&file))
        .collect();
    for page in [THREATS, FAULTS] {
        let text = read(page);
        let named = in_italics(&text);
        let with_file = named.iter().filter(|(file, _)| file.is_some()).count();
        assert!(with_file > 20, "{page}: {named:?}");
        for (file, name) in named {
            let there = match file {
                Some(file) => unit_tests_in(&repository().join(file)).contains(name),
                None => all.contains(name),
            };
            assert!(there, "{page}: {name} is not in {file:?}");
        }
    }
}

#[test]
fn every_fault_of_others_has_a_test() {
    let page = read(FAULTS);
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    // The first is the table's head.
    let rows: Vec<_> = rows.skip(1).collect();
    assert!(rows.len() >= 18, "{rows:?}");
    for row in rows {
        assert!(
            !end_to_end_tests(row).is_empty() || !in_italics(row).is_empty(),
            "{row}"
        );
    }
}

#[test]
fn names_in_italics_belong_to_the_file_before_them() {
    let page =
        "| that of `mounter/src/a.rs` (*it_is_a_b*, *it_is_a_c*), `d.yaml` | beside it (*it_is_an_e*), and *f* |";
    let a = Some("mounter/src/a.rs");
    assert_eq!(
        in_italics(page),
        [(a, "it_is_a_b"), (a, "it_is_a_c"), (None, "it_is_an_e")]
    );
}

#[test]
fn every_source_file_that_a_page_names_exists() {
    let pages = files_in(&repository().join("docs"));
    let mut found = 0;
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|end| end == "md"))
    {
        let text = std::fs::read_to_string(page).unwrap();
        for word in text.split('`').skip(1).step_by(2).filter(|word| is_source(word)) {
            assert!(repository().join(word).is_file(), "{} names {word}", page.display());
            found += 1;
        }
    }
    assert!(found > 50, "only {found} paths were found");
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
