//! The one module that knows the YAML library, so that it can be changed for another (docs/decisions/yaml.md).
#![forbid(unsafe_code)]

use serde::de::{Deserialize, DeserializeOwned};
use serde::ser::Serialize;
use serde_json::Value;

/// Text that is not YAML, or not of the form asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct YamlError {
    /// What the parser says, without the place.
    pub message: String,
    /// Line, from 1, where the parser gave up, if it knows.
    pub line: Option<usize>,
}

impl YamlError {
    fn of(error: &serde_yaml::Error) -> Self {
        let text = error.to_string();
        let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
        Self {
            message,
            line: error.location().map(|location| location.line()),
        }
    }
}

/// Reads one value from YAML text, JSON included.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    serde_yaml::from_str(text).map_err(|error| YamlError::of(&error))
}

/// Reads one document as JSON would have it. A key that exists twice is an error.
pub fn document(text: &str) -> Result<Value, YamlError> {
    // JSON's own type would let the later of two keys win in silence.
    as_json(from_str(text)?)
}

/// Reads all documents of a text as JSON would have them. Those without content are left out.
pub fn documents(text: &str) -> Result<Vec<Value>, YamlError> {
    serde_yaml::Deserializer::from_str(text)
        .map(|document| {
            let value = serde_yaml::Value::deserialize(document).map_err(|error| YamlError::of(&error))?;
            as_json(value)
        })
        .filter(|document| !matches!(document, Ok(Value::Null)))
        .collect()
}

pub fn to_string(value: &impl Serialize) -> Result<String, YamlError> {
    serde_yaml::to_string(value).map_err(|error| YamlError::of(&error))
}

fn as_json(value: serde_yaml::Value) -> Result<Value, YamlError> {
    serde_json::to_value(value).map_err(|error| YamlError {
        message: error.to_string(),
        line: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{document, documents, to_string};

    #[test]
    fn a_key_that_is_there_twice_is_an_error() {
        let error = document("data:\n  a: x\n  a: y\n").unwrap_err();
        assert!(error.message.contains("duplicate"), "{error}");
    }

    #[test]
    fn each_document_of_a_file_is_read_and_an_empty_one_is_none() {
        let text = "# a file\n---\na: 1\n---\n\n---\n- b\n";
        assert_eq!(documents(text), Ok(vec![json!({"a": 1}), json!(["b"])]));
        let error = documents("a: 1\n---\na: 1\na: 2\n").unwrap_err();
        assert!(error.message.contains("duplicate"), "{error}");
    }

    #[test]
    fn what_is_written_is_read_the_same() {
        let value = json!({"a": [1, "x: y", null, true], "b": {"c": "no"}});
        assert_eq!(document(&to_string(&value).unwrap()), Ok(value));
    }
}
