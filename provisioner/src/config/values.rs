//! How the values of known keys are read. Each function says in its error what to write instead.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::time::Duration;

use k8s_openapi::api::core::v1::Toleration;
use mooring_contract::volume::clients::BYTES_PER_INODE;
use mooring_program::time::{BadDuration, parse_duration};
use serde_json::Value;

use crate::yaml;

/// Shortest and longest time of one run.
const TIMEOUT_LIMITS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);

/// Shortest and longest time from one discovery to the next, and that a worker stays without a run.
const INTERVAL_LIMITS: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_hours(24);

/// Most workers of one ConfigMap.
const MAX_WORKERS: usize = 20;

/// Why a value can't be read, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error(transparent)]
    Duration(#[from] BadDuration),
    #[error("{0:?} is out of range: write a time from 1s to 24h")]
    Timeout(String),
    #[error("{0:?} is out of range: write a time from 10s to 24h")]
    Interval(String),
    #[error("{0:?} is not a number of operations: write a whole number from 1")]
    Count(String),
    #[error("{0:?} is not a number of Pods: write a whole number from 0 to {MAX_WORKERS}")]
    Workers(String),
    #[error("{0:?} is not a number of bytes for each inode: write {wanted}", wanted = BYTES_PER_INODE.value.wanted)]
    BytesPerInode(String),
    #[error("write KEY=VALUE")]
    Pair,
    #[error("{0:?} is neither \"true\" nor \"false\": write one of them, in quotes")]
    Boolean(String),
    #[error("{text:?} is not known: write {choices}")]
    Choice {
        text: String,
        /// All words that are known.
        choices: String,
    },
    #[error("{0:?} is not a node selector: write label=value, separated by commas, or a YAML mapping")]
    NodeSelector(String),
    #[error("{key}={value} can't be a label of a node: see `kubectl get nodes --show-labels` for those that are")]
    NodeLabel { key: String, value: String },
    /// What is wrong with a list of tolerations.
    #[error("{0}: write a YAML list as in a Pod, such as [{{key: storage, operator: Exists, effect: NoSchedule}}]")]
    Tolerations(String),
    #[error(
        "{0:?} can't be an object's name: use lower-case letters, digits, '-' and '.', such as my-storage, and no \
         namespace before it"
    )]
    ObjectName(String),
}

/// A length of time that one run of an image may take.
pub fn timeout(text: &str) -> Result<Duration, ValueError> {
    within(text, TIMEOUT_LIMITS, ValueError::Timeout)
}

/// A length of time from one discovery to the next, or that a worker stays without a run.
pub fn interval(text: &str) -> Result<Duration, ValueError> {
    within(text, INTERVAL_LIMITS, ValueError::Interval)
}

fn within(
    text: &str,
    limits: RangeInclusive<Duration>,
    error: fn(String) -> ValueError,
) -> Result<Duration, ValueError> {
    let time = parse_duration(text)?;
    limits
        .contains(&time)
        .then_some(time)
        .ok_or_else(|| error(text.to_owned()))
}

/// A count from 1.
pub fn count(text: &str) -> Result<NonZeroUsize, ValueError> {
    text.parse().map_err(|_| ValueError::Count(text.to_owned()))
}

/// A number of Pods that stay.
pub fn workers(text: &str) -> Result<usize, ValueError> {
    let number = text.parse().ok().filter(|number| *number <= MAX_WORKERS);
    number.ok_or_else(|| ValueError::Workers(text.to_owned()))
}

/// Reads `KEY=VALUE`.
pub fn bytes_per_inode(text: &str) -> Result<String, ValueError> {
    if BYTES_PER_INODE.accepts(text) {
        Ok(text.to_owned())
    } else {
        Err(ValueError::BytesPerInode(text.to_owned()))
    }
}

pub fn pair(text: &str) -> Result<(String, String), ValueError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ValueError::Pair),
    }
}

/// `true` or `false`.
pub fn boolean(text: &str) -> Result<bool, ValueError> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(ValueError::Boolean(text.to_owned())),
    }
}

/// The variant with this name, in any case; the error names all.
pub fn choice<T: Copy, const N: usize>(text: &str, all: [T; N], name: fn(T) -> &'static str) -> Result<T, ValueError> {
    let mut choices = all.into_iter();
    let chosen = choices.find(|choice| name(*choice).eq_ignore_ascii_case(text));
    chosen.ok_or_else(|| ValueError::Choice {
        text: text.to_owned(),
        choices: all.map(name).join(" or "),
    })
}

/// Labels of nodes: `disk=ssd,zone=west`, or a YAML or JSON mapping.
pub fn node_selector(text: &str) -> Result<BTreeMap<String, String>, ValueError> {
    let cure = || ValueError::NodeSelector(text.to_owned());
    let text_trimmed = text.trim();
    let pairs: BTreeMap<String, String> = match yaml::from_str::<Value>(text_trimmed) {
        Ok(Value::Object(map)) => map
            .into_iter()
            .map(|(key, value)| match value {
                Value::String(value) => Ok((key, value)),
                Value::Bool(value) => Ok((key, value.to_string())),
                Value::Number(value) => Ok((key, value.to_string())),
                _ => Err(cure()),
            })
            .collect::<Result<_, _>>()?,
        _ => text_trimmed
            .split(',')
            .map(|pair| {
                pair.trim()
                    .split_once('=')
                    .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
                    .ok_or_else(cure)
            })
            .collect::<Result<_, _>>()?,
    };
    match pairs
        .iter()
        .find(|(key, value)| !is_label_key(key) || !is_label_value(value))
    {
        Some((key, value)) => Err(ValueError::NodeLabel {
            key: key.clone(),
            value: value.clone(),
        }),
        None => Ok(pairs),
    }
}

