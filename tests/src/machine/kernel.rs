//! Debian's stock kernel and those of its modules that are wanted: fetched and unpacked once, never installed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::{command, output};
use crate::layout::{cache, make_folder};
use crate::lock::Lock;
use crate::progress::Step;

/// Raised when what is unpacked changes.
const RECIPE: u32 = 2;

/// Stands for the newest kernel of the distribution, and depends on its package.
const PACKAGE: &str = "linux-image-amd64";

/// The modules that are wanted; what they depend on comes with them.
const WANTED: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "nfs",
    "nfsv4",
    "cifs",
    // The kernel asks for these by what they do, so nothing depends on them: the cryptography of SMB, and UTF-8 in its names.
    "aes_generic",
    "cmac",
    "ccm",
    "ctr",
    "gcm",
    "ghash_generic",
    "hmac",
    "md5",
    "sha256_generic",
    "sha512_generic",
    "nls_utf8",
];

/// The names of the modules, in the order in which they are loaded.
const ORDER: &str = "order";

/// A kernel to start.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    /// The kernel itself.
    pub(super) image: PathBuf,
    /// Modules, each after those that it depends on.
    pub(super) modules: Vec<PathBuf>,
}

/// Finds the kernel in the cache, and fetches it if it is not there.
pub(super) fn ensure() -> Result<Kernel> {
    let folder = cache()?.join(format!("machine-kernel-{RECIPE}"));
    let _lock = Lock::machine()?;
    let order = folder.join(ORDER);
    if !order.is_file() {
        ensure!(
            cfg!(target_arch = "x86_64"),
            "a virtual machine can be had on x86_64 only"
        );
        let mut step = Step::begin("fetch a kernel for virtual machines, once");
        // Beside the cache's folder, since it is moved there.
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
    let names = std::fs::read_to_string(&order).with_context(|| format!("failed to read {}", order.display()))?;
    Ok(Kernel {
        image: folder.join("vmlinuz"),
        modules: names.lines().map(|name| folder.join(name)).collect(),
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
    let image = find(&unpacked.join("boot"), |name| name.starts_with("vmlinuz"))?;
    let out = work.join("out");
    make_folder(&out)?;
    copy(
        image.first().context("the package has no kernel")?,
        &out.join("vmlinuz"),
    )?;
    take_modules(&unpacked, &out)
}

/// Copies the wanted modules, and writes down in which order they are loaded.
fn take_modules(unpacked: &Path, out: &Path) -> Result<()> {
    let files = find(unpacked, |name| name.contains(".ko"))?;
    let files: BTreeMap<_, _> = files.iter().map(|path| (module_name(path), path)).collect();
    let built_in: BTreeSet<_> = find(unpacked, |name| name == "modules.builtin")?
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .flat_map(|text| {
            text.lines()
                .map(|line| module_name(Path::new(line)))
                .collect::<Vec<_>>()
        })
        .collect();
    let mut taken = BTreeMap::new();
    let order = order(WANTED, |name| {
        if built_in.contains(name) {
            return Ok(None);
        }
        let path = files
            .get(name)
            .with_context(|| format!("the kernel has no module {name}"))?;
        let plain = decompressed(path)?;
        let needs = depends(&plain);
        taken.insert(name.to_owned(), plain);
        Ok(Some(needs))
    })?;
    let mut names = Vec::new();
    for name in order {
        let content = taken.remove(&name).unwrap_or_default();
        std::fs::write(out.join(format!("{name}.ko")), content)
            .with_context(|| format!("failed to write module {name}"))?;
        names.push(format!("{name}.ko"));
    }
    std::fs::write(out.join(ORDER), names.join("\n")).context("failed to write the order of modules")
}

/// The modules that `wanted` need and themselves, each after those that it depends on. `needs` says what one depends on, or
/// nothing if it is a part of the kernel.
fn order(wanted: &[&str], mut needs: impl FnMut(&str) -> Result<Option<Vec<String>>>) -> Result<Vec<String>> {
    let mut ordered = Vec::new();
    let mut seen = BTreeSet::new();
    // One stands there a second time below those that it depends on.
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

/// What a module says that it depends on.
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

/// A module's name, as others call it: `nfs_layout_files` for `…/nfs-layout-files.ko.xz`.
fn module_name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
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

/// Files below a folder whose names are wanted.
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
    fn what_a_module_depends_on_stands_in_it() {
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
