//! The commit that is released.

use anyhow::{Context, Result, ensure};

use crate::command::{command, output};
use crate::layout::repository;

/// ISO 8601 in UTC.
const FORMAT: &str = "--date=format-local:%Y-%m-%dT%H:%M:%SZ";

/// How many changed files an error names.
const NAMED: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Commit {
    /// Its hash; it ends with `-dirty` if the work tree has changes besides.
    pub(super) revision: String,
    /// Its date, in seconds since 1970.
    pub(super) time: i64,
    /// The same as text.
    pub(super) date: String,
}

impl Commit {
    /// The commit of the work tree, which has no changes or may have them.
    pub(super) fn of_work_tree(may_be_dirty: bool) -> Result<Self> {
        let changes = git(&["status", "--porcelain"])?;
        ensure!(
            may_be_dirty || changes.is_empty(),
            "the work tree has changes that no commit has:\n{}\nCommit or remove them, so that others can make the same \
             release; --allow-dirty makes one even so",
            changes.lines().take(NAMED).collect::<Vec<_>>().join("\n")
        );
        let said = git(&["log", "-1", FORMAT, "--format=%H %ct %cd"])?;
        let commit = Self::parse(&said).with_context(|| format!("git log printed {said:?}"))?;
        Ok(if changes.is_empty() { commit } else { commit.dirty() })
    }

    fn parse(said: &str) -> Option<Self> {
        let mut words = said.split_whitespace().map(str::to_owned);
        Some(Self {
            revision: words.next()?,
            time: words.next()?.parse().ok()?,
            date: words.next()?,
        })
    }

    fn dirty(mut self) -> Self {
        self.revision.push_str("-dirty");
        self
    }
}

fn git(arguments: &[&str]) -> Result<String> {
    let mut git = command("git", arguments);
    Ok(output(git.current_dir(repository()).env("TZ", "UTC"))?)
}

#[cfg(test)]
mod tests {
    use super::Commit;

    #[test]
    fn a_commit_is_read_from_what_git_prints() {
        let commit = Commit::parse("4f1c09ab 1764481141 2025-11-30T05:39:01Z\n").unwrap();
        assert_eq!(commit.revision, "4f1c09ab");
        assert_eq!(commit.time, 1_764_481_141);
        assert_eq!(commit.date, "2025-11-30T05:39:01Z");
        assert_eq!(commit.dirty().revision, "4f1c09ab-dirty");
        assert_eq!(Commit::parse("4f1c09ab soon"), None);
    }
}
