//! A containerd folder that contains images already. It is made once, and all nodes start with links to its files.
//!
//! Unpacking all images on each node would take minutes of processor time and gigabytes each. containerd never writes
//! to an existing layer or blob, so nodes can share them. It does write to its databases, so each node has a copy.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};

use crate::base_images::{Archive, small};
use crate::binaries::Binaries;
use crate::command::{command, output};
use crate::hash::short_hex;
use crate::images::Built;
use crate::layout::{cache, make_folder, write_file};
use crate::lock::Lock;
use crate::progress::Step;
use crate::wait::{Look, wait_for};

/// Longest until containerd accepts commands, and until it has ended.
const CONTAINERD_LIMIT: Duration = Duration::from_mins(1);

/// Name of containerd's own folder in a store.
const ROOT: &str = "containerd";

/// The folder with records of what a store or a node has: a file per image, with the hash of its build.
pub const HELD: &str = "images";

#[derive(Debug, Clone)]
pub struct ImageStore {
    folder: PathBuf,
}

/// The file that records which build of an image is there.
pub fn record(held: &Path, image: &Archive) -> PathBuf {
    held.join(image.name.replace(['/', ':'], "_"))
}

impl ImageStore {
    /// The store with exactly these builds. If it does not exist, it is made, from the previous one if there is one.
    pub fn ensure(binaries: &Binaries, built: &[Built]) -> Result<Self> {
        let stores = cache()?.join("image-stores");
        let mut hash = Sha256::new();
        for image in built {
            hash.update(image.archive.name.as_bytes());
            hash.update(image.hash.as_bytes());
        }
        let folder = stores.join(short_hex(&hash.finalize()));
        let _lock = Lock::images()?;
        if !folder.is_dir() {
            make_folder(&stores)?;
            // Removes what another command left half made. If this command fails, the next one removes its remains.
            let building = stores.join("building");
            remove(&building)?;
            let made = make(binaries, built, &building, newest(&stores)?.as_deref());
            if let Err(error) = made {
                let _ = remove(&building);
                return Err(error.context("failed to unpack the images for the nodes"));
            }
            for older in paths_in(&stores)? {
                if older != building {
                    remove(&older)?;
                }
            }
            std::fs::rename(&building, &folder)
                .with_context(|| format!("failed to put {} in place", folder.display()))?;
        }
        Ok(Self { folder })
    }

