//! The images that all others start from, built here since not every machine can pull any: `busybox:1`,
//! `debian:trixie-slim`, and the sandbox image. They have the names that Containerfiles and manifests use. Why they
//! have no digests: docs/decisions/base-images.md.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{command, output, output_within, watched_within};
use crate::layout::{cache, make_folder, write_file};
use crate::node::PAUSE_IMAGE;
use crate::oci::{Runs, write_archive};
use crate::progress::Step;
use crate::seclusion::{contained, secluded};

pub const BUSYBOX: &str = "docker.io/library/busybox:1";
pub const DEBIAN: &str = "docker.io/library/debian:trixie-slim";

/// The release before that, for tests of upgrades.
pub const DEBIAN_BEFORE: &str = "docker.io/library/debian:bookworm-slim";

/// The base images that a Containerfile may name besides `scratch` and the repository's own images, by their names
/// there.
pub const BASES: [&str; 2] = ["busybox:1", "debian:trixie-slim"];

/// Increased when the recipe of the images changes.
const RECIPE: u32 = 5;

/// When Debian's release trixie came out, in seconds since 1970: the same on every machine.
const TRIXIE: &str = "1754697600";

/// Longest time to fetch a package, and to fetch and install Debian's: usually a minute or so.
const DOWNLOAD_LIMIT: Duration = Duration::from_mins(5);
const DEBIAN_LIMIT: Duration = Duration::from_mins(20);

/// The sandbox's process: as process 1 of a shared PID namespace it adopts orphans, and it ends when told to.
const PAUSE: &str = "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done";

/// Only a sandbox's processes have this in their arguments.
pub const SANDBOX_NAP: &str = "86400";

/// An image's full name and its archive.
#[derive(Debug, Clone)]
pub struct Archive {
    /// Full name.
    pub name: String,
    /// OCI archive.
    pub path: PathBuf,
}

fn folder() -> Result<PathBuf> {
    Ok(cache()?.join(format!("base-images-{RECIPE}")))
}

/// The images that every node needs from the start: the sandbox image and `busybox:1`.
pub fn small() -> Result<Vec<Archive>> {
    let folder = folder()?;
    let archives = [(BUSYBOX, "busybox.tar"), (PAUSE_IMAGE, "pause.tar")].map(|(name, file)| Archive {
        name: name.to_owned(),
        path: folder.join(file),
    });
    if archives.iter().all(|archive| archive.path.is_file()) {
        return Ok(archives.into());
    }
    let step = Step::begin("make the images busybox:1 and pause, once");
    make_folder(&folder)?;
    let layer = folder.join("busybox.layer");
    write_busybox_layer(&folder, &layer)?;
    for archive in &archives {
        let pause = ["/bin/busybox", "sh", "-c", PAUSE];
        let runs = if archive.name == PAUSE_IMAGE {
            Runs {
                entrypoint: &pause,
                ..Runs::default()
            }
        } else {
            Runs {
                cmd: &["sh"],
                ..Runs::default()
            }
        };
        write_archive(&archive.path, &layer, &runs)?;
    }
    step.done("");
    Ok(archives.into())
}

pub fn busybox() -> Result<Archive> {
    let images = small()?;
    images
        .into_iter()
        .find(|image| image.name == BUSYBOX)
        .context("busybox:1 was not made")
}

/// The only layer of `busybox:1`, a tar file.
pub fn busybox_layer() -> Result<PathBuf> {
    small()?;
    Ok(folder()?.join("busybox.layer"))
}

/// The program of `busybox:1`, which needs no library.
pub fn busybox_program() -> Result<Vec<u8>> {
    let layer = busybox_layer()?;
    let file = File::open(&layer).with_context(|| format!("failed to open {}", layer.display()))?;
    let mut archive = tar::Archive::new(file);
    for entry in archive.entries().context("failed to read the layer of busybox:1")? {
        let mut entry = entry.context("failed to read the layer of busybox:1")?;
        if entry.path().is_ok_and(|path| path.ends_with("bin/busybox")) {
            let mut program = Vec::new();
            entry.read_to_end(&mut program).context("failed to unpack busybox")?;
            return Ok(program);
        }
    }
    anyhow::bail!("{} has no busybox", layer.display())
}

/// Unpacks the distribution's static busybox, without installing it, and makes a layer of it.
fn write_busybox_layer(folder: &Path, layer: &Path) -> Result<()> {
    let work = folder.join(format!("busybox-{}", std::process::id()));
    make_folder(&work)?;
    let made = pack_busybox(&work, layer);
    let _ = std::fs::remove_dir_all(&work);
    made.context("failed to make a busybox file system")
}

