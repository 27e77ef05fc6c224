//! Debian's stock kernel and the modules that may be needed: fetched and unpacked once, never installed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::base_images;
use crate::command::{command, output};
use crate::layout::{cache, make_folder, write_file};
use crate::lock::Lock;
use crate::progress::Step;

/// Increased when the unpacked files change.
const RECIPE: u32 = 3;

/// A package that depends on the newest kernel of the distribution.
const PACKAGE: &str = "linux-image-amd64";

/// Folders of modules that are taken completely, with the modules that those depend on.
const FOLDERS: &[&str] = &[
    "/arch/",
    "/block/",
    "/crypto/",
    "/drivers/block/",
    "/drivers/md/",
    "/drivers/virtio/",
    "/fs/",
    "/lib/",
    "/net/",
];

/// Modules of other folders.
const SINGLES: &[&str] = &[
    "iscsi_tcp",
    "nvme_tcp",
    "sd_mod",
    "sg",
    "veth",
    "virtio_console",
    "virtio_net",
];

/// Where a kernel's modules are in a root file system.
const MODULES: &str = "lib/modules";

/// The list of modules that are built into the kernel.
const BUILT_IN: &str = "modules.builtin";

#[derive(Debug, Clone)]
pub struct Kernel {
    pub image: PathBuf,
    /// A root file system that contains only the modules and their lists.
    root: PathBuf,
    /// Its version, and the name of the modules' folder.
    version: String,
}

impl Kernel {
    /// The folder of the modules on this machine, and in a root file system that has them.
    pub fn modules(&self) -> (PathBuf, PathBuf) {
        let folder = Path::new(MODULES).join(&self.version);
        (self.root.join(&folder), folder)
    }

    /// The files of modules in the order in which to load them: each after those that it depends on, which are
    /// included.
    pub fn to_load(&self, wanted: &[&str]) -> Result<Vec<PathBuf>> {
        let (folder, _) = self.modules();
        let files = by_name(find(&folder, |name| name.contains(".ko"))?);
        let built_in = built_in(&folder);
        let order = order(wanted, |name| {
            if built_in.contains(name) {
                return Ok(None);
            }
            let path = file_of(&files, name)?;
            let content = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
            Ok(Some(depends(&content)))
        })?;
        order.iter().map(|name| file_of(&files, name).cloned()).collect()
    }
}

/// Finds the kernel in the cache, or fetches it.
pub fn ensure() -> Result<Kernel> {
    let folder = cache()?.join(format!("machine-kernel-{RECIPE}"));
    let _lock = Lock::machine()?;
    let image = folder.join("vmlinuz");
    if !image.is_file() {
        ensure!(
            cfg!(target_arch = "x86_64"),
            "a virtual machine can be had on x86_64 only"
        );
        let mut step = Step::begin("fetch a kernel for virtual machines, once");
        // Beside the cache's folder, since it is renamed to that.
        let work = folder.with_extension(format!("{}", std::process::id()));
        make_folder(&work)?;
        let made = fetch(&work, &mut step).and_then(|()| {
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::rename(work.join("out"), &folder).context("failed to keep the kernel")
        });
        let _ = std::fs::remove_dir_all(&work);
        made.context("failed to fetch a kernel for virtual machines")?;
        step.done("");
    }
    let version = only_entry(&folder.join(MODULES))?;
    Ok(Kernel {
        image,
        root: folder,
        version,
    })
}

fn fetch(work: &Path, step: &mut Step) -> Result<()> {
    let package = || -> Result<String> {
        let told = output(&mut command("apt-cache", ["depends", "--important", PACKAGE]))?;
        let mut words = told.split_whitespace();
        words
            .find(|word| word.starts_with("linux-image-") && *word != PACKAGE)
            .map(str::to_owned)
            .with_context(|| format!("{PACKAGE} depends on no kernel"))
    };
    let download = || -> Result<()> {
        let package = package()?;
        output(command("apt-get", ["-q", "download", &package]).current_dir(work))?;
        Ok(())
    };
    if download().is_err() {
        output(&mut command("apt-get", ["-q", "update"]))?;
        download()?;
    }
    step.update("unpack");
    let package = find(work, |name| name.rsplit('.').next() == Some("deb"))?;
    let package = package.first().context("apt-get download left no package")?;
    let unpacked = work.join("unpacked");
    output(command("dpkg-deb", ["-x"]).arg(package).arg(&unpacked))?;
    let out = work.join("out");
    make_folder(&out)?;
    step.update("take modules");
    take_modules(&unpacked, &out)?;
    // Last, since this file marks a complete kernel.
    let image = find(&unpacked.join("boot"), |name| name.starts_with("vmlinuz"))?;
    copy(
        image.first().context("the package has no kernel")?,
        &out.join("vmlinuz"),
    )
}

