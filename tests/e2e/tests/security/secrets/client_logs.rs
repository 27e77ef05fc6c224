//! The whole logs of client Pods: they are followed from the containers' start, since a client Pod whose mounts all
//! fail is gone soon after.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, LogParams, ResourceExt as _};
use mooring_contract::names::{NAMESPACE, labels};
use mooring_harness::Scope;
use tokio::task::{JoinHandle, JoinSet};

/// How often to look for containers that have started: an idle client Pod stays for seconds.
const PERIOD: Duration = Duration::from_millis(300);

/// A container: its Pod, its own name, and which of its runs it is.
type Run = (String, String, i32);

/// What a container of a client has logged so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    pub(super) client: String,
    pub(super) text: String,
    /// Why it could not be read to its end. It is read again from its beginning, if the container is still there.
    pub(super) broken: Option<String>,
}

type Logs = Arc<Mutex<BTreeMap<Run, Log>>>;

/// Follows the logs until it is dropped.
pub(super) struct ClientLogs {
    logs: Logs,
    following: JoinHandle<()>,
}

impl ClientLogs {
    pub(super) fn follow(scope: &Scope) -> Self {
        let logs = Logs::default();
        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
        let following = tokio::spawn(follow(pods, Arc::clone(&logs)));
        Self { logs, following }
    }

    /// What was logged so far, with the names of the Pods.
    pub(super) fn so_far(&self) -> Vec<(String, Log)> {
        let logs = locked(&self.logs);
        logs.iter().map(|((pod, ..), log)| (pod.clone(), log.clone())).collect()
    }
}

impl Drop for ClientLogs {
    fn drop(&mut self) {
        self.following.abort();
    }
}

fn locked(logs: &Logs) -> MutexGuard<'_, BTreeMap<Run, Log>> {
    logs.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow(pods: Api<Pod>, logs: Logs) {
    // They end with this task.
    let mut reading = JoinSet::new();
    loop {
        // The next look tries again.
        let there = pods.list(&ListParams::default().labels(labels::CLIENT)).await;
        for pod in there.into_iter().flatten() {
            let client = pod.labels().get(labels::CLIENT).cloned().unwrap_or_default();
            let status = pod.status.clone().unwrap_or_default();
            let inits = status.init_container_statuses.into_iter().flatten();
            for container in inits.chain(status.container_statuses.into_iter().flatten()) {
                let state = container.state.unwrap_or_default();
                let run = (pod.name_any(), container.name, container.restart_count);
                let started = state.running.is_some() || state.terminated.is_some();
                let is_read = locked(&logs).get(&run).is_some_and(|log| log.broken.is_none());
                if !started || is_read {
                    continue;
                }
                let log = Log {
                    client: client.clone(),
                    ..Log::default()
                };
                locked(&logs).insert(run.clone(), log);
                reading.spawn(read(pods.clone(), Arc::clone(&logs), run));
            }
        }
        tokio::time::sleep(PERIOD).await;
    }
}

/// Reads a container's log to its end. One that can't be read is tried again.
async fn read(pods: Api<Pod>, logs: Logs, run: Run) {
    let params = LogParams {
        follow: true,
        container: Some(run.1.clone()),
        ..LogParams::default()
    };
    let Ok(stream) = pods.log_stream(&run.0, &params).await else {
        locked(&logs).remove(&run);
        return;
    };
    let mut lines = stream.lines();
    loop {
        let read = lines.try_next().await;
        if let Some(log) = locked(&logs).get_mut(&run) {
            match read {
                Ok(Some(line)) => {
                    log.text.push_str(&line);
                    log.text.push('\n');
                    continue;
                }
                Ok(None) => {}
                Err(error) => log.broken = Some(error.to_string()),
            }
        }
        return;
    }
}
