//! Mooring's images: built from their Containerfiles if one of their ingredients changed, and delivered to the cluster.

mod build;
mod built;
mod compile;
mod containerfile;
mod crates;
mod earlier_debian;
mod lists;
mod notices;
mod queue;
mod recipes;
mod released;
mod store;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

pub use build::try_out;
pub use built::{Built, HOST, TAG};
pub(crate) use compile::PROGRAMS;
pub use compile::{Form, PROGRAMS_VARIABLE, program_folder};
pub(crate) use crates::{Crate, crates_of};
pub use notices::notices;
pub use recipes::{Recipe, recipes};
pub use released::Released;

use build::Wanted;
use compile::{build_programs, put_programs_of_others};

use crate::base_images::{self, Archive};
use crate::layout::{cache, make_folder, repository};
use crate::lock::Lock;
use crate::progress::say;

#[derive(Debug, Clone, Copy)]
pub enum Selection<'a> {
    /// All images of the repository, without those of OpenStack's services: they take minutes, and only
    /// [`Selection::OpenStack`] needs them.
    All,
    /// Those of OpenStack's services, and of Mooring what they need.
    OpenStack,
    /// The same, and those with these names.
    OpenStackWith(&'a [&'a str]),
    /// Those of OpenStack's services again, on the packages of Debian's release before: what an upgrade begins with.
    OpenStackBefore,
    /// Those whose names end with these parts, and the images that they start from.
    Named(&'a [&'a str]),
    /// Those of a release.
    Released(&'a Released),
}

/// Builds the selected images that are missing or outdated; returns all selected ones, each after those that it starts
/// from.
pub fn build(selection: Selection<'_>, form: Form) -> Result<Vec<Built>> {
    let lock = Lock::images()?;
    let mut folder = cache()?.join("images");
    let mut recipes = selected(recipes(repository(), &program_folder()?)?, selection);
    match selection {
        Selection::OpenStackBefore => {
            recipes = recipes.into_iter().map(earlier_debian::recipe).collect::<Result<_>>()?;
        }
        Selection::Released(released) => {
            // Apart from those of the tests, which are removed when there are newer ones of the same name.
            folder = cache()?.join("released-images");
            recipes = recipes
                .into_iter()
                .map(|recipe| released.recipe(recipe))
                .collect::<Result<_>>()?;
        }
        _ => {}
    }
    make_folder(&folder)?;
    build_programs(form, &recipes)?;
    put_programs_of_others(&recipes)?;
    let mut wanted: Vec<Wanted> = Vec::new();
    for recipe in recipes {
        let bases = recipe
            .bases
            .iter()
            .map(|base| find_base(base, &wanted))
            .collect::<Result<Vec<_>>>()
            .with_context(|| format!("failed to find what {} is made from", recipe.name))?;
        let hash = recipe.hash(&bases)?;
        let archive = Archive {
            name: recipe.name.clone(),
            path: folder.join(format!("{}-{hash}.tar", recipe.file_name())),
        };
        let built = Built { archive, hash };
        wanted.push(Wanted { recipe, bases, built });
    }
    let again = matches!(selection, Selection::Released(released) if released.again);
    let missing: Vec<_> = wanted
        .iter()
        .filter(|wanted| again || !wanted.built.archive.path.is_file())
        .collect();
    build::build_all(&lock, &missing)?;
    Ok(wanted.into_iter().map(|wanted| wanted.built).collect())
}

/// Mooring's own images that OpenStack's services need, whose volumes are of class `local`, and those that make and mount
/// volumes of the services.
const FOR_OPENSTACK: [&str; 7] = [
    "client-block",
    "client-cephfs",
    "flex-provisioner",
    "mounter",
    "provisioner-local",
    "provisioner-openstack",
    "provisioner-openstack-ceph",
];

/// What collects the services' logs, if it is asked for.
const COLLECTOR: &str = "opentelemetry-collector-contrib";

/// Those of some trials of OpenStack only.
const OF_TRIALS: [&str; 3] = ["testbed-cinder-servers", "testbed-manila-servers", "testbed-nova"];

/// What the names of the services' own images begin with.
const OPENSTACK: &str = "openstack-";

fn is_of_openstack(name: &str) -> bool {
    name.starts_with(OPENSTACK) || name == COLLECTOR || OF_TRIALS.contains(&name)
}

