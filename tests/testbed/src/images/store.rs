//! buildah with a storage of the testbed's own, so that it neither needs nor changes the machine's.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use super::built::Built;
use crate::base_images;
use crate::command::{output_within, watched_within};
use crate::layout::{cache, make_folder, write_file};
use crate::lock::Lock;
use crate::progress::note;
use crate::seclusion::{contained, secluded};

/// Longest time to build an image: the largest takes a minute or two.
const BUILD_LIMIT: Duration = Duration::from_mins(20);

/// Longest time to copy an image into the storage or out of it.
const COPY_LIMIT: Duration = Duration::from_mins(10);

/// Changes when earlier storages can't be used any more.
const FOLDER: &str = "buildah-2";

pub(super) struct Store {
    folder: PathBuf,
    driver: Driver,
    /// Only one image at a time is copied into the storage.
    taking: Mutex<()>,
}

/// How the storage keeps layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    /// With the kernel's overlays: layers are shared, and builds are not synced to the disk.
    Overlay,
    /// With copies: works on any file system, and without mounts.
    Vfs,
}

impl Driver {
    fn name(self) -> &'static str {
        match self {
            Self::Overlay => "overlay",
            Self::Vfs => "vfs",
        }
    }
}

/// A build's inputs and output.
pub(super) struct Build<'a> {
    /// How to build it.
    pub(super) containerfile: &'a Path,
    /// The folder that it copies from.
    pub(super) context: &'a Path,
    /// Further arguments of `buildah build`.
    pub(super) arguments: &'a [String],
    /// The OCI archive to write.
    pub(super) archive: &'a Path,
}

impl Store {
    /// Opens the storage, and makes it if necessary. One command at a time has it open; the images' lock proves that.
    pub(super) fn open(_lock: &Lock) -> Result<Self> {
        let folder = cache()?.join(FOLDER);
        // buildah refuses to work without a policy, and the package with one is only recommended.
        write_file(
            &folder.join("policy.json"),
            r#"{"default":[{"type":"insecureAcceptAnything"}]}"#,
        )?;
        // Without this, buildah makes /etc/cni on the machine.
        let networks = format!("[network]\nnetwork_config_dir = \"{}/networks\"\n", folder.display());
        write_file(&folder.join("containers.conf"), networks)?;
        let mut store = Self {
            folder,
            driver: Driver::Overlay,
            taking: Mutex::new(()),
        };
        // An interrupted build leaves containers, and layers that count as mounted.
        if store.in_use().exists() || !store.folder.join("held").is_dir() {
            store.reset()?;
        }
        write_file(&store.in_use(), "")?;
        store.driver = store.usable_driver()?;
        Ok(store)
    }

    /// Notes that everything went well. Without this, the next command empties the storage.
    pub(super) fn close(self) {
        let _ = std::fs::remove_file(self.in_use());
    }

    fn in_use(&self) -> PathBuf {
        self.folder.join("in-use")
    }

    /// Whether folders can be laid over others with overlays, so that a build's writes there leave no trace.
    pub(super) fn has_overlays(&self) -> bool {
        self.driver == Driver::Overlay
    }

    /// The driver to use, determined once per kernel.
    fn usable_driver(&self) -> Result<Driver> {
        let kernel = nix::sys::utsname::uname().context("failed to ask for the kernel's release")?;
        let kernel = kernel.release().to_string_lossy().into_owned();
        let note_of = |driver: Driver| format!("{} {kernel}\n", driver.name());
        let known = self.folder.join("driver");
        let written = std::fs::read_to_string(&known).unwrap_or_default();
        if let Some(driver) = [Driver::Overlay, Driver::Vfs]
            .into_iter()
            .find(|&driver| written == note_of(driver))
        {
            return Ok(driver);
        }
        let driver = match self.try_overlays() {
            Ok(()) => Driver::Overlay,
            Err(error) => {
                note(format!(
                    "  .. images are built without overlays, which takes longer: {error:#}"
                ));
                Driver::Vfs
            }
        };
        self.reset()?;
        // Earlier storages took gigabytes.
        if let Some(cache) = self.folder.parent() {
            let _ = std::fs::remove_dir_all(cache.join("buildah"));
        }
        write_file(&known, note_of(driver))?;
        Ok(driver)
    }

