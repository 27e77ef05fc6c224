//! The testbed's folders: the cache (built once, kept) and a cluster's state (removed by `down`).

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::hash::short_hex;
use crate::node_folders::folder_of_its_own;

/// Environment variable: another state folder than [`DEFAULT_STATE`], for a second cluster on one machine.
pub const STATE_VARIABLE: &str = "MOORING_TESTBED_STATE";

/// Lists folders that were made on the machine as mount points, one per line, in the order in which they were made. All
/// clusters of the machine share them, and the last one removes them.
pub const MADE_FOLDERS: &str = "/var/lib/mooring-testbed.folders";

/// The control plane's role: the name of its folders.
pub const CONTROL_PLANE: &str = "control-plane";

const DEFAULT_STATE: &str = "/var/lib/mooring-testbed";
const DEFAULT_NAME: &str = "mooring";

/// The folders of one testbed cluster.
#[derive(Debug, Clone)]
pub struct Layout {
    pub state: PathBuf,
    /// Prefix of the names of its bridge, links and control groups. It follows from the folder, so that no command can
    /// remove those of another cluster.
    name: String,
}

impl Layout {
    /// The cluster that the environment names, or the default one.
    pub fn from_env() -> Result<Self> {
        let state = std::env::var_os(STATE_VARIABLE).map_or_else(|| PathBuf::from(DEFAULT_STATE), PathBuf::from);
        ensure!(
            state.is_absolute() && state.parent().is_some(),
            "{STATE_VARIABLE}={} is not usable: give an absolute path of a folder of its own",
            state.display()
        );
        // The node's own folder of that name would hide it.
        if let Some(folder) = folder_of_its_own(&state) {
            bail!(
                "{STATE_VARIABLE}={} is not usable: each node has a {} of its own; give a folder elsewhere, such as \
                 {DEFAULT_STATE}-2",
                state.display(),
                folder.display()
            );
        }
        Ok(Self::of(state))
    }

    pub fn of(state: PathBuf) -> Self {
        let name = if state == Path::new(DEFAULT_STATE) {
            DEFAULT_NAME.to_owned()
        } else {
            let hash = short_hex(&Sha256::digest(state.to_string_lossy().as_bytes()));
            format!("mtb{}", &hash[..6])
        };
        Self { state, name }
    }

    /// The bridge that the nodes and the control plane share.
    pub fn bridge(&self) -> String {
        format!("{}0", self.name)
    }

    /// The machine's end of a node's link.
    pub fn link(&self, index: u8) -> String {
        format!("{}-n{index}", self.name)
    }

    /// The control group of all of the cluster's Pods, relative to each hierarchy.
    pub fn cgroup(&self) -> String {
        format!("{}-testbed", self.name)
    }

    /// Certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.state.join("pki")
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// Logs of the control plane and of each node, a folder each.
    pub fn logs(&self, role: &str) -> PathBuf {
        self.state.join("logs").join(role)
    }

    pub fn node(&self, node: &str) -> PathBuf {
        self.state.join("nodes").join(node)
    }

    /// The files that a node in a virtual machine is started from.
    pub fn machine(&self, node: &str) -> PathBuf {
        self.state.join("machines").join(node)
    }

    /// The description of the running cluster, see [`crate::cluster::Description`].
    pub fn description(&self) -> PathBuf {
        self.state.join("cluster.json")
    }
}

/// The cache: `$XDG_CACHE_HOME/mooring` or `~/.cache/mooring`.
pub fn cache() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(base) => PathBuf::from(base),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set: set it, or XDG_CACHE_HOME")?)
            .join(".cache"),
    };
    Ok(base.join("mooring"))
}

/// The work tree that `cargo testbed` was called in; if cargo did not start this program, the one that it was built
/// from.
///
/// Work trees that share a folder for what cargo compiles share this program too.
pub fn repository() -> &'static Path {
    static REPOSITORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let built_from = Path::new(env!("CARGO_MANIFEST_DIR"));
        // Crates of the testbed are all in tests/.
        let root = |manifest: &Path| manifest.ancestors().nth(2).map(Path::to_owned);
        let called_in = std::env::var_os("CARGO_MANIFEST_DIR").and_then(|manifest| root(Path::new(&manifest)));
        called_in
            .filter(|tree| tree.join("tests/testbed/Cargo.toml").exists())
            .or_else(|| root(built_from))
            .unwrap_or_else(|| built_from.to_owned())
    });
    &REPOSITORY
}

/// Makes a folder and those above it.
pub fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("failed to make the folder {}", path.display()))
}

/// Writes a file, making its folder.
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    if let Some(parent) = path.parent() {
        make_folder(parent)?;
    }
    std::fs::write(path, content).with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::Layout;

    #[test]
    fn clusters_of_two_folders_share_no_name() {
        let (usual, other) = (
            Layout::of("/var/lib/mooring-testbed".into()),
            Layout::of("/var/lib/other".into()),
        );
        assert_eq!(usual.bridge(), "mooring0");
        assert_eq!(usual.cgroup(), "mooring-testbed");
        assert_ne!(usual.bridge(), other.bridge());
        assert_ne!(usual.cgroup(), other.cgroup());
        // A link's name has at most 15 characters.
        assert!(other.link(3).len() <= 15);
    }
}
