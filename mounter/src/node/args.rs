//! Flags that say where things are on the node.

use std::path::{Path, PathBuf};

use super::kubelet::ROOT;
use super::kubelet_root::{self, KubeletRootError};

/// Where things are on the node.
#[derive(Debug, Clone, clap::Args)]
pub struct NodeArgs {
    /// The kubelet's root directory, as its --root-dir says. Without this flag the mounter looks for it: in the running
    /// kubelet's command line, and where known distributions have it.
    #[arg(long, env = "MOORING_KUBELET_ROOT")]
    pub kubelet_root: Option<PathBuf>,
    /// The kubelet's plugin directory, under the name that the kubelet has for it. Without this flag the mounter reads
    /// it from the running kubelet's command line and configuration (volumePluginDir). If the mounter sees no process
    /// of the node, the path is one of this container.
    #[arg(long, env = "MOORING_PLUGIN_DIR")]
    pub plugin_dir: Option<PathBuf>,
}

impl NodeArgs {
    /// Finds the kubelet's root if it is not given, and sees that it is mounted here. Called before there are threads.
    ///
    /// # Errors
    /// Only what the process can't go on after.
    pub fn settle(&mut self) -> Result<(), KubeletRootError> {
        self.kubelet_root = Some(kubelet_root::settle(self.kubelet_root.as_deref())?);
        Ok(())
    }

    /// The kubelet's root: what was settled, and the usual one before that.
    pub fn kubelet_root(&self) -> &Path {
        self.kubelet_root.as_deref().unwrap_or(Path::new(ROOT))
    }
}
