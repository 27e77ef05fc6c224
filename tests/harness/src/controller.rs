//! Controllers that a test runs on this machine, behind an [`ApiProxy`], in place of the cluster's own.

use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use futures::FutureExt;
use mooring_contract::names::NAMESPACE;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::api_proxy::ApiProxy;
use super::children::{start, tied};
use super::in_namespace::panic_message;
use super::scope::{Scope, blocking};
use super::waits::wait_until;
use mooring_testbed::command::last_lines;
use mooring_testbed::images;
use mooring_testbed::install::TESTS_NAMESPACES;
use mooring_testbed::layout::{repository, write_file};
use mooring_testbed::progress::note;

/// Longest wait for Mooring's own Pods to end or to start.
const LIMIT: Duration = Duration::from_mins(3);

/// How long a test's controller waits for an answer. [`super::api_proxy::Fault::Silence`] lasts as long.
pub const ANSWER: Duration = Duration::from_secs(4);

/// The Deployment of the cluster's own controllers.
const DEPLOYMENT: &str = "deployment/flex-provisioner";

/// A controller process; it is killed when this is dropped.
pub struct Controller {
    folder: PathBuf,
    name: String,
    arguments: Vec<(&'static str, String)>,
    child: Mutex<Option<Child>>,
}

impl Controller {
    fn new(scope: &Scope, proxy: &ApiProxy, folder: PathBuf, name: &str) -> Result<Self> {
        let kubeconfig = folder.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": proxy.address}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        });
        write_file(&kubeconfig, config.to_string())?;
        let block = scope.own_cluster()?.description.block;
        let arguments = [
            ("kubeconfig", kubeconfig.to_string_lossy().into_owned()),
            ("kube-api", block.api_server()),
            // As in tests/install.
            ("config-namespaces", TESTS_NAMESPACES.to_owned()),
            ("allowed-images", "mooring.dev/**,custom/*".to_owned()),
            ("leader-elect", "false".to_owned()),
            ("identity", name.to_owned()),
            ("listen", "127.0.0.1:0".to_owned()),
            ("api-timeout", format!("{}s", ANSWER.as_secs())),
            ("max-backoff", "2s".to_owned()),
            // A resync would repair what the controller misses, and hide it.
            ("resync", "1h".to_owned()),
            ("log", "info,flex_provisioner::controllers::retry=debug".to_owned()),
        ];
        Ok(Self {
            folder,
            name: name.to_owned(),
            arguments: arguments.into(),
            child: Mutex::new(None),
        })
    }

    fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    pub fn start(&self) -> Result<()> {
        let path = self.log();
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("failed to open {}", path.display()))?;
        let program = repository().join(images::program_folder()?).join("flex-provisioner");
        ensure!(program.is_file(), "there is no program {}", program.display());
        let mut command = tied(&program)?;
        command
            .arg("run")
            .args(self.arguments.iter().map(|(flag, value)| format!("--{flag}={value}")))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = start(command).with_context(|| format!("failed to start {}", program.display()))?;
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        Ok(())
    }

    /// Kills it and waits until it is dead.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it between two instructions, or continues it.
    pub fn hold(&self, held: bool) -> Result<()> {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = child.as_ref().context("the controller does not run")?.id();
        let signal = if held { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(Pid::from_raw(i32::try_from(pid)?), signal).context("failed to signal the controller")
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A proxy and the controllers behind it.
pub struct Rig {
    pub proxy: ApiProxy,
    /// The controllers, all at work at once.
    pub controllers: Vec<Arc<Controller>>,
}

/// Runs a test with `count` controllers in place of the cluster's, each of which believes that it leads. Afterwards the
/// cluster's controllers run again, whatever happened to the test.
pub async fn with_controllers(scope: &Scope, count: usize, test: impl AsyncFnOnce(&Rig) -> Result<()>) -> Result<()> {
    let folder = scope.own_cluster()?.layout.state.join(&scope.namespace);
    let outcome = match AssertUnwindSafe(on_rig(scope, count, folder.clone(), test))
        .catch_unwind()
        .await
    {
        Ok(outcome) => outcome,
        Err(panic) => Err(anyhow!("{}", panic_message(panic.as_ref()))),
    };
    if outcome.is_err() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if let Ok(log) = std::fs::read_to_string(entry.path())
                && entry.path().extension().is_some_and(|end| end == "log")
            {
                note(format!("--- {}\n{}", entry.path().display(), last_lines(&log, 200)));
            }
        }
    } else {
        let _ = std::fs::remove_dir_all(&folder);
    }
    let back = bring_back(scope);
    outcome.and(back)
}

async fn on_rig(
    scope: &Scope,
    count: usize,
    folder: PathBuf,
    test: impl AsyncFnOnce(&Rig) -> Result<()>,
) -> Result<()> {
    scope.kubectl(["-n", NAMESPACE, "scale", DEPLOYMENT, "--replicas=0"])?;
    wait_until("the cluster's own controllers to end", LIMIT, async || {
        let selector = "app.kubernetes.io/name=flex-provisioner";
        let pods = scope.kubectl(["-n", NAMESPACE, "get", "pods", "-o", "name", "-l", selector])?;
        Ok(pods.is_empty().then_some(()))
    })
    .await?;
    let proxy = ApiProxy::start(scope).await?;
    let controllers = (1..=count)
        .map(|index| {
            let name = format!("controller-{index}");
            Controller::new(scope, &proxy, folder.clone(), &name).map(Arc::new)
        })
        .collect::<Result<Vec<_>>>()?;
    let killed = controllers.clone();
    proxy.on_kill(move || {
        for controller in &killed {
            controller.kill();
            if let Err(error) = controller.start() {
                note(format!("error: {error:#}"));
            }
        }
    });
    for controller in &controllers {
        controller.start()?;
    }
    test(&Rig { proxy, controllers }).await
}

fn bring_back(scope: &Scope) -> Result<()> {
    scope.kubectl(["-n", NAMESPACE, "scale", DEPLOYMENT, "--replicas=2"])?;
    blocking(scope.kubectl_wait(["-n", NAMESPACE, "rollout", "status", DEPLOYMENT]))
}
