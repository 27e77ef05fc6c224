//! The two sockets that the kubelet needs: the driver's, and the one by which it is registered. Opened as often as it
//! takes: a kubelet that starts looks for the second, and one that runs notices that it was created again.

use std::fs::DirBuilder;
use std::io;
use std::num::NonZeroU16;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mooring_program::error::chain;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use super::node::NodeService;
use super::registration::Registration;
use super::serve::{CsiServices, serve};
use super::{registration_socket, socket};
use crate::core::Core;
use crate::deadlines;
use crate::drivers::socket::{self as sockets, PrivateSocket, SocketError};

/// How often the sockets are looked at: until one is back, new Pods with CSI volumes wait.
const PERIOD: Duration = Duration::from_secs(5);

/// Why the kubelet can't reach the driver.
#[derive(Debug, thiserror::Error)]
enum EndpointError {
    #[error("failed to make directory {path:?}: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Socket(#[from] SocketError),
}

pub(crate) struct CsiSettings {
    /// Where the kubelet keeps its Pods, such as `/var/lib/kubelet`.
    pub(crate) kubelet_root: PathBuf,
    pub(crate) node: Option<String>,
    /// Most volumes that it may have.
    pub(crate) max_volumes: Option<NonZeroU16>,
    pub(crate) call_timeout: Duration,
}

struct Kept {
    path: PathBuf,
    /// Told to the one that listens, if one does.
    open: Option<CancellationToken>,
}

impl Kept {
    fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    /// Opens it unless it is there. Another mounter's is as good, once this one has had its own there; before that it
    /// is an earlier one's.
    fn look(
        &mut self,
        services: &CsiServices,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<(), EndpointError> {
        if self.open.is_some() && is_socket(&self.path) {
            return Ok(());
        }
        let listening = bind(&self.path)?;
        let stop = stop.child_token();
        tasks.spawn(serve(listening, services.clone(), tasks.clone(), stop.clone()));
        info!(socket = %self.path.display(), "open");
        if let Some(before) = self.open.replace(stop) {
            before.cancel();
        }
        Ok(())
    }
}

/// Keeps both sockets open and answers until told to stop; then those calls are finished that are under way. The
/// sockets stay: the kubelet would take the driver off the node otherwise, and put it there again when the next mounter
/// runs.
pub(crate) async fn keep(settings: CsiSettings, core: Arc<Core>, stop: CancellationToken) {
    let CsiSettings {
        kubelet_root,
        node,
        max_volumes,
        call_timeout,
    } = settings;
    let tasks = TaskTracker::new();
    let driver = socket(&kubelet_root);
    let registration = Registration::of(&driver);
    let node = NodeService::new(core, node, call_timeout, tasks.clone()).with_at_most(max_volumes);
    let services = CsiServices::new(node, registration);
    // The driver's comes first: the kubelet calls it as soon as it has read the registration.
    let mut kept = [driver, registration_socket(&kubelet_root)].map(Kept::new);
    loop {
        let opened = kept.iter_mut().try_for_each(|one| one.look(&services, &tasks, &stop));
        if let Err(error) = opened {
            error!("the kubelet can't reach the mounter by CSI: {}", chain(&error));
        }
        if stop.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_none() {
            break;
        }
    }
    tasks.close();
    if tokio::time::timeout(deadlines::outer(call_timeout), tasks.wait())
        .await
        .is_err()
    {
        warn!(tasks = tasks.len(), "stopped before these CSI calls were finished");
    }
}

/// Takes both sockets away, and the driver's directory: the kubelet takes the driver off its node.
pub(crate) fn remove(kubelet_root: &Path) -> io::Result<()> {
    let driver = socket(kubelet_root);
    sockets::remove(&registration_socket(kubelet_root))?;
    sockets::remove(&driver)?;
    match driver.parent().map(std::fs::remove_dir) {
        Some(Err(error)) if !is_left_alone(&error) => Err(error),
        _ => Ok(()),
    }
}

/// The directory is not there, or somebody else has something in it.
fn is_left_alone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty)
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Makes the socket, and its directory where it is missing: a kubelet that has never had a driver has none.
fn bind(path: &Path) -> Result<PrivateSocket, EndpointError> {
    let directory = path.parent().unwrap_or(path);
    let made = DirBuilder::new().recursive(true).mode(0o750).create(directory);
    made.map_err(|source| EndpointError::Directory {
        path: directory.to_owned(),
        source,
    })?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(PrivateSocket::bind(directory, &name)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::{Kept, remove};
    use crate::core::{Core, CoreParts};
    use crate::drivers::csi::node::NodeService;
    use crate::drivers::csi::registration::Registration;
    use crate::drivers::csi::serve::CsiServices;
    use crate::drivers::csi::{registration_socket, socket};

    #[tokio::test]
    async fn sockets_are_root_s_only_come_back_when_they_vanish_and_go_without_a_trace() {
        let root = tempfile::tempdir().unwrap();
        let core = Arc::new(Core::new(CoreParts::standalone(root.path())));
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let node = NodeService::new(core, None, Duration::from_secs(9), tasks.clone());
        let services = CsiServices::new(node, Registration::of(&socket(root.path())));
        let path = registration_socket(root.path());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // An earlier mounter's, which nobody listens to any more.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let mut kept = [socket(root.path()), path.clone()].map(Kept::new);
        for _ in 0..2 {
            for one in &mut kept {
                one.look(&services, &tasks, &stop).unwrap();
            }
            tokio::net::UnixStream::connect(&path).await.unwrap();
        }
        std::fs::remove_file(&path).unwrap();
        kept[1].look(&services, &tasks, &stop).unwrap();
        tokio::net::UnixStream::connect(&path).await.unwrap();
        for one in &kept {
            assert_eq!(
                std::fs::metadata(&one.path).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
        let names = std::fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 1);
        for _ in 0..2 {
            remove(root.path()).unwrap();
        }
        assert!(!path.exists() && !root.path().join("plugins/vcs.mooring.dev").exists());
        assert!(root.path().join("plugins").exists());
    }
}
