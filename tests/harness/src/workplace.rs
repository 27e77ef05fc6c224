//! A folder for the files of a program that a test starts, such as the cluster's kubeconfig.

use std::path::PathBuf;

use anyhow::{Context, Result};
use mooring_testbed::layout::write_file;
use tempfile::TempDir;

use super::scope::Scope;

/// The folder. It goes with the value.
#[derive(Debug)]
pub(super) struct Workplace(TempDir);

impl Workplace {
    /// A file in it, which need not be there.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The flag by which a program finds the cluster.
    pub(super) fn kubeconfig_flag(&self) -> String {
        format!("--kubeconfig={}", self.file("kubeconfig").display())
    }
}

impl Scope {
    /// A folder with a kubeconfig of the cluster that tests run on.
    pub(super) fn workplace(&self) -> Result<Workplace> {
        let folder = tempfile::Builder::new().prefix(&self.namespace).tempdir();
        let workplace = Workplace(folder.context("failed to create a temporary folder")?);
        let kubeconfig = self.kubectl(["config", "view", "--raw", "--minify", "--flatten"])?;
        write_file(&workplace.file("kubeconfig"), kubeconfig)?;
        Ok(workplace)
    }
}
