//! What a command prints for people.

use std::io::Write as _;

/// Prints one line at once. That nobody reads it to its end (`| head`) is not an error.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
