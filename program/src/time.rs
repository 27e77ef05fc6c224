//! Lengths of time, as people write them in flags and ConfigMaps.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a length of time: write it like 90s, 5m or 1h30m")]
pub struct BadDuration(String);

/// Reads `90s`, `5m`, `1h30m`, or a number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, BadDuration> {
    let bad = || BadDuration(text.to_owned());
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(Duration::from_secs).map_err(|_| bad());
    }
    let mut seconds = 0_u64;
    let mut rest = text;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let number: u64 = rest[..digits].parse().map_err(|_| bad())?;
        let unit = match rest.as_bytes()[digits] {
            b'h' => 3600,
            b'm' => 60,
            b's' => 1,
            _ => return Err(bad()),
        };
        // Descending units, each once: "5m1h" and "1m1m" are slips.
        if unit >= last {
            return Err(bad());
        }
        last = unit;
        let part = number.checked_mul(unit);
        seconds = part.and_then(|part| part.checked_add(seconds)).ok_or_else(bad)?;
        rest = &rest[digits + 1..];
    }
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::parse_duration;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in [
            ("90s", 90),
            ("5m", 300),
            ("1h", 3600),
            ("1h30m", 5400),
            ("1h1m1s", 3661),
            ("0", 0),
            ("7", 7),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "s",
            "5 m",
            "-1s",
            "1.5h",
            "5d",
            "5m1h",
            "1m1m",
            "90s5",
            "5é",
            "99999999999999999999h",
            "9999999999999999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
