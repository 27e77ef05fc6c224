//! The record that a client image may bring of its client: what it needs of a node, and what may be said about its
//! volumes.
//!
//! It is JSON, in a file beside the image's own program (`docs/vendors.md`), and the agent in the client container goes
//! by it. It does not say who may set an option: where a client has no record in [`super::RECORDS`], a tenant can set
//! `source` and mount options alone.

use std::collections::BTreeMap;
use std::fmt;

use regex::Regex;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{FsGroup, UNKNOWN_OPTION, alternatives};
use crate::volume::check::{COMMON_OPTIONS, CheckError, matches};
use crate::volume::keys;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ImageRecord {
    #[serde(default)]
    pub needs: Vec<ImageNeed>,
    /// The client's own options: all that there are.
    #[serde(default, deserialize_with = "each_once")]
    options: BTreeMap<OptionName, ImageOption>,
    /// What `fs-type` may be; anything if there are none.
    #[serde(default)]
    fs_types: Vec<String>,
    /// Whether its program gives a Pod a volume as a raw block device.
    #[serde(default)]
    pub raw_block: bool,
    /// The keys of a volume's Secret that its program reads; all of them if it does not say so.
    pub secret_keys: Option<Vec<String>>,
    /// How the files of a volume come to belong to the Pod's group. Without it, the mount shows it.
    pub fs_group: Option<FsGroup>,
}

/// What a client image needs of a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageNeed {
    Fuse,
    LoopDevices,
    /// A driver of the kernel.
    Module(KernelName),
    /// A file system of the kernel.
    FileSystem(KernelName),
}

/// A module or a file system, as the kernel calls it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct KernelName(String);

impl KernelName {
    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A word that a record can't have; the message says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedWord {
    /// It can't be a module or a file system.
    #[error("{0:?} can't be the name of a module or a file system: use letters, digits, dashes and underscores")]
    KernelName(String),
    /// No volume can have such an option.
    #[error(
        "{0:?} can't be an option's name: begin with a letter or a digit, and use dots, dashes and underscores too"
    )]
    OptionName(String),
    /// It is no option of this client's own.
    #[error("every client has option {0:?}: leave it out")]
    Common(String),
    /// An option that exists twice.
    #[error("option {0:?} is given twice: keep one")]
    Twice(String),
    /// A pattern that can't be compiled.
    #[error("pattern {pattern:?} is not a regular expression ({words}): correct it")]
    Pattern { pattern: String, words: String },
}

impl TryFrom<String> for KernelName {
    type Error = MalformedWord;

    /// It becomes a part of a path.
    fn try_from(name: String) -> Result<Self, MalformedWord> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if !name.is_empty() && name.bytes().all(plain) {
            Ok(Self(name))
        } else {
            Err(MalformedWord::KernelName(name))
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct OptionName(String);

impl TryFrom<String> for OptionName {
    type Error = MalformedWord;

    fn try_from(name: String) -> Result<Self, MalformedWord> {
        if name == keys::CLIENT || COMMON_OPTIONS.contains(&name.as_str()) {
            Err(MalformedWord::Common(name))
        } else if matches(UNKNOWN_OPTION, &name) {
            Ok(Self(name))
        } else {
            Err(MalformedWord::OptionName(name))
        }
    }
}

/// How an option's value is judged.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageOption {
    pattern: Pattern,
    /// What the value should be, in words that end a sentence.
    wanted: String,
}

/// A regular expression that matches the whole of a value, whether it says so or not.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Pattern(Regex);

impl TryFrom<String> for Pattern {
    type Error = MalformedWord;

    fn try_from(pattern: String) -> Result<Self, MalformedWord> {
        // By itself too: one such as `a)|(b` would be another expression within a group.
        let whole = Regex::new(&pattern).and_then(|_| Regex::new(&format!("^(?:{pattern})$")));
        match whole {
            Ok(regex) => Ok(Self(regex)),
            Err(error) => Err(MalformedWord::Pattern {
                // The lines before the last one draw where it is.
                words: error
                    .to_string()
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .replace("error: ", ""),
                pattern,
            }),
        }
    }
}

/// Reads options by their names. If two had one name, the later would win in silence.
fn each_once<'de, D>(deserializer: D) -> Result<BTreeMap<OptionName, ImageOption>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Options;

