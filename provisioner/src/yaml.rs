//! The one module that knows the YAML library, so that it can be changed for another.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Text that is not YAML, or not of the form asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    /// What the parser says, without the place.
    pub message: String,
    /// Line, from 1, where the parser gave up, if it knows.
    pub line: Option<usize>,
    /// Column, from 1.
    pub column: Option<usize>,
}

impl YamlError {
    fn of(error: &serde_yaml::Error) -> Self {
        let location = error.location();
        let text = error.to_string();
        let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
        Self {
            message,
            line: location.as_ref().map(serde_yaml::Location::line),
            column: location.as_ref().map(serde_yaml::Location::column),
        }
    }
}

/// Reads one value from YAML text, JSON included. YAML's own types are made JSON's: a mapping's keys must be plain.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    serde_yaml::from_str(text).map_err(|error| YamlError::of(&error))
}

/// Reads every document of a file; `None` for an empty one. Stops at the first that is not YAML, whose error comes last.
pub fn documents(text: &str) -> Vec<Result<Option<Value>, YamlError>> {
    let mut found = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        match Value::deserialize(document) {
            Ok(Value::Null) => found.push(Ok(None)),
            Ok(value) => found.push(Ok(Some(value))),
            Err(error) => {
                found.push(Err(YamlError::of(&error)));
                break;
            }
        }
    }
    found
}