    /// Gives the images of the store to a node that has not started yet: containerd's folder, and the records.
    pub fn give(&self, containerd: &Path, held: &Path) -> Result<()> {
        // Another command may make a newer store meanwhile, and remove this one.
        let _lock = Lock::images()?;
        let given = link_tree(&self.folder.join(ROOT), containerd)
            .and_then(|()| copy_files(&self.folder.join(HELD), held))
            .with_context(|| format!("failed to link the images of {}", self.folder.display()));
        if given.is_err() {
            // It fails, for example, on another file system: then the node loads the images itself.
            remove(containerd)?;
            remove(held)?;
            make_folder(containerd)?;
        }
        Ok(())
    }
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn paths_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn newest(stores: &Path) -> Result<Option<PathBuf>> {
    let made = |store: &PathBuf| store.metadata().and_then(|metadata| metadata.modified()).ok();
    Ok(paths_in(stores)?.into_iter().max_by_key(made))
}

/// Links all files of a folder into another, which need not exist. Databases are written in place, so they are copied.
fn link_tree(from: &Path, to: &Path) -> Result<()> {
    let what = || format!("failed to link {} to {}", from.display(), to.display());
    make_folder(to)?;
    let metadata = from.metadata().with_context(what)?;
    for entry in std::fs::read_dir(from).with_context(what)? {
        let entry = entry.with_context(what)?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().with_context(what)?;
        if kind.is_dir() {
            link_tree(&source, &target)?;
        } else if kind.is_symlink() {
            let points_to = std::fs::read_link(&source).with_context(what)?;
            symlink(points_to, &target).with_context(what)?;
            std::os::unix::fs::lchown(
                &target,
                Some(entry.metadata().with_context(what)?.uid()),
                Some(entry.metadata().with_context(what)?.gid()),
            )
            .with_context(what)?;
        } else if source.extension().is_some_and(|end| end == "db") {
            std::fs::copy(&source, &target).with_context(what)?;
        } else {
            std::fs::hard_link(&source, &target).with_context(what)?;
        }
    }
    std::os::unix::fs::chown(to, Some(metadata.uid()), Some(metadata.gid())).with_context(what)?;
    let mode = std::fs::Permissions::from_mode(metadata.permissions().mode() & 0o7777);
    std::fs::set_permissions(to, mode).with_context(what)
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    make_folder(to)?;
    for file in paths_in(from)? {
        let target = to.join(file.file_name().unwrap_or_default());
        std::fs::copy(&file, &target)
            .with_context(|| format!("failed to copy {} to {}", file.display(), target.display()))?;
    }
    Ok(())
}

/// Unpacks the images into a folder, except those that the earlier folder has.
fn make(binaries: &Binaries, built: &[Built], building: &Path, before: Option<&Path>) -> Result<()> {
    let mut step = Step::begin("unpack the images for the nodes, once");
    let (root, held) = (building.join(ROOT), building.join(HELD));
    if let Some(before) = before {
        link_tree(&before.join(ROOT), &root)?;
        copy_files(&before.join(HELD), &held)?;
    }
    make_folder(&root)?;
    make_folder(&held)?;
    let containerd = Containerd::start(binaries, building, &root)?;
    for archive in small()? {
        containerd.import(binaries, &archive)?;
    }
    let is_held =
        |image: &Built| std::fs::read_to_string(record(&held, &image.archive)).is_ok_and(|hash| hash == image.hash);
    for image in built {
        if !is_held(image) {
            step.update(&image.archive.name);
            containerd.import(binaries, &image.archive)?;
            write_file(&record(&held, &image.archive), &image.hash)?;
        }
    }
    containerd.end()?;
    step.done("");
    Ok(())
}

/// A containerd that runs no containers. Dropping this kills it.
struct Containerd {
    child: Child,
    /// Its state, configuration and socket.
    run: PathBuf,
}

impl Containerd {
    fn start(binaries: &Binaries, building: &Path, root: &Path) -> Result<Self> {
        let run = building.join("run");
        make_folder(&run)?;
        let (config, log) = (run.join("config.toml"), run.join("log"));
        let content = format!(
            "version = 3\nroot = '{}'\nstate = '{}'\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \
             \"io.containerd.cri.v1.images\", \"io.containerd.cri.v1.runtime\", \"io.containerd.nri.v1.nri\"]\n\
             [grpc]\naddress = '{}'\n[plugins.'io.containerd.internal.v1.opt']\npath = '{}'\n",
            root.display(),
            run.join("state").display(),
            run.join("socket").display(),
            root.join("opt").display(),
        );
        write_file(&config, content)?;
        let output = std::fs::File::create(&log).with_context(|| format!("failed to make {}", log.display()))?;
        let mut command = command(binaries.path("containerd"), ["--config"]);
        let child = command
            .arg(&config)
            .env("PATH", binaries.search_path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("failed to share containerd's log")?)
            .stderr(output)
            .spawn()
            .context("failed to run containerd")?;
        let containerd = Self { child, run };
        wait_for("containerd", CONTAINERD_LIMIT, &[log], || {
            match containerd.ctr(binaries, &["version"]) {
                Ok(_) => Look::Ready(()),
                Err(error) => Look::NotYet(format!("{error:#}")),
            }
        })?;
        Ok(containerd)
    }

    fn ctr(&self, binaries: &Binaries, arguments: &[&str]) -> Result<String> {
        let mut ctr = command(binaries.path("ctr"), ["--address"]);
        Ok(output(ctr.arg(self.run.join("socket")).args(arguments))?)
    }

    fn import(&self, binaries: &Binaries, image: &Archive) -> Result<()> {
        let path = image.path.to_string_lossy();
        let arguments = ["-n", "k8s.io", "images", "import", "--index-name", &image.name, &path];
        self.ctr(binaries, &arguments)
            .with_context(|| format!("failed to unpack {}", image.name))?;
        Ok(())
    }

    /// Ends it cleanly, so that its databases are complete.
    fn end(mut self) -> Result<()> {
        let id = i32::try_from(self.child.id()).context("the process id is not valid")?;
        kill(Pid::from_raw(id), Signal::SIGTERM).context("failed to end containerd")?;
        let child = &mut self.child;
        wait_for("containerd to end", CONTAINERD_LIMIT, &[], || match child.try_wait() {
            Ok(Some(_)) => Look::Ready(()),
            Ok(None) => Look::NotYet("it runs".to_owned()),
            Err(error) => Look::NotYet(error.to_string()),
        })?;
        Ok(())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.run);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::link_tree;

    #[test]
    fn files_that_are_never_written_are_shared_and_databases_are_not() {
        let folder = std::env::temp_dir().join(format!("mooring-image-store-{}", std::process::id()));
        let (from, to) = (folder.join("from"), folder.join("to"));
        std::fs::create_dir_all(from.join("layer/empty")).unwrap();
        std::fs::write(from.join("layer/file"), "x").unwrap();
        std::os::unix::fs::symlink("/nowhere", from.join("layer/link")).unwrap();
        std::fs::write(from.join("meta.db"), "x").unwrap();
        link_tree(&from, &to).unwrap();
        let inode = |path: std::path::PathBuf| path.symlink_metadata().unwrap().ino();
        assert_eq!(inode(from.join("layer/file")), inode(to.join("layer/file")));
        assert_ne!(inode(from.join("meta.db")), inode(to.join("meta.db")));
        assert_eq!(
            std::fs::read_link(to.join("layer/link")).unwrap().to_str(),
            Some("/nowhere")
        );
        assert!(to.join("layer/empty").is_dir());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
