//! Checking one document.

use std::collections::{BTreeMap, BTreeSet};

use flex_provisioner::config::trust::Trust;
use flex_provisioner::config::values::object_name;
use flex_provisioner::config::{ConfigProblem, ProvisionerConfig, Severity, keys};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use mooring_contract::names::labels;
use serde_json::{Map, Value};

use super::text::{self, Document, MissingSpace};

/// One thing found, at a line of the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Line of the file, from 1.
    pub line: usize,
    pub severity: Severity,
    /// What is wrong and what to do.
    pub message: String,
}

/// What a document came to.
#[derive(Debug, Default)]
pub struct Checked {
    /// What was found, by line.
    pub findings: Vec<Finding>,
    /// Whether it is (or was meant to be) a provisioner ConfigMap.
    pub is_config: bool,
    /// What it means, if it is good.
    pub config: Option<ProvisionerConfig>,
}

/// Checks a document. Anything but a provisioner ConfigMap is passed over.
pub fn check(document: &Document, trust: &Trust) -> Checked {
    let (read, missing, text) = read(&document.text);
    let mut checker = Checker {
        document,
        text: &text,
        findings: Vec::new(),
    };
    let value = match read {
        Ok(value) => value,
        Err(error) => {
            for space in &missing {
                checker.missing_space(space);
            }
            let line = error.line.unwrap_or(1);
            checker.at(
                line,
                Severity::Error,
                format!("is not YAML: {error}; check the indentation and the space after each colon"),
            );
            // What can't be read might be a provisioner's: better said once too often.
            let is_config = text.contains(labels::TYPE_PROVISIONER_CONFIG) || text.contains(keys::PLUGIN_NAME);
            return checker.done(is_config, None);
        }
    };
    let Some(object) = value.as_object().filter(|object| is_config(object)) else {
        return Checked::default();
    };
    for space in &missing {
        checker.missing_space(space);
    }
    let config = checker.config_map(object, trust);
    checker.done(true, config)
}

/// Reads the text, with what spaces it lacks put in.
fn read(text: &str) -> (Result<Value, mooring_yaml::YamlError>, Vec<MissingSpace>, String) {
    let (missing, repaired) = text::with_spaces(text, false);
    let read = mooring_yaml::document(&repaired);
    if read.is_err() {
        let (more, wholly) = text::with_spaces(text, true);
        if let Ok(value) = mooring_yaml::document(&wholly) {
            return (Ok(value), more, wholly);
        }
    }
    (read, missing, repaired)
}

/// Whether an object is a provisioner ConfigMap, or was meant to be one.
fn is_config(object: &Map<String, Value>) -> bool {
    object.get("kind").and_then(Value::as_str) == Some("ConfigMap")
        && (label(object, labels::TYPE) == Some(labels::TYPE_PROVISIONER_CONFIG)
            || object
                .get("data")
                .and_then(|data| data.get(keys::PLUGIN_NAME))
                .is_some())
}

fn label<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("labels")?.get(key)?.as_str()
}

struct Checker<'a> {
    document: &'a Document,
    text: &'a str,
    findings: Vec<Finding>,
}

