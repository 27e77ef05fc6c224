//! A worker in this process: it speaks as one does, and its runs end when the rehearsal says so.

use std::sync::{Arc, Mutex, MutexGuard};

use mooring_contract::worker::{Ask, Order, Report, RunEnd};
use mooring_seal::channel::{Channel, Side, greeting};
use mooring_seal::new_key;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::run::workers::Seat;

/// Its Pod.
pub(super) const WORKER: &str = "admin/worker-1";

#[derive(Debug)]
pub(super) struct FakeWorker {
    /// Of its Pod.
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) seat: Seat,
    state: Arc<Mutex<State>>,
    listening: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    report: Report,
    /// What has been begun and has not ended.
    order: Option<Order>,
    /// So many answers are lost on their way.
    lost_answers: usize,
    /// Nothing reaches it.
    is_lost: bool,
}

impl FakeWorker {
    pub(super) async fn start(lost_answers: usize) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let key = new_key().unwrap();
        let seat = Seat {
            host: "127.0.0.1".into(),
            port: listener.local_addr().unwrap().port(),
            key: SecretString::from(key.clone()),
        };
        let state = Arc::new(Mutex::new(State {
            lost_answers,
            ..State::default()
        }));
        let shared = state.clone();
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A controller that is killed says no goodbye.
                let _ = answer(stream, &key, &shared).await;
            }
        });
        Self {
            uid: "w1".to_owned(),
            name: "worker-1".to_owned(),
            seat,
            state,
            listening,
        }
    }

    /// Its Pod, as the API has it.
    pub(super) fn pod(&self, config: &str, fingerprint: &str) -> Value {
        json!({
            "metadata": {
                "namespace": "admin", "name": self.name, "uid": self.uid,
                "labels": {"mooring.dev/component": "provisioning", "mooring.dev/worker": "true"},
                "annotations": {"mooring.dev/config": config, "mooring.dev/fingerprint": fingerprint},
            },
            "spec": {"nodeName": "node-a", "containers": [{
                "name": "worker", "ports": [{"containerPort": self.seat.port}],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]},
            "status": {"phase": "Running", "podIP": self.seat.host, "containerStatuses": [
                {"name": "worker", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                 "state": {"running": {}}}]},
        })
    }

    pub(super) fn report(&self) -> Report {
        self.lock().report.clone()
    }

    /// What it has begun and not ended.
    pub(super) fn order(&self) -> Option<Order> {
        self.lock().order.clone()
    }

    pub(super) fn end(&self, exit_code: i32, message: &str) {
        let mut state = self.lock();
        state.order = None;
        state.report.ended = Some(RunEnd {
            exit_code,
            message: message.to_owned(),
            timed_out: false,
        });
    }

    /// Whether anything reaches it.
    pub(super) fn is_reached(&self) -> bool {
        !self.lock().is_lost
    }

    /// Has everything reach it from now on, or nothing.
    pub(super) fn reach(&self, is_reached: bool) {
        self.lock().is_lost = !is_reached;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Drop for FakeWorker {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

pub(super) fn is_worker(pod: &Value) -> bool {
    !pod["metadata"]["labels"]["mooring.dev/worker"].is_null()
}

/// Whether this Pod is a worker that has no run.
pub(super) fn is_free(pod: &Value) -> bool {
    is_worker(pod) && pod["metadata"]["labels"]["mooring.dev/operation"].is_null()
}

async fn answer(mut stream: TcpStream, key: &str, state: &Mutex<State>) -> Result<(), Box<dyn std::error::Error>> {
    if state.lock().unwrap().is_lost {
        return Ok(());
    }
    let greeting = greeting()?;
    stream.write_all(&greeting).await?;
    let mut channel = Channel::new(key, Side::Worker, greeting)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let mut frame = vec![0; Channel::length(length)?];
    stream.read_exact(&mut frame).await?;
    let report = {
        let mut state = state.lock().unwrap();
        if let Ask::Begin(order) = serde_json::from_slice(&channel.open(&frame)?)?
            && state.report.is_idle()
            && order.number > state.report.number
        {
            state.report = Report {
                number: order.number,
                ended: None,
            };
            state.order = Some(order);
        }
        if state.lost_answers > 0 {
            state.lost_answers -= 1;
            return Ok(());
        }
        state.report.clone()
    };
    stream.write_all(&channel.seal(serde_json::to_vec(&report)?)?).await?;
    Ok(())
}
