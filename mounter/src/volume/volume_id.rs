//! The id of a Pod's volume, by which its FUSE mounts are known wherever they are.

use sha2::{Digest as _, Sha256};

use crate::volume::mount_table::MountEntry;
use crate::volume::target::Target;

const PREFIX: &str = "mooring:";

/// Names a volume in one Pod, and is the source of its FUSE mounts: `mooring:` and 32 hexadecimal digits. Mounter and
/// agent make it of the target, so it is the same after a restart of either.
///
/// It is no secret. Only where the node's root alone can mount does it prove anything: in a user namespace of its own a
/// process can give a mount any source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeId(String);

impl VolumeId {
    /// Of the volume on a target, whose path has the Pod's uid and the volume's name.
    pub fn of(target: &Target) -> Self {
        let mut half = [0; 16];
        half.copy_from_slice(&Sha256::digest(target.to_string())[..16]);
        Self(format!("{PREFIX}{:032x}", u128::from_be_bytes(half)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a mount shows it.
    pub fn is_of(&self, entry: &MountEntry) -> bool {
        entry.source == self.0
    }

    /// Whether a mount shows the id of another volume.
    pub fn is_not_of(&self, entry: &MountEntry) -> bool {
        entry.source.starts_with(PREFIX) && !self.is_of(entry)
    }
}

/// The source of a mount, for people, to whom an id says nothing.
pub fn source_in_words(entry: &MountEntry) -> &str {
    if entry.source.starts_with(PREFIX) {
        "a volume of Mooring's"
    } else {
        &entry.source
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{VolumeId, source_in_words};
    use crate::sys::fake::target;
    use crate::volume::mount_table::Table;
    use crate::volume::target::Target;

    #[test]
    fn an_id_is_of_one_volume_of_one_pod_and_can_be_a_mount_option() {
        let of = |path: &str| {
            let target = Target::parse(Path::new("/k"), &format!("/k/pods/{path}")).unwrap();
            VolumeId::of(&target)
        };
        let one = of("u/volumes/mooring.dev~vcs/v");
        assert_eq!(one, of("u/volumes/mooring.dev~vcs/v"));
        for other in [
            "u/volumes/mooring.dev~vcs/w",
            "x/volumes/mooring.dev~vcs/v",
            "u/volumes/kubernetes.io~csi/v/mount",
        ] {
            assert_ne!(one, of(other), "{other}");
        }
        let digits = one.as_str().strip_prefix("mooring:").unwrap();
        assert!(digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    #[test]
    fn people_are_not_told_an_id() {
        let id = VolumeId::of(&target());
        let table = format!(
            "1 0 0:1 / /a rw - fuse {} rw\n2 0 0:2 / /b rw - fuse tom@h:/x rw\n",
            id.as_str()
        );
        let table = Table::parse(table.as_bytes());
        let words: Vec<_> = table.0.iter().map(source_in_words).collect();
        assert_eq!(words, ["a volume of Mooring's", "tom@h:/x"]);
        assert!(id.is_of(&table.0[0]) && !id.is_of(&table.0[1]));
    }
}
