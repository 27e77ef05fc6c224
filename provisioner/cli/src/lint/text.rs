//! The text of a YAML file: its documents, and where in it things stand.

use flex_provisioner::config::keys;
use flex_provisioner::config::parse::is_missing_space;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its first line in the file, from 1.
    pub first_line: usize,
    pub text: String,
}

/// Splits a file at its `---` lines. Documents without content are left out.
pub fn documents(text: &str) -> Vec<Document> {
    let mut documents = Vec::new();
    let mut current = Document {
        first_line: 1,
        text: String::new(),
    };
    for (index, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") || line == "..." {
            let next = Document {
                first_line: index + 2,
                text: String::new(),
            };
            documents.push(std::mem::replace(&mut current, next));
        } else {
            current.text.push_str(line);
            current.text.push('\n');
        }
    }
    documents.push(current);
    documents.retain(|document| {
        document
            .text
            .lines()
            .any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    });
    documents
}

/// A line like `zone:west`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingSpace {
    /// Line of the document, from 1.
    pub line: usize,
    /// The part before the colon.
    pub key: String,
    /// The part after it.
    pub value: String,
}

/// The lines that lack the space after their colon, and the text with those spaces. `all` takes in doubtful ones, such
/// as `portal:3260`, for a text that can't be parsed as written.
pub fn with_spaces(text: &str, all: bool) -> (Vec<MissingSpace>, String) {
    let mut found = Vec::new();
    let mut repaired = String::new();
    let mut block: Option<usize> = None;
    for (index, line) in text.lines().enumerate() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if block.is_some_and(|outer| content.is_empty() || indent > outer) {
            repaired.push_str(line);
            repaired.push('\n');
            continue;
        }
        block = opens_block(content).then_some(indent);
        match split_missing(content, all) {
            Some((key, value)) => {
                found.push(MissingSpace {
                    line: index + 1,
                    key: key.to_owned(),
                    value: value.to_owned(),
                });
                // A line that slipped too far to the right belongs to the keys above it.
                let indent = sibling_indent(&repaired, indent);
                repaired.push_str(&" ".repeat(indent));
                repaired.push_str(&[key, ": ", value].concat());
            }
            None => repaired.push_str(line),
        }
        repaired.push('\n');
    }
    (found, repaired)
}

/// Whether what follows, further in, is text and not YAML (`key: |`).
fn opens_block(content: &str) -> bool {
    let content = content.split(" #").next().unwrap_or(content).trim_end();
    let last = content.rsplit([' ', '\t']).next().unwrap_or_default();
    content.contains([':', '-']) && last.starts_with(['|', '>']) && last.len() <= 3
}

fn split_missing(content: &str, all: bool) -> Option<(&str, &str)> {
    if content.starts_with(['#', '"', '\'', '{', '[', '-', '&', '*', '!']) {
        return None;
    }
    let (key, value) = content.split_once(':')?;
    let is_key = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    let is_value = !value.is_empty()
        && !value.starts_with([' ', '\t'])
        && !value.starts_with("//")
        && !value.contains(": ")
        && !value.trim_end().ends_with(':');
    let certain = keys::is_known(key) || is_missing_space(content);
    (is_key && is_value && (all || certain)).then_some((key, value.trim_end()))
}

/// The indentation that a line should have had to be a key beside the one above it.
fn sibling_indent(above: &str, indent: usize) -> usize {
    let last = above
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    match last {
        // Below `data:` and the like the line is the first of its block.
        Some(last) if !last.trim_end().ends_with(':') => indent.min(last.len() - last.trim_start().len()),
        _ => indent,
    }
}

/// The line, from 1, of a mapping's key; within `section` (such as `data`) if that exists.
pub fn line_of(text: &str, section: &str, key: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.iter().position(|line| is_key(line, section)).unwrap_or(0);
    let below = lines.iter().enumerate().skip(start);
    let own_line = below.clone().find(|(_, line)| is_key(line, key));
    let within_line = || {
        let flow = [format!("{key}:"), format!("{key}\":"), format!("{key}':")];
        below
            .clone()
            .find(|(_, line)| flow.iter().any(|form| line.contains(form.as_str())))
    };
    own_line.or_else(within_line).map(|(index, _)| index + 1)
}

fn is_key(line: &str, key: &str) -> bool {
    let line = line.trim_start().trim_start_matches("- ");
    [key.to_owned(), format!("\"{key}\""), format!("'{key}'")]
        .iter()
        .any(|form| {
            line.strip_prefix(form.as_str())
                .is_some_and(|rest| rest.trim_start().starts_with(':'))
        })
}

/// The value of a key as written in the text, if it is plain and on the key's own line.
pub fn plain_value<'a>(text: &'a str, section: &str, key: &str) -> Option<&'a str> {
    let line = text.lines().nth(line_of(text, section, key)? - 1)?;
    let value = line.split_once(':')?.1;
    let value = value.split(" #").next().unwrap_or(value).trim();
    (is_key(line, key) && !value.starts_with(['"', '\'', '|', '>', '{', '['])).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::{documents, line_of, plain_value, with_spaces};

    #[test]
    fn files_are_split_at_their_markers() {
        let found = documents("# head\n---\na: 1\n---\n\n---\nb: |\n  ---x\n");
        let lines: Vec<_> = found.iter().map(|d| (d.first_line, d.text.as_str())).collect();
        assert_eq!(lines, [(3, "a: 1\n"), (7, "b: |\n  ---x\n")]);
    }

    #[test]
    fn lines_without_the_space_are_found_and_mended() {
        for (text, all, found) in [
            ("data:\n  zone:west\n", false, vec![(2, "zone")]),
            ("data:\n  a: b\n  image:x/y\n", false, vec![(3, "image")]),
            ("data:\n  a: b\n    zone:west\n", false, vec![(3, "zone")]),
            ("timeout:90\n", false, vec![(1, "timeout")]),
            ("portal:3260\n", false, vec![]),
            ("portal:3260\n", true, vec![(1, "portal")]),
            ("script: |\n  zone:west\nzone: west\n", false, vec![]),
            ("script: >-  # folded\n  zone:west\n", false, vec![]),
            ("url: http://x\nhttp://x\n", true, vec![]),
            ("# zone:west\n- zone:west\n\"zone:west\": x\n", true, vec![]),
            ("a: b:c\n", true, vec![]),
        ] {
            let (missing, repaired) = with_spaces(text, all);
            let keys: Vec<_> = missing.iter().map(|m| (m.line, m.key.as_str())).collect();
            assert_eq!(keys, found, "{text}");
            if !found.is_empty() {
                mooring_yaml::document(&repaired).unwrap();
            }
        }
    }

    #[test]
    fn keys_are_found_in_their_section() {
        let text = "metadata:\n  name: a\n  labels: {type: x}\ndata:\n  name: b\n  \"q\": 'c'\n  on: yes # really\n";
        assert_eq!(line_of(text, "data", "name"), Some(5));
        assert_eq!(line_of(text, "metadata", "name"), Some(2));
        assert_eq!(line_of(text, "metadata", "type"), Some(3));
        assert_eq!(line_of(text, "data", "q"), Some(6));
        assert_eq!(line_of(text, "data", "gone"), None);
        assert_eq!(plain_value(text, "data", "on"), Some("yes"));
        assert_eq!(plain_value(text, "data", "q"), None);
    }
}
