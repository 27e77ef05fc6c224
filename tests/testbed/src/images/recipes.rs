//! The images of the repository, in an order in which they can be built.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::built::{Built, HOST, TAG};
use super::containerfile::{Ingredients, ingredients};
use crate::hash::short_hex;
use crate::layout::repository;

/// An image and its ingredients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recipe {
    /// Full name with tag.
    pub name: String,
    pub containerfile: PathBuf,
    /// Names of the images that it starts from.
    pub bases: Vec<String>,
    /// Files and folders that it copies.
    pub(super) sources: Vec<PathBuf>,
    /// Whether every program that its build runs is on `debian:trixie-slim`.
    pub(super) runs_on_debian: bool,
    /// How many words its build runs: an estimate of how long it takes.
    pub(super) words_run: usize,
    /// Further arguments of `buildah build`.
    pub(super) arguments: Vec<String>,
}

/// Increased when the same ingredients make another image than before.
const WAY: u32 = 2;

impl Recipe {
    /// The last part of the name, without the tag.
    pub fn file_name(&self) -> String {
        let last = self.name.rsplit('/').next().unwrap_or_default();
        last.split(':').next().unwrap_or_default().to_owned()
    }

    /// Whether the image copies this file.
    pub fn copies(&self, file: &Path) -> bool {
        self.sources.iter().any(|source| source == file)
    }

    /// A hash of all its ingredients.
    pub(super) fn hash(&self, bases: &[Built]) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(WAY.to_le_bytes());
        for base in bases {
            hash.update(base.hash.as_bytes());
        }
        hash_file(&mut hash, &self.containerfile)?;
        for source in &self.sources {
            hash_tree(&mut hash, source)?;
        }
        for argument in &self.arguments {
            hash.update(argument.as_bytes());
        }
        Ok(short_hex(&hash.finalize()))
    }
}

fn hash_tree(hash: &mut Sha256, path: &Path) -> Result<()> {
    if !path.is_dir() {
        return hash_file(hash, path);
    }
    let mut entries: Vec<_> = std::fs::read_dir(path)
        .with_context(|| format!("failed to list {}", path.display()))?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    entries.iter().try_for_each(|entry| hash_tree(hash, entry))
}

fn hash_file(hash: &mut Sha256, path: &Path) -> Result<()> {
    let content =
        std::fs::read(path).with_context(|| format!("failed to read {}, which an image is made of", path.display()))?;
    // The same wherever the work tree is.
    let name = path.strip_prefix(repository()).unwrap_or(path);
    hash.update(name.to_string_lossy().as_bytes());
    hash.update((content.len() as u64).to_le_bytes());
    hash.update(&content);
    Ok(())
}

