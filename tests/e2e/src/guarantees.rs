//! Collects from the tests which of them prove each guarantee of `docs/ARCHITECTURE.md`.
//!
//! A guarantee is a list item `- **P1. Its title.** …` under [`SECTION`]. A test names what it proves in its doc
//! comment, above `#[test]`: `/// Proves: P1, M3`. In the call of a macro that defines tests, the line is above the
//! test's name.

use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{FILES, File, Tier};

/// The page, and its section with the guarantees.
const PAGE: &str = "docs/ARCHITECTURE.md";
const SECTION: &str = "## What must always hold";

/// Where tests are, relative to the repository.
const FOLDERS: &[&str] = &["images", "mounter", "provisioner", END_TO_END];

const MARK: &str = "/// Proves:";

/// Where the groups of end-to-end tests are, relative to the repository.
pub const END_TO_END: &str = "tests/e2e/tests";

/// What a test calls first that is for `--all` only.
const ALL_ONLY: &str = "skipped_without_all()";

/// The mark of a known failure, and the beginning of the line in the test's doc comment that explains it.
const SHOULD_PANIC: &str = "#[should_panic";
const KNOWN_FAILING: &str = "/// Known failing: ";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarantee {
    /// Such as `P1`.
    pub id: String,
    /// The first words of its text.
    pub title: String,
    /// By file and line.
    pub proofs: Vec<Proof>,
}

/// A test that fails if the guarantee is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Relative to the repository.
    pub file: PathBuf,
    pub test: String,
    /// Whether the test is skipped without `--all`.
    pub all_only: bool,
}

impl Proof {
    pub fn tier(&self) -> Tier {
        if self.all_only {
            return Tier::All;
        }
        let Ok(file) = self.file.strip_prefix(END_TO_END) else {
            return Tier::Default;
        };
        let words: Vec<_> = file
            .iter()
            .map(|word| word.to_string_lossy().replace(".rs", ""))
            .collect();
        let is_long = |listed: &File| {
            words.first().is_some_and(|group| group == listed.group)
                && words.get(1).is_some_and(|name| name == listed.name)
                && listed.tier == Tier::All
        };
        if FILES.iter().any(is_long) {
            Tier::All
        } else {
            Tier::Default
        }
    }

    /// Whether this is the test `test`, with its modules, of the package or group of tests in `folder`.
    pub fn is(&self, folder: &Path, test: &str) -> bool {
        let Ok(file) = self.file.strip_prefix(folder) else {
            return false;
        };
        let file = file.with_extension("");
        let mut modules: Vec<_> = file.iter().map(|module| module.to_string_lossy()).collect();
        match modules.first().map(AsRef::as_ref) {
            Some("src") => drop(modules.remove(0)),
            // A program of its own.
            Some("tests") => modules.clear(),
            _ => {}
        }
        if modules.last().is_some_and(|module| module == "lib" || module == "main") {
            modules.pop();
        }
        let module: String = modules.iter().flat_map(|module| [module.as_ref(), "::"]).collect();
        let within = test.strip_prefix(&module);
        within.is_some_and(|within| within.rsplit("::").next() == Some(&self.test))
    }
}

/// A proof with the ids of what it proves.
type Claim = (Vec<String>, Proof);

/// The guarantees of the repository in `root`, in the page's order. A guarantee may lack a proof.
///
/// # Errors
/// If a file can't be read, a list item has no id, a mark names an unknown guarantee, or a mark is not above a test; or
/// if a known failure is not explained.
pub fn guarantees(root: &Path) -> Result<Vec<Guarantee>> {
    let page = root.join(PAGE);
    let text = read_to_string(&page).with_context(|| format!("failed to read {}", page.display()))?;
    let mut all = stated(&text).with_context(|| format!("unable to read the guarantees in {PAGE}"))?;
    for folder in FOLDERS {
        for file in rust_files(&root.join(folder))? {
            let text = read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
            let name = file.strip_prefix(root).unwrap_or(&file);
            explained(name, &text)?;
            for claim in marks(name, &text)? {
                assign(&mut all, claim)?;
            }
        }
    }
    Ok(all)
}

