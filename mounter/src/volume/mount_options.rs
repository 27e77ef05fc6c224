//! Mount options: which are flags of the mount, and which are the file system's own.

use mooring_contract::volume::{ForbiddenOption, check_mount_options};
use rustix::mount::MountAttrFlags;

use crate::volume::mount_table::MountEntry;
use crate::volume::selinux_label::SelinuxLabel;

/// Flags of a mount that the mount table shows, by the names that they have there.
const SHOWN: [(&str, MountAttrFlags); 7] = [
    ("ro", MountAttrFlags::MOUNT_ATTR_RDONLY),
    ("nosuid", MountAttrFlags::MOUNT_ATTR_NOSUID),
    ("nodev", MountAttrFlags::MOUNT_ATTR_NODEV),
    ("noexec", MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ("noatime", MountAttrFlags::MOUNT_ATTR_NOATIME),
    ("nodiratime", MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ("nosymfollow", MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
];

/// Types of file systems whose superblock says what an error does.
const EXT: [&str; 3] = ["ext2", "ext3", "ext4"];

/// The option that decides what an error of such a file system does, and the only value that it may have: others let
/// the node panic, or go on writing.
const ERRORS: (&str, &str) = ("errors", "remount-ro");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountFlags(MountAttrFlags);

/// Flags as the mount table shows them, such as `rw,nosuid,nodev`.
impl std::fmt::Display for MountFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = SHOWN.iter().filter(|(_, flag)| self.0.contains(*flag));
        let access = (!self.is_read_only()).then_some("rw");
        let words: Vec<_> = access.into_iter().chain(words.map(|(word, _)| *word)).collect();
        f.write_str(&words.join(","))
    }
}

impl MountFlags {
    /// `nosuid,nodev`.
    pub fn safe() -> Self {
        Self(MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV)
    }

    /// Those of a mount that shows one device.
    pub fn device() -> Self {
        Self(MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC)
    }

    /// Those of a mount, as far as the mount table shows them.
    pub fn of(entry: &MountEntry) -> Self {
        let is_set = |word: &str| entry.flags.iter().any(|flag| flag == word);
        let set = SHOWN.into_iter().filter(|(word, _)| is_set(word));
        Self(set.fold(MountAttrFlags::empty(), |all, (_, flag)| all | flag))
    }

    /// These, as far as the mount table shows them.
    #[must_use]
    pub fn shown(self) -> Self {
        let all = SHOWN
            .into_iter()
            .fold(MountAttrFlags::empty(), |all, (_, flag)| all | flag);
        Self(self.0 & all)
    }

    /// Whether all of these are set in `other` too.
    pub fn are_all_in(self, other: Self) -> bool {
        other.0.contains(self.0)
    }

    /// Whether nothing can be written.
    pub fn is_read_only(self) -> bool {
        self.0.contains(MountAttrFlags::MOUNT_ATTR_RDONLY)
    }

    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        if read_only {
            self.0 |= MountAttrFlags::MOUNT_ATTR_RDONLY;
        }
        self
    }

    /// As the system calls take them.
    pub fn attributes(self) -> MountAttrFlags {
        self.0
    }
}

/// Mount options, sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    pub flags: MountFlags,
    /// Options of the file system, with their values.
    pub file_system: Vec<(String, Option<String>)>,
}

impl MountOptions {
    /// These, with what is safe for a type of file system: an error makes an ext4 read-only, whatever its superblock or
    /// the volume says.
    #[must_use]
    pub fn safe_for(mut self, fs_type: &str) -> Self {
        if EXT.contains(&fs_type) {
            self.file_system.retain(|(key, _)| key != ERRORS.0);
            self.file_system.push((ERRORS.0.to_owned(), Some(ERRORS.1.to_owned())));
        }
        self
    }

    /// These, with a label for all files.
    #[must_use]
    pub fn labelled(mut self, label: Option<&SelinuxLabel>) -> Self {
        self.file_system.extend(label.map(SelinuxLabel::option));
        self
    }
}

/// Options of `/etc/fstab` that mean nothing here.
const IGNORED: &[&str] = &[
    "defaults", "_netdev", "nofail", "auto", "noauto", "nouser", "nousers", "rw", "suid", "dev", "exec",
];

/// Sorts mount options. `nosuid` and `nodev` are set unless the options have `suid` or `dev`.
pub fn sort(options: &[String], read_only: bool) -> Result<MountOptions, ForbiddenOption> {
    check_mount_options(options)?;
    let has = |word: &str| options.iter().any(|option| option == word);
    let mut flags = MountAttrFlags::empty();
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, read_only);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !has("suid"));
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, !has("dev"));
    let mut file_system = Vec::new();
    for option in options {
        match option.as_str() {
            "ro" => flags |= MountAttrFlags::MOUNT_ATTR_RDONLY,
            "nosuid" => flags |= MountAttrFlags::MOUNT_ATTR_NOSUID,
            "nodev" => flags |= MountAttrFlags::MOUNT_ATTR_NODEV,
            "noexec" => flags |= MountAttrFlags::MOUNT_ATTR_NOEXEC,
            "noatime" => flags |= MountAttrFlags::MOUNT_ATTR_NOATIME,
            "strictatime" => flags |= MountAttrFlags::MOUNT_ATTR_STRICTATIME,
            "nodiratime" => flags |= MountAttrFlags::MOUNT_ATTR_NODIRATIME,
            // The kernel's default.
            "relatime" | "atime" | "diratime" | "norelatime" | "nostrictatime" => {}
            other if IGNORED.contains(&other) => {}
            other => file_system.push(match other.split_once('=') {
                Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                None => (other.to_owned(), None),
            }),
        }
    }
    Ok(MountOptions {
        flags: MountFlags(flags),
        file_system,
    })
}

