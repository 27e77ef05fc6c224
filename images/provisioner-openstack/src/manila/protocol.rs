//! The protocols by which shares are served and mounted here.

use crate::error::OpenstackError;
use crate::given::GivenRun;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    CephFs,
    Nfs,
    Cifs,
}

const WANTED: &str = "CEPHFS, NFS or CIFS";

impl Protocol {
    pub(super) const ALL: [Self; 3] = [Self::CephFs, Self::Nfs, Self::Cifs];

    /// As Manila calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CephFs => "CEPHFS",
            Self::Nfs => "NFS",
            Self::Cifs => "CIFS",
        }
    }

    /// Mooring's client for it.
    pub(super) fn client(self) -> &'static str {
        match self {
            Self::CephFs => "cephfs",
            Self::Nfs => "nfs",
            Self::Cifs => "smb",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(name))
    }

    /// That of the share to be made: the class's, or the only one that the ConfigMap names.
    pub(super) fn asked(given: &GivenRun) -> Result<Self, OpenstackError> {
        if given.property("share-protocol")?.is_none()
            && let [only] = Self::among(&given.property("protocols")?.unwrap_or_default())[..]
        {
            return Ok(only);
        }
        let name = given.needed("share-protocol", WANTED)?;
        Self::named(&name).ok_or(OpenstackError::Property {
            name: "share-protocol",
            value: name,
            wanted: WANTED,
        })
    }

    /// Those that a share type's extra spec names, such as `NFS_CIFS` or `<in> NFS`.
    pub(super) fn among(text: &str) -> Vec<Self> {
        let words: Vec<_> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let named = |one: &Self| words.iter().any(|word| word.eq_ignore_ascii_case(one.name()));
        Self::ALL.into_iter().filter(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Protocol;

    #[test]
    fn protocols_are_read_as_back_ends_write_them() {
        for (text, found) in [
            ("NFS_CIFS", &[Protocol::Nfs, Protocol::Cifs][..]),
            ("<in> nfs", &[Protocol::Nfs]),
            ("CEPHFS", &[Protocol::CephFs]),
            ("cephfs NFS", &[Protocol::CephFs, Protocol::Nfs]),
            ("GLUSTERFS", &[]),
        ] {
            assert_eq!(Protocol::among(text), found, "{text}");
        }
    }
}
