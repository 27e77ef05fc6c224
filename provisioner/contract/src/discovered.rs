//! What an image prints after `discover`: the kinds of volume that its storage can serve, each of which becomes a
//! StorageClass.
//!
//! A termination message has 4096 bytes, so there is a short form. What all have in common is written once, under
//! `defaults`, and a class can be a bare name, which is then also the value of the parameter that `parameter` names:
//!
//! ```json
//! {"parameter": "pool", "defaults": {"expansion": true}, "classes": ["ssd", {"name": "hdd", "default": true}]}
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Most classes of one image.
pub const MAX_CLASSES: usize = 256;

/// Longest name in bytes: the longest that Cinder or Manila have for a type is 255.
pub const MAX_NAME: usize = 255;

/// The longest termination message that a kubelet keeps of a container, in bytes.
pub const MAX_MESSAGE: usize = 4096;

/// What an image has printed, with nothing left to be filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discovered {
    /// One for each kind of volume, in the image's order. No two have one name, and one at most is the default.
    pub classes: Vec<DiscoveredClass>,
}

/// A kind of volume that the storage can serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DiscoveredClass {
    /// What the storage calls it: the same for as long as it is the same.
    pub name: String,
    /// What `provision` is given of it, beside the keys of the ConfigMap.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// It is meant for claims that name no class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<bool>,
    /// Snapshots of its volumes can be taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<bool>,
    /// Its volumes can grow; as the ConfigMap says, if the image does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expansion: Option<bool>,
    /// Its volumes' mount options, in place of the ConfigMap's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<Vec<String>>,
    /// Where its volumes can be reached from: any of these, of which each is labels of nodes with their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topologies: Vec<BTreeMap<String, Vec<String>>>,
    /// The only nodes that reach its volumes, by their label `kubernetes.io/hostname`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// How many bytes are left for new volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
}

/// Why what an image has printed can't be taken.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveredError {
    /// Nothing at all. An empty list has to be said.
    #[error(
        "the image printed nothing: write {{\"classes\": […]}} to the termination message, with an empty list if the \
         storage serves nothing"
    )]
    Nothing,
    /// It fills the message to its end.
    #[error(
        "what the image printed was cut at {MAX_MESSAGE} bytes: use the short form (\"parameter\", \"defaults\" and \
         bare names), or have more than one ConfigMap share the list"
    )]
    Cut(#[source] serde_json::Error),
    #[error("what the image printed is not {{\"classes\": […]}}")]
    NotJson(#[source] serde_json::Error),
    /// One of the classes is neither a name nor an object with the fields that there are.
    #[error("class {at} of the list can't be read")]
    BadClass {
        /// Its place in the list, from 1.
        at: usize,
        source: serde_json::Error,
    },
    /// A bare name does not say what it is to be given to.
    #[error("class {0:?} has no parameters: give it some, or say with \"parameter\" which one its name is")]
    NoParameter(String),
    #[error("class name {0:?} is empty, has more than {MAX_NAME} bytes or control characters")]
    BadName(String),
    #[error("two classes are called {0:?}")]
    Twice(String),
    #[error("both {0:?} and {1:?} are marked as default: mark one")]
    TwoDefaults(String, String),
    #[error("there are {0} classes, more than {MAX_CLASSES}: list fewer, or have more than one ConfigMap share them")]
    TooMany(usize),
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Printed {
    /// The parameter that has a class's name for its value, unless the class says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parameter: Option<String>,
    /// What a class has that does not say otherwise.
    #[serde(default)]
    defaults: Defaults,
    classes: Vec<Value>,
}

/// What classes can have in common.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Defaults {
    parameters: BTreeMap<String, String>,
    snapshots: Option<bool>,
    expansion: Option<bool>,
    mount_options: Option<Vec<String>>,
    topologies: Vec<BTreeMap<String, Vec<String>>>,
    nodes: Vec<String>,
}

impl Discovered {
    /// Reads a termination message.
    pub fn parse(message: &str) -> Result<Self, DiscoveredError> {
        if message.trim().is_empty() {
            return Err(DiscoveredError::Nothing);
        }
        let printed: Printed = serde_json::from_str(message).map_err(|error| {
            if error.is_eof() && message.len() >= MAX_MESSAGE {
                DiscoveredError::Cut(error)
            } else {
                DiscoveredError::NotJson(error)
            }
        })?;
        if printed.classes.len() > MAX_CLASSES {
            return Err(DiscoveredError::TooMany(printed.classes.len()));
        }
        let Printed {
            parameter,
            defaults,
            classes,
        } = printed;
        let classes = classes
            .into_iter()
            .enumerate()
            .map(|(at, value)| read(value, at + 1, parameter.as_deref(), &defaults))
            .collect::<Result<Vec<_>, _>>()?;
        let read = Self { classes };
        read.check()?;
        Ok(read)
    }

    /// The message that says this.
    pub fn to_message(&self) -> String {
        serde_json::json!({ "classes": self.classes }).to_string()
    }

    /// Whether the names and the default can be.
    pub fn check(&self) -> Result<(), DiscoveredError> {
        let mut names = BTreeSet::new();
        let mut default: Option<&str> = None;
        for class in &self.classes {
            let name = class.name.as_str();
            if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
                return Err(DiscoveredError::BadName(name.to_owned()));
            }
            if !names.insert(name) {
                return Err(DiscoveredError::Twice(name.to_owned()));
            }
            if class.default == Some(true)
                && let Some(other) = default.replace(name)
            {
                return Err(DiscoveredError::TwoDefaults(other.to_owned(), name.to_owned()));
            }
        }
        Ok(())
    }
}

