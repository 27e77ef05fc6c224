//! The one module that knows the YAML library, so that it can be changed for another.

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

/// Reads one document as JSON would have it. A key that is there twice is an error.
pub fn document(text: &str) -> Result<Value, YamlError> {
    // JSON's own type would let the later of two keys win in silence.
    let value: serde_yaml::Value = from_str(text)?;
    serde_json::to_value(value).map_err(|error| YamlError {
        message: error.to_string(),
        line: None,
    })
}

#[cfg(test)]
mod tests {
    use super::document;

    #[test]
    fn a_key_that_is_there_twice_is_an_error() {
        let error = document("data:\n  a: x\n  a: y\n").unwrap_err();
        assert!(error.message.contains("duplicate"), "{error}");
    }
}
