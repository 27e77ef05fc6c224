//! `mounter install-agent DIR`: the init container of a client Pod runs it. The image needs no shell for it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Name of the agent's program in the Pod's emptyDir.
pub const PROGRAM: &str = "mounter";

/// Why the agent's program is not in place.
#[derive(Debug, thiserror::Error)]
#[error("failed to copy the agent to {path:?}")]
pub struct InstallError {
    path: PathBuf,
    source: io::Error,
}

/// Copies the running program into `dir`. It gets its final name only when it is complete.
pub fn install(dir: &Path) -> Result<(), InstallError> {
    let path = dir.join(PROGRAM);
    let new = dir.join(".mounter.new");
    fs::copy("/proc/self/exe", &new)
        .and_then(|_| fs::set_permissions(&new, Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&new, &path))
        .map_err(|source| InstallError { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_program_is_copied_can_be_run_and_can_be_copied_again() {
        let dir = tempfile::tempdir().unwrap();
        install(dir.path()).unwrap();
        install(dir.path()).unwrap();
        let copy = fs::metadata(dir.path().join(PROGRAM)).unwrap();
        assert_eq!(copy.permissions().mode() & 0o777, 0o755);
        assert_eq!(copy.len(), fs::metadata("/proc/self/exe").unwrap().len());
        assert!(install(&dir.path().join("nowhere")).is_err());
    }
}
