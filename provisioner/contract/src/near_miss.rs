//! Names that all but spell a known one.

use strsim::osa_distance;

/// The known name that `name` was probably meant to be.
///
/// Two spellings that differ in case and separators only (`serviceAccountName`, `service_account_name`) are a near
/// miss, and so are up to two slips of the finger in a long name, one in a short one.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(name);
    known
        .into_iter()
        // Letters left out, put in, changed, or swapped with their neighbour.
        .map(|known| (osa_distance(&folded, &fold(known)), known))
        .filter(|&(slips, known)| slips <= allowed(known))
        .min()
        .map(|(_, known)| known)
}

/// A name without what spellings of it differ in: case and separators.
pub fn fold(name: &str) -> String {
    name.chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// How many slips still make a near miss: a short word is soon another word.
fn allowed(known: &str) -> usize {
    if known.len() > 8 { 2 } else { 1 }
}
