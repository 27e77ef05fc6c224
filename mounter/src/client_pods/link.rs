//! Talks to the agent of a client Pod, over its socket in the Pod's emptyDir.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tracing::{Instrument as _, Span, debug_span};

use super::pod::AGENT_VOLUME;
use crate::agent::protocol::{self, AgentAnswer, AgentRequest, Call, SOCKET, VERSION, WireError};
use crate::volume::target::{CONFINED, file_type};

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The agent has not started yet, or not restarted yet.
    #[error("its agent has not started yet")]
    NotThere,
    /// It is not a socket, or not root's.
    #[error("{0:?} is not an agent's socket")]
    NotASocket(PathBuf),
    #[error("failed to reach the agent's socket {path:?}: {source}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("failed to talk to the agent: {0}")]
    Wire(#[source] WireError),
    #[error("its agent did not answer for {0:?}")]
    Timeout(Duration),
}

/// Asks the agent of the Pod `uid`, and waits for its answer for at most `limit`.
pub async fn ask(kubelet_root: &Path, uid: &str, call: Call, limit: Duration) -> Result<AgentAnswer, LinkError> {
    let span = span(uid, &call);
    let conversation = async {
        let mut stream = connect(kubelet_root, uid).await?;
        converse(&mut stream, call).await
    };
    within(limit, conversation.instrument(span)).await
}

pub(super) async fn within<T>(
    limit: Duration,
    conversation: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    tokio::time::timeout(limit, conversation)
        .await
        .map_err(|_| LinkError::Timeout(limit))?
}

/// Sends a call to an agent, and receives its answer.
pub(super) async fn converse(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    call: Call,
) -> Result<AgentAnswer, LinkError> {
    let request = AgentRequest { version: VERSION, call };
    protocol::send(stream, &request).await.map_err(LinkError::Wire)?;
    protocol::receive(stream).await.map_err(LinkError::Wire)
}

fn span(uid: &str, call: &Call) -> Span {
    debug_span!("agent", pod.uid = uid, agent.call = call.name())
}

async fn connect(kubelet_root: &Path, uid: &str) -> Result<UnixStream, LinkError> {
    let relative: PathBuf = ["pods", uid, "volumes", "kubernetes.io~empty-dir", AGENT_VOLUME, SOCKET]
        .iter()
        .collect();
    let path = kubelet_root.join(&relative);
    let failed = |source: io::Error| match source.kind() {
        // No one listens: the agent is about to be started again.
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => LinkError::NotThere,
        _ => LinkError::Connect {
            path: path.clone(),
            source,
        },
    };
    let socket = open_beneath(kubelet_root, &relative).map_err(|error| match error {
        Errno::ELOOP | Errno::EXDEV => LinkError::NotASocket(path.clone()),
        error => failed(error.into()),
    })?;
    let is_socket = fstat(&socket).is_ok_and(|stat| file_type(&stat) == SFlag::S_IFSOCK);
    if !is_socket {
        return Err(LinkError::NotASocket(path));
    }
    // Through the handle: what was looked at is what is connected to, and the name fits a socket address.
    let stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd()))
        .await
        .map_err(failed)?;
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 => Ok(stream),
        _ => Err(LinkError::NotASocket(path)),
    }
}

fn open_beneath(root: &Path, relative: &Path) -> Result<OwnedFd, Errno> {
    let root = open(
        root,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(CONFINED);
    openat2(&root, relative, how)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent_dir(root: &Path) -> PathBuf {
        let dir = root.join("pods/u/volumes/kubernetes.io~empty-dir").join(AGENT_VOLUME);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_call_has_a_span_that_says_what_is_asked_of_which_pod() {
        let span = tracing::subscriber::with_default(tracing_subscriber::registry(), || span("u", &Call::Hello));
        let about = span.metadata().unwrap();
        assert_eq!(about.name(), "agent");
        let fields: Vec<_> = about.fields().iter().map(|field| field.name()).collect();
        assert_eq!(fields, ["pod.uid", "agent.call"]);
    }

    #[tokio::test]
    async fn a_missing_agent_is_distinguished_from_something_that_is_not_an_agent() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(connect(root.path(), "u").await, Err(LinkError::NotThere)));
        let socket = agent_dir(root.path()).join(SOCKET);
        std::fs::write(&socket, "").unwrap();
        assert!(matches!(connect(root.path(), "u").await, Err(LinkError::NotASocket(_))));
        std::fs::remove_file(&socket).unwrap();
        std::os::unix::fs::symlink("/run/containerd/containerd.sock", &socket).unwrap();
        assert!(matches!(connect(root.path(), "u").await, Err(LinkError::NotASocket(_))));
    }

    #[tokio::test]
    async fn a_silent_agent_is_not_waited_for_longer_than_the_limit() {
        let root = tempfile::tempdir().unwrap();
        let _listener = tokio::net::UnixListener::bind(agent_dir(root.path()).join(SOCKET)).unwrap();
        let error = ask(root.path(), "u", Call::Hello, Duration::from_millis(50)).await;
        // A caller that is not root takes the socket for a stranger's.
        assert!(matches!(error, Err(LinkError::Timeout(_) | LinkError::NotASocket(_))));
    }
}