/// The guarantees in the page's text, still without proofs.
fn stated(page: &str) -> Result<Vec<Guarantee>> {
    let mut all = Vec::new();
    let mut ids = BTreeSet::new();
    let section = page
        .split_once(SECTION)
        .with_context(|| format!("there is no \"{SECTION}\""))?;
    for line in section.1.lines().take_while(|line| !line.starts_with("## ")) {
        let item = line.strip_prefix("- ").or_else(|| {
            line.split_once(". ")
                .filter(|(number, _)| is_number(number))
                .map(|it| it.1)
        });
        let Some(bold) = item.and_then(|item| item.strip_prefix("**")) else {
            continue;
        };
        let (id, title) = bold
            .split_once("**")
            .and_then(|(bold, _)| bold.split_once(". "))
            .filter(|(id, _)| is_id(id))
            .with_context(|| format!("\"{line}\" has no id: write \"- **P1. Title.** …\""))?;
        ensure!(ids.insert(id), "{id} is there twice");
        all.push(Guarantee {
            id: id.to_owned(),
            title: title.trim_end_matches('.').to_owned(),
            proofs: Vec::new(),
        });
    }
    ensure!(!all.is_empty(), "there are none under \"{SECTION}\"");
    Ok(all)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A letter and a number.
fn is_id(text: &str) -> bool {
    text.strip_prefix(|first: char| first.is_ascii_uppercase())
        .is_some_and(is_number)
}

fn assign(all: &mut [Guarantee], (ids, proof): Claim) -> Result<()> {
    for id in ids {
        let guarantee = all.iter_mut().find(|guarantee| guarantee.id == id);
        let guarantee = guarantee.with_context(|| {
            let Proof { file, test, .. } = &proof;
            format!("{}: {test} proves \"{id}\", which {PAGE} does not have", file.display())
        })?;
        guarantee.proofs.push(proof.clone());
    }
    Ok(())
}

/// What the tests of a file prove.
fn marks(file: &Path, text: &str) -> Result<Vec<Claim>> {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(ids) = line.strip_prefix(MARK) else {
            let slip = line.starts_with("//") && line.trim_start_matches(['/', '!', ' ']).starts_with("Proves:");
            ensure!(!slip, "{}:{}: a mark begins with \"{MARK}\"", file.display(), index + 1);
            continue;
        };
        let proving = marked(&lines[index + 1..], text)
            .with_context(|| format!("{}:{}: \"{line}\" is not above a test", file.display(), index + 1))?;
        let ids = ids.split(',').map(|id| id.trim().to_owned()).collect();
        let proof = Proof {
            file: file.to_path_buf(),
            all_only: is_for_all_only(text, &proving),
            test: proving,
        };
        found.push((ids, proof));
    }
    Ok(found)
}

/// Checks that each known failure has the words with which it fails, and says in its doc comment what is wrong.
fn explained(file: &Path, text: &str) -> Result<()> {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    for (index, line) in lines.iter().enumerate() {
        if !line.starts_with(SHOULD_PANIC) {
            continue;
        }
        let mut above = lines[..index]
            .iter()
            .rev()
            .take_while(|line| line.starts_with("///") || line.starts_with("#["));
        ensure!(
            line.contains("expected = \"") && above.any(|line| line.starts_with(KNOWN_FAILING)),
            "{}:{}: a known failure is marked {SHOULD_PANIC}(expected = \"…\")], and its doc comment has a line \
             \"{KNOWN_FAILING}…\"",
            file.display(),
            index + 1
        );
    }
    Ok(())
}

/// The name of the test below a mark.
fn marked(after: &[&str], file: &str) -> Result<String> {
    let attributes = after
        .iter()
        .take_while(|line| line.starts_with("///") || line.starts_with("#["))
        .count();
    let is_test = |line: &&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let (attributes, rest) = after.split_at(attributes);
    if attributes.iter().any(|line| line.starts_with("#[ignore")) {
        bail!("the test is ignored, and proves nothing");
    }
    if attributes.iter().any(|line| line.starts_with(SHOULD_PANIC)) {
        bail!("the test is known to fail, and proves nothing");
    }
    let line = rest.first().context("the file ends there")?;
    let name = if attributes.iter().any(is_test) {
        let function = line.strip_prefix("async ").unwrap_or(line);
        function.strip_prefix("fn ").and_then(|rest| rest.split_once('('))
    } else {
        // A line in a macro's call. The macro is in the same file.
        line.split_once(", \"")
            .filter(|(name, _)| is_name(name) && file.contains("macro_rules!") && file.contains("fn $test()"))
    };
    name.map(|(name, _)| name.to_owned())
        .with_context(|| format!("\"{line}\" is no function with #[test] above it"))
}

