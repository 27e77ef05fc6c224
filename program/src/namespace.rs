//! Names of namespaces in a list, as people write them in flags and environment variables.

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a namespace in the list has no name: write names with one comma between two, such as mooring,admin")]
pub struct EmptyNamespace;

/// Reads one name of a list whose commas may have blanks beside them.
pub fn parse_namespace(text: &str) -> Result<String, EmptyNamespace> {
    match text.trim() {
        "" => Err(EmptyNamespace),
        name => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{EmptyNamespace, parse_namespace};

    #[test]
    fn a_name_is_read_without_the_blanks_beside_it_and_has_to_be_one() {
        for text in ["admin", " admin", "admin\n"] {
            assert_eq!(parse_namespace(text).as_deref(), Ok("admin"), "{text:?}");
        }
        for text in ["", " "] {
            assert_eq!(parse_namespace(text), Err(EmptyNamespace), "{text:?}");
        }
    }
}