/// A YAML or JSON list of tolerations, as in a Pod.
pub fn tolerations(text: &str) -> Result<Vec<Toleration>, ValueError> {
    const FIELDS: [&str; 5] = ["key", "operator", "value", "effect", "tolerationSeconds"];
    let cure = |what: &str| ValueError::Tolerations(what.to_owned());
    let list: Vec<BTreeMap<String, Value>> =
        yaml::from_str(text).map_err(|error| cure(&format!("can't be read as tolerations ({error})")))?;
    for toleration in &list {
        if let Some(field) = toleration.keys().find(|field| !FIELDS.contains(&field.as_str())) {
            return Err(cure(&format!("{field:?} is no field of a toleration")));
        }
    }
    let list: Vec<Toleration> = serde_json::to_value(list)
        .and_then(serde_json::from_value)
        .map_err(|error| cure(&format!("can't be read as tolerations ({error})")))?;
    for toleration in &list {
        let operator = toleration.operator.as_deref().unwrap_or("Equal");
        let effect = toleration.effect.as_deref().unwrap_or_default();
        if !["Equal", "Exists", "Lt", "Gt"].contains(&operator) {
            return Err(cure(&format!("unknown operator {operator:?}: write Equal or Exists")));
        }
        if !["", "NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
            return Err(cure(&format!(
                "unknown effect {effect:?}: write NoSchedule, PreferNoSchedule or NoExecute"
            )));
        }
        if operator == "Exists" && toleration.value.as_deref().is_some_and(|value| !value.is_empty()) {
            return Err(cure("a toleration with operator Exists has no value"));
        }
        if toleration.key.as_deref().unwrap_or_default().is_empty() && operator != "Exists" {
            return Err(cure("a toleration without a key must have operator Exists"));
        }
    }
    Ok(list)
}

/// The name of a ServiceAccount, Secret, ConfigMap or StorageClass: a DNS subdomain.
pub fn object_name(text: &str) -> Result<String, ValueError> {
    if is_dns_subdomain(text) {
        Ok(text.to_owned())
    } else {
        Err(ValueError::ObjectName(text.to_owned()))
    }
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|label| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_qualified_name(text)
}

fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_qualified_name(name),
        None => is_qualified_name(text),
    }
}

fn is_qualified_name(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{boolean, count, interval, node_selector, object_name, timeout, tolerations};

    #[test]
    fn a_run_gets_from_a_second_to_a_day() {
        assert_eq!(timeout("1h30m"), Ok(Duration::from_mins(90)));
        assert!(timeout("90 s").is_err());
        assert!(timeout("0s").is_err());
        assert!(timeout("25h").is_err());
        assert!(timeout("24h").is_ok());
        assert!(interval("9s").is_err() && interval("25h").is_err());
        assert_eq!(interval("10s"), Ok(Duration::from_secs(10)));
    }

    #[test]
    fn counts_and_truths() {
        assert_eq!(count("3").unwrap().get(), 3);
        for text in ["0", "-1", "many", "", "1.5"] {
            assert!(count(text).is_err(), "{text:?}");
        }
        assert_eq!(boolean("true"), Ok(true));
        assert!(boolean("yes").is_err());
    }

    #[test]
    fn node_selectors_in_either_form() {
        for text in [
            "disk=ssd,zone=west",
            "disk: ssd\nzone: west",
            r#"{"disk":"ssd","zone":"west"}"#,
            " disk=ssd , zone=west ",
        ] {
            let selector = node_selector(text).unwrap();
            assert_eq!(selector.len(), 2, "{text}");
            assert_eq!(selector["disk"], "ssd");
        }
        assert_eq!(node_selector("gpu: true").unwrap()["gpu"], "true");
        for text in ["disk", "", "disk=a b", "disk: [ssd]", "a/b/c=d"] {
            assert!(node_selector(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn tolerations_as_in_a_pod() {
        let list = tolerations("- key: storage\n  operator: Exists\n  effect: NoSchedule\n").unwrap();
        assert_eq!(list[0].key.as_deref(), Some("storage"));
        assert_eq!(tolerations("[{operator: Exists}]").unwrap().len(), 1);
        for text in [
            "storage",
            "[{kay: storage}]",
            "[{key: a, operator: Is}]",
            "[{key: a, effect: No}]",
            "[{key: a, operator: Exists, value: b}]",
            "[{value: b}]",
        ] {
            assert!(tolerations(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_objects() {
        assert!(object_name("foo").is_ok());
        for text in ["", "Foo", "a/b", "-a", "a..b", "a b"] {
            assert!(object_name(text).is_err(), "{text:?}");
        }
    }
}
