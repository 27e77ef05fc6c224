//! buildah with a storage of the testbed's own, so that it neither needs nor changes the machine's.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::Built;
use crate::command::{command, output};
use crate::layout::{cache, make_folder, write_file};

/// The storage.
pub(super) struct Store {
    folder: PathBuf,
}

impl Store {
    /// Opens the storage, making it if need be.
    pub(super) fn open() -> Result<Self> {
        let folder = cache()?.join("buildah");
        make_folder(&folder.join("held"))?;
        // buildah refuses to work without a policy, which lies in a package that is only recommended.
        write_file(
            &folder.join("policy.json"),
            r#"{"default":[{"type":"insecureAcceptAnything"}]}"#,
        )?;
        // Or it makes /etc/cni on the machine.
        let networks = format!("[network]\nnetwork_config_dir = \"{}/networks\"\n", folder.display());
        write_file(&folder.join("containers.conf"), networks)?;
        Ok(Self { folder })
    }

    /// A buildah command.
    pub(super) fn buildah<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut args = args.into_iter();
        let mut buildah = command("buildah", [] as [&str; 0]);
        buildah
            .arg("--root")
            .arg(self.folder.join("storage"))
            .arg("--runroot")
            .arg(self.folder.join("run"))
            // Works on any file system, and without namespaces of its own.
            .args(["--storage-driver", "vfs"])
            .env("CONTAINERS_CONF", self.folder.join("containers.conf"))
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

    fn held(&self, name: &str) -> PathBuf {
        self.folder.join("held").join(name.replace(['/', ':'], "_"))
    }

    /// Makes sure that the storage has this very build of an image under its name.
    pub(super) fn ensure(&self, image: &Built) -> Result<()> {
        let held = self.held(&image.archive.name);
        if std::fs::read_to_string(&held).is_ok_and(|hash| hash == image.hash) {
            return Ok(());
        }
        let source = format!("oci-archive:{}", image.archive.path.display());
        let id = output(&mut self.buildah(["pull", "--quiet", &source]))?;
        output(&mut self.buildah(["tag", id.trim(), &image.archive.name]))?;
        write_file(&held, &image.hash)
    }

    /// Says that the storage's image of this name is no longer a known build.
    pub(super) fn forget(&self, name: &str) {
        let _ = std::fs::remove_file(self.held(name));
    }
}