/// Whether the body of a test has it skipped without `--all`.
fn is_for_all_only(file: &str, test: &str) -> bool {
    let mut lines = file.lines();
    let begin = format!("fn {test}(");
    let Some(first) = lines.find(|line| line.contains(&begin)) else {
        // A macro defines it.
        return false;
    };
    let indent = &first[..first.len() - first.trim_start().len()];
    let end = format!("{indent}}}");
    lines
        .take_while(|line| *line != end)
        .any(|line| line.contains(ALL_ONLY))
}

fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    !text.is_empty() && text.bytes().all(good)
}

/// The files below a folder, sorted.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("failed to list {}", folder.display()))?
            .path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mooring_testbed::layout::repository;

    use super::{Claim, MARK, Proof, assign, explained, guarantees, marks, stated};
    use crate::Tier;

    const PAGE: &str = "## What must always hold\n\n- **P1. No leak.** More.\n  **Bold**\n- **M12. Two words.**\n\n\
        - Not bold.\n\n## Next\n- **X. No guarantee.**\n";

    fn read(text: &str) -> Result<Vec<Claim>, String> {
        marks(Path::new("a.rs"), text).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn each_guarantee_has_a_proof_and_each_mark_a_guarantee_and_a_test() {
        let all = guarantees(repository()).unwrap_or_else(|error| panic!("{error:#}"));
        for guarantee in &all {
            let by_default = guarantee.proofs.iter().filter(|proof| proof.tier() == Tier::Default);
            assert!(
                by_default.count() > 0,
                "no test of the default tier proves {}: mark the test that does with \"{MARK} {}\", or write one",
                guarantee.id,
                guarantee.id
            );
        }
        let proofs: usize = all.iter().map(|guarantee| guarantee.proofs.len()).sum();
        assert!(proofs > 50, "{proofs}");
    }

    #[test]
    fn a_proof_is_found_among_the_tests_that_ran() {
        let proof = |file: &str| Proof {
            file: file.into(),
            test: "it_holds".to_owned(),
            all_only: false,
        };
        for (file, folder, test, is) in [
            (
                "mounter/src/volume/target.rs",
                "mounter",
                "volume::target::tests::it_holds",
                true,
            ),
            ("mounter/src/core/tests.rs", "mounter", "core::tests::it_holds", true),
            (
                "mounter/src/core/tests.rs",
                "mounter",
                "core::tests::that_it_holds",
                false,
            ),
            ("mounter/src/core/tests.rs", "mounter", "volume::tests::it_holds", false),
            (
                "mounter/src/core/tests.rs",
                "provisioner",
                "core::tests::it_holds",
                false,
            ),
            ("mounter/shim/tests/shim.rs", "mounter/shim", "it_holds", true),
            (
                "tests/e2e/tests/mount/block/device.rs",
                "tests/e2e/tests/mount",
                "block::device::it_holds",
                true,
            ),
            (
                "tests/e2e/tests/mount/local.rs",
                "tests/e2e/tests/provision",
                "local::it_holds",
                false,
            ),
        ] {
            assert_eq!(proof(file).is(Path::new(folder), test), is, "{file}, {test}");
        }
    }

    #[test]
    fn a_proof_is_in_the_tier_of_its_file_unless_it_is_skipped_without_all() {
        for (file, all_only, tier) in [
            ("mounter/src/lib.rs", false, Tier::Default),
            ("tests/e2e/tests/mount/hung.rs", false, Tier::Default),
            ("tests/e2e/tests/mount/block/device.rs", false, Tier::Default),
            ("tests/e2e/tests/mount/block/device.rs", true, Tier::All),
            ("tests/e2e/tests/vm/nfs.rs", false, Tier::All),
        ] {
            let proof = Proof {
                file: file.into(),
                test: String::new(),
                all_only,
            };
            assert_eq!(proof.tier(), tier, "{file}");
        }
    }

    #[test]
    fn a_proof_that_is_skipped_without_all_is_known_by_its_own_body() {
        let read = read(
            "/// Proves: P1\n#[test]\nfn short() {\n    if x {\n    }\n}\n\n/// Proves: P1\n#[test]\nfn long() {\n    \
             if skipped_without_all() {\n        return;\n    }\n}\n\n/// Proves: P1\n#[test]\nfn last() {}\n",
        )
        .unwrap();
        let read: Vec<_> = read.iter().map(|(_, proof)| (&*proof.test, proof.all_only)).collect();
        assert_eq!(read, [("short", false), ("long", true), ("last", false)]);
    }

    #[test]
    fn guarantees_are_read_with_id_and_title() {
        let all = stated(PAGE).unwrap();
        let read: Vec<_> = all.iter().map(|it| (&*it.id, &*it.title)).collect();
        assert_eq!(read, [("P1", "No leak"), ("M12", "Two words")]);

        for (from, to, why) in [
            ("P1. No", "No", "has no id"),
            ("- **P1. No leak.**", "1. **No leak.**", "has no id"),
            ("M12", "P1", "P1 is there twice"),
            ("## What", "## Which", "there is no \"## What"),
        ] {
            let error = stated(&PAGE.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_mark_belongs_to_the_test_below_it() {
        let read = read(
            "/// Words.\n///\n/// Proves: P1, M2\n#[test]\nfn one() {\n    /// Proves: P3\n    \
             #[tokio::test(start_paused = true)]\n    async fn two(a in any()) {\n",
        )
        .unwrap();
        let read: Vec<_> = read.iter().map(|(ids, proof)| (ids.join(" "), &*proof.test)).collect();
        assert_eq!(read, [("P1 M2".to_owned(), "one"), ("P3".to_owned(), "two")]);
    }

    #[test]
    fn a_mark_in_the_call_of_a_macro_belongs_to_the_test_that_it_defines() {
        let call = "make! {\n    /// Proves: P1\n    it_is_so, \"name\",\n}\n";
        let makes = format!("macro_rules! make {{\n fn $test() {{}}\n}}\n{call}");
        assert_eq!(read(&makes).unwrap()[0].1.test, "it_is_so");
        assert!(read(call).unwrap_err().contains("is not above a test"));
    }

    #[test]
    fn a_mark_that_is_not_above_a_test_is_an_error() {
        for text in [
            "/// Proves: P1\nfn no_test() {",
            "/// Proves: P1\n#[cfg(test)]\nmod tests {",
            "/// Proves: P1\n#[test]\n#[ignore = \"slow\"]\nfn ignored() {",
            "/// Proves: P1\n#[test]\n#[should_panic(expected = \"x\")]\nfn known_failing() {",
            "/// Proves: P1\n\n#[test]\nfn apart() {",
            "/// Proves: P1",
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.contains("a.rs:1: \"/// Proves: P1\" is not above a test"),
                "{error}"
            );
        }
        assert!(
            read("// Proves: P1\n#[test]\nfn one() {")
                .unwrap_err()
                .contains("a mark begins with")
        );
    }

    #[test]
    fn a_known_failure_says_with_which_words_it_fails_and_what_is_wrong() {
        let check = |text: &str| explained(Path::new("a.rs"), text);
        let good = "/// Known failing: it leaks.\n#[test]\n#[should_panic(expected = \"leak\")]\nfn one() {";
        check(good).unwrap();
        for (from, to) in [
            ("/// Known failing: it leaks.", "/// It leaks."),
            ("/// Known failing: it leaks.", "/// Known failing: it leaks.\n"),
            ("(expected = \"leak\")", ""),
        ] {
            let error = check(&good.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains("a known failure is marked"), "{error}");
        }
    }

    #[test]
    fn an_unknown_guarantee_is_an_error() {
        let mut all = stated(PAGE).unwrap();
        for claim in read("/// Proves: M12\n#[test]\nfn good() {").unwrap() {
            assign(&mut all, claim).unwrap();
        }
        assert_eq!(all[1].proofs[0].test, "good");
        for mark in ["P9", "P1,", "P1 M12", ""] {
            let claim = read(&format!("/// Proves: {mark}\n#[test]\nfn one() {{")).unwrap();
            let error = claim
                .into_iter()
                .try_for_each(|claim| assign(&mut all, claim))
                .unwrap_err();
            assert!(error.to_string().contains("a.rs: one proves"), "{error}");
        }
    }
}
