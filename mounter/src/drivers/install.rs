//! The shim in the kubelet's plugin directory: put there whole or not at all, and taken out again.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mooring_contract::names::{FLEX_DRIVER_DIR, FLEX_EXECUTABLE};

use crate::drivers::flexvolume::socket;
use crate::drivers::plugin_directories::PluginDirectory;
use crate::sys::absent_is_fine;

#[derive(Debug, thiserror::Error)]
pub enum ShimInstallError {
    /// The plugin directory is on a file system that can't be written.
    #[error(
        "the kubelet's plugin directory {0:?} can't be written: have the kubelet use another one, which its host can \
         write (volumePluginDir in its configuration, such as /var/lib/kubelet/volumeplugins); the mounter finds it. \
         Only FlexVolume needs it"
    )]
    ReadOnly(PathBuf),
    #[error("there is no shim at {0:?} in the mounter's image: name its path with --shim")]
    NoShim(PathBuf),
    #[error("failed to {attempted} {path:?}: {source}")]
    Io {
        attempted: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// There was none.
    New,
    /// There was another one.
    Replaced,
    /// The same one was there: nothing changed for the kubelet.
    Unchanged,
}

/// The driver's directory in the kubelet's plugin directory.
pub fn driver_directory(plugin_directory: &Path) -> PathBuf {
    plugin_directory.join(FLEX_DRIVER_DIR)
}

pub fn make(plugins: &PluginDirectory) -> Result<PathBuf, ShimInstallError> {
    let directory = driver_directory(&plugins.path());
    match fs::create_dir(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(refused("make", plugins, &driver_directory(plugins.name()), error))
        }
        _ => Ok(directory),
    }
}

/// Installs the shim. The kubelet's prober, which runs whatever it finds, sees it only when it is whole, since it
/// ignores names with a leading dot.
pub fn install(shim: &Path, plugins: &PluginDirectory) -> Result<Installed, ShimInstallError> {
    let content = fs::read(shim).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ShimInstallError::NoShim(shim.to_owned()),
        _ => failed("read", shim, source),
    })?;
    let directory = make(plugins)?;
    let name = driver_directory(plugins.name()).join(FLEX_EXECUTABLE);
    let executable = directory.join(FLEX_EXECUTABLE);
    let before = fs::read(&executable).ok();
    if before.as_ref() == Some(&content) && is_executable(&executable) {
        return Ok(Installed::Unchanged);
    }
    let new = directory.join(format!(".{FLEX_EXECUTABLE}"));
    write(&new, &content).map_err(|e| refused("write", plugins, &name, e))?;
    fs::rename(&new, &executable).map_err(|e| refused("name", plugins, &name, e))?;
    Ok(if before.is_some() {
        Installed::Replaced
    } else {
        Installed::New
    })
}

/// Whether a shim and a socket are there, of this mounter or another.
pub fn is_whole(plugins: &PluginDirectory) -> bool {
    let directory = driver_directory(&plugins.path());
    is_executable(&directory.join(FLEX_EXECUTABLE)) && socket::is_there(&directory)
}

/// Takes the shim and the socket out, and the driver's directory if nothing else is in it. Nothing there is success.
pub fn uninstall(plugins: &PluginDirectory) -> Result<(), ShimInstallError> {
    let directory = driver_directory(&plugins.path());
    let name = driver_directory(plugins.name());
    absent_is_fine(fs::remove_file(directory.join(FLEX_EXECUTABLE)))
        .map_err(|e| failed("remove", &name.join(FLEX_EXECUTABLE), e))?;
    socket::remove(&directory).map_err(|e| failed("remove the socket in", &name, e))?;
    match absent_is_fine(fs::remove_dir(&directory)) {
        Err(source) if source.kind() != io::ErrorKind::DirectoryNotEmpty => Err(failed("remove", &name, source)),
        _ => Ok(()),
    }
}

fn refused(attempted: &'static str, plugins: &PluginDirectory, path: &Path, source: io::Error) -> ShimInstallError {
    match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            ShimInstallError::ReadOnly(plugins.name().to_owned())
        }
        _ => failed(attempted, path, source),
    }
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    fs::write(path, content)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))?;
    File::open(path)?.sync_all()
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o777 == 0o755)
}

fn failed(attempted: &'static str, path: &Path, source: io::Error) -> ShimInstallError {
    ShimInstallError::Io {
        attempted,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::{Installed, ShimInstallError, driver_directory, install, is_whole, uninstall};
    use crate::drivers::plugin_directories::PluginDirectory;
    use std::fs;

    #[test]
    fn the_shim_is_installed_once_replaced_when_it_changes_and_taken_out_without_a_trace() {
        let root = tempfile::tempdir().unwrap();
        let (shim, folder) = (root.path().join("shim"), root.path().join("deep/plugins"));
        let plugins = PluginDirectory::here(&folder);
        assert!(matches!(install(&shim, &plugins), Err(ShimInstallError::NoShim(_))));
        fs::write(&shim, "one").unwrap();
        assert_eq!(install(&shim, &plugins).unwrap(), Installed::New);
        assert_eq!(install(&shim, &plugins).unwrap(), Installed::Unchanged);
        fs::write(&shim, "two").unwrap();
        assert_eq!(install(&shim, &plugins).unwrap(), Installed::Replaced);
        let directory = driver_directory(&folder);
        assert_eq!(fs::read_to_string(directory.join("vcs")).unwrap(), "two");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        // Without its socket, the shim can reach no mounter.
        assert!(!is_whole(&plugins));
        fs::write(directory.join(".mounter.sock"), "").unwrap();
        assert!(is_whole(&plugins));
        uninstall(&plugins).unwrap();
        uninstall(&plugins).unwrap();
        assert!(!directory.exists() && folder.exists());
    }

    #[test]
    fn somebody_else_s_file_in_the_directory_stays() {
        let root = tempfile::tempdir().unwrap();
        let shim = root.path().join("shim");
        fs::write(&shim, "one").unwrap();
        let plugins = PluginDirectory::here(root.path());
        install(&shim, &plugins).unwrap();
        let other = driver_directory(root.path()).join("notes");
        fs::write(&other, "").unwrap();
        uninstall(&plugins).unwrap();
        assert!(other.exists() && !driver_directory(root.path()).join("vcs").exists());
    }
}
