//! Reads from a Containerfile which images it starts from and which files it copies.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ingredients {
    /// Images of `FROM`, without `scratch` and earlier stages, in order.
    pub(super) bases: Vec<String>,
    /// Sources of `COPY` and `ADD` from the build context, with `${BIN_DIR}` replaced.
    pub(super) sources: Vec<String>,
    /// Images that the stages with a `RUN` start from in the end.
    pub(super) run_on: BTreeSet<String>,
    /// Number of words in all `RUN` lines.
    pub(super) words_run: usize,
}

pub(super) fn ingredients(text: &str, program_folder: &str) -> Ingredients {
    let mut found = Ingredients::default();
    // Each stage, and the image that it starts from in the end.
    let mut stages = BTreeMap::from([("scratch", "scratch")]);
    let mut current = "scratch";
    for line in &logical_lines(text) {
        let words: Vec<_> = line.split_whitespace().collect();
        let Some((keyword, rest)) = words.split_first() else {
            continue;
        };
        match keyword.to_ascii_lowercase().as_str() {
            "from" => {
                let mut names = rest.iter().filter(|word| !word.starts_with("--")).copied();
                let Some(image) = names.next() else {
                    continue;
                };
                if !stages.contains_key(image) && !found.bases.iter().any(|base| base == image) {
                    found.bases.push(image.to_owned());
                }
                current = stages.get(image).copied().unwrap_or(image);
                if let (Some(word), Some(stage)) = (names.next(), names.next())
                    && word.eq_ignore_ascii_case("as")
                {
                    stages.insert(stage, current);
                }
            }
            "run" => {
                found.run_on.insert(current.to_owned());
                found.words_run += rest.len();
            }
            "copy" | "add" if !rest.iter().any(|word| word.starts_with("--from=")) => {
                let paths: Vec<_> = rest.iter().filter(|word| !word.starts_with("--")).collect();
                let sources = paths.len().saturating_sub(1);
                found.sources.extend(
                    paths[..sources]
                        .iter()
                        .map(|path| path.replace("${BIN_DIR}", program_folder)),
                );
            }
            _ => {}
        }
    }
    found
}

/// Lines without comments; a line that ends in a backslash is joined to the next.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut current = String::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        if let Some(begun) = line.strip_suffix('\\') {
            current.push_str(begun);
        } else {
            current.push_str(line);
            lines.push(std::mem::take(&mut current));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{Ingredients, ingredients};

    #[test]
    fn bases_and_sources_are_read_and_stages_are_not_taken_for_images() {
        let text = "# comment\nFROM debian:trixie-slim AS ssh\nRUN apt-get update \\\n    && true\n\
                    FROM mooring.dev/provisioner-base:0.1.0\nARG BIN_DIR=target/x/dist\nCOPY --from=ssh /out/ /lib/\n\
                    COPY --chmod=755 images/a/provision /provision\nCOPY ${BIN_DIR}/one ${BIN_DIR}/two /bin/\n\
                    FROM scratch\nFROM ssh\n";
        assert_eq!(
            ingredients(text, "target/y/dist"),
            Ingredients {
                bases: vec!["debian:trixie-slim".into(), "mooring.dev/provisioner-base:0.1.0".into()],
                sources: vec![
                    "images/a/provision".into(),
                    "target/y/dist/one".into(),
                    "target/y/dist/two".into()
                ],
                run_on: ["debian:trixie-slim".to_owned()].into(),
                words_run: 4,
            }
        );
        let stages = ingredients(
            "FROM a AS one\nFROM b\nRUN x\nFROM one AS two\nFROM two\nRUN y\nFROM scratch\n",
            "",
        );
        assert_eq!(stages.run_on, ["a".to_owned(), "b".to_owned()].into());
    }
}
