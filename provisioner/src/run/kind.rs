//! The operations that this controller has the image run.

use mooring_contract::operation::Operation;
use serde::{Deserialize, Serialize};

/// One of the operations that this controller has the image run: the contract has more. Every `match` on it names all of
/// them, so that another one is a compile error wherever something has to be decided about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Make the volume.
    Provision,
    /// Remove the volume.
    Delete,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Provision, Self::Delete];

    /// The operation's name as the image sees it.
    pub fn as_str(self) -> &'static str {
        Operation::from(self).as_str()
    }

    /// The kind that a Pod's label names, if it is one.
    pub fn of_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == label)
    }
}

impl From<Kind> for Operation {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Provision => Self::Provision,
            Kind::Delete => Self::Delete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn every_kind_is_told_by_its_label_and_by_what_a_record_says() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_label(kind.as_str()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        assert_eq!(Kind::of_label("expand"), None);
    }
}
