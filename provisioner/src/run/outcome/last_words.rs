//! What a container said last, fit for an Event.

/// Longest text kept, in bytes; an Event's note holds 1024 with what goes around it.
pub const MAX_BYTES: usize = 700;

/// Most lines kept.
const MAX_LINES: usize = 8;

/// The last lines of a termination message: trimmed, without terminal escapes and control characters, the end kept
/// where it is too long, since that is where programs say why they give up. Empty if nothing was said.
pub fn last_words(message: &str) -> String {
    let mut lines: Vec<String> = message
        .lines()
        .map(|line| plain(line).trim_end().to_owned())
        .filter(|line| !line.trim().is_empty())
        .collect();
    let skipped = lines.len().saturating_sub(MAX_LINES);
    lines.drain(..skipped);
    let text = lines.join("\n");
    if text.len() <= MAX_BYTES {
        return text;
    }
    let start = text.ceil_char_boundary(text.len() - MAX_BYTES);
    format!("…{}", &text[start..])
}

/// A line without ANSI escape sequences and other control characters.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // CSI: parameters up to a letter. Any other escape is one character long.
            if chars.next_if_eq(&'[').is_some() {
                while chars.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
            }
            chars.next();
        } else if c == '\t' {
            out.push(' ');
        } else if !c.is_control() {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{MAX_BYTES, last_words};
    use proptest::prelude::*;

    #[test]
    fn only_the_last_lines_are_kept_plain() {
        assert_eq!(last_words(""), "");
        assert_eq!(last_words("\n \r\n"), "");
        assert_eq!(last_words("no route to host\n"), "no route to host");
        assert_eq!(
            last_words("\u{1b}[31merror:\u{1b}[0m\tdisk full\r\n"),
            "error: disk full"
        );
        let many: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        assert_eq!(last_words(&many.join("\n")), "42\n43\n44\n45\n46\n47\n48\n49");
    }

    #[test]
    fn a_long_line_keeps_its_end() {
        let words = last_words(&format!("{}the end", "ö".repeat(5000)));
        assert!(words.starts_with('…') && words.ends_with("the end"));
        assert!(words.len() <= MAX_BYTES + '…'.len_utf8());
    }

    proptest! {
        #[test]
        fn nothing_a_container_says_breaks_an_event(message in any::<String>()) {
            let words = last_words(&message);
            prop_assert!(words.len() <= MAX_BYTES + 3);
            prop_assert!(words.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}
