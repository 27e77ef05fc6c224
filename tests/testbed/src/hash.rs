//! Hashes in hexadecimal digits.

/// A hash in hexadecimal digits.
pub fn hex(hash: &[u8]) -> String {
    use std::fmt::Write;
    hash.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The first 12 hexadecimal digits of a hash.
pub fn short_hex(hash: &[u8]) -> String {
    hex(&hash[..hash.len().min(6)])
}

#[cfg(test)]
mod tests {
    use super::{hex, short_hex};

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
        assert_eq!(short_hex(&[1; 32]), "010101010101");
        assert_eq!(short_hex(&[1]), "01");
    }
}
