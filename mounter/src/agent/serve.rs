//! The agent's socket.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mooring_program::error::chain;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{Instrument as _, Span, debug_span, info, info_span, warn};

use super::mounts::Mounts;
use super::protocol::{
    self, AgentAnswer, AgentFailure, AgentRequest, Call, FailureCategory, SOCKET, VERSION, WireError,
};
use super::revive;
use super::services::ServiceError;
use super::supervise::DEATH;
use crate::sys::absent_is_fine;

/// How long a caller may take to send its request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// How often an ending agent checks whether its last mount is gone: it may be unmounted without the agent.
const DRAIN_PERIOD: Duration = Duration::from_millis(500);

/// Why the agent can't serve its socket.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("failed to listen on {path:?}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("failed to listen for signals")]
    Signals(#[source] io::Error),
}

/// Serves until it has received SIGTERM and the last mount is gone.
pub async fn serve(dir: &Path, mounts: Arc<Mounts>) -> Result<(), ServeError> {
    let terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let deaths = signal(SignalKind::from_raw(DEATH as i32)).map_err(ServeError::Signals)?;
    let path = dir.join(SOCKET);
    let listener = listen(dir, &path).map_err(|source| ServeError::Listen {
        path: path.clone(),
        source,
    })?;
    info!(socket = %path.display(), "the agent is ready");
    tokio::spawn(revive::watch(deaths, Arc::clone(&mounts)));
    let drained = drained(terminate, Arc::clone(&mounts));
    tokio::pin!(drained);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut drained => {
                let _ = fs::remove_file(&path);
                return Ok(());
            }
        };
        match accepted {
            Ok((stream, _)) => {
                // It continues if the caller hangs up: a mount that has begun is finished, and a repeated call finds
                // it.
                tokio::spawn(connection(stream, Arc::clone(&mounts)));
            }
            Err(error) => {
                // An error such as EMFILE would come again at once.
                warn!(error = %chain(&error), "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Listens on a socket that only root could connect to at any time.
fn listen(dir: &Path, path: &Path) -> io::Result<UnixListener> {
    let private = dir.join(".socket");
    match DirBuilder::new().mode(0o700).create(&private) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let new = private.join(SOCKET);
    absent_is_fine(fs::remove_file(&new))?;
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, Permissions::from_mode(0o600))?;
    fs::rename(&new, path)?;
    Ok(listener)
}

async fn drained(mut terminate: Signal, mounts: Arc<Mounts>) {
    terminate.recv().await;
    mounts.drain();
    info!("got SIGTERM: waiting for the last unmount");
    while !mounts.is_idle().await {
        tokio::time::sleep(DRAIN_PERIOD).await;
    }
}

async fn connection(mut stream: UnixStream, mounts: Arc<Mounts>) {
    match stream.peer_cred() {
        Ok(peer) if peer.uid() == 0 => {}
        Ok(peer) => {
            warn!(peer.uid = peer.uid(), "refused a caller that is not root");
            return;
        }
        Err(error) => {
            warn!(error = %chain(&error), "failed to see who calls");
            return;
        }
    }
    let request = match tokio::time::timeout(REQUEST_LIMIT, protocol::receive::<AgentRequest>(&mut stream)).await {
        Ok(Ok(request)) => request,
        Ok(Err(WireError::Io(..))) | Err(_) => return,
        Ok(Err(error)) => {
            let _ = protocol::send(&mut stream, &malformed(error.to_string())).await;
            return;
        }
    };
    let span = span(&request.call);
    let answer = answer(request, &mounts).instrument(span.clone()).await;
    if let AgentAnswer::Failed(failure) = &answer {
        span.in_scope(|| warn!(category = failure.category.as_str(), "{}", failure.message));
    }
    if let Err(error) = protocol::send(&mut stream, &answer).await {
        warn!(error = %chain(&error), "the caller did not wait for its answer");
    }
}

fn span(call: &Call) -> Span {
    match call {
        Call::Hello => debug_span!("hello"),
        Call::Mount(call) => info_span!("mount", mount.client = call.client, mount.target = call.target),
        Call::Adopt(call) => info_span!("adopt", mount.client = call.client, mount.target = call.target),
        Call::Unmount { target } => info_span!("unmount", mount.target = target),
        Call::Recall { target } => info_span!("recall", mount.target = target),
        Call::Renew { target, .. } => info_span!("renew", mount.target = target),
        Call::Revived { target, .. } => info_span!("revived", mount.target = target),
        Call::GiveUp { target } => info_span!("give-up", mount.target = target),
        Call::GiveUpCleanUp { target } => info_span!("give-up-clean-up", mount.target = target),
        Call::Expand { target, .. } => info_span!("expand", mount.target = target),
        Call::Service { volume, .. } => info_span!("service", volume.name = volume),
    }
}

async fn answer(request: AgentRequest, mounts: &Arc<Mounts>) -> AgentAnswer {
    if request.version != VERSION {
        return malformed(format!(
            "the mounter speaks version {} of the agent's messages and this agent {VERSION}: this agent ends with its \
             last mount",
            request.version
        ));
    }
    let result = match request.call {
        Call::Hello => mounts.hello().await.map(AgentAnswer::Hello),
        Call::Mount(call) => {
            let mounted = mounts.mount(*call).await;
            mounted
                .inspect(|_| info!("mounted"))
                .map(|given| given.map_or(AgentAnswer::Mounted, |device| AgentAnswer::Given { device }))
        }
        Call::Unmount { target } => mounts.unmount(&target).await.map(|()| AgentAnswer::Unmounted),
        Call::Recall { target } => mounts.recall(&target).map(|call| AgentAnswer::Recalled(Box::new(call))),
        Call::Renew {
            target,
            secrets,
            secrets_at,
        } => {
            let renewed = mounts.renew(&target, secrets, secrets_at);
            renewed.map(|changed| AgentAnswer::Renewed { changed })
        }
        Call::Adopt(call) => mounts.adopt(*call).await.map(|()| AgentAnswer::Noted),
        Call::Revived { target, devices } => mounts.revived(&target, &devices).map(|()| AgentAnswer::Noted),
        Call::GiveUp { target } => mounts.give_up(&target).await.map(|()| AgentAnswer::Noted),
        Call::GiveUpCleanUp { target } => mounts.give_up_clean_up(&target).await.map(|()| AgentAnswer::Noted),
        Call::Expand { target, size, limit_ms } => {
            let expanded = mounts.expand(&target, size, Duration::from_millis(limit_ms)).await;
            expanded.map(|()| AgentAnswer::Noted)
        }
        Call::Service {
            volume,
            service,
            environment,
        } => {
            let served = mounts.services.serve(&volume, *service, environment).await;
            return served.map_or_else(|error| not_served(&error), |said| AgentAnswer::Served { said });
        }
    };
    result.unwrap_or_else(|error| AgentAnswer::Failed(AgentFailure::from(&error)))
}

fn not_served(error: &ServiceError) -> AgentAnswer {
    AgentAnswer::Failed(AgentFailure {
        category: error.category(),
        message: error.report(),
        limit_ms: None,
    })
}

fn malformed(message: String) -> AgentAnswer {
    AgentAnswer::Failed(AgentFailure {
        category: FailureCategory::Protocol,
        message,
        limit_ms: None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream as StdStream;
    use std::sync::Arc;
    use std::thread;

    use nix::unistd::getuid;
    use rustix::thread::{Uid, set_thread_res_uid};
    use tokio::net::UnixStream;

    use super::connection;
    use crate::agent::mounts::Mounts;
    use crate::agent::protocol::{self, AgentAnswer, AgentRequest, Call, VERSION, WireError};
    use crate::agent::store::Store;

    const NOBODY: u32 = 65_534;

    /// Two ends of a connection, each of which shows the other this user.
    fn pair_of(uid: u32) -> [UnixStream; 2] {
        // The thread alone is somebody else, and ends.
        let made = thread::spawn(move || {
            if getuid().is_root() {
                let uid = Uid::from_raw(uid);
                set_thread_res_uid(uid, uid, uid).unwrap();
            }
            StdStream::pair().unwrap()
        });
        let (one, other) = made.join().unwrap();
        [one, other].map(|end| {
            end.set_nonblocking(true).unwrap();
            UnixStream::from_std(end).unwrap()
        })
    }

    /// What the agent says to a caller of this user who asks who it is.
    async fn said_to(uid: u32) -> Result<AgentAnswer, WireError> {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap();
        let [mut caller, agent] = pair_of(uid);
        let request = AgentRequest {
            version: VERSION,
            call: Call::Hello,
        };
        protocol::send(&mut caller, &request).await.unwrap();
        connection(agent, Arc::new(mounts)).await;
        protocol::receive(&mut caller).await
    }

    #[tokio::test]
    async fn a_caller_that_is_not_root_gets_no_answer_of_the_agent() {
        let refused = said_to(NOBODY).await;
        assert!(matches!(refused, Err(WireError::Io(..))), "{refused:?}");
        // Only root can be root.
        if getuid().is_root() {
            let answer = said_to(0).await.unwrap();
            assert!(matches!(answer, AgentAnswer::Hello(_)), "{answer:?}");
        }
    }
}
