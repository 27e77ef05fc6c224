//! The socket beside the shim: root's only, limited in every direction.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_contract::names::FLEX_SOCKET;
use mooring_program::error::chain;
use mooring_shim::request::{self, MalformedRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info, warn};

use super::answer::FlexVolumeAnswer;
use crate::core::Core;
use crate::deadlines::{self, KUBELET, LONGEST_CALL};
use crate::drivers::call_out::{self, CallOutcome};
use crate::drivers::socket::{self, PrivateSocket, SocketError};

/// Most call-outs at a time. Those of one server are limited to fewer (`crate::core::circuit_breaker`).
const MOST: usize = 256;

/// Longest that a request may take to come in, and an answer to go out.
const PEER_LIMIT: Duration = Duration::from_secs(5);

// The shim still waits when the answer of the longest call-out goes out.
const _: () = assert!(LONGEST_CALL.as_secs() + PEER_LIMIT.as_secs() < KUBELET.as_secs());

/// The mounter's socket.
#[derive(Debug)]
pub struct Socket(PrivateSocket);

impl Socket {
    /// Makes the socket in the driver's directory, in the place of any other.
    pub fn bind(directory: &Path) -> Result<Self, SocketError> {
        PrivateSocket::bind(directory, FLEX_SOCKET).map(Self)
    }

    /// Answers call-outs until told to stop, then those that are under way.
    pub async fn serve(self, core: Arc<Core>, limit: Duration, stop: CancellationToken) {
        let room = Arc::new(Semaphore::new(MOST));
        let calls = TaskTracker::new();
        while let Some(stream) = stop.run_until_cancelled(self.0.accept()).await {
            let (core, room) = (Arc::clone(&core), Arc::clone(&room));
            calls.spawn(async move {
                if let Ok(_room) = room.try_acquire() {
                    converse(&core, stream, limit).await;
                } else {
                    let words = format!("{MOST} operations are running on this node: the kubelet tries again");
                    reply(stream, &FlexVolumeAnswer::failure(words)).await;
                }
            });
        }
        // From now on the shim says that there is no mounter, rather than to hang.
        self.0.remove();
        calls.close();
        info!(
            calls = calls.len(),
            "the mounter takes no new call-outs, and finishes those in progress"
        );
        if tokio::time::timeout(deadlines::outer(limit), calls.wait())
            .await
            .is_err()
        {
            warn!(calls = calls.len(), "stopped before these call-outs were finished");
        }
    }
}

pub fn is_there(directory: &Path) -> bool {
    directory.join(FLEX_SOCKET).exists()
}

/// Takes the socket away.
pub fn remove(directory: &Path) -> io::Result<()> {
    socket::remove(&directory.join(FLEX_SOCKET))
}

async fn converse(core: &Core, mut stream: UnixStream, limit: Duration) {
    let start = Instant::now();
    let args = match tokio::time::timeout(PEER_LIMIT, read(&mut stream)).await {
        Ok(Ok(args)) => args,
        Ok(Err(ReadError::Closed)) => return debug!("a peer closed without a request"),
        Ok(Err(error)) => return refuse(core, stream, error.to_string()).await,
        Err(_) => return refuse(core, stream, format!("no whole request came within {PEER_LIMIT:?}")).await,
    };
    let call = args.first().cloned().unwrap_or_default();
    async {
        let (answer, category) = super::handle(core, &args, start + deadlines::inner(limit)).await;
        let outcome = match &answer {
            FlexVolumeAnswer::Success | FlexVolumeAnswer::Init | FlexVolumeAnswer::VolumeName(_) => {
                CallOutcome::Success
            }
            FlexVolumeAnswer::NotSupported => CallOutcome::NotSupported,
            FlexVolumeAnswer::Failure(message) => CallOutcome::Failure { category, message },
        };
        call_out::answered(core.metrics(), &call, start.elapsed(), &outcome);
        reply(stream, &answer).await;
    }
    .instrument(call_out::span(&call))
    .await;
}

async fn refuse(core: &Core, stream: UnixStream, words: String) {
    warn!("a request could not be read: {words}");
    let answer = FlexVolumeAnswer::failure(format!("the call-out could not be read: {words}"));
    core.metrics()
        .called("", answer.status(), "bad-request", Duration::ZERO);
    reply(stream, &answer).await;
}

async fn reply(mut stream: UnixStream, answer: &FlexVolumeAnswer) {
    let text = answer.to_json();
    let sent = tokio::time::timeout(PEER_LIMIT, async {
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await
    });
    match sent.await {
        Ok(Ok(())) => {}
        // The kubelet asks again, and the mount table says what was done.
        Ok(Err(error)) => info!(error = %chain(&error), "the shim was gone before it had its answer"),
        Err(_) => info!("the shim did not take its answer"),
    }
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("the peer closed without a request")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Request(#[from] MalformedRequest),
    #[error("an argument is not text")]
    NotText,
}

async fn read(stream: &mut UnixStream) -> Result<Vec<String>, ReadError> {
    let mut bytes = Vec::with_capacity(4096);
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(if bytes.is_empty() {
                ReadError::Closed
            } else {
                MalformedRequest::Short.into()
            });
        }
        match request::decode(&bytes) {
            Ok(args) => {
                let text = |arg: &[u8]| String::from_utf8(arg.to_vec()).map_err(|_| ReadError::NotText);
                return args.map(text).collect();
            }
            Err(MalformedRequest::Short) if bytes.len() <= mooring_shim::MAX_REQUEST => {}
            Err(MalformedRequest::Short) => return Err(MalformedRequest::TooLong.into()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
