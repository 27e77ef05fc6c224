//! Which file systems and drivers the node's kernel has, and which it can load.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Modules that are asked for.
const ASKED: [&str; 7] = ["ext4", "xfs", "nfsv4", "cifs", "ceph", "9p", "iscsi_tcp"];

/// Lists of a kernel's modules: those to be loaded, and those built in.
const LISTS: [&str; 2] = ["modules.dep", "modules.builtin"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Modules {
    /// It was built without the means to load any.
    Never,
    /// These of [`ASKED`] are on the host, or built in.
    Listed { folder: PathBuf, names: BTreeSet<String> },
    /// The host's list is not seen.
    Unknown,
}

/// What is known of the node's kernel.
#[derive(Debug, Clone)]
pub struct NodeKernel {
    file_systems: BTreeSet<String>,
    modules: Modules,
}

impl NodeKernel {
    /// Looks at it. `processes` are those in whose root the host's files may be seen: the kubelet's.
    pub fn look(processes: &[PathBuf]) -> Self {
        let text = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let modules = if Path::new("/proc/modules").exists() {
            let mut folders = processes
                .iter()
                .map(|process| process.join("root/lib/modules").join(release.trim()));
            folders.find_map(|folder| listed(&folder)).unwrap_or(Modules::Unknown)
        } else {
            Modules::Never
        };
        Self::new(&text, modules)
    }

    fn new(file_systems: &str, modules: Modules) -> Self {
        // A line each, `nodev` before those without a device.
        let names = file_systems
            .lines()
            .filter_map(|line| line.split_whitespace().next_back());
        Self {
            file_systems: names.map(str::to_owned).collect(),
            modules,
        }
    }

    /// Whether a file system is there now.
    pub fn has(&self, fs_type: &str) -> bool {
        self.file_systems.contains(fs_type)
    }

    /// Whether a file system is there, or its module will be loaded when it is first mounted; else what to do. Without
    /// a list of modules, this assumes that it is.
    pub fn can_have(&self, fs_type: &str, module: &str) -> Result<(), String> {
        if self.has(fs_type) {
            return Ok(());
        }
        self.may_find(module, fs_type, &format!("the kernel has no {fs_type}, and "))
    }

    /// Whether a driver is there, or can be loaded; else what to do. Without a list of modules, this assumes that it
    /// is.
    pub fn can_load(&self, module: &str) -> Result<(), String> {
        // A kernel without modules has what it was built with.
        if Path::new("/sys/module").join(module).exists() {
            return Ok(());
        }
        self.may_find(module, module, "")
    }

    /// Whether there may be a module for something; else what to do.
    fn may_find(&self, module: &str, wanted: &str, since: &str) -> Result<(), String> {
        match &self.modules {
            Modules::Unknown => Ok(()),
            Modules::Listed { names, .. } if names.contains(module) => Ok(()),
            Modules::Listed { folder, .. } => Err(format!(
                "{since}there is no module {module} in {}: install your distribution's package that has it",
                folder.display()
            )),
            Modules::Never => Err(format!(
                "the kernel has no {wanted}, and was built without modules: run a kernel that has it"
            )),
        }
    }

    #[cfg(test)]
    pub(super) fn with_modules(file_systems: &str, names: &[&str]) -> Self {
        let modules = Modules::Listed {
            folder: "/lib/modules/6".into(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
        };
        Self::new(file_systems, modules)
    }
}

/// The modules in a folder, as the host names it.
fn listed(folder: &Path) -> Option<Modules> {
    let lists: Vec<String> = LISTS
        .iter()
        .filter_map(|list| std::fs::read_to_string(folder.join(list)).ok())
        .collect();
    // One alone does not tell what is not there.
    (lists.len() == LISTS.len()).then(|| Modules::Listed {
        folder: Path::new("/lib/modules").join(folder.file_name().unwrap_or_default()),
        names: lists.iter().flat_map(|list| modules(list)).collect(),
    })
}

/// Those of [`ASKED`] that a list has: `kernel/fs/nfs/nfsv4.ko.xz: kernel/…`.
fn modules(list: &str) -> BTreeSet<String> {
    let files = list
        .lines()
        .filter_map(|line| line.split(':').next()?.rsplit('/').next());
    files
        .filter_map(|file| file.split_once(".ko"))
        .map(|(name, _)| name.to_owned())
        .filter(|name| ASKED.contains(&name.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Modules, NodeKernel, modules};

    const FILE_SYSTEMS: &str = "nodev\tfuse\n\text4\n";

    #[test]
    fn a_file_system_is_missing_only_if_it_is_certain_that_it_can_t_be_loaded() {
        let table = [
            (Modules::Unknown, true),
            (Modules::Never, false),
            (listed(&["nfsv4"]), true),
            (listed(&["xfs"]), false),
        ];
        for (modules, want) in table {
            let kernel = NodeKernel::new(FILE_SYSTEMS, modules);
            assert!(kernel.can_have("ext4", "ext4").is_ok() && kernel.has("fuse") && !kernel.has("ext"));
            assert_eq!(kernel.can_have("nfs4", "nfsv4").is_ok(), want, "{kernel:?}");
        }
    }

    fn listed(names: &[&str]) -> Modules {
        NodeKernel::with_modules("", names).modules
    }

    #[test]
    fn modules_are_found_in_both_lists_however_they_are_packed() {
        let dep = "kernel/fs/nfs/nfsv4.ko.xz: kernel/fs/nfs/nfs.ko.xz \
                   kernel/fs/ceph/ceph.ko.xz\nkernel/fs/nls/nls_utf8.ko:\n";
        assert_eq!(modules(dep).into_iter().collect::<Vec<_>>(), ["nfsv4"]);
        let builtin = "kernel/fs/ext4/ext4.ko\nkernel/fs/xfs/xfs.ko\n";
        assert_eq!(modules(builtin).len(), 2);
        assert!(modules("").is_empty());
    }
}