/// The options for a program that mounts a type of file system, as [`join`] and [`MountOptions::safe_for`] have them.
pub fn join_for(fs_type: &str, options: &[String], read_only: bool) -> Result<String, ForbiddenOption> {
    let mut safe = options.to_vec();
    if EXT.contains(&fs_type) {
        safe.retain(|option| option.split('=').next() != Some(ERRORS.0));
        safe.push(format!("{}={}", ERRORS.0, ERRORS.1));
    }
    join(&safe, read_only)
}

/// The options for a `mount` program: as they are, with `nosuid` and `nodev` unless the options have `suid` or `dev`.
pub fn join(options: &[String], read_only: bool) -> Result<String, ForbiddenOption> {
    check_mount_options(options)?;
    let has = |word: &str| options.iter().any(|option| option == word);
    let mut joined = options.to_vec();
    for (option, opposite) in [("nosuid", "suid"), ("nodev", "dev")] {
        if !has(option) && !has(opposite) {
            joined.push(option.to_owned());
        }
    }
    if read_only && !has("ro") {
        joined.push("ro".to_owned());
    }
    Ok(joined.join(","))
}

/// Whether a program for this type is the one of its own name. `fuse.NAME` and similar types run
/// any program with that name, and `fuse` alone runs the one that the source names.
pub fn is_plain_type(fs_type: &str) -> bool {
    !fs_type.starts_with("fuse")
        && !fs_type.is_empty()
        && !fs_type.starts_with('-')
        && fs_type
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::{MountFlags, join, join_for, sort};
    use crate::volume::mount_table::Table;
    use rustix::mount::MountAttrFlags;

    fn strings(options: &[&str]) -> Vec<String> {
        options.iter().map(|&option| option.to_owned()).collect()
    }

    /// Proves: M4
    #[test]
    fn suid_and_devices_need_to_be_asked_for() {
        assert_eq!(sort(&[], false).unwrap().flags, MountFlags::safe());
        let asked = sort(&strings(&["suid", "dev"]), true).unwrap();
        assert_eq!(asked.flags.attributes(), MountAttrFlags::MOUNT_ATTR_RDONLY);
        assert_eq!(
            join(&strings(&["suid", "vers=4.1"]), true).unwrap(),
            "suid,vers=4.1,nodev,ro"
        );
    }

    #[test]
    fn flags_and_the_file_system_s_own_options_are_told_apart() {
        let sorted = sort(
            &strings(&["defaults", "ro", "noatime", "vers=4.1", "discard", "_netdev"]),
            false,
        )
        .unwrap();
        let flags = sorted.flags.attributes();
        assert!(flags.contains(MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOATIME));
        assert_eq!(
            sorted.file_system,
            [
                ("vers".to_owned(), Some("4.1".to_owned())),
                ("discard".to_owned(), None)
            ]
        );
    }

    #[test]
    fn an_error_makes_an_ext4_read_only_whatever_its_options_say() {
        for options in [&[][..], &["errors=panic"], &["errors=continue", "errors"]] {
            let options = strings(options);
            for fs_type in ["ext2", "ext3", "ext4"] {
                let sorted = sort(&options, false).unwrap().safe_for(fs_type);
                assert_eq!(
                    sorted.file_system,
                    [("errors".to_owned(), Some("remount-ro".to_owned()))]
                );
                let joined = join_for(fs_type, &options, false).unwrap();
                assert_eq!(joined, "errors=remount-ro,nosuid,nodev");
            }
        }
        let nfs = strings(&["vers=4.1"]);
        assert_eq!(sort(&nfs, false).unwrap().safe_for("nfs4"), sort(&nfs, false).unwrap());
        assert_eq!(join_for("nfs4", &nfs, true).unwrap(), "vers=4.1,nosuid,nodev,ro");
    }

    #[test]
    fn the_flags_of_a_mount_are_read_and_shown_as_the_mount_table_has_them() {
        let table = Table::parse(
            b"30 22 0:25 / /a ro,nosuid,noexec,noatime - nfs4 h:/x rw\n31 22 0:25 / /b rw,relatime - nfs4 h:/x rw\n",
        );
        let [one, other] = [0, 1].map(|index| MountFlags::of(&table.0[index]));
        assert_eq!(
            (one.to_string(), other.to_string()),
            ("ro,nosuid,noexec,noatime".to_owned(), "rw".to_owned())
        );
        let options = strings(&["ro", "noexec", "noatime", "dev", "strictatime"]);
        let wanted = sort(&options, false).unwrap().flags;
        assert_ne!(wanted, one);
        assert_eq!(sort(&options[..4], false).unwrap().flags.shown(), one);
        assert!(other.are_all_in(one) && !one.are_all_in(other));
    }
}
