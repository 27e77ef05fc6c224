//! Names of namespaces in a list, as people write them in flags and environment variables.

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a namespace: write names with one comma between two, such as mooring,admin")]
pub struct BadNamespace(String);

/// Reads one name of a list whose commas may have blanks beside them.
pub fn parse_namespace(text: &str) -> Result<String, BadNamespace> {
    let name = text.trim();
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = (1..=63).contains(&name.len()) && name.bytes().all(is_inner);
    if is_label && !name.starts_with('-') && !name.ends_with('-') {
        Ok(name.to_owned())
    } else {
        Err(BadNamespace(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::{BadNamespace, parse_namespace};

    #[test]
    fn a_name_is_read_without_the_blanks_beside_it_and_has_to_be_one() {
        for text in ["admin", " admin", "admin\n"] {
            assert_eq!(parse_namespace(text).as_deref(), Ok("admin"), "{text:?}");
        }
        for text in ["", " ", "Moo ring", "a/b", "-a", "a-", "a.b", &"a".repeat(64)] {
            let bad = BadNamespace(text.trim().to_owned());
            assert_eq!(parse_namespace(text), Err(bad), "{text:?}");
        }
    }
}
