//! Kubernetes quantities as bytes, and back.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    #[error("{0:?} is not a size: write a number with an optional suffix, such as 10Gi")]
    Malformed(String),
    #[error("size {0:?} is negative")]
    Negative(String),
    /// More than 2^63 - 1 bytes, the most that Kubernetes itself counts.
    #[error("size {0:?} is more than Kubernetes can count")]
    TooLarge(String),
}

/// Binary suffixes, smallest first: each is 2^10 of the one before.
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Decimal suffixes and their power of ten.
const DECIMAL: [(&str, i32); 9] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// Reads a quantity in bytes; a started byte counts whole.
pub fn bytes(quantity: &Quantity) -> Result<u64, CapacityError> {
    parse(&quantity.0)
}

/// Reads the text of a quantity (`10Gi`, `1.5e9`, `500M`) in bytes; a started byte counts whole.
pub fn parse(text: &str) -> Result<u64, CapacityError> {
    let malformed = || CapacityError::Malformed(text.to_owned());
    let too_large = || CapacityError::TooLarge(text.to_owned());
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let (unsigned, negative) = match unsigned.strip_prefix('-') {
        Some(rest) if unsigned.len() == text.len() => (rest, true),
        _ => (unsigned, false),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(malformed());
    }
    let (factor, mut power) = scale(suffix).ok_or_else(malformed)?;
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if negative {
        return Err(CapacityError::Negative(text.to_owned()));
    }
    power = power.saturating_sub(i32::try_from(fraction.len()).map_err(|_| malformed())?);
    let mantissa: u128 = digits.parse().map_err(|_| too_large())?;
    let scaled = mantissa.checked_mul(factor).ok_or_else(too_large)?;
    let exact = if power >= 0 {
        10_u128
            .checked_pow(power.unsigned_abs())
            .and_then(|ten| scaled.checked_mul(ten))
            .ok_or_else(too_large)?
    } else {
        // A divisor beyond u128 leaves less than one byte.
        10_u128
            .checked_pow(power.unsigned_abs())
            .map_or(1, |ten| scaled.div_ceil(ten))
    };
    u64::try_from(exact)
        .ok()
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(too_large)
}

/// Writes bytes as the shortest exact quantity with a binary suffix.
pub fn quantity(bytes: u64) -> Quantity {
    let mut value = bytes;
    let mut suffix = "";
    for next in BINARY {
        if value == 0 || !value.is_multiple_of(1024) {
            break;
        }
        value /= 1024;
        suffix = next;
    }
    Quantity(format!("{value}{suffix}"))
}

/// A suffix as a factor and a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    if suffix.is_empty() {
        return Some((1, 0));
    }
    if let Some(index) = BINARY.iter().position(|known| *known == suffix) {
        return Some((1 << (10 * (index + 1)), 0));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
        return Some((1, *power));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let power: i32 = exponent.parse().ok()?;
    (-64..=64).contains(&power).then_some((1, power))
}

#[cfg(test)]
mod tests {
    use super::{CapacityError, bytes, parse, quantity};
    use proptest::prelude::*;

    #[test]
    fn every_suffix_of_kubernetes_is_read() {
        let table: &[(&str, u64)] = &[
            ("0", 0),
            ("1", 1),
            ("+5", 5),
            ("1Ki", 1 << 10),
            ("1Mi", 1 << 20),
            ("1Gi", 1 << 30),
            ("1Ti", 1 << 40),
            ("1Pi", 1 << 50),
            ("1Ei", 1 << 60),
            ("1k", 1_000),
            ("1M", 1_000_000),
            ("1G", 1_000_000_000),
            ("1T", 1_000_000_000_000),
            ("1P", 1_000_000_000_000_000),
            ("1E", 1_000_000_000_000_000_000),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("1.5e9", 1_500_000_000),
            ("12e-1", 2),
            ("1500m", 2),
            ("1u", 1),
            ("1n", 1),
            ("0.5Gi", 1 << 29),
            (".5Ki", 512),
            ("1.", 1),
            ("0.1Ki", 103),
            ("-0", 0),
            ("1.50000000000000000000000000000000000000000", 2),
        ];
        for (text, want) in table {
            assert_eq!(parse(text).as_ref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in [
            "", "Gi", "1gi", "1 Gi", "1GiB", "1e", "1.2.3", "ten", "+-1", "0x10", "1e999",
        ] {
            assert_eq!(parse(text), Err(CapacityError::Malformed(text.into())), "{text}");
        }
        assert_eq!(parse("-1Gi"), Err(CapacityError::Negative("-1Gi".into())));
        for text in [
            "8Ei",
            "9223372036854775808",
            "10E",
            "99999999999999999999999999999999999999999",
        ] {
            assert_eq!(parse(text), Err(CapacityError::TooLarge(text.into())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_written_size_reads_back(size in 0..=i64::MAX as u64) {
            prop_assert_eq!(bytes(&quantity(size)), Ok(size));
        }

        #[test]
        fn a_round_size_reads_back(size in 0_u64..8192, shift in 0_u32..5) {
            let size = size << (10 * shift);
            prop_assert_eq!(bytes(&quantity(size)), Ok(size));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = parse(&text);
        }
    }
}