/// The images of `images/` and, for tests only, of `tests/images/`; each after those that it starts from.
pub fn recipes(repository: &Path, program_folder: &str) -> Result<Vec<Recipe>> {
    let mut found = Vec::new();
    for (folder, prefix) in [("images", ""), ("tests/images", "testbed-")] {
        let folder = repository.join(folder);
        for entry in std::fs::read_dir(&folder)
            .with_context(|| format!("failed to list {}", folder.display()))?
            .flatten()
        {
            let containerfile = entry.path().join("Containerfile");
            let Ok(text) = std::fs::read_to_string(&containerfile) else {
                continue;
            };
            let Ingredients {
                bases,
                sources,
                run_on,
                words_run,
            } = ingredients(&text, program_folder);
            let usual = || format!("{HOST}/{prefix}{}:{TAG}", entry.file_name().to_string_lossy());
            found.push(Recipe {
                name: own_name(&text).map_or_else(usual, str::to_owned),
                containerfile,
                bases,
                sources: sources.iter().map(|source| repository.join(source)).collect(),
                runs_on_debian: !run_on.is_empty() && run_on.iter().all(|image| image == "debian:trixie-slim"),
                words_run,
                arguments: Vec::new(),
            });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    in_order(found)
}

/// The name that a Containerfile gives its image if that replaces another project's image: a comment `# Image: NAME`.
fn own_name(containerfile: &str) -> Option<&str> {
    containerfile.lines().find_map(|line| line.strip_prefix("# Image: "))
}

fn in_order(mut waiting: Vec<Recipe>) -> Result<Vec<Recipe>> {
    let mut ordered: Vec<Recipe> = Vec::new();
    while !waiting.is_empty() {
        let names: Vec<_> = waiting.iter().map(|recipe| recipe.name.clone()).collect();
        let (ready, rest): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|recipe| !recipe.bases.iter().any(|base| names.contains(base)));
        ensure!(
            !ready.is_empty(),
            "these images start from each other: {}",
            names.join(", ")
        );
        ordered.extend(ready);
        waiting = rest;
    }
    if ordered.is_empty() {
        bail!("there are no images");
    }
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use mooring_contract::worker::CAPABLE_VARIABLE;

    use super::super::compile::PROGRAMS;
    use super::{Recipe, in_order, recipes};
    use crate::base_images::BASES;
    use crate::layout::repository;

    #[test]
    fn dockerignore_lets_through_every_program_that_is_copied() {
        let ignored = std::fs::read_to_string(repository().join(".dockerignore")).unwrap();
        let folder = repository().join("target/x/dist");
        let mut programs = 0;
        for source in recipes(repository(), "target/x/dist")
            .unwrap()
            .iter()
            .flat_map(|recipe| &recipe.sources)
        {
            let Ok(program) = source.strip_prefix(&folder) else {
                continue;
            };
            programs += 1;
            let line = format!("!target/*/dist/{}", program.display());
            assert!(ignored.lines().any(|there| there == line), "{line} is missing");
        }
        assert!(programs > 0);
    }

    #[test]
    fn every_image_starts_from_a_base_image_or_from_another_of_these() {
        let all = recipes(repository(), "target/x/dist").unwrap();
        for base in all.iter().flat_map(|recipe| &recipe.bases) {
            let is_own = all.iter().any(|recipe| recipe.name == *base);
            assert!(is_own || BASES.contains(&base.as_str()), "{base}");
        }
    }

    #[test]
    fn every_image_with_a_program_of_mooring_s_has_the_notices() {
        let folder = repository().join("target/x/dist");
        for recipe in recipes(repository(), "target/x/dist").unwrap() {
            let text = std::fs::read_to_string(&recipe.containerfile).unwrap();
            let copied = PROGRAMS.iter().any(|(name, _)| recipe.copies(&folder.join(name)));
            if copied || text.contains(" /usr/local/bin/pv\n") {
                assert!(text.contains(" /usr/share/doc/mooring/NOTICE\n"), "{}", recipe.name);
            }
        }
    }

    #[test]
    fn the_stock_images_state_that_they_can_be_workers() {
        let all = recipes(repository(), "target/x/dist").unwrap();
        let statement = format!("ENV {CAPABLE_VARIABLE}=true\n");
        let mut stating: Vec<String> = Vec::new();
        // Each comes after those that it inherits from: the last one that it names.
        for recipe in &all {
            let text = std::fs::read_to_string(&recipe.containerfile).unwrap();
            let inherits = recipe.bases.last().is_some_and(|base| stating.contains(base));
            if text.contains(&statement) || inherits {
                stating.push(recipe.name.clone());
            }
        }
        let of_provisioner = |recipe: &&Recipe| recipe.file_name().starts_with("provisioner-");
        for recipe in all.iter().filter(of_provisioner) {
            // A vendor's image starts from the base.
            let is_none = recipe.file_name() == "provisioner-base";
            assert_ne!(stating.contains(&recipe.name), is_none, "{}", recipe.name);
        }
        assert!(stating.iter().all(|name| name.contains("/provisioner-")), "{stating:?}");
    }

    #[test]
    fn every_image_comes_after_those_that_it_starts_from() {
        let all = recipes(repository(), "target/x/dist").unwrap();
        let place = |name: &str| all.iter().position(|recipe| recipe.file_name() == name).unwrap();
        assert!(place("provisioner-base") < place("provisioner-local"));
        assert!(place("testbed-sshd") < all.len());
        for (name, on_debian) in [
            ("mounter", true),
            ("client-block", true),
            ("provisioner-sshfs", true),
            ("provisioner-base", false),
        ] {
            assert_eq!(all[place(name)].runs_on_debian, on_debian, "{name}");
        }
        let program = repository().join("target/x/dist/versitygw");
        assert!(all[place("testbed-versitygw")].copies(&program));
        let named = |name: &str| all.iter().any(|recipe| recipe.name == name);
        assert!(named("docker.io/custom/iscsi-provision:latest"));
        let mut circle = all[..2].to_vec();
        circle[0].bases = vec![circle[1].name.clone()];
        circle[1].bases = vec![circle[0].name.clone()];
        assert!(
            in_order(circle)
                .unwrap_err()
                .to_string()
                .contains("start from each other")
        );
    }
}
