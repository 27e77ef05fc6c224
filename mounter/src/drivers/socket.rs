//! A socket in a directory of the kubelet's: root's only, private before it can be seen, and in the place of any that
//! an earlier mounter has left.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mooring_program::error::chain;
use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

use crate::sys::absent_is_fine;

/// The kubelet's user.
const ROOT: u32 = 0;

/// A pause after an accept that failed, as it does when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
#[error("failed to {attempted} the socket in {directory:?}: {source}")]
pub struct SocketError {
    attempted: &'static str,
    directory: PathBuf,
    source: io::Error,
}

impl SocketError {
    /// The same about a directory by another name.
    #[must_use]
    pub fn of(self, directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            ..self
        }
    }
}

#[derive(Debug)]
pub(super) struct PrivateSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Which socket of that name it is: a newer mounter's is not ours to remove.
    inode: u64,
    /// The user who may ask.
    pub(super) asker: u32,
}

impl PrivateSocket {
    /// Makes the socket `name` in a directory, in the place of any other. It has a name with a leading dot before that,
    /// which the kubelet ignores.
    pub(super) fn bind(directory: &Path, name: &str) -> Result<Self, SocketError> {
        let failed = |attempted| {
            move |source| SocketError {
                attempted,
                directory: directory.to_owned(),
                source,
            }
        };
        // By way of a handle, since an address holds 107 bytes only.
        let handle = std::fs::File::open(directory).map_err(failed("open the directory of"))?;
        let beneath = Path::new("/proc/self/fd").join(handle.as_raw_fd().to_string());
        let new = beneath.join(format!(".{}.new", name.trim_start_matches('.')));
        absent_is_fine(std::fs::remove_file(&new)).map_err(failed("make room for"))?;
        let listener = UnixListener::bind(&new).map_err(failed("make"))?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).map_err(failed("protect"))?;
        let inode = std::fs::metadata(&new).map_err(failed("look at"))?.ino();
        std::fs::rename(&new, beneath.join(name)).map_err(failed("name"))?;
        Ok(Self {
            listener,
            path: directory.join(name),
            inode,
            asker: ROOT,
        })
    }

    /// The next connection of a user who may ask. It closes the others.
    pub(super) async fn accept(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) if is_of(&stream, self.asker) => return stream,
                Ok(_) => {}
                Err(error) => {
                    warn!(error = %chain(&error), "failed to accept a call-out");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Stops listening, and removes the socket unless another mounter owns it by now.
    pub(super) fn remove(self) {
        if std::fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Takes a socket away. None there is success.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    absent_is_fine(std::fs::remove_file(path))
}

/// Whether this user asks: only the kubelet's own may. The socket's file mode says the same.
fn is_of(stream: &UnixStream, asker: u32) -> bool {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == asker => true,
        Ok(peer) => {
            warn!(peer.uid = peer.uid(), "refused a call-out of a user other than {asker}");
            false
        }
        Err(error) => {
            warn!(error = %chain(&error), "refused a call-out of an unknown peer");
            false
        }
    }
}
