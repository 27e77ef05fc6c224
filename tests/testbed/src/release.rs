//! `cargo testbed release`: images, chart and manifests of a commit, in a folder and in a registry.

mod chart;
mod commit;
mod contents;
mod image;
mod layout;
mod login;
pub mod manifests;
mod push;
mod registry;
mod sbom;
mod sign;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::commit::Commit;
use self::image::Packer;
use self::layout::{Layout, Stored};
use self::registry::{Connection, Place, Registry};
use self::sign::Signer;
use crate::images::{self, Built, Form, Released, Selection, TAG};
use crate::layout::{make_folder, repository, write_file};
use crate::oci::{architecture, digest_file};
use crate::packages;
use crate::progress::{Step, say, step};

/// Arguments of `cargo testbed release`.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a command line")]
pub struct ReleaseArgs {
    /// The registry and the path in it that all images and the chart get: registry.example.com/mooring.
    registry: String,
    /// The folder for the files of the release, which is made anew; by default target/release-<version>.
    #[arg(long, value_name = "FOLDER")]
    directory: Option<PathBuf>,
    /// Write the folder, with all that a registry would get as an OCI layout in it, and push nothing.
    #[arg(long)]
    dry_run: bool,
    /// Only these images, by the last parts of their names, and those that they start from. May be given several times.
    #[arg(long, value_name = "NAME")]
    image: Vec<String>,
    /// Where the source is, for the images' labels.
    #[arg(long, value_name = "URL", env = "MOORING_RELEASE_SOURCE")]
    source: Option<String>,
    /// Sign images, chart and checksums with this private key, by the program cosign, which takes its password from the
    /// environment variable `COSIGN_PASSWORD`.
    #[arg(long, value_name = "FILE")]
    cosign_key: Option<PathBuf>,
    /// Replace tags that have other content in the registry.
    #[arg(long)]
    force: bool,
    /// Release a work tree with changes that no commit has. The revision in the labels ends with -dirty.
    #[arg(long)]
    allow_dirty: bool,
    /// Build all images again, even if a release of this commit has built them.
    #[arg(long)]
    rebuild: bool,
    /// Trust the authorities in this PEM file, instead of Mozilla's, for the registry's certificate.
    #[arg(long, value_name = "FILE")]
    registry_ca: Option<PathBuf>,
    /// Reach the registry without TLS, as one on this machine's loopback is.
    #[arg(long, conflicts_with = "registry_ca")]
    plain_http: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// For one platform of several.
    Image,
    Artifact,
}

/// What gets a tag in the registry.
#[derive(Debug, Clone)]
struct Item {
    /// Below the registry's path.
    repository: String,
    tag: String,
    kind: Kind,
    annotations: BTreeMap<String, String>,
    stored: Stored,
    /// Artifacts about it.
    referrers: Vec<Stored>,
}

impl Item {
    fn name(&self) -> String {
        format!("{}:{}", self.repository, self.tag)
    }
}

/// What a registry gets, in the folder of the release.
const LAYOUT: &str = "oci";

/// The file with the checksums of all others. Machines of two architectures have other ones.
fn checksum_file() -> String {
    format!("SHA256SUMS-{}", architecture())
}

/// Makes a release of the work tree's commit.
pub fn run(args: &ReleaseArgs) -> Result<()> {
    let place = Place::parse(&args.registry)?;
    let commit = Commit::of_work_tree(args.allow_dirty)?;
    let connection = Connection {
        is_plain_http: args.plain_http || (place.is_loopback() && args.registry_ca.is_none()),
        authorities: args.registry_ca.clone(),
    };
    let registry = Registry::open(&place, &connection)?;
    let signer = args
        .cosign_key
        .as_deref()
        .map(|key| Signer::open(key, &connection, registry.login()))
        .transpose()?;
    if !args.dry_run {
        registry.ensure_writable(chart::REPOSITORY)?;
    }
    let usual = || repository().join(format!("target/release-{TAG}"));
    let folder = args.directory.clone().unwrap_or_else(usual);
    empty(&folder)?;
    packages::ensure_packages()?;
    say(format!(
        "Mooring {TAG} of commit {}, for {place} ({})",
        commit.revision,
        architecture()
    ));
    let built = images::build(Selection::Released(&released(args, &commit)), Form::from_env())?;
    let (layout, items) = pack(&folder, &place, &commit, &built)?;
    write_files(&folder, &place, &commit, &items)?;
    if let Some(signer) = &signer {
        step("sign the checksums", |_| {
            signer.sign_file(&folder.join(checksum_file()))
        })?;
    }
    if args.dry_run {
        say(format!(
            "Nothing was pushed. The release is in {}, and what {place} would get in its folder {LAYOUT}.",
            folder.display()
        ));
        return Ok(());
    }
    let title = format!("push {} images and the chart to {place}", built.len());
    let digests = step(&title, |step| push::push(&registry, &layout, &items, args.force, step))?;
    if let Some(signer) = &signer {
        step("sign images and chart", |step| {
            digests.iter().try_for_each(|(name, digest)| {
                step.update(name);
                signer.sign(&format!("{place}/{name}@{digest}"))
            })
        })?;
    }
    say(format!(
        "Released. The files are in {}. To install it:\n  \
         helm install mooring oci://{place}/charts/mooring --version {TAG} -n mooring --create-namespace\nor\n  \
         kubectl apply -f {}",
        folder.display(),
        folder.join("mooring.yaml").display()
    ));
    Ok(())
}

