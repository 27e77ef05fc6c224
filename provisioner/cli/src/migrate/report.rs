//! What has become of each volume, as a line when it changes and a sum at the end.

use std::collections::BTreeMap;

use super::cluster::MoveTarget;
use super::plan::Standing;
use crate::say::say;

/// What has become of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveResult {
    Moved,
    /// Its move was taken back.
    Back,
    /// It would be moved.
    Would,
    /// Its move has begun, and would be taken up or back.
    Begun,
    /// Nothing was done.
    Stood(Standing),
    /// Its move is held up by Pods that end, and there is no PersistentVolume meanwhile.
    Held,
    Failed(String),
}

impl MoveResult {
    fn word(&self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Back => "back",
            Self::Would => "would move",
            Self::Begun => "begun",
            Self::Stood(Standing::There) => "there",
            Self::Stood(Standing::Idle | Standing::Gone) => "nothing",
            Self::Stood(Standing::Stays(_)) => "stays",
            Self::Stood(Standing::Waits(_)) => "waits",
            Self::Held => "moving",
            Self::Failed(_) => "FAILED",
        }
    }

    fn why(&self) -> String {
        match self {
            Self::Stood(Standing::Stays(why)) => why.to_string(),
            Self::Stood(Standing::Waits(why)) | Self::Failed(why) => why.clone(),
            Self::Held => "as soon as its last Pod has ended".to_owned(),
            Self::Begun => "by an earlier run, and not finished: run this again, or undo it with --back".to_owned(),
            Self::Moved | Self::Back | Self::Would | Self::Stood(Standing::There | Standing::Idle | Standing::Gone) => {
                String::new()
            }
        }
    }

    /// Whether something is still to be done.
    pub(super) fn is_left(&self) -> bool {
        match self {
            Self::Would | Self::Begun | Self::Held | Self::Failed(_) | Self::Stood(Standing::Waits(_)) => true,
            Self::Moved
            | Self::Back
            | Self::Stood(Standing::There | Standing::Idle | Standing::Gone | Standing::Stays(_)) => false,
        }
    }

    /// Whether people want to read of it.
    fn is_reported(&self) -> bool {
        !matches!(self, Self::Stood(Standing::There | Standing::Idle | Standing::Gone))
    }
}

/// What is known so far.
#[derive(Debug, Default)]
pub(super) struct MoveReport {
    results: BTreeMap<MoveTarget, MoveResult>,
    /// Width of the first column.
    width: usize,
    has_header: bool,
}

impl MoveReport {
    /// Makes room for these in the table.
    pub(super) fn expect<'a>(&mut self, targets: impl Iterator<Item = &'a MoveTarget>) {
        let widths = targets.map(|target| key(target).chars().count());
        self.width = widths.max().unwrap_or_default().max(self.width).max(CLAIM.len());
    }

    /// Notes what has become of a volume, and tells it if that is new.
    pub(super) fn note(&mut self, target: &MoveTarget, result: MoveResult) {
        // How a volume came to its driver says more than that it has it.
        let known = matches!(self.results.get(target), Some(MoveResult::Moved | MoveResult::Back));
        if (known && !result.is_reported()) || self.results.get(target) == Some(&result) {
            return;
        }
        if result.is_reported() {
            if !std::mem::replace(&mut self.has_header, true) {
                self.line(CLAIM, "STATE", "WHY");
            }
            self.line(&key(target), result.word(), &result.why());
        }
        self.results.insert(target.clone(), result);
    }

    /// Notes what has become of a volume of which nothing is known yet.
    pub(super) fn note_first(&mut self, target: &MoveTarget, result: MoveResult) {
        if !self.results.contains_key(target) {
            self.note(target, result);
        }
    }

    fn line(&self, claim: &str, word: &str, why: &str) {
        let width = self.width;
        say(format!("{claim:width$}  {word:10}  {why}").trim_end());
    }

    /// Volumes that something is still to be done about.
    pub(super) fn left(&self) -> impl Iterator<Item = &MoveTarget> {
        self.results
            .iter()
            .filter(|(_, result)| result.is_left())
            .map(|(target, _)| target)
    }

    pub(super) fn end(&self) {
        let words = [
            "moved",
            "back",
            "would move",
            "begun",
            "there",
            "waits",
            "moving",
            "stays",
            "FAILED",
        ];
        let count = |word: &str| self.results.values().filter(|result| result.word() == word).count();
        let sums: Vec<_> = words
            .into_iter()
            .map(|word| (word, count(word)))
            .filter(|(_, count)| *count > 0)
            .map(|(word, count)| format!("{count} {}", if word == "there" { "there already" } else { word }))
            .collect();
        say(&if sums.is_empty() {
            "no volumes to move".to_owned()
        } else {
            sums.join(", ")
        });
    }
}

const CLAIM: &str = "CLAIM";

fn key(target: &MoveTarget) -> String {
    format!("{}/{}", target.claim.namespace, target.claim.name)
}

#[cfg(test)]
mod tests {
    use super::{MoveReport, MoveResult};
    use crate::migrate::cluster::MoveTarget;
    use crate::migrate::plan::Standing;
    use crate::migrate::record::ClaimKey;
    use crate::migrate::source::Unmovable;

    #[test]
    fn what_waits_is_left_and_what_stays_is_not() {
        let target = |name: &str| MoveTarget {
            claim: ClaimKey {
                namespace: "a".into(),
                name: name.into(),
                uid: name.into(),
            },
            volume: name.into(),
        };
        let mut report = MoveReport::default();
        report.note(&target("raw"), MoveResult::Stood(Standing::Stays(Unmovable::Raw)));
        report.note(
            &target("web"),
            MoveResult::Stood(Standing::Waits("used by Pod web".into())),
        );
        assert_eq!(report.left().count(), 1);
        report.note(&target("web"), MoveResult::Moved);
        report.note(&target("web"), MoveResult::Stood(Standing::There));
        assert_eq!(report.left().count(), 0);
        assert_eq!(report.results[&target("web")], MoveResult::Moved);
    }
}