fn read(
    value: Value,
    at: usize,
    parameter: Option<&str>,
    defaults: &Defaults,
) -> Result<DiscoveredClass, DiscoveredError> {
    let class = match value {
        Value::String(name) => DiscoveredClass {
            name,
            ..DiscoveredClass::default()
        },
        value => serde_json::from_value(value).map_err(|source| DiscoveredError::BadClass { at, source })?,
    };
    let mut parameters = defaults.parameters.clone();
    if let Some(parameter) = parameter {
        parameters.insert(parameter.to_owned(), class.name.clone());
    }
    parameters.extend(class.parameters);
    if parameters.is_empty() {
        // Every class would be the same.
        return Err(DiscoveredError::NoParameter(class.name));
    }
    let or = |list: Vec<_>, usual: &Vec<_>| if list.is_empty() { usual.clone() } else { list };
    Ok(DiscoveredClass {
        parameters,
        snapshots: class.snapshots.or(defaults.snapshots),
        expansion: class.expansion.or(defaults.expansion),
        mount_options: class.mount_options.or_else(|| defaults.mount_options.clone()),
        topologies: or(class.topologies, &defaults.topologies),
        nodes: if class.nodes.is_empty() {
            defaults.nodes.clone()
        } else {
            class.nodes
        },
        ..class
    })
}

#[cfg(test)]
mod tests {
    use super::{Discovered, MAX_MESSAGE};

    fn parse(message: &str) -> Result<Discovered, String> {
        Discovered::parse(message).map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", source.unwrap_or_default())
        })
    }

    #[test]
    fn the_short_form_says_the_same_as_the_long_one() {
        let short = parse(
            r#"{"parameter": "pool", "defaults": {"expansion": true, "parameters": {"tier": "2"}, "nodes": ["a"]},
                "classes": ["ssd", {"name": "hdd", "default": true, "expansion": false, "capacity": 7,
                                    "parameters": {"tier": "1"}, "nodes": ["b"]}]}"#,
        )
        .unwrap();
        let long = parse(
            r#"{"classes": [
                {"name": "ssd", "parameters": {"pool": "ssd", "tier": "2"}, "expansion": true, "nodes": ["a"]},
                {"name": "hdd", "parameters": {"pool": "hdd", "tier": "1"}, "default": true, "expansion": false,
                 "capacity": 7, "nodes": ["b"]}]}"#,
        )
        .unwrap();
        assert_eq!(short, long);
        assert_eq!(parse(&short.to_message()).unwrap(), short);
        assert_eq!(parse(r#"{"classes": []}"#).unwrap(), Discovered::default());
    }

    #[test]
    fn what_can_t_be_taken_is_said() {
        let cut = format!(r#"{{"parameter": "p", "classes": ["{}"#, "x".repeat(MAX_MESSAGE));
        for (message, says) in [
            ("", "printed nothing"),
            ("  \n", "printed nothing"),
            ("pools: ssd", "is not {\"classes\""),
            (&cut, "was cut at 4096 bytes"),
            (r#"{"classes": "ssd"}"#, "is not"),
            (r#"{"classes": [], "clases": []}"#, "unknown field `clases`"),
            (r#"{"classes": ["ssd"]}"#, "\"ssd\" has no parameters"),
            (
                r#"{"parameter": "p", "classes": ["a", {"name": "b", "capactiy": 1}]}"#,
                "class 2 of the list",
            ),
            (
                r#"{"parameter": "p", "classes": [{"capacity": 1}]}"#,
                "missing field `name`",
            ),
            (
                r#"{"parameter": "p", "classes": ["a", "a"]}"#,
                "two classes are called \"a\"",
            ),
            (r#"{"parameter": "p", "classes": [""]}"#, "is empty"),
            (r#"{"parameter": "p", "classes": ["a\nb"]}"#, "control characters"),
            (
                r#"{"parameter": "p", "classes": [{"name": "a", "default": true}, {"name": "b", "default": true}]}"#,
                "both \"a\" and \"b\"",
            ),
        ] {
            let error = parse(message).unwrap_err();
            assert!(error.contains(says), "{message}: {error}");
        }
        let many: Vec<String> = (0..300).map(|n| format!("\"{n}\"")).collect();
        let many = format!(r#"{{"parameter": "p", "classes": [{}]}}"#, many.join(","));
        assert!(parse(&many).unwrap_err().contains("more than 256"));
    }
}