/// Copies the modules, uncompressed, to the same places, and lists them as a system where they are installed does.
fn take_modules(unpacked: &Path, out: &Path) -> Result<()> {
    // Packages for systems where /lib is a link have them below /usr.
    let modules = [MODULES.to_owned(), format!("usr/{MODULES}")].map(|folder| unpacked.join(folder));
    let modules = modules.iter().find(|folder| folder.is_dir());
    let modules = modules.context("the package has no modules")?;
    let version = only_entry(modules)?;
    let (from, to) = (modules.join(&version), out.join(MODULES).join(&version));
    let files = by_name(find(&from, |name| name.contains(".ko"))?);
    let built_in = built_in(&from);
    let in_folder = |path: &Path| {
        let path = path.strip_prefix(from.join("kernel")).unwrap_or(path);
        let path = format!("/{}", path.display());
        FOLDERS.iter().any(|folder| path.starts_with(folder))
    };
    let wanted: Vec<_> = files
        .iter()
        .filter(|(name, path)| in_folder(path) || SINGLES.contains(&name.as_str()))
        .map(|(name, _)| name.as_str())
        .collect();
    order(&wanted, |name| {
        if built_in.contains(name) {
            return Ok(None);
        }
        let path = file_of(&files, name)?;
        let plain = decompressed(path)?;
        let needs = depends(&plain);
        let place = path
            .strip_prefix(&from)
            .unwrap_or(path)
            .with_file_name(plain_name(path));
        write_file(&to.join(place), plain)?;
        Ok(Some(needs))
    })?;
    for list in find(&from, |name| name.starts_with("modules."))? {
        copy(&list, &to.join(list.file_name().unwrap_or_default()))?;
    }
    let busybox = out.with_file_name("busybox");
    write_file(&busybox, base_images::busybox_program()?)?;
    std::fs::set_permissions(&busybox, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("failed to make {} a program", busybox.display()))?;
    output(command(&busybox, ["depmod", "-b"]).arg(out).arg(&version))?;
    Ok(())
}

/// The name of a folder's only entry.
fn only_entry(folder: &Path) -> Result<String> {
    let mut entries = std::fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    let entry = entries
        .next()
        .with_context(|| format!("{} is empty", folder.display()))?;
    let entry = entry.with_context(|| format!("failed to list {}", folder.display()))?;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

fn by_name(files: Vec<PathBuf>) -> BTreeMap<String, PathBuf> {
    files.into_iter().map(|path| (module_name(&path), path)).collect()
}

fn file_of<'a>(files: &'a BTreeMap<String, PathBuf>, name: &str) -> Result<&'a PathBuf> {
    files
        .get(name)
        .with_context(|| format!("the kernel has no module {name}"))
}

/// The modules that are built into the kernel.
fn built_in(folder: &Path) -> BTreeSet<String> {
    let list = std::fs::read_to_string(folder.join(BUILT_IN)).unwrap_or_default();
    list.lines().map(|line| module_name(Path::new(line))).collect()
}

/// The `wanted` modules and those that they need, each after those that it depends on. `needs` returns what a module
/// depends on, or none if it is built into the kernel.
fn order(wanted: &[&str], mut needs: impl FnMut(&str) -> Result<Option<Vec<String>>>) -> Result<Vec<String>> {
    let mut ordered = Vec::new();
    let mut seen = BTreeSet::new();
    // Each module is pushed a second time, below its dependencies.
    let mut waiting: Vec<(String, bool)> = wanted.iter().rev().map(|name| ((*name).to_owned(), false)).collect();
    while let Some((name, ready)) = waiting.pop() {
        if ready {
            ordered.push(name);
        } else if seen.insert(name.clone())
            && let Some(needed) = needs(&name)?
        {
            waiting.push((name, true));
            waiting.extend(needed.into_iter().map(|name| (name, false)));
        }
    }
    Ok(ordered)
}

/// The dependencies that a module names.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = &module[start + KEY.len()..];
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    let value = String::from_utf8_lossy(&value[..end]);
    let names = value.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

/// A module's name, as other modules use it: `nfs_layout_files` for `…/nfs-layout-files.ko.xz`.
fn module_name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// The name of a module's file without the suffix for its compression.
fn plain_name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{}.ko", file.split(".ko").next().unwrap_or_default())
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|end| end.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return std::fs::read(path).with_context(|| format!("failed to read {}", path.display())),
    };
    let run = command(program, ["--decompress", "--stdout"])
        .arg(path)
        .output()
        .with_context(|| format!("failed to run {program}"))?;
    ensure!(run.status.success(), "{program} can't unpack {}", path.display());
    Ok(run.stdout)
}

/// Files below a folder whose names match.
fn find(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("failed to list {}", folder.display()))?;
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else if wanted(&entry.file_name().to_string_lossy()) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::copy(from, to).with_context(|| format!("failed to copy {}", from.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{depends, module_name, order};
    use anyhow::bail;
    use std::path::Path;

    #[test]
    fn a_module_comes_after_what_it_depends_on_and_once() {
        let needs = |name: &str| {
            Ok(Some(match name {
                "nfsv4" => vec!["nfs".to_owned(), "sunrpc".to_owned()],
                "nfs" => vec!["lockd".to_owned(), "sunrpc".to_owned()],
                "lockd" => vec!["sunrpc".to_owned()],
                "sunrpc" => Vec::new(),
                "virtio" => return Ok(None),
                other => bail!("no {other}"),
            }))
        };
        let ordered = order(&["virtio", "nfs", "nfsv4"], needs).unwrap();
        assert_eq!(ordered, ["sunrpc", "lockd", "nfs", "nfsv4"]);
        assert!(order(&["ext9"], needs).is_err());
    }

    #[test]
    fn a_module_s_dependencies_are_read_from_its_file() {
        assert_eq!(
            depends(b"ELF\0license=GPL\0depends=nfs,nfs-ssc\0name=nfsv4\0"),
            ["nfs", "nfs_ssc"]
        );
        assert!(depends(b"ELF\0depends=\0").is_empty());
        assert_eq!(
            module_name(Path::new("/lib/nfs-layout-files.ko.xz")),
            "nfs_layout_files"
        );
    }
}