impl Checker<'_> {
    fn at(&mut self, line: usize, severity: Severity, message: String) {
        self.findings.push(Finding {
            line: self.document.first_line + line - 1,
            severity,
            message,
        });
    }

    fn error(&mut self, section: &str, key: &str, message: &str) {
        let line = text::line_of(self.text, section, key)
            .or_else(|| text::line_of(self.text, "metadata", section))
            .unwrap_or(1);
        self.at(line, Severity::Error, format!("{key}: {message}"));
    }

    fn missing_space(&mut self, space: &MissingSpace) {
        let MissingSpace { line, key, value } = space;
        self.at(
            *line,
            Severity::Error,
            format!("{key}:{value} lacks the space after its colon: write \"{key}: {value}\""),
        );
    }

    fn problem(&mut self, problem: &ConfigProblem) {
        // `metadata.labels.x` is a key of the metadata; anything else one of the data.
        let line = match problem.key.strip_prefix("metadata.") {
            Some(rest) => text::line_of(self.text, "metadata", rest.strip_prefix("labels.").unwrap_or(rest)),
            None => text::line_of(self.text, "data", &problem.key),
        };
        let line = line.or_else(|| text::line_of(self.text, "", "data")).unwrap_or(1);
        self.at(line, problem.severity, problem.to_string());
    }

    fn config_map(&mut self, object: &Map<String, Value>, trust: &Trust) -> Option<ProvisionerConfig> {
        if object.get("apiVersion").and_then(Value::as_str) != Some("v1") {
            self.error("apiVersion", "apiVersion", "must be v1 for a ConfigMap");
        }
        let metadata = object.get("metadata");
        let field = |name: &str| metadata.and_then(|metadata| metadata.get(name)).and_then(Value::as_str);
        match field("name").map(object_name) {
            None => self.error("metadata", "name", "is missing: give the ConfigMap one"),
            Some(Err(error)) => self.error("metadata", "name", &error.to_string()),
            Some(Ok(_)) => {}
        }
        if label(object, labels::TYPE) != Some(labels::TYPE_PROVISIONER_CONFIG) {
            let message = format!(
                "must be {}, or the controller never looks at it",
                labels::TYPE_PROVISIONER_CONFIG
            );
            self.error("labels", labels::TYPE, &message);
        }
        let data = self.data(object.get("data"));
        let mut config_map = ConfigMap {
            data: Some(data),
            ..ConfigMap::default()
        };
        config_map.metadata.name = field("name").map(str::to_owned);
        // Without a namespace it goes where `kubectl apply -n` puts it, which is not known here.
        config_map.metadata.namespace = field("namespace").or(trust.namespaces().next()).map(str::to_owned);
        config_map.metadata.labels = Some(self.strings(metadata, "labels"));
        config_map.metadata.annotations = Some(self.strings(metadata, "annotations"));
        if let Some(binary) = object.get("binaryData").and_then(Value::as_object) {
            config_map.binary_data = Some(binary.keys().map(|key| (key.clone(), ByteString::default())).collect());
        }
        match ProvisionerConfig::parse(&config_map, trust) {
            Ok(config) => {
                for warning in &config.warnings {
                    self.problem(warning);
                }
                Some(config)
            }
            Err(problems) => {
                for problem in &problems {
                    self.problem(problem);
                }
                None
            }
        }
    }

    /// The data as text, with an error for every value that the API server would not take for text.
    fn data(&mut self, data: Option<&Value>) -> BTreeMap<String, String> {
        let object = match data {
            Some(Value::Object(object)) => object,
            Some(Value::Null) | None => return BTreeMap::new(),
            Some(_) => {
                self.error(
                    "data",
                    "data",
                    "must be a mapping: write a line \"key: value\" for each setting",
                );
                return BTreeMap::new();
            }
        };
        let mut found = BTreeMap::new();
        for (key, value) in object {
            if let Some((left, right)) = key.split_once(':').filter(|_| value.is_null()) {
                let message = format!("lacks the space after its colon: write \"{left}: {right}\"");
                self.error("data", key, &message);
                found.insert(left.to_owned(), right.to_owned());
                continue;
            }
            let text = match value {
                Value::String(text) => {
                    if is_old_boolean(text) && text::plain_value(self.text, "data", key) == Some(text) {
                        let message = format!("is true or false to kubectl, and not text: write \"{text}\" in quotes");
                        self.error("data", key, &message);
                    }
                    text.clone()
                }
                Value::Number(_) | Value::Bool(_) => {
                    let message =
                        format!("is not text, as the values of a ConfigMap must be: write \"{value}\" in quotes");
                    self.error("data", key, &message);
                    value.to_string()
                }
                Value::Null => {
                    self.error("data", key, "has no value: give it one or remove the key");
                    continue;
                }
                Value::Array(_) | Value::Object(_) => {
                    let message = format!(
                        "is not text, as the values of a ConfigMap must be: write \"{key}: |\" and the rest below it"
                    );
                    self.error("data", key, &message);
                    value.to_string()
                }
            };
            found.insert(key.clone(), text);
        }
        found
    }

    fn strings(&mut self, metadata: Option<&Value>, section: &str) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let object = metadata
            .and_then(|metadata| metadata.get(section))
            .and_then(Value::as_object);
        for (key, value) in object.into_iter().flatten() {
            match value {
                Value::String(text) => {
                    found.insert(key.clone(), text.clone());
                }
                Value::Null if key.contains(':') => {
                    let message = format!(
                        "lacks the space after its colon: write \"{}\"",
                        key.replacen(':', ": ", 1)
                    );
                    self.error(section, key, &message);
                }
                other => {
                    let message = format!("is not text, as {section} must be: write \"{other}\" in quotes");
                    self.error(section, key, &message);
                }
            }
        }
        found
    }

    fn done(mut self, is_config: bool, config: Option<ProvisionerConfig>) -> Checked {
        self.findings.sort();
        self.findings.dedup();
        let fine = self
            .findings
            .iter()
            .all(|finding| finding.severity == Severity::Warning);
        Checked {
            findings: self.findings,
            is_config,
            config: config.filter(|_| fine),
        }
    }
}

/// Words that kubectl's YAML (1.1) takes for a truth, and ours (1.2) does not.
fn is_old_boolean(text: &str) -> bool {
    let words: BTreeSet<&str> = ["yes", "no", "on", "off"].into();
    words.contains(text.to_ascii_lowercase().as_str())
}
