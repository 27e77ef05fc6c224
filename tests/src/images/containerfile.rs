//! Reading of a Containerfile what an image is made of: the images that it starts from and the files that it copies.

/// What an image is made of.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ingredients {
    /// Images of `FROM`, without `scratch` and earlier stages, in order.
    pub(super) bases: Vec<String>,
    /// Sources of `COPY` and `ADD` from the build context, `${BIN_DIR}` filled in.
    pub(super) sources: Vec<String>,
}

/// Reads a Containerfile.
pub(super) fn ingredients(text: &str, program_folder: &str) -> Ingredients {
    let mut found = Ingredients::default();
    let mut stages: Vec<String> = vec!["scratch".into()];
    for line in logical_lines(text) {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.as_slice() {
            [keyword, rest @ ..] if keyword.eq_ignore_ascii_case("from") => {
                let mut names = rest.iter().filter(|word| !word.starts_with("--"));
                if let Some(image) = names.next()
                    && !stages.iter().any(|stage| stage == image)
                    && !found.bases.iter().any(|base| base == image)
                {
                    found.bases.push((*image).to_owned());
                }
                if let (Some(word), Some(stage)) = (names.next(), names.next())
                    && word.eq_ignore_ascii_case("as")
                {
                    stages.push((*stage).to_owned());
                }
            }
            [keyword, rest @ ..] if ["copy", "add"].iter().any(|word| keyword.eq_ignore_ascii_case(word)) => {
                if rest.iter().any(|word| word.starts_with("--from=")) {
                    continue;
                }
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

/// Lines with those that end in a backslash joined to the next, and without comments.
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
                    COPY --chmod=755 images/a/provision /provision\nCOPY ${BIN_DIR}/one ${BIN_DIR}/two /bin/\nFROM scratch\nFROM ssh\n";
        assert_eq!(
            ingredients(text, "target/y/dist"),
            Ingredients {
                bases: vec!["debian:trixie-slim".into(), "mooring.dev/provisioner-base:0.1.0".into()],
                sources: vec![
                    "images/a/provision".into(),
                    "target/y/dist/one".into(),
                    "target/y/dist/two".into()
                ],
            }
        );
    }
}
