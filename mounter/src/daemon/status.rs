//! The daemon's own state, as the status page shows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mooring_contract::pool::PoolRoom;
use mooring_program::error::chain;
use serde::Serialize;

use crate::core::metrics::MetricsSnapshot;
use crate::core::{Core, Obstacle};
use crate::daemon::args::ServeArgs;
use crate::drivers::endpoint::EndpointError;
use crate::node::pool_usage::PoolUsage;
use crate::node::readiness::clients::Readiness;
use crate::node::readiness::{Check, checks, kernel};
use crate::volume::registry::Registry;

const NOT_INSTALLED_YET: &str = "the shim is not installed yet";

#[derive(Debug, Default)]
struct State {
    /// Where the shim is, or what keeps it from being installed; `None` before the first try.
    installed: Option<Result<String, Arc<EndpointError>>>,
    /// What is wrong with ConfigMaps, by their names, behind which it is read.
    configs: BTreeMap<&'static str, String>,
    stopping: bool,
    /// That no admission policy holds the mounter.
    unheld: Obstacle,
}

/// What the daemon notes of itself; its clones share it.
#[derive(Debug, Clone)]
pub struct Status {
    args: Arc<ServeArgs>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    pub ready: bool,
    pub checks: Vec<Check>,
    /// Who serves which type.
    pub clients: BTreeMap<String, String>,
    /// Types that this node can't mount, and what to do.
    pub unable: BTreeMap<String, String>,
    /// Volumes of class `local`; nothing if the pool can't be looked at, which a check says.
    pub pool: Option<PoolUsage>,
    /// Which ConfigMap is not in force as it stands, and why.
    pub config_error: Option<String>,
    /// Servers that did not answer and that mounts have asked for lately.
    pub tripped_servers: Vec<String>,
    /// Mooring's mounts: directory and file system.
    pub mounts: Vec<(String, String)>,
    /// Workers that hang in the kernel.
    pub hung_workers: usize,
}

impl Status {
    pub fn new(args: Arc<ServeArgs>) -> Self {
        Self {
            args,
            state: Arc::default(),
        }
    }

    /// Where the shim is, or what keeps it from being installed.
    pub(crate) fn installed(&self, result: Result<String, Arc<EndpointError>>) {
        self.lock().installed = Some(result);
    }

    /// What is wrong with a ConfigMap, or that nothing is. Returns whether anything is with any of them.
    pub fn config(&self, name: &'static str, error: Option<String>) -> bool {
        let configs = &mut self.lock().configs;
        match error {
            Some(error) => configs.insert(name, error),
            None => configs.remove(name),
        };
        !configs.is_empty()
    }

    /// That no admission policy holds the mounter, as soon as that is known.
    pub fn unheld(&self) -> Obstacle {
        self.lock().unheld.clone()
    }

    /// No new call-outs are taken.
    pub fn stopping(&self) {
        self.lock().stopping = true;
    }

    pub fn checks(&self) -> Vec<Check> {
        let installed = self.lock().installed.clone();
        let not_yet = || Err(NOT_INSTALLED_YET.to_owned());
        self.checks_with(installed.map_or_else(not_yet, |installed| installed.map_err(|error| chain(&error))))
    }

    /// Which clients the node can mount; nothing before the kubelet's endpoint was opened, or could not be.
    pub fn readiness(&self, registry: &Registry) -> Option<Readiness> {
        let installed = self.lock().installed.clone()?;
        let checks = self.checks_with(installed.map_err(|error| chain(&error)));
        Some(Readiness::of(&checks, &kernel(), &registry.servings()))
    }

    /// What keeps the daemon from being ready; nothing if it is.
    pub fn obstacles(&self) -> Vec<String> {
        let checks = self.checks().into_iter().filter(|check| check.required && !check.ok);
        let (is_tried, stopping) = {
            let state = self.lock();
            (state.installed.is_some(), state.stopping)
        };
        let untried = (!is_tried).then(|| NOT_INSTALLED_YET.to_owned());
        let stopping = stopping.then(|| "the mounter is stopping".to_owned());
        checks
            .map(|check| format!("{}: {}", check.name, check.message))
            .chain(untried)
            .chain(stopping)
            .collect()
    }

    /// The report that `mounter status` prints.
    pub fn report(&self, core: &Core) -> StatusReport {
        let mounts = core.mounts().unwrap_or_default();
        let readiness = self.readiness(core.registry());
        StatusReport {
            ready: self.obstacles().is_empty(),
            checks: self.checks(),
            clients: core.registry().rules(),
            unable: readiness.map(|found| found.unable()).unwrap_or_default(),
            pool: self.pool(),
            config_error: self.config_error(),
            tripped_servers: core.breakers().tripped(Instant::now()),
            mounts: mounts
                .into_iter()
                .map(|(path, fs_type)| (path.display().to_string(), fs_type))
                .collect(),
            hung_workers: core.workers().left_behind(),
        }
    }

    /// What metrics are made from.
    pub fn snapshot(&self, core: &Core) -> MetricsSnapshot {
        let mounts = core.mounts().unwrap_or_default();
        MetricsSnapshot {
            mounts: mounts.into_iter().map(|(_, fs_type)| fs_type).collect(),
            tripped: core.breakers().tripped(Instant::now()),
            left_behind: core.workers().left_behind(),
            ready: self.obstacles().is_empty(),
            pool: self.pool(),
        }
    }

    fn checks_with(&self, installed: Result<String, String>) -> Vec<Check> {
        let args = &self.args;
        let host_mount_namespace = args.host_mount_namespace.as_deref();
        checks(
            &args.node,
            &args.pool_dir,
            host_mount_namespace,
            installed,
            self.unheld().get(),
        )
    }

    fn config_error(&self) -> Option<String> {
        let state = self.lock();
        let errors = state
            .configs
            .iter()
            .map(|(name, mistake)| format!("ConfigMap {name} {mistake}"));
        Some(errors.collect::<Vec<_>>().join("; ")).filter(|all| !all.is_empty())
    }

    fn pool(&self) -> Option<PoolUsage> {
        PoolUsage::of(&self.args.pool_dir).ok()
    }

    /// What the pool has left for new volumes; nothing if it can't be looked at.
    pub fn pool_left(&self) -> Option<PoolRoom> {
        self.pool().map(|usage| usage.left())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatusReport {
    /// For people.
    pub fn to_text(&self) -> String {
        let mut lines = vec![format!("ready: {}", if self.ready { "yes" } else { "no" })];
        lines.extend(self.checks.iter().map(|check| {
            let mark = match (check.ok, check.required) {
                (true, _) => "ok",
                (false, true) => "MISSING",
                (false, false) => "missing",
            };
            format!("{mark:>7}  {}: {}", check.name, check.message)
        }));
        lines.push("types of volumes, and who serves them:".to_owned());
        lines.extend(self.clients.iter().map(|(client, serving)| {
            let unable = self.unable.get(client).map(|why| format!(", not on this node: {why}"));
            format!("  {client} = {serving}{}", unable.unwrap_or_default())
        }));
        if let Some(pool) = &self.pool {
            lines.push(format!("pool of local volumes: {pool}"));
        }
        lines.extend(self.config_error.clone());
        lines.extend(
            self.tripped_servers
                .iter()
                .map(|server| format!("server does not answer: {server}")),
        );
        lines.push(format!("mounts: {}", self.mounts.len()));
        lines.extend(
            self.mounts
                .iter()
                .map(|(path, fs_type)| format!("  {path} ({fs_type})")),
        );
        if self.hung_workers > 0 {
            lines.push(format!("workers that hang in the kernel: {}", self.hung_workers));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}
