//! The SELinux label that a mount gives to all files of a volume, in place of labels of their own (`context`, mount(8)).

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::volume::mount_table::Table;

/// The option of a mount, and of the kernel's file systems.
const OPTION: &str = "context";

/// How many categories the usual policies have. A range of more is left as it is written.
const CATEGORIES: u16 = 1024;

/// A label as the kubelet asks for one, where `CSIDriver` has `seLinuxMount: true` (`AddSELinuxMountOption` of
/// `pkg/volume/util/selinux.go`). It is written as the kernel writes it, so two are the same label if they are equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
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
        Ok(Self(as_the_kernel_writes_it(label).unwrap_or_else(|| label.to_owned())))
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

    /// Whether it is among the options of a file system, which the mount table separates by commas. The kernel has a
    /// label with commas in quotation marks.
    fn is_among(&self, options: &[String]) -> bool {
        let line = format!(",{}", options.join(","));
        let Some((_, rest)) = line.split_once(&format!(",{OPTION}=")) else {
            return false;
        };
        let label = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next(),
            None => rest.split(',').next(),
        };
        label.and_then(|label| Self::read(label).ok()).as_ref() == Some(self)
    }
}

impl TryFrom<String> for SelinuxLabel {
    type Error = NoLabel;

    fn try_from(label: String) -> Result<Self, NoLabel> {
        Self::read(&label)
    }
}

impl From<SelinuxLabel> for String {
    fn from(label: SelinuxLabel) -> Self {
        label.0
    }
}

/// A label with its levels as the kernel writes them (`mls_sid_to_context`): categories in order, each once, three and
/// more in a row by the first and the last, and a range of two equal levels as one. None if the policy has names of its
/// own for levels.
fn as_the_kernel_writes_it(label: &str) -> Option<String> {
    let mut parts = label.splitn(4, ':');
    let (user, role, kind, levels) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let low_and_high = levels.split_once('-').unwrap_or((levels, levels));
    let (low, high) = (Level::read(low_and_high.0)?, Level::read(low_and_high.1)?);
    let mut written = format!("{user}:{role}:{kind}:{}", low.written());
    if low != high {
        written.push('-');
        written.push_str(&high.written());
    }
    Some(written)
}

#[derive(PartialEq, Eq)]
struct Level {
    sensitivity: u16,
    categories: BTreeSet<u16>,
}

impl Level {
    /// Such as `s0:c1,c5.c7`.
    fn read(level: &str) -> Option<Self> {
        let number = |name: &str, letter| name.strip_prefix(letter)?.parse::<u16>().ok();
        let (sensitivity, of_level) = level.split_once(':').unwrap_or((level, ""));
        let mut categories = BTreeSet::new();
        for part in of_level.split(',').filter(|_| !of_level.is_empty()) {
            let (first, last) = part.split_once('.').unwrap_or((part, part));
            let (first, last) = (number(first, 'c')?, number(last, 'c')?);
            if first > last || last >= CATEGORIES {
                return None;
            }
            categories.extend(first..=last);
        }
        Some(Self {
            sensitivity: number(sensitivity, 's')?,
            categories,
        })
    }

    fn written(&self) -> String {
        let mut rows: Vec<(u16, u16)> = Vec::new();
        for category in &self.categories {
            match rows.last_mut() {
                Some((_, last)) if *last + 1 == *category => *last = *category,
                _ => rows.push((*category, *category)),
            }
        }
        let rows = rows.into_iter().map(|(first, last)| match last - first {
            0 => format!("c{first}"),
            1 => format!("c{first},c{last}"),
            _ => format!("c{first}.c{last}"),
        });
        let rows = rows.collect::<Vec<_>>().join(",");
        let colon = if rows.is_empty() { "" } else { ":" };
        format!("s{}{colon}{rows}", self.sensitivity)
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

    /// `OpenShift`'s levels are in descending order.
    #[test]
    fn a_label_is_found_however_the_kernel_writes_its_categories() {
        let options = |label: &str| -> Vec<_> {
            let line = format!("rw,context=\"{label}\",vers=4.2");
            line.split(',').map(str::to_owned).collect()
        };
        for (asked, shown) in [
            ("s0:c26,c5", "s0:c5,c26"),
            ("s0:c1,c2,c3", "s0:c1.c3"),
            ("s0:c3,c1.c2,c3,c9", "s0:c1.c3,c9"),
            ("s0:c1.c2", "s0:c1,c2"),
            ("s0-s0", "s0"),
            ("s0-s0:c1023,c0.c1022", "s0-s0:c0.c1023"),
            ("s0:c2,c1-s15:c3,c2,c1", "s0:c1,c2-s15:c1.c3"),
        ] {
            let label = SelinuxLabel::read(&format!("u:r:t:{asked}")).unwrap();
            assert_eq!(label.as_str(), format!("u:r:t:{shown}"));
            assert!(label.is_among(&options(&format!("u:r:t:{shown}"))), "{asked}");
            for other in ["u:r:t:s0:c5", "u:r:t:s1", "u:r:other:s0", "u:r:t:s0:c0"] {
                assert!(!label.is_among(&options(other)), "{asked} {other}");
            }
        }
        // With names that only its policy knows, or of no policy that there is.
        for own in [
            "u:r:t",
            "u:r:t:secret:medical,legal",
            "u:r:t:s0:c0.c1024",
            "u:r:t:s0:c3.c1",
        ] {
            assert_eq!(SelinuxLabel::read(own).unwrap().as_str(), own);
        }
        let json = "\"u:r:t:s0:c26,c5\"";
        let label: SelinuxLabel = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&label).unwrap(), "\"u:r:t:s0:c5,c26\"");
    }
}