fn released(args: &ReleaseArgs, commit: &Commit) -> Released {
    let labels = [
        ("created", Some(commit.date.clone())),
        ("licenses", Some("Apache-2.0".to_owned())),
        ("revision", Some(commit.revision.clone())),
        ("source", args.source.clone()),
        ("version", Some(TAG.to_owned())),
    ];
    Released {
        time: commit.time,
        labels: labels
            .into_iter()
            .filter_map(|(label, value)| Some((label, value?)))
            .collect(),
        only: args.image.clone(),
        again: args.rebuild,
    }
}

/// Makes the folder, without what an earlier release has left there.
fn empty(folder: &Path) -> Result<()> {
    let has_files = folder.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    ensure!(
        !has_files || folder.join(LAYOUT).join("oci-layout").is_file(),
        "{} has files that are of no release: name another --directory",
        folder.display()
    );
    if has_files {
        std::fs::remove_dir_all(folder).with_context(|| format!("failed to remove {}", folder.display()))?;
    }
    make_folder(folder)
}

/// Puts images and chart into the folder's layout.
fn pack(folder: &Path, place: &Place, commit: &Commit, built: &[Built]) -> Result<(Layout, Vec<Item>)> {
    let mut layout = Layout::create(&folder.join(LAYOUT))?;
    let boms = folder.join("sbom");
    let mut items = Vec::new();
    let mut packing = Step::begin("compress the images and list what is in them");
    let mut packer = Packer::new(&layout, folder.join("unpacked"), &boms, &commit.date)?;
    for image in built {
        let name = image.archive.name.rsplit('/').next().unwrap_or_default();
        let name = name.split(':').next().unwrap_or_default();
        packing.update(name);
        items.push(packer.pack(name, image)?);
    }
    packing.done(&format!("{} images", items.len()));
    let time = u64::try_from(commit.time).context("the commit is older than 1970")?;
    items.push(step("pack the chart", |_| {
        chart::pack(&layout, folder, &place.to_string(), time, &commit.date)
    })?);
    for item in &items {
        let entry = match item.kind {
            Kind::Image => image::entry(&item.stored),
            Kind::Artifact => item.stored.manifest.json(),
        };
        layout.name(&item.name(), entry);
    }
    layout.save()?;
    Ok((layout, items))
}

/// Writes what people download, and its checksums.
fn write_files(folder: &Path, place: &Place, commit: &Commit, items: &[Item]) -> Result<()> {
    step("write manifests, notices and checksums", |_| {
        let work = folder.join("unpacked");
        manifests::write(folder, &work, &place.to_string(), &commit.revision)?;
        std::fs::remove_dir_all(&work).with_context(|| format!("failed to remove {}", work.display()))?;
        write_file(&folder.join("NOTICE"), images::notices()?)?;
        for path in ["CHANGELOG.md", "LICENSE", "configmaps/uninstall.sh"] {
            let from = repository().join(path);
            let to = folder.join(from.file_name().unwrap_or_default());
            std::fs::copy(&from, to).with_context(|| format!("failed to copy {}", from.display()))?;
        }
        let digests = items
            .iter()
            .map(|item| format!("{}  {}\n", item.stored.manifest.digest, item.name()));
        write_file(
            &folder.join(format!("digests-{}.txt", architecture())),
            digests.collect::<String>(),
        )?;
        write_file(&folder.join(checksum_file()), checksums(folder)?)
    })
}

/// The checksums of all files in the folder but the layout's, which are named by theirs: what `sha256sum` prints.
fn checksums(folder: &Path) -> Result<String> {
    let mut files = Vec::new();
    for folder in [folder.to_owned(), folder.join("sbom")] {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("failed to list {}", folder.display()))?;
        files.extend(
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.is_file()),
        );
    }
    files.sort();
    let mut text = String::new();
    for file in files {
        let (digest, _) = digest_file(&file)?;
        let _ = writeln!(
            text,
            "{digest}  {}",
            file.strip_prefix(folder).unwrap_or(&file).display()
        );
    }
    Ok(text)
}

/// A text with one part replaced, which has to be there once.
fn replaced(text: &str, part: &str, by: &str) -> Result<String> {
    ensure!(text.matches(part).count() == 1, "{part:?} is not there once");
    Ok(text.replace(part, by))
}

#[cfg(test)]
mod tests {
    use super::{checksums, empty, replaced};

    #[test]
    fn a_folder_of_other_files_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("mooring-release-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("sbom")).unwrap();
        std::fs::write(folder.join("b"), "hello\n").unwrap();
        std::fs::write(folder.join("sbom/a"), "").unwrap();
        let error = empty(&folder).unwrap_err().to_string();
        assert!(error.contains("name another --directory"), "{error}");
        assert_eq!(
            checksums(&folder).unwrap(),
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03  b\n\
             e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  sbom/a\n"
        );
        std::fs::create_dir_all(folder.join("oci")).unwrap();
        std::fs::write(folder.join("oci/oci-layout"), "{}").unwrap();
        empty(&folder).unwrap();
        assert_eq!(folder.read_dir().unwrap().count(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_part_is_replaced_only_where_it_is_once() {
        assert_eq!(replaced("a b", "b", "c").unwrap(), "a c");
        assert!(replaced("b b", "b", "c").is_err());
        assert!(replaced("a", "b", "c").is_err());
    }
}
