//! The ways to install Mooring that docs/install.md has, by the commands on that page.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::{Context, Result};
use mooring_testbed::binaries::{Release, ensure_helm};
use mooring_testbed::cluster::Cluster;
use mooring_testbed::command::{command, output};
use mooring_testbed::images::{HOST, Selection, TAG};
use mooring_testbed::install::{install_for_tests, uninstall};
use mooring_testbed::layout::{make_folder, repository, write_file};
use mooring_testbed::progress::note;
use mooring_testbed::release::manifests::{EXAMPLE_REGISTRY, kustomization, write};
use mooring_testbed::target::Target;
use tempfile::TempDir;

use super::scope::{Scope, said_by};

/// A way to install Mooring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Helm,
    /// A copy of `configmaps/registry`.
    Kustomize,
    /// A file of a release.
    SingleFile,
    /// `configmaps/install` as it is, where the nodes have the images.
    Folder,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Helm, Self::Kustomize, Self::SingleFile, Self::Folder];

    /// Words in the page's commands that install Mooring.
    fn installs(self) -> &'static str {
        match self {
            Self::Helm => "helm install mooring",
            Self::Kustomize => "cp -r configmaps/registry",
            Self::SingleFile => "kubectl apply -f target/release-",
            Self::Folder => "create configmap mooring-settings",
        }
    }

    /// Words in the page's command that upgrades Mooring.
    fn upgrades(self) -> &'static str {
        match self {
            Self::Helm => "# with Helm",
            Self::Kustomize => "# with kustomize",
            Self::SingleFile => "# with a single file",
            Self::Folder => "kubectl apply -k configmaps/install",
        }
    }
}

/// The first block of a language in docs/install.md that has these words.
pub fn block(language: &str, words: &str) -> Result<String> {
    let page = std::fs::read_to_string(repository().join("docs/install.md")).context("failed to read the page")?;
    let mut blocks = page.split("```").skip(1).step_by(2);
    let found = blocks.find_map(|block| block.strip_prefix(language).filter(|block| block.contains(words)));
    let found = found.with_context(|| format!("docs/install.md has no block of {language} with {words:?}"))?;
    Ok(found.trim_start().to_owned())
}

/// A clone of the repository, in which an administrator of the cluster works.
pub struct Checkout {
    folder: TempDir,
    target: Target,
    release: Release,
}

impl Checkout {
    pub fn new(target: &Target, cluster: &Cluster) -> Result<Self> {
        let checkout = Self {
            folder: tempfile::tempdir().context("failed to make a folder")?,
            target: target.clone(),
            release: cluster.description.releases.control_plane,
        };
        output(
            command("cp", ["-r"])
                .arg(repository().join("configmaps"))
                .arg(checkout.path("")),
        )?;
        make_folder(&checkout.path("tools"))?;
        for (name, program) in [("helm", ensure_helm()?), ("kubectl", cluster.binaries.path("kubectl"))] {
            symlink(program, checkout.path("tools").join(name)).with_context(|| format!("failed to link {name}"))?;
        }
        checkout.edit(&kustomization(HOST, checkout.release)?)?;
        write(
            &checkout.path(&format!("target/release-{TAG}")),
            &checkout.path("work"),
            HOST,
            "a test",
        )?;
        Ok(checkout)
    }

    /// A file or a folder of the clone.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the administrator writes into `configmaps/mine/kustomization.yaml` the next time.
    pub fn edit(&self, kustomization: &str) -> Result<()> {
        write_file(&self.path("edited.yaml"), kustomization)
    }

    /// Runs commands in the clone.
    pub fn run(&self, commands: &str) -> Result<String> {
        let mut shell = command("sh", ["-euc"]);
        shell.arg(format!("vi() {{ cp edited.yaml \"$1\"; }}\n{commands}"));
        let inherited = std::env::var("PATH").context("there is no PATH")?;
        let path = format!("{}:{inherited}", self.path("tools").display());
        shell.current_dir(self.path("")).env("PATH", path);
        if let Some(kubeconfig) = &self.target.kubeconfig {
            shell.env("KUBECONFIG", kubeconfig);
        }
        said_by(&mut shell)
    }

    /// With the names that the page has for Kubernetes of the cluster's version.
    fn for_release(&self, commands: &str) -> String {
        if self.release.is_complete() {
            return commands.to_owned();
        }
        commands
            .replace("-k configmaps/install", "-k configmaps/install-before-1.36")
            .replace("mooring.yaml", "mooring-before-1.36.yaml")
    }

    /// Installs Mooring, with the images that the nodes have.
    pub fn install(&self, way: Way) -> Result<()> {
        let commands = block("sh", way.installs())?.replace(EXAMPLE_REGISTRY, HOST);
        self.run(&self.for_release(&commands))?;
        Ok(())
    }

    /// Upgrades Mooring to the clone's version.
    pub fn upgrade(&self, way: Way) -> Result<()> {
        let commands = block("sh", way.upgrades())?;
        let line = commands.lines().find(|line| line.contains(way.upgrades()));
        self.run(&self.for_release(line.context("no such line")?))?;
        Ok(())
    }

    /// Waits until Mooring is ready.
    pub fn is_ready(&self) -> Result<()> {
        self.run(&block("sh", "rollout status")?)?;
        Ok(())
    }

    pub fn uninstall(&self) -> Result<()> {
        self.run(&block("sh", "uninstall.sh")?)?;
        Ok(())
    }
}

/// The tests' installation is away while this exists.
pub struct Away(Target);

impl Away {
    pub fn begin(scope: &Scope) -> Result<Self> {
        let away = Self(scope.target.clone());
        uninstall(&scope.target)?;
        Ok(away)
    }

    fn end(&self) -> Result<()> {
        // It would judge client Pods by the settings of the installation before.
        self.0.own_cluster().map_or(Ok(()), Cluster::restart_api_server)?;
        let images = self.0.load_images(Selection::Named(&["flex-provisioner", "mounter"]))?;
        install_for_tests(&self.0, &images)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            note(format!("Mooring is not installed any more: {error:#}"));
        }
    }
}
