//! The cluster that images, install, demo and tests work on: the testbed's own, or an existing one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::binaries::{Releases, ensure_binaries};
use crate::cluster::{self, Cluster, Wanted};
use crate::command::{command, find_program, output};
use crate::image_store::{self, HELD, ImageStore};
use crate::images::{self, Built, Form, Selection};
use crate::layout::{Layout, cache, make_folder};
use crate::lock::Lock;
use crate::progress::{say, step};
use crate::{node, packages};

/// Environment variable: tests run on the cluster of `KUBECONFIG` instead of the testbed's own.
pub const EXISTING_VARIABLE: &str = "MOORING_TESTBED_EXISTING";

/// Which cluster to work on.
#[derive(Debug, Clone, Default, Args)]
pub struct TargetArgs {
    /// Work on an existing cluster, by its kubeconfig, instead of the testbed's own.
    #[arg(long)]
    pub existing: bool,
    /// The kubeconfig of the --existing cluster; without it $KUBECONFIG or ~/.kube/config.
    #[arg(long, requires = "existing")]
    pub kubeconfig: Option<PathBuf>,
    /// Push the images to this registry (`registry.example.com/team`), from which the --existing cluster pulls them.
    #[arg(long, requires = "existing", value_name = "REGISTRY", conflicts_with = "image_load")]
    pub image_registry: Option<String>,
    /// Load each image into the --existing cluster with this command, in which {archive} stands for a Docker archive.
    ///
    /// For kind: --image-load 'kind load image-archive {archive}'. May be given several times, for several nodes. Words
    /// are split at blanks and no shell is involved.
    #[arg(long, requires = "existing", value_name = "COMMAND")]
    pub image_load: Vec<String>,
}

/// How images get to the cluster.
#[derive(Debug, Clone)]
enum Delivery {
    /// Imported into the containerd of each of the testbed's nodes.
    Import(Cluster),
    /// Pushed to a registry.
    Registry(String),
    /// Passed to commands.
    Commands(Vec<Vec<String>>),
}

/// A cluster to work on.
#[derive(Debug, Clone)]
pub struct Target {
    kubectl: PathBuf,
    /// Its kubeconfig; if none, kubectl's default.
    pub kubeconfig: Option<PathBuf>,
    delivery: Delivery,
}

impl TargetArgs {
    /// The cluster that the flags name; the testbed's own is started if it does not run.
    pub fn open(&self, layout: &Layout) -> Result<Target> {
        if !self.existing {
            return Target::own(layout, Wanted::default(), None);
        }
        let kubectl = match find_program("kubectl") {
            Some(path) => path,
            None => ensure_binaries(Releases::default())?.path("kubectl"),
        };
        let delivery = match &self.image_registry {
            Some(registry) => Delivery::Registry(registry.trim_end_matches('/').to_owned()),
            None => Delivery::Commands(self.image_load.iter().map(|line| words(line)).collect::<Result<_>>()?),
        };
        let target = Target {
            kubectl,
            kubeconfig: self.kubeconfig.clone(),
            delivery,
        };
        output(&mut target.kubectl(["version", "--request-timeout=20s"]))
            .context("failed to reach the existing cluster: check --kubeconfig")?;
        Ok(target)
    }
}

fn words(line: &str) -> Result<Vec<String>> {
    let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    ensure!(
        words.iter().any(|word| word.contains("{archive}")),
        "--image-load {line:?} does not say where the archive goes: write {{archive}} in its place"
    );
    Ok(words)
}

impl Target {
    /// The testbed's own cluster; if it does not run, it is started as it is wanted, with nodes that have these images
    /// already.
    pub fn own(layout: &Layout, wanted: Wanted, images: Option<&ImageStore>) -> Result<Self> {
        let cluster = match cluster::running(layout)? {
            Some(_) => cluster::connect(layout)?,
            None => cluster::up(layout, cluster::USUAL_NODES, wanted, images)?,
        };
        Ok(Self {
            kubectl: cluster.binaries.path("kubectl"),
            kubeconfig: Some(layout.kubeconfig()),
            delivery: Delivery::Import(cluster),
        })
    }

    /// The testbed's cluster, if this is it.
    pub fn own_cluster(&self) -> Option<&Cluster> {
        match &self.delivery {
            Delivery::Import(cluster) => Some(cluster),
            Delivery::Registry(_) | Delivery::Commands(_) => None,
        }
    }

    /// The registry that the images are pushed to, if they are.
    pub fn image_registry(&self) -> Option<&str> {
        match &self.delivery {
            Delivery::Registry(registry) => Some(registry),
            Delivery::Import(_) | Delivery::Commands(_) => None,
        }
    }

    /// Keeps other testbed commands from changing the testbed's own cluster at the same time.
    pub fn lock(&self) -> Result<Option<Lock>> {
        self.own_cluster()
            .map(|cluster| Lock::cluster(&cluster.layout))
            .transpose()
    }

