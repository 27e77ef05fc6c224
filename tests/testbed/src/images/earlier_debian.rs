//! Images of OpenStack's services with the packages of Debian's release before, from the same Containerfiles.

use anyhow::{Context, Result};

use super::built::HOST;
use super::recipes::Recipe;
use crate::layout::{make_folder, repository, write_file};

/// Where their Containerfiles are written, below the repository.
const FOLDER: &str = "target/openstack-before";

const BASE: (&str, &str) = ("debian:trixie-slim", "debian:bookworm-slim");

/// What each name begins with, and begins with then. An archive is found by its name: they have others.
const NAME: (&str, &str) = ("openstack-", "before-openstack-");

/// The name of such an image instead of that of the usual one.
pub(super) fn name(usual: &str) -> String {
    usual.replacen(&format!("{HOST}/{}", NAME.0), &format!("{HOST}/{}", NAME.1), 1)
}

/// Writes the Containerfile, and returns how the image is made.
pub(super) fn recipe(usual: Recipe) -> Result<Recipe> {
    let text = std::fs::read_to_string(&usual.containerfile)
        .with_context(|| format!("failed to read {}", usual.containerfile.display()))?;
    let folder = repository().join(FOLDER);
    make_folder(&folder)?;
    let containerfile = folder.join(usual.file_name());
    write_file(&containerfile, on_base_before(&text))?;
    Ok(Recipe {
        name: name(&usual.name),
        containerfile,
        bases: usual.bases.iter().map(|base| on_base_before(base)).collect(),
        // The lists that images share are of the usual release.
        runs_on_debian: false,
        ..usual
    })
}

fn on_base_before(text: &str) -> String {
    name(&text.replace(BASE.0, BASE.1))
}

#[cfg(test)]
mod tests {
    use super::{name, on_base_before};

    #[test]
    fn an_image_on_the_release_before_starts_from_one_of_that() {
        assert_eq!(
            on_base_before(
                "FROM debian:trixie-slim\nFROM mooring.dev/openstack-base:0.1.0\nCOPY images/openstack-base/x /x"
            ),
            "FROM debian:bookworm-slim\nFROM mooring.dev/before-openstack-base:0.1.0\nCOPY images/openstack-base/x /x"
        );
        assert_eq!(name("mooring.dev/mounter:0.1.0"), "mooring.dev/mounter:0.1.0");
    }
}
