//! What has become of each volume, as a line when it changes and a sum at the end.

use std::collections::BTreeMap;

use super::cluster::MoveTarget;
use super::plan::Standing;
use crate::process::say::say;

/// What has become of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
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
    /// Something went wrong.
    Failed(String),
}

impl Fate {
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
    fates: BTreeMap<MoveTarget, Fate>,
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
    pub(super) fn note(&mut self, target: &MoveTarget, fate: Fate) {
        // How a volume came to its driver says more than that it has it.
        let known = matches!(self.fates.get(target), Some(Fate::Moved | Fate::Back));
        if (known && !fate.is_reported()) || self.fates.get(target) == Some(&fate) {
            return;
        }
        if fate.is_reported() {
            if !std::mem::replace(&mut self.has_header, true) {
                self.line(CLAIM, "STATE", "WHY");
            }
            self.line(&key(target), fate.word(), &fate.why());
        }
        self.fates.insert(target.clone(), fate);
    }

    /// Notes what has become of a volume of which nothing is known yet.
    pub(super) fn note_first(&mut self, target: &MoveTarget, fate: Fate) {
        if !self.fates.contains_key(target) {
            self.note(target, fate);
        }
    }

    fn line(&self, claim: &str, word: &str, why: &str) {
        let width = self.width;
        say(format!("{claim:width$}  {word:10}  {why}").trim_end());
    }

    /// Volumes that something is still to be done about.
    pub(super) fn left(&self) -> impl Iterator<Item = &MoveTarget> {
        self.fates
            .iter()
            .filter(|(_, fate)| fate.is_left())
            .map(|(target, _)| target)
    }

    /// Tells the sums.
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
        let count = |word: &str| self.fates.values().filter(|fate| fate.word() == word).count();
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
    use super::{Fate, MoveReport};
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
        report.note(&target("raw"), Fate::Stood(Standing::Stays(Unmovable::Raw)));
        report.note(&target("web"), Fate::Stood(Standing::Waits("used by Pod web".into())));
        assert_eq!(report.left().count(), 1);
        report.note(&target("web"), Fate::Moved);
        report.note(&target("web"), Fate::Stood(Standing::There));
        assert_eq!(report.left().count(), 0);
        assert_eq!(report.fates[&target("web")], Fate::Moved);
    }
}
