//! Which options of a volume would give out the node itself instead of storage elsewhere.
//!
//! `PersistentVolumes` written by hand are an administrator's, who has `hostPath` as well. What an image, a ConfigMap
//! or a Pod says of a volume must not reach as far: see [`Volume::check`].

use super::clients::{SERIAL, record};
use super::{Volume, keys};

/// Why a volume would give out the node itself; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeAccess {
    /// The file system shows the kernel or the node.
    #[error(
        "option fs-type={0:?} is a view of the node itself and no storage: name the file system of the storage, or \
         leave it out"
    )]
    FsType(String),
    /// A mount option would take the place of `source`.
    #[error("mount option {0:?} takes the place of the volume's source: use the option \"source\"")]
    SourceOption(String),
    /// A mount option names a file of the node.
    #[error(
        "mount option {0:?} names a file of the machine that mounts: only a StorageClass of the administrator's own \
         can ask for that"
    )]
    FileOption(String),
    /// A mount option removes a protection, which only an administrator can ask for.
    #[error("mount option {0:?} removes a protection: only a StorageClass of the administrator's own can ask for that")]
    Unprotected(String),
    /// The source is a path or a device of the node.
    #[error(
        "option source={0:?} is a path or a device of the node: name storage elsewhere, or for the node's own disk use \
         client=local"
    )]
    Source(String),
    /// The source has a way out of its directory.
    #[error(
        "option source={0:?} has a part \"..\", which leads out of the directory that it begins with: write the path \
         without it"
    )]
    Dots(String),
}

/// File systems that show the kernel, the node or its directories. The list need not be complete, but
/// nothing on it is storage.
pub const VIEWS: &[&str] = &[
    "aufs",
    "autofs",
    "bdev",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "cpuset",
    "debugfs",
    "devpts",
    "devtmpfs",
    "ecryptfs",
    "efivarfs",
    "functionfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "overlay",
    "overlayfs",
    "pipefs",
    "proc",
    "pstore",
    "resctrl",
    "rootfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "sockfs",
    "sysfs",
    "tracefs",
    "unionfs",
];

/// Options that name a file or an open descriptor of the program that mounts, whatever their value looks like.
pub const FILE_OPTIONS: &[&str] = &[
    "credentials",
    "cred",
    "secretfile",
    "fd",
    "rfdno",
    "wfdno",
    "logdev",
    "rtdev",
    "journal_path",
    "journal_dev",
];

/// How `mount` names a device by what is on it.
const TAGS: &[&str] = &["LABEL", "UUID", "PARTLABEL", "PARTUUID", "ID"];

/// Checks what no volume may be, no matter who wrote it.
pub fn check_kind(fs_type: &str, mount_options: &[String]) -> Result<(), NodeAccess> {
    if VIEWS.contains(&fs_type) {
        return Err(NodeAccess::FsType(fs_type.to_owned()));
    }
    match mount_options.iter().find(|option| name_of(option) == keys::SOURCE) {
        Some(option) => Err(NodeAccess::SourceOption(option.clone())),
        None => Ok(()),
    }
}

/// Checks mount options that no administrator asked for, but for those that one did (`granted`).
pub fn check_options(options: &[String], granted: &[String]) -> Result<(), NodeAccess> {
    for option in options.iter().filter(|option| !granted.contains(option)) {
        let (name, value) = (name_of(option), option.split_once('=').map_or("", |(_, value)| value));
        if ["suid", "dev"].contains(&name) {
            return Err(NodeAccess::Unprotected(option.clone()));
        }
        let by_descriptor = name == "trans" && ["fd", "unix"].contains(&value);
        if FILE_OPTIONS.contains(&name) || value.starts_with('/') || by_descriptor {
            return Err(NodeAccess::FileOption(option.clone()));
        }
    }
    Ok(())
}

impl Volume {
    /// Whether `source` names a path, a device or a disk of the node. Two slashes are a server's name to SMB alone.
    pub fn is_of_the_node(&self) -> bool {
        let source = &self.source;
        let smb = record("smb", "");
        let is_server = source.starts_with("//") && record(self.client.as_str(), &self.fs_type) == smb;
        let tag = source.split_once('=').map_or("", |(tag, _)| tag);
        source.starts_with(['/', '.']) && !is_server
            || source
                .get(..SERIAL.len())
                .is_some_and(|kind| kind.eq_ignore_ascii_case(SERIAL))
            || TAGS.iter().any(|known| known.eq_ignore_ascii_case(tag))
    }

    /// Checks that the source is elsewhere.
    pub(super) fn check_elsewhere(&self) -> Result<(), NodeAccess> {
        let source = &self.source;
        if self.is_of_the_node() {
            return Err(NodeAccess::Source(source.clone()));
        }
        if has_dots(source) {
            return Err(NodeAccess::Dots(source.clone()));
        }
        Ok(())
    }
}

fn name_of(option: &str) -> &str {
    option.split_once('=').map_or(option, |(name, _)| name)
}

/// Whether a part of a path is `..`; the path may stand behind a server's name and a colon.
fn has_dots(source: &str) -> bool {
    source.split(['/', '\\', ':', '@']).any(|part| part == "..")
}

#[cfg(test)]
mod tests {
    use super::check_kind;

    #[test]
    fn a_view_of_the_node_is_no_storage() {
        assert!(check_kind("sysfs", &[]).is_err());
        assert!(check_kind("tmpfs", &["size=1m".to_owned()]).is_ok());
        assert!(check_kind("ext4", &["source=x".to_owned()]).is_err());
    }
}