    pub fn kubectl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut kubectl = command(&self.kubectl, args);
        if let Some(kubeconfig) = &self.kubeconfig {
            kubectl.env("KUBECONFIG", kubeconfig);
        }
        kubectl
    }

    /// A manifest with the images' names in this cluster.
    pub fn with_image_names(&self, manifest: &str) -> String {
        match &self.delivery {
            Delivery::Registry(registry) => with_host(manifest, registry)
                // The image of the original ConfigMap, with and without the prefix of Docker's registry.
                .replace("docker.io/custom/", &format!("{registry}/custom/"))
                .replace("image: custom/", &format!("image: {registry}/custom/")),
            Delivery::Import(_) | Delivery::Commands(_) => manifest.to_owned(),
        }
    }

    /// Builds the images and delivers those that changed to the cluster; returns all selected ones.
    pub fn load_images(&self, selection: Selection<'_>) -> Result<Vec<Built>> {
        if matches!(&self.delivery, Delivery::Commands(commands) if commands.is_empty()) {
            bail!(
                "the images have to get to the existing cluster: give --image-registry, or --image-load (for kind: \
                 --image-load 'kind load image-archive {{archive}}')"
            );
        }
        packages::ensure_packages()?;
        let built = images::build(selection, Form::from_env())?;
        self.deliver(&built)?;
        Ok(built)
    }

    /// Delivers built images to the cluster, if they changed.
    pub fn deliver(&self, built: &[Built]) -> Result<()> {
        let _lock = self.lock()?;
        match &self.delivery {
            Delivery::Import(cluster) => {
                let imported: Vec<Result<()>> = std::thread::scope(|scope| {
                    let threads: Vec<_> = (1..=cluster.description.nodes)
                        .map(|index| scope.spawn(move || import_changed(cluster, index, built)))
                        .collect();
                    threads.into_iter().map(joined).collect()
                });
                imported.into_iter().collect::<Result<()>>()?;
            }
            Delivery::Registry(_) => {
                for image in built {
                    images::push(image, &self.with_image_names(&image.archive.name))?;
                }
            }
            Delivery::Commands(commands) => built.iter().try_for_each(|image| load_by(commands, image))?,
        }
        Ok(())
    }
}

fn joined(thread: std::thread::ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread
        .join()
        .unwrap_or_else(|_| bail!("a thread that loads images panicked"))
}

/// Imports the builds that a node does not have.
fn import_changed(cluster: &Cluster, index: u8, built: &[Built]) -> Result<()> {
    let node = node::name(index);
    let held = cluster.layout.node(&node).join(HELD);
    make_folder(&held)?;
    let record = |image: &Built| image_store::record(&held, &image.archive);
    let changed: Vec<_> = built
        .iter()
        .filter(|image| !std::fs::read_to_string(record(image)).is_ok_and(|hash| hash == image.hash))
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    step(&format!("load {} images into {node}", changed.len()), |progress| {
        for image in changed {
            progress.update(&image.archive.name);
            cluster.import(index, &image.archive)?;
            crate::layout::write_file(&record(image), &image.hash)?;
        }
        Ok(())
    })
}

fn load_by(commands: &[Vec<String>], image: &Built) -> Result<()> {
    let folder = cache()?.join("docker-archives");
    make_folder(&folder)?;
    let archive = folder.join(format!("{}.tar", image.archive.name.replace(['/', ':'], "_")));
    images::docker_archive(image, &archive)?;
    let result = commands.iter().try_for_each(|words| run_loader(words, &archive));
    let _ = std::fs::remove_file(&archive);
    result.with_context(|| format!("failed to load the image {}", image.archive.name))?;
    say(format!("  ok loaded {}", image.archive.name));
    Ok(())
}

fn run_loader(words: &[String], archive: &Path) -> Result<()> {
    let filled: Vec<_> = words
        .iter()
        .map(|word| word.replace("{archive}", &archive.to_string_lossy()))
        .collect();
    let (program, args) = filled.split_first().context("--image-load is empty")?;
    output(&mut command(program, args))?;
    Ok(())
}

/// A text with another host in the names of images. Names of plugins, annotations and labels begin like images and stay
/// unchanged: an image's name has a version, or is a pattern.
pub(crate) fn with_host(text: &str, host: &str) -> String {
    let own = format!("{}/", images::HOST);
    let mut parts = text.split(&own);
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let rest = end.map_or("", |end| &part[end..]);
        let has_version = rest
            .strip_prefix(':')
            .is_some_and(|tag| tag.starts_with(|c: char| c.is_ascii_digit()));
        if has_version || rest.starts_with('*') {
            written.push_str(host);
            written.push('/');
        } else {
            written.push_str(&own);
        }
        written.push_str(part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::{with_host, words};

    #[test]
    fn a_loader_must_say_where_the_archive_goes() {
        assert_eq!(words("kind load image-archive {archive}").unwrap().len(), 4);
        let error = words("docker load").unwrap_err().to_string();
        assert!(error.contains("write {archive}"), "{error}");
    }

    #[test]
    fn images_get_the_registry_s_name_and_nothing_else_does() {
        let text = |host: &str| {
            format!(
                "image: {host}/mounter:0.1.0\nimages: {host}/*,{host}/**\nplugin-name: mooring.dev/flex-provisioner\n\
                 mooring.dev/username: tom\n{{\"mooring.dev/groups\":\"a\"}} driver == 'mooring.dev/vcs'"
            )
        };
        assert_eq!(with_host(&text("mooring.dev"), "r:5000/t"), text("r:5000/t"));
    }
}
