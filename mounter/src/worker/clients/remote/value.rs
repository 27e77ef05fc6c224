//! Values of mount options that are passed on: numbers within bounds, and words of a list.

use std::ops::RangeInclusive;

/// Options with a number, and which.
pub(in crate::worker::clients) type Numbers = [(&'static str, RangeInclusive<u32>)];

/// Options with a word, and which.
pub(in crate::worker::clients) type Choices = [(&'static str, &'static [&'static str])];

/// Checks an option with a number; says what it should be. Nothing if there is no such option.
pub(in crate::worker::clients) fn check_number(
    known: &Numbers,
    key: &str,
    value: Option<&str>,
) -> Option<Result<(), String>> {
    let (_, range) = known.iter().find(|(name, _)| *name == key)?;
    // Digits alone: a number that is written otherwise the kernel may read as another.
    let number = value
        .filter(|value| value.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|value| value.parse().ok());
    Some(match number {
        Some(number) if range.contains(&number) => Ok(()),
        _ => Err(format!("a number from {} to {}", range.start(), range.end())),
    })
}

/// The words that an option may have; nothing if there is no such option.
pub(in crate::worker::clients) fn words_of(known: &Choices, key: &str) -> Option<&'static [&'static str]> {
    known.iter().find(|(name, _)| *name == key).map(|(_, words)| *words)
}
