//! The status of the mounter for those who may run a program in its container (`mounter status`): which Pods have which
//! volumes, and which servers do not answer. The socket is in the container's own file system, and belongs to root.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mooring_program::error::chain;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

use super::args::STATUS_SOCKET;
use super::status::Status;
use crate::core::Core;
use crate::sys::absent_is_fine;

/// Longest that one caller may take: they are answered one after the other.
const LIMIT: Duration = Duration::from_secs(5);

/// What a caller sends to get JSON; anything else gets text for people.
const JSON: u8 = b'j';
const TEXT: u8 = b't';

/// Flags of `mounter status`.
#[derive(Debug, Clone, clap::Args)]
pub struct StatusArgs {
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// The mounter's socket.
    #[arg(long, env = "MOORING_STATUS_SOCKET", default_value = STATUS_SOCKET)]
    pub status_socket: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error("failed to ask the mounter on {path:?}: check that it runs in this container")]
    Ask { path: PathBuf, source: io::Error },
    #[error("failed to print the mounter's status")]
    Print(#[source] io::Error),
}

/// `mounter status`.
pub fn run(args: &StatusArgs) -> Result<(), StatusError> {
    let ask = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&args.status_socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(&[if args.json { JSON } else { TEXT }])?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said)?;
        Ok(said)
    };
    let said = ask().map_err(|source| StatusError::Ask {
        path: args.status_socket.clone(),
        source,
    })?;
    io::stdout().lock().write_all(&said).map_err(StatusError::Print)
}

/// Answers; never returns.
pub async fn serve(path: PathBuf, core: Arc<Core>, status: Status) {
    let listener = match listen(&path) {
        Ok(listener) => listener,
        Err(error) => {
            return warn!(
                error = %chain(&error),
                "failed to listen on {}: nobody can ask for the mounter's status",
                path.display()
            );
        }
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A caller that takes longer gets no answer.
                let _ = tokio::time::timeout(LIMIT, answer(stream, &core, &status)).await;
            }
            Err(error) => {
                warn!(
                    error = %chain(&error),
                    "failed to accept a request for the mounter's status"
                );
                tokio::time::sleep(LIMIT).await;
            }
        }
    }
}

/// Listens where only root may ask.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    absent_is_fine(fs::remove_file(path))?;
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn answer(mut stream: UnixStream, core: &Core, status: &Status) -> io::Result<()> {
    let how = stream.read_u8().await?;
    let report = status.report(core);
    let said = if how == JSON {
        serde_json::to_string(&report)?
    } else {
        report.to_text()
    };
    stream.write_all(said.as_bytes()).await
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::listen;

    #[tokio::test]
    async fn the_socket_is_root_s_and_replaces_that_of_a_killed_mounter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper/status.sock");
        drop(listen(&path).unwrap());
        let _listener = listen(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