    /// Builds a minimal image, with a folder laid over another.
    fn try_overlays(&self) -> Result<()> {
        let trial = self.folder.join("trial");
        make_folder(&trial.join("over"))?;
        let containerfile = trial.join("Containerfile");
        write_file(&containerfile, "FROM busybox:1\nRUN touch /tmp/here /tmp/over/there\n")?;
        let busybox = base_images::busybox()?;
        self.ensure(&Built {
            archive: busybox,
            hash: "trial".into(),
        })?;
        let over = format!("--volume={}:/tmp/over:O", trial.join("over").display());
        let build = Build {
            containerfile: &containerfile,
            context: &trial,
            arguments: &[over],
            archive: &trial.join("archive"),
        };
        let result = self.build(&build, |_| {});
        let _ = std::fs::remove_dir_all(&trial);
        result
    }

    fn reset(&self) -> Result<()> {
        for name in ["held", "storage", "run", "tmp"] {
            let folder = self.folder.join(name);
            if folder.exists() {
                std::fs::remove_dir_all(&folder).with_context(|| format!("failed to remove {}", folder.display()))?;
            }
        }
        make_folder(&self.folder.join("held"))?;
        make_folder(&self.folder.join("tmp"))
    }

    /// A buildah command that sees no device of the machine.
    fn buildah<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut args = args.into_iter();
        let mut buildah = contained("buildah");
        buildah
            .arg("--root")
            .arg(self.folder.join("storage"))
            .arg("--runroot")
            .arg(self.folder.join("run"))
            .args(["--storage-driver", self.driver.name()])
            .env("CONTAINERS_CONF", self.folder.join("containers.conf"))
            .env("TMPDIR", self.folder.join("tmp"))
            // Works without the right to create cgroups.
            .env("BUILDAH_ISOLATION", "chroot");
        let Some(subcommand) = args.next() else {
            return buildah;
        };
        buildah.arg(&subcommand);
        if ["bud", "pull", "push"].map(OsStr::new).contains(&subcommand.as_ref()) {
            buildah.arg("--signature-policy").arg(self.folder.join("policy.json"));
        }
        buildah.args(args);
        buildah
    }

    fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let mut buildah = self.buildah(args);
        secluded(&self.mount_point(), || Ok(output_within(&mut buildah, COPY_LIMIT)?))
    }

    fn mount_point(&self) -> PathBuf {
        self.folder.join("dev")
    }

    fn held(&self, name: &str) -> PathBuf {
        self.folder.join("held").join(name.replace(['/', ':'], "_"))
    }

    /// Makes sure that the storage has exactly this build of an image under its name.
    pub(super) fn ensure(&self, image: &Built) -> Result<()> {
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.held(&image.archive.name);
        let before = std::fs::read_to_string(&held).ok();
        if before.as_ref() == Some(&image.hash) {
            return Ok(());
        }
        let source = format!("oci-archive:{}", image.archive.path.display());
        let id = self.run(["pull", "--quiet", &source])?;
        self.run(["tag", id.trim(), &image.archive.name])?;
        write_file(&held, &image.hash)?;
        if before.is_some() {
            // The build that had the name before. It does no harm if it stays.
            let _ = self.run(["rmi", "--prune"]);
        }
        Ok(())
    }

    /// Builds an image into an archive, without keeping it in the storage.
    pub(super) fn build(&self, build: &Build<'_>, each: impl FnMut(&str) + Send) -> Result<()> {
        let _ = std::fs::remove_file(build.archive);
        // Kept layers have no name, so the end of another build would remove them with what it replaces.
        let mut bud = self.buildah(["bud", "--pull=never", "--layers=false"]);
        bud.args(build.arguments)
            // Without ":name" after the file: containerd would otherwise find the image only by its digest.
            .arg(format!("--tag=oci-archive:{}", build.archive.display()))
            .arg("--file")
            .arg(build.containerfile)
            .arg(build.context);
        secluded(&self.mount_point(), || {
            watched_within(&mut bud, BUILD_LIMIT, each).map_err(Into::into)
        })
    }

    /// Copies an image to another place, such as a registry.
    pub(super) fn push(&self, name: &str, target: &str) -> Result<()> {
        self.run(["push", name, target]).map(drop)
    }
}
