//! The SELinux label that a mount gives to all files of a volume, in place of labels of their own (`context`, mount(8)).

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::volume::mount_table::Table;

/// The option of a mount, and of the kernel's file systems.
const OPTION: &str = "context";

/// A label as the kubelet asks for one, where `CSIDriver` has `seLinuxMount: true` (`AddSELinuxMountOption` of
/// `pkg/volume/util/selinux.go`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SelinuxLabel(String);

/// A text that is no label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an SELinux label, such as system_u:object_r:container_file_t:s0:c1,c2")]
pub struct NoLabel(String);

impl SelinuxLabel {
    /// The label that a mount option has in quotation marks, as the kubelet writes it. None if it is another option.
    pub fn of(option: &str) -> Option<Self> {
        let quoted = option.strip_prefix(OPTION)?.strip_prefix('=')?;
        Self::read(quoted.strip_prefix('"')?.strip_suffix('"')?).ok()
    }

    /// Reads a label as such.
    pub fn read(label: &str) -> Result<Self, NoLabel> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:,-".contains(&byte);
        if label.is_empty() || !label.bytes().all(is_part) {
            return Err(NoLabel(label.to_owned()));
        }
        Ok(Self(label.to_owned()))
    }

    /// As the kernel takes it.
    pub fn option(&self) -> (String, Option<String>) {
        (OPTION.to_owned(), Some(self.0.clone()))
    }

    /// As programs of libfuse take it: the backslash keeps the comma within the option, and the quotation marks are for
    /// the kernel.
    pub fn for_fuse(&self) -> String {
        format!("{OPTION}=\"{}\"", self.0.replace(',', "\\,"))
    }

    /// As mount(8) takes it.
    pub fn for_mount(&self) -> String {
        format!("{OPTION}=\"{}\"", self.0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the file system mounted on a path gives it to all its files.
    pub fn is_borne_at(&self, path: &Path, table: &Table) -> bool {
        table.top(path).is_some_and(|mount| self.is_among(&mount.options))
    }

    /// Whether it is among the options of a file system, which the mount table separates by commas.
    fn is_among(&self, options: &[String]) -> bool {
        let line = format!(",{},", options.join(","));
        let quoted = format!(",{},", self.for_mount());
        line.contains(&quoted) || line.contains(&quoted.replace('"', ""))
    }
}

#[cfg(test)]
mod tests {
    use super::SelinuxLabel;

    #[test]
    fn the_kubelet_s_option_is_a_label_and_no_other_is() {
        let label = SelinuxLabel::of("context=\"system_u:object_r:container_file_t:s0:c1,c2\"").unwrap();
        assert_eq!(label.option().1.unwrap(), "system_u:object_r:container_file_t:s0:c1,c2");
        assert_eq!(
            label.for_fuse(),
            "context=\"system_u:object_r:container_file_t:s0:c1\\,c2\""
        );
        for other in [
            "context=system_u:object_r:container_file_t:s0",
            "context=\"\"",
            "context=\"a\",suid\"",
            "context=\"a\\\"",
            "context=\"a b\"",
            "fscontext=\"a:b:c:s0\"",
            "noatime",
        ] {
            assert_eq!(SelinuxLabel::of(other), None, "{other}");
        }
    }

    #[test]
    fn a_label_is_found_in_the_mount_table_with_its_commas() {
        let label = SelinuxLabel::of("context=\"u:r:t:s0:c1,c2\"").unwrap();
        let options = |line: &str| -> Vec<_> { line.split(',').map(str::to_owned).collect() };
        assert!(label.is_among(&options("rw,context=\"u:r:t:s0:c1,c2\",vers=4.2")));
        assert!(!label.is_among(&options("rw,context=\"u:r:t:s0:c1,c3\",vers=4.2")));
        assert!(!label.is_among(&options("rw,seclabel")));
        let plain = SelinuxLabel::of("context=\"u:r:t:s0\"").unwrap();
        assert!(plain.is_among(&options("rw,context=u:r:t:s0")));
        assert!(!plain.is_among(&options("rw,context=u:r:t:s0:c1")));
    }
}
