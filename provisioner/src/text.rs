//! Texts of a given length, and maps of texts.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// The first bytes of the hash of this, as hexadecimal digits.
pub(crate) fn digest(of: impl AsRef<[u8]>, bytes: usize) -> String {
    hex(&Sha256::digest(of)[..bytes])
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The beginning of a text, as many whole characters as have room.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Labels or annotations.
pub(crate) fn owned<V: Into<String>, const N: usize>(pairs: [(&str, V); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.into())).into()
}

#[cfg(test)]
mod tests {
    use super::{cut, digest, hex};

    #[test]
    fn a_digest_is_the_beginning_of_the_hash() {
        assert_eq!(digest("", 4), "e3b0c442");
        assert_eq!(hex(&[0, 10, 255]), "000aff");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("häuser", 2), "h");
        assert_eq!(cut("häuser", 3), "hä");
        assert_eq!(cut("short", 10), "short");
    }
}