/// The selected ones among recipes, in order.
fn selected(recipes: Vec<Recipe>, selection: Selection<'_>) -> Vec<Recipe> {
    let is_usual = |name: &str| (is_of_openstack(name) || FOR_OPENSTACK.contains(&name)) && !OF_TRIALS.contains(&name);
    let by_itself = |recipe: &Recipe| {
        let name = recipe.file_name();
        let name = name.as_str();
        match selection {
            Selection::All => !is_of_openstack(name),
            Selection::OpenStack => is_usual(name),
            Selection::OpenStackWith(more) => is_usual(name) || more.contains(&name),
            Selection::OpenStackBefore => name.starts_with(OPENSTACK),
            Selection::Named(names) => names.contains(&name),
            Selection::Released(released) => released.has(recipe),
        }
    };
    let mut bases = BTreeSet::new();
    let mut wanted: Vec<_> = recipes
        .into_iter()
        .rev()
        .filter(|recipe| {
            let wanted = by_itself(recipe) || bases.contains(&recipe.name);
            if wanted {
                bases.extend(recipe.bases.iter().cloned());
            }
            wanted
        })
        .collect();
    wanted.reverse();
    wanted
}

fn find_base(name: &str, wanted: &[Wanted]) -> Result<Built> {
    if let Some(own) = wanted.iter().find(|image| image.recipe.name == name) {
        return Ok(own.built.clone());
    }
    let archive = match name {
        "debian:trixie-slim" => base_images::debian()?,
        "debian:bookworm-slim" => base_images::debian_before()?,
        "busybox:1" => base_images::busybox()?,
        _ => anyhow::bail!(
            "{name:?} can't be had here: an image starts from debian:trixie-slim, busybox:1, scratch or another image \
             of this repository"
        ),
    };
    Ok(Built::of_base(archive))
}

/// Writes an image as a Docker archive that contains its name, which every loader understands.
pub fn docker_archive(image: &Built, path: &Path) -> Result<()> {
    let lock = Lock::images()?;
    let store = store::Store::open(&lock)?;
    store.ensure(image)?;
    let _ = std::fs::remove_file(path);
    let target = format!("docker-archive:{}:{}", path.display(), image.archive.name);
    store.push(&image.archive.name, &target)?;
    store.close();
    Ok(())
}

/// Pushes an image to a registry under `name`.
pub fn push(image: &Built, name: &str) -> Result<()> {
    let lock = Lock::images()?;
    let store = store::Store::open(&lock)?;
    store.ensure(image)?;
    let target = format!("docker://{name}");
    store
        .push(&image.archive.name, &target)
        .with_context(|| format!("failed to push {name}: log in with `buildah login` if the registry asks for it"))?;
    store.close();
    say(format!("  ok pushed {name}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Selection, recipes, selected};
    use crate::layout::repository;

    #[test]
    fn a_selected_image_comes_with_those_that_it_starts_from_and_no_others() {
        let all = recipes(repository(), "target/x/dist").unwrap();
        let names = selected(all, Selection::Named(&["mounter", "provisioner-directory"]));
        let names: Vec<_> = names.iter().map(super::Recipe::file_name).collect();
        for (before, after) in [
            ("provisioner-base", "provisioner-sshfs"),
            ("provisioner-sshfs", "provisioner-directory"),
        ] {
            let place = |name: &str| names.iter().position(|one| one == name).unwrap();
            assert!(place(before) < place(after), "{names:?}");
        }
        assert_eq!(names.len(), 4, "{names:?}");
    }

    #[test]
    fn the_images_of_openstack_are_built_only_when_they_are_asked_for() {
        let names = |selection| -> Vec<_> {
            let all = recipes(repository(), "target/x/dist").unwrap();
            selected(all, selection).iter().map(super::Recipe::file_name).collect()
        };
        let usual = names(Selection::All);
        assert!(!usual.iter().any(|name| super::is_of_openstack(name)), "{usual:?}");
        let openstack = names(Selection::OpenStack);
        for name in ["openstack-base", "openstack-keystone", "provisioner-local"] {
            assert!(openstack.iter().any(|one| one == name), "{name}");
        }
        for name in ["client-sshfs", super::OF_TRIALS[0]] {
            assert!(!openstack.iter().any(|one| one == name), "{openstack:?}");
        }
        let openstack = names(Selection::OpenStackWith(&super::OF_TRIALS));
        for name in super::OF_TRIALS {
            assert!(openstack.iter().any(|one| one == name), "{name}");
        }
        let all = recipes(repository(), "target/x/dist").unwrap().len();
        let both = usual.len() + openstack.iter().filter(|name| super::is_of_openstack(name)).count();
        assert_eq!(both, all);
    }
}
