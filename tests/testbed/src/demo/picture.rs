//! `docs/demo.svg`, the picture in README.md: the second half of the demo's output, as `docs/demo.md` has it.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::layout::repository;

const COMMAND: &str = "cargo testbed demo";

/// The picture begins with this step.
const FIRST: &str = "\n5. ";

/// After the last step.
const END: &str = "\nDone in ";

/// Pixels: of a character, of a line, and around the text.
const CHARACTER: usize = 8;
const LINE: usize = 18;
const MARGIN: usize = 16;

/// Draws the picture anew.
pub fn draw() -> Result<()> {
    let file = file();
    std::fs::write(&file, drawn()?).with_context(|| format!("failed to write {}", file.display()))
}

fn file() -> PathBuf {
    repository().join("docs/demo.svg")
}

fn drawn() -> Result<String> {
    let page = repository().join("docs/demo.md");
    let page = std::fs::read_to_string(&page).with_context(|| format!("failed to read {}", page.display()))?;
    Ok(svg(&shown(&page).context("docs/demo.md has no output of the demo")?))
}

/// The lines of the picture.
fn shown(page: &str) -> Option<Vec<String>> {
    let steps = &page[page.find(FIRST)?..];
    let steps = steps[..steps.find(END)?].trim_end();
    let before = [format!("$ {COMMAND}"), "…".to_owned()];
    Some(before.into_iter().chain(steps.lines().map(str::to_owned)).collect())
}

/// A terminal with its own background, so that it can be read on a light page and on a dark one.
fn svg(lines: &[String]) -> String {
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or_default();
    let width = longest * CHARACTER + 2 * MARGIN;
    let height = lines.len() * LINE + 2 * MARGIN;
    let mut picture = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="Output of {COMMAND}">
<style>text{{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d5dbe3;white-space:pre}}.step{{fill:#79c0ff;font-weight:bold}}.time{{fill:#8b949e}}.command{{fill:#7ee787}}</style>
<rect width="{width}" height="{height}" rx="8" fill="#10151c"/>
"##
    );
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let y = MARGIN + index * LINE + LINE * 3 / 4;
        // Whatever font there is, the line has the width of its characters.
        let text = line.trim_start();
        let x = MARGIN + (line.len() - text.len()) * CHARACTER;
        let length = text.chars().count() * CHARACTER;
        let class = class(line)
            .map(|class| format!(" class=\"{class}\""))
            .unwrap_or_default();
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            picture,
            r#"<text x="{x}" y="{y}" textLength="{length}"{class}>{text}</text>"#
        );
    }
    picture + "</svg>\n"
}

fn class(line: &str) -> Option<&'static str> {
    match line.chars().next()? {
        '$' => Some("command"),
        '0'..='9' => Some("step"),
        _ if line.trim_start().starts_with('[') => Some("time"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{drawn, file, svg};

    #[test]
    fn the_picture_shows_the_output_on_the_page() {
        let picture = std::fs::read_to_string(file()).unwrap();
        assert_eq!(picture, drawn().unwrap(), "cargo testbed picture draws it anew");
    }

    #[test]
    fn what_means_something_in_xml_is_shown_as_it_is() {
        let picture = svg(&["$ a".to_owned(), "1. <b> & c".to_owned()]);
        assert!(
            picture.contains(r#"class="step">1. &lt;b> &amp; c</text>"#),
            "{picture}"
        );
    }
}
