//! What a cluster holds at one moment, and what it holds in addition at a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A kind of thing that can be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    LoopDevice,
    /// In a node's own mount namespace.
    Mount,
    /// In the mount namespace of a mounter or of a client container.
    ContainerMount,
    Network,
    ControlGroup,
    Process,
    /// In the API server.
    Object,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::LoopDevice => "loop device over",
            Self::Mount => "mount at",
            Self::ContainerMount => "mount in a container at",
            Self::Network => "network namespace",
            Self::ControlGroup => "control group",
            Self::Process => "process",
            Self::Object => "object",
        })
    }
}

/// Something that a cluster holds. Its name contains nothing that differs between two runs of the same thing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Thing {
    kind: Kind,
    place: String,
    name: String,
}

/// The places that were looked at, and what was there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Picture {
    /// What was looked at.
    places: BTreeSet<(Kind, String)>,
    /// How many there are of each.
    things: BTreeMap<Thing, usize>,
}

impl Picture {
    /// Notes that a place was looked at, even if nothing is there: only places that both pictures looked at are
    /// compared.
    pub(super) fn look_at(&mut self, kind: Kind, place: &str) {
        self.places.insert((kind, place.to_owned()));
    }

    /// Adds something in a place, which counts as looked at then.
    pub(super) fn add(&mut self, kind: Kind, place: &str, name: impl Into<String>) {
        self.look_at(kind, place);
        let thing = Thing {
            kind,
            place: place.to_owned(),
            name: name.into(),
        };
        *self.things.entry(thing).or_default() += 1;
    }

    /// What this picture has in addition to an earlier one.
    pub(super) fn more_than(&self, before: &Self) -> Vec<String> {
        let was = |thing: &Thing| before.things.get(thing).copied().unwrap_or_default();
        let compared = |thing: &Thing| before.places.contains(&(thing.kind, thing.place.clone()));
        self.things
            .iter()
            .filter(|(thing, count)| compared(thing) && **count > was(thing))
            .map(|(Thing { kind, place, name }, count)| {
                match was(&Thing {
                    kind: *kind,
                    place: place.clone(),
                    name: name.clone(),
                }) {
                    0 if *count == 1 => format!("{place}: {kind} {name}"),
                    before => format!("{place}: {kind} {name} ({count} of them, {before} before)"),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, Picture};

    fn picture(things: &[(Kind, &str, &str)]) -> Picture {
        let mut picture = Picture::default();
        for (kind, place, name) in things {
            picture.add(*kind, place, *name);
        }
        picture
    }

    #[test]
    fn only_an_increase_is_a_leak() {
        let mut before = picture(&[
            (Kind::Mount, "node-1", "/a"),
            (Kind::Mount, "node-1", "/b"),
            (Kind::Process, "node-1", "kubelet"),
        ]);
        assert!(before.more_than(&before).is_empty());
        let fewer = picture(&[(Kind::Mount, "node-1", "/a")]);
        assert!(fewer.more_than(&before).is_empty());
        let after = picture(&[
            (Kind::Mount, "node-1", "/b"),
            (Kind::Mount, "node-1", "/b"),
            (Kind::Mount, "node-1", "/c"),
            (Kind::LoopDevice, "the machine", "/pool/x (deleted)"),
        ]);
        let mounts = ["node-1: mount at /b (2 of them, 1 before)", "node-1: mount at /c"];
        assert_eq!(after.more_than(&before), mounts);
        // Nothing was there, but the place was looked at.
        before.look_at(Kind::LoopDevice, "the machine");
        let device = "the machine: loop device over /pool/x (deleted)";
        assert_eq!(after.more_than(&before)[0], device);
        assert_eq!(after.more_than(&before).len(), 3);
    }

    #[test]
    fn a_place_that_was_not_there_before_is_not_compared() {
        let before = picture(&[(Kind::ContainerMount, "node-1 mounter", "/dev")]);
        let after = picture(&[
            (Kind::ContainerMount, "node-1 mounter", "/dev"),
            (Kind::ContainerMount, "node-2 mounter", "/dev"),
            (Kind::Mount, "node-1", "/dev"),
        ]);
        assert!(after.more_than(&before).is_empty());
    }
}
