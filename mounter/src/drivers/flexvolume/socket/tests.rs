use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mooring_contract::names::FLEX_SOCKET;
use mooring_shim::request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::Socket;
use crate::core::{Core, CoreParts};

struct Daemon {
    directory: tempfile::TempDir,
    stop: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

impl Daemon {
    /// One that this process may ask, whoever runs it.
    fn start() -> Self {
        Self::start_for(nix::unistd::geteuid().as_raw())
    }

    fn start_for(asker: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let core = Core::new(CoreParts::standalone(Path::new("/kubelet")));
        let stop = CancellationToken::new();
        let mut socket = Socket::bind(directory.path()).unwrap();
        assert_eq!(socket.0.asker, 0, "others than root may ask");
        socket.0.asker = asker;
        let served = tokio::spawn(socket.serve(Arc::new(core), Duration::from_secs(10), stop.clone()));
        Self {
            directory,
            stop,
            served,
        }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join(FLEX_SOCKET)
    }

    async fn send(&self, bytes: &[u8]) -> serde_json::Value {
        let answer = self.exchange(bytes).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    async fn exchange(&self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(self.socket()).await?;
        stream.write_all(bytes).await?;
        stream.shutdown().await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(answer)
    }

    async fn call(&self, args: &[&str]) -> serde_json::Value {
        self.send(&written(args)).await
    }
}

fn written(args: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    request::write(args.iter().map(|arg| arg.as_bytes()), |piece| {
        bytes.extend_from_slice(piece);
        Ok::<_, ()>(())
    })
    .unwrap();
    bytes
}

#[tokio::test]
async fn call_outs_are_answered_and_malformed_ones_told_what_is_wrong() {
    let daemon = Daemon::start();
    assert_eq!(daemon.call(&["init"]).await["status"], "Success");
    assert_eq!(daemon.call(&["attach", "{}", "node"]).await["status"], "Not supported");
    for (bytes, words) in [
        (&b"garbage that is long enough"[..], "more than 64 arguments"),
        (&1_u32.to_le_bytes(), "half-way"),
        (&[1, 0, 0, 0, 1, 0, 0, 0, 0xff], "not text"),
        (&[0, 0, 0, 0], "without a call-out"),
    ] {
        let answer = daemon.send(bytes).await;
        assert_eq!(answer["status"], "Failure");
        assert!(answer["message"].as_str().unwrap().contains(words), "{answer}");
    }
    let unknown = daemon
        .call(&[
            "mount",
            "/kubelet/pods/u/volumes/mooring.dev~vcs/v",
            r#"{"client":"ceph"}"#,
        ])
        .await;
    assert!(
        unknown["message"].as_str().unwrap().contains("mounter-config"),
        "{unknown}"
    );
}

#[tokio::test]
async fn a_call_out_of_another_user_gets_no_answer() {
    let daemon = Daemon::start_for(nix::unistd::geteuid().as_raw() + 1);
    // Closed at once: whether the request still found room decides how that is told.
    let answer = daemon.exchange(&written(&["init"])).await;
    assert!(answer.as_ref().map_or(true, Vec::is_empty), "{answer:?}");
}

#[tokio::test]
async fn the_socket_is_root_s_only_and_goes_when_the_mounter_is_told_to_stop() {
    let daemon = Daemon::start();
    let mode = std::fs::metadata(daemon.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let names: Vec<_> = std::fs::read_dir(daemon.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, [FLEX_SOCKET]);
    daemon.stop.cancel();
    daemon.served.await.unwrap();
    assert!(!daemon.directory.path().join(FLEX_SOCKET).exists());
    assert!(Socket::bind(Path::new("/nonexistent")).is_err());
}

#[tokio::test]
async fn a_mounter_that_ends_leaves_the_socket_of_its_successor() {
    let daemon = Daemon::start();
    let _successor = Socket::bind(daemon.directory.path()).unwrap();
    daemon.stop.cancel();
    daemon.served.await.unwrap();
    let socket = daemon.directory.path().join(FLEX_SOCKET);
    assert!(socket.exists());
    super::remove(daemon.directory.path()).unwrap();
    super::remove(daemon.directory.path()).unwrap();
    assert!(!socket.exists());
}