fn pack_busybox(work: &Path, layer: &Path) -> Result<()> {
    let download = || {
        let mut apt = command("apt-get", ["-q", "download", "busybox-static"]);
        output_within(apt.current_dir(work), DOWNLOAD_LIMIT)
    };
    if download().is_err() {
        output_within(&mut command("apt-get", ["-q", "update"]), DOWNLOAD_LIMIT)?;
        download()?;
    }
    let package = std::fs::read_dir(work)
        .context("failed to list the downloads")?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .context("apt-get download left no package")?;
    let unpacked = work.join("unpacked");
    output(command("dpkg-deb", ["-x"]).arg(&package).arg(&unpacked))?;
    let busybox = ["bin/busybox", "usr/bin/busybox"]
        .map(|path| unpacked.join(path))
        .into_iter()
        .find(|path| path.is_file())
        .context("the package has no busybox")?;

    let root = work.join("root");
    for (name, mode) in [
        ("bin", 0o755),
        ("etc", 0o755),
        ("root", 0o700),
        ("tmp", 0o1777),
        ("usr/share/doc/busybox", 0o755),
        ("var", 0o755),
    ] {
        make_folder(&root.join(name))?;
        std::fs::set_permissions(root.join(name), std::fs::Permissions::from_mode(mode))
            .context("failed to set a mode")?;
    }
    std::fs::copy(&busybox, root.join("bin/busybox")).context("failed to copy busybox")?;
    let copyright = unpacked.join("usr/share/doc/busybox-static/copyright");
    std::fs::copy(copyright, root.join("usr/share/doc/busybox/copyright"))
        .context("failed to copy the copyright of busybox")?;
    // As in images of a few packages without dpkg: scanners of images read it.
    let about = output(command("dpkg-deb", ["--field"]).arg(package))?;
    write_file(&root.join("var/lib/dpkg/status.d/busybox-static"), about)?;
    for applet in output(&mut command(&busybox, ["--list"]))?
        .lines()
        .filter(|name| *name != "busybox")
    {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))
            .with_context(|| format!("failed to link the applet {applet}"))?;
    }
    for (file, content) in [
        (
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        ),
        ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ] {
        std::fs::write(root.join(file), content).with_context(|| format!("failed to write {file}"))?;
    }
    let file = File::create(layer).with_context(|| format!("failed to make {}", layer.display()))?;
    let mut tar = tar::Builder::new(file);
    tar.mode(tar::HeaderMode::Deterministic);
    tar.follow_symlinks(false);
    let written = tar.append_dir_all("", &root).and_then(|()| tar.into_inner());
    written.context("failed to pack the file system")?;
    Ok(())
}

/// The archive of `debian:trixie-slim`, which mmdebstrap makes from the distribution's own mirror.
pub fn debian() -> Result<Archive> {
    debian_of(DEBIAN, "trixie", "debian")
}

/// The archive of `debian:bookworm-slim`, made in the same way.
pub fn debian_before() -> Result<Archive> {
    debian_of(DEBIAN_BEFORE, "bookworm", "debian-bookworm")
}

fn debian_of(name: &str, release: &str, file: &str) -> Result<Archive> {
    let folder = folder()?;
    let archive = Archive {
        name: name.to_owned(),
        path: folder.join(file).with_extension("tar"),
    };
    if archive.path.is_file() {
        return Ok(archive);
    }
    let title = format!("make the image debian:{release}-slim with mmdebstrap, once");
    let mut step = Step::begin(title.as_str());
    make_folder(&folder)?;
    let layer = folder.join(file).with_extension("layer.tar");
    let mut debootstrap = contained("mmdebstrap");
    debootstrap
        .args([
            "--variant=minbase",
            "--include=ca-certificates",
            // These make the image "slim".
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            "--aptopt=Apt::Install-Recommends \"false\"",
            "--customize-hook=rm -rf \"$1\"/var/lib/apt/lists/* \"$1\"/var/cache/apt/archives/*.deb",
            release,
        ])
        .arg(&layer)
        // The latest time of a file. Programs that make users go by it, too.
        .env("SOURCE_DATE_EPOCH", TRIXIE);
    // Its packages run scripts too.
    secluded(&folder.join("dev"), || {
        watched_within(&mut debootstrap, DEBIAN_LIMIT, |line| step.update(line)).map_err(Into::into)
    })
    .with_context(|| format!("failed to make debian:{release}-slim"))?;
    write_archive(
        &archive.path,
        &layer,
        &Runs {
            cmd: &["bash"],
            ..Runs::default()
        },
    )?;
    let _ = std::fs::remove_file(&layer);
    step.done("");
    Ok(archive)
}
