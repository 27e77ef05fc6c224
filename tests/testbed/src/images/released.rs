//! How the images of a release are built: a commit always makes the same ones, and each has labels that say what it is.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::recipes::Recipe;
use crate::layout::repository;

/// The labels that the Open Container Initiative has named.
const LABEL: &str = "org.opencontainers.image.";

#[derive(Debug, Clone)]
pub struct Released {
    /// The time of all files, in seconds since 1970.
    pub time: i64,
    /// Labels of all images, without [`LABEL`].
    pub labels: BTreeMap<&'static str, String>,
    /// The last parts of their names; all of `images/` if there are none.
    pub only: Vec<String>,
    /// Build even those that were built before.
    pub again: bool,
}

impl Released {
    pub(super) fn has(&self, recipe: &Recipe) -> bool {
        let is_shipped = recipe.containerfile.starts_with(repository().join("images"));
        is_shipped && (self.only.is_empty() || self.only.contains(&recipe.file_name()))
    }

    pub(super) fn recipe(&self, usual: Recipe) -> Result<Recipe> {
        let text = std::fs::read_to_string(&usual.containerfile)
            .with_context(|| format!("failed to read {}", usual.containerfile.display()))?;
        let own = [("title", usual.file_name()), ("description", description(&text))];
        let labels = self.labels.clone().into_iter().chain(own);
        let mut arguments = vec![
            format!("--timestamp={}", self.time),
            // Python's compiler and the programs that make users go by it.
            format!("--env=SOURCE_DATE_EPOCH={}", self.time),
            "--unsetenv=SOURCE_DATE_EPOCH".to_owned(),
            // These say which buildah it was, and when.
            "--identity-label=false".to_owned(),
            "--omit-history".to_owned(),
        ];
        arguments.extend(labels.map(|(label, value)| format!("--label={LABEL}{label}={value}")));
        Ok(Recipe { arguments, ..usual })
    }
}

/// The first sentence of a Containerfile's own description.
fn description(containerfile: &str) -> String {
    let lines = containerfile.lines().map_while(|line| line.strip_prefix('#'));
    let all = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    let first = all.split_once(". ").map_or(all.as_str(), |(first, _)| first);
    first.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Released, description};
    use crate::images::recipes;
    use crate::layout::repository;

    #[test]
    fn the_first_sentence_describes_an_image() {
        let text = "# Volumes of a Ceph\n# cluster, version 1.2 or later. It knows nothing.\nFROM scratch\n# No.\n";
        assert_eq!(description(text), "Volumes of a Ceph cluster, version 1.2 or later");
        assert_eq!(description("# One.\nFROM scratch\n"), "One");
    }

    #[test]
    fn a_release_has_all_images_but_those_of_the_tests_and_says_what_each_is() {
        let released = Released {
            time: 7,
            labels: [("version", "1.2.3".to_owned())].into(),
            only: Vec::new(),
            again: false,
        };
        let mut names = Vec::new();
        for recipe in recipes(repository(), "target/x/dist").unwrap() {
            if !released.has(&recipe) {
                continue;
            }
            let recipe = released.recipe(recipe).unwrap();
            let has = |wanted: &str| recipe.arguments.iter().any(|argument| argument.starts_with(wanted));
            assert!(has("--timestamp=7"));
            assert!(has("--label=org.opencontainers.image.version=1.2.3"));
            let title = format!("--label=org.opencontainers.image.title={}", recipe.file_name());
            assert!(has(&title), "{:?}", recipe.arguments);
            let description = recipe.arguments.iter().find(|one| one.contains(".description="));
            let length = description.unwrap().split(".description=").nth(1).unwrap().len();
            assert!((10..200).contains(&length), "{description:?}");
            names.push(recipe.file_name());
        }
        for name in ["mounter", "provisioner-base", "openstack-cinder", "client-sshfs"] {
            assert!(names.iter().any(|one| one == name), "{name}");
        }
        assert!(!names.iter().any(|name| name.starts_with("testbed-")), "{names:?}");
        assert!(!names.iter().any(|name| name == "iscsi-provision"), "{names:?}");
    }
}