    impl<'de> Visitor<'de> for Options {
        type Value = BTreeMap<OptionName, ImageOption>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("options by their names")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut options = BTreeMap::new();
            while let Some((name, option)) = map.next_entry::<OptionName, _>()? {
                if options.insert(name.clone(), option).is_some() {
                    return Err(A::Error::custom(MalformedWord::Twice(name.0)));
                }
            }
            Ok(options)
        }
    }

    deserializer.deserialize_map(Options)
}

impl ImageRecord {
    /// Reads a record. Every pattern in it is compiled.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Checks what a volume of `client` says: its `fs-type`, and the client's own options.
    pub fn check(&self, client: &str, fs_type: &str, options: &BTreeMap<String, String>) -> Result<(), CheckError> {
        for (option, value) in options {
            self.check_option(client, option, value)?;
        }
        let types: Vec<_> = self.fs_types.iter().map(String::as_str).collect();
        if types.is_empty() || fs_type.is_empty() || types.contains(&fs_type) {
            return Ok(());
        }
        Err(CheckError::FsType {
            found: fs_type.to_owned(),
            client: client.to_owned(),
            wanted: alternatives(&types),
        })
    }

    fn check_option(&self, client: &str, option: &str, value: &str) -> Result<(), CheckError> {
        let mut options = self.options.iter();
        let Some((_, rule)) = options.find(|(name, _)| name.0 == option) else {
            let own = self.options.keys().map(|name| name.0.as_str());
            return Err(CheckError::Unknown {
                option: option.to_owned(),
                client: client.to_owned(),
                known: COMMON_OPTIONS.into_iter().chain(own).collect::<Vec<_>>().join(", "),
            });
        };
        // An empty one counts as none.
        if value.is_empty() || rule.pattern.0.is_match(value) {
            return Ok(());
        }
        Err(CheckError::Value {
            option: option.to_owned(),
            value: value.to_owned(),
            client: client.to_owned(),
            wanted: rule.wanted.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{FsGroup, ImageNeed, ImageRecord};

    const ACME: &str = r#"{
        "needs": ["fuse", {"module": "acme_net"}, {"file-system": "9p"}, "loop-devices"],
        "options": {
            "pool": {"pattern": "[a-z]+|[0-9]+", "wanted": "the name or the number of a pool"},
            "tier": {"pattern": "^(fast|cheap)$", "wanted": "fast or cheap"}
        },
        "fs-types": ["ext4", "xfs", "acme"]
    }"#;

    fn acme() -> ImageRecord {
        ImageRecord::parse(ACME.as_bytes()).unwrap()
    }

    fn check(record: &ImageRecord, fs_type: &str, options: &[(&str, &str)]) -> Result<(), String> {
        let options: BTreeMap<_, _> = options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        record
            .check("acme", fs_type, &options)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_record_has_may_be_said() {
        let acme = acme();
        for options in [
            &[][..],
            &[("pool", "a"), ("tier", "cheap")],
            &[("pool", "12")],
            &[("tier", "")],
        ] {
            for fs_type in ["", "xfs", "acme"] {
                assert_eq!(check(&acme, fs_type, options), Ok(()), "{fs_type} {options:?}");
            }
        }
        let names: Vec<_> = acme
            .needs
            .iter()
            .map(|need| match need {
                ImageNeed::Fuse => "FUSE",
                ImageNeed::LoopDevices => "loop",
                ImageNeed::Module(name) | ImageNeed::FileSystem(name) => name.as_str(),
            })
            .collect();
        assert_eq!(names, ["FUSE", "acme_net", "9p", "loop"]);
    }

    #[test]
    fn what_a_record_does_not_have_is_refused_with_what_to_write() {
        let acme = acme();
        for (fs_type, option, words) in [
            (
                "",
                ("pol", "a"),
                "client acme has no option \"pol\": it has source, mount-options, fs-type, client-image, pool, tier; \
                 remove it, or correct its name",
            ),
            (
                "",
                ("tier", "faster"),
                "option tier of client acme can't be \"faster\": write fast or cheap",
            ),
            (
                "btrfs",
                ("tier", "fast"),
                "client acme can't have fs-type=\"btrfs\": use ext4, xfs or acme, or leave it out",
            ),
        ] {
            assert_eq!(check(&acme, fs_type, &[option]), Err(words.to_owned()));
        }
    }

    #[test]
    fn a_pattern_matches_the_whole_of_a_value() {
        let acme = acme();
        for value in ["a1", "1a", "-a", "a ", "a\n", "\na", "A"] {
            assert!(check(&acme, "", &[("pool", value)]).is_err(), "{value:?}");
        }
    }

    #[test]
    fn an_empty_record_has_no_options_and_any_file_system() {
        let record = ImageRecord::parse(b"{}").unwrap();
        assert_eq!(check(&record, "zfs", &[]), Ok(()));
        assert!(record.needs.is_empty() && check(&record, "", &[("a", "b")]).is_err());
        assert_eq!(record.fs_group, None);
    }

    #[test]
    fn junk_is_refused_with_what_is_wrong() {
        for (json, words) in [
            ("", "EOF"),
            ("\0\u{fffd}", "expected value"),
            ("7", "expected struct"),
            ("{} {}", "trailing characters"),
            ("needs: [fuse]", "expected"),
            (
                r#"{"option": {}}"#,
                "unknown field `option`, expected one of `needs`, `options`, `fs-types`",
            ),
            (r#"{"needs": [], "needs": []}"#, "duplicate field `needs`"),
            (r#"{"needs": "fuse"}"#, "expected a sequence"),
            (r#"{"needs": ["nvme"]}"#, "unknown variant `nvme`"),
            (r#"{"needs": ["module"]}"#, "expected"),
            (
                r#"{"needs": [{"module": "../x"}]}"#,
                "\"../x\" can't be the name of a module",
            ),
            (
                r#"{"needs": [{"file-system": ""}]}"#,
                "\"\" can't be the name of a module",
            ),
            (r#"{"options": ["a"]}"#, "expected options by their names"),
            (r#"{"options": {"a": "b"}}"#, "expected struct"),
            (r#"{"options": {"a": {"wanted": "x"}}}"#, "missing field `pattern`"),
            (r#"{"options": {"a": {"pattern": "x"}}}"#, "missing field `wanted`"),
            (
                r#"{"options": {"a": {"pattern": "x", "wanted": "x", "by": "tenant"}}}"#,
                "unknown field `by`",
            ),
            (
                r#"{"options": {"a": {"pattern": "x", "wanted": "x"}, "a": {"pattern": "y", "wanted": "y"}}}"#,
                "option \"a\" is given twice",
            ),
            (
                r#"{"options": {"a b": {"pattern": "x", "wanted": "x"}}}"#,
                "\"a b\" can't be an option's name",
            ),
            (
                r#"{"options": {"source": {"pattern": "x", "wanted": "x"}}}"#,
                "every client has option",
            ),
            (
                r#"{"options": {"client": {"pattern": "x", "wanted": "x"}}}"#,
                "every client has option",
            ),
            (
                r#"{"options": {"a": {"pattern": "(", "wanted": "x"}}}"#,
                "unclosed group",
            ),
            (
                r#"{"options": {"a": {"pattern": "a)|(b", "wanted": "x"}}}"#,
                "unopened group",
            ),
            (
                r#"{"options": {"a": {"pattern": "(?x)a #", "wanted": "x"}}}"#,
                "not a regular expression",
            ),
            (r#"{"fs-types": "ext4"}"#, "expected a sequence"),
            (
                r#"{"fs-group": "chown"}"#,
                "unknown variant `chown`, expected one of `by-owner`",
            ),
        ] {
            let error = ImageRecord::parse(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{json}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_example_for_vendors_is_a_record() {
        let page = include_str!("../../../../../docs/vendors.md");
        let section = page.split("### The image's own record").nth(1).unwrap();
        let example = section
            .split("```json")
            .nth(1)
            .and_then(|rest| rest.split("```").next());
        let record = ImageRecord::parse(example.unwrap().as_bytes()).unwrap();
        let options = [("tier", "fast"), ("io-timeout", "300")];
        assert_eq!(check(&record, "xfs", &options), Ok(()));
        assert_eq!(record.fs_group, Some(FsGroup::ByOwner));
    }
}
