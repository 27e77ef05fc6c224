//! Runs the controllers for as long as this replica leads.

use std::io::Write as _;
use std::time::Duration;

use clap::CommandFactory as _;
use kube::Client;
use mooring_contract::CONTRACT_VERSION;
use mooring_program::environment;
use mooring_program::error::chain;
use mooring_program::settings::Settings as AdministratorSettings;
use mooring_program::signals::Signals;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::args::Cli;
use crate::args::run::RunArgs;
use crate::config::discovered::Discoveries;
use crate::config::store::ConfigStore;
use crate::config::trust::Trust;
use crate::context::{Context, Settings};
use crate::controllers;
use crate::process::client::{self, ClientError};
use crate::process::election::{Election, Timing};
use crate::process::events::{EventRecorder, Writer};
use crate::process::health::{self, Health, ListenError, Phase};
use crate::process::held;
use crate::process::metrics::Metrics;
use crate::process::settings::SettingsWatch;

#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The address of the probes is not available.
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("failed to listen for signals")]
    Signals(#[source] std::io::Error),
    /// The Lease was lost: another replica may lead now, so this one must not go on.
    #[error("this replica has lost the lease: it ends, and is a standby when Kubernetes has started it again")]
    LeaseLost,
    /// A controller ended by itself, which is a defect.
    #[error("the {0} controller ended unexpectedly")]
    Ended(&'static str),
}

/// What is logged if `--log` is not given. At `warn`, the library would report every watch that was cut and begins
/// again.
const LOG: &str = "info,kube_runtime=error";

/// How long Events that are waiting at the end are given to be written.
const LAST_EVENTS: Duration = Duration::from_secs(10);

/// Why the controllers ended, where nothing failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By SIGTERM or SIGINT.
    Stopped,
    /// The settings have changed, or no policy holds the controller any more: the program has to begin anew.
    ToBeginAnew,
}

/// Runs the controllers until it is told to stop, or to begin anew.
pub async fn run(args: RunArgs) -> Result<Ended, ControllerError> {
    let RunArgs {
        namespace,
        settings: flags,
        kube_api,
        kubeconfig,
        leader_elect,
        lease_name,
        lease_duration,
        identity,
        listen,
        max_in_flight,
        max_pods,
        api_qps,
        api_burst,
        api_timeout,
        resync,
        stop_timeout,
        max_backoff,
        log,
    } = args;
    log.start(LOG);
    environment::warn_of_unknown(&Cli::command());
    info!(
        version = env!("CARGO_PKG_VERSION"),
        contract = CONTRACT_VERSION,
        identity,
        "starting"
    );

    let metrics = Metrics::new();
    let configs = ConfigStore::default();
    let health = {
        let configs = configs.clone();
        Health::new(move || configs.is_synced(), metrics.clone())
    };
    let config = client::config(kubeconfig.as_deref(), api_timeout).await?;
    let client = client::limited(&config, &metrics, api_qps, api_burst, api_timeout)?;
    let (events, event_writer) = EventRecorder::new(metrics.clone());
    let stop = stop_on_signal()?;
    let listener = health::listen(listen).await?;
    // The probes answer for as long as the process lives: also while it stops.
    let end_of_probes = CancellationToken::new();
    let probes = tokio::spawn(health::serve(listener, health.clone(), end_of_probes.clone()));

    let mut changes = SettingsWatch::new(client.clone(), &namespace);
    let Some(settings) = changes.first(&health, &stop).await else {
        return Ok(Ended::Stopped);
    };
    let trust = trust(&flags.beneath(&settings), &namespace);
    let namespaces: Vec<_> = trust.namespaces().map(str::to_owned).collect();
    let context = Context {
        client,
        configs,
        discoveries: Discoveries::default(),
        events,
        metrics: metrics.clone(),
        settings: Settings {
            namespace: namespace.clone(),
            config_namespaces: namespaces.iter().cloned().collect(),
            kube_api: without_slash(&kube_api.unwrap_or_else(|| client::address(&config))),
            max_in_flight,
            max_pods,
            resync,
            max_backoff,
        },
    };

    let mut election = None;
    if leader_elect {
        let (client, timing) = (client::unlimited(&config, &metrics)?, Timing::of(lease_duration));
        election = Some(Election::new(&client, &namespace, &lease_name, &identity, timing));
    }
    let questions = held::questions(&namespace, &identity, &namespaces);
    let may_lead = async {
        // Outside of a cluster, it has its user's rights.
        (kubeconfig.is_some() || held::wait(context.client.clone(), &questions, &health, &stop).await)
            && won(&mut election, &health, &stop).await
    };
    let unheld = unheld(context.client.clone(), &questions, kubeconfig.is_none());
    let mut anew = std::pin::pin!(first_of(changes.changed(&settings), unheld));
    tokio::select! {
        () = &mut anew => return Ok(Ended::ToBeginAnew),
        may_lead = may_lead => if !may_lead {
            return Ok(Ended::Stopped);
        },
    }
    health.set(Phase::Leading);

    let mut work = Work::start(context, trust, event_writer, identity);
    let ended = tokio::select! {
        () = &mut anew => Ok(Ended::ToBeginAnew),
        ended = work.lead(&mut election, &stop) => ended.map(|()| Ended::Stopped),
    };

    health.set(Phase::Stopping);
    info!("stopping");
    work.end(stop_timeout).await;
    if let Some(mut election) = election.filter(|_| !matches!(ended, Err(ControllerError::LeaseLost))) {
        // Only now: the next leader finds nobody at work.
        election.release().await;
    }
    end_of_probes.cancel();
    let _ = probes.await;
    info!("stopped");
    // Whoever has asked it to stop meanwhile does not ask again.
    ended.map(|ended| if stop.is_cancelled() { Ended::Stopped } else { ended })
}

/// Returns when no policy holds the controller any more. Outside of a cluster, none is to.
async fn unheld(client: Client, questions: &[held::Question], is_in_cluster: bool) {
    if is_in_cluster {
        held::lost(client, questions).await;
    } else {
        std::future::pending::<()>().await;
    }
}

async fn first_of(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

fn without_slash(address: &str) -> String {
    address.trim_end_matches('/').to_owned()
}

/// What ConfigMaps may ask for.
fn trust(settings: &AdministratorSettings, namespace: &str) -> Trust {
    let images = settings.allowed(settings.allowed_images.as_ref());
    Trust::new(settings.config_namespaces(namespace), images)
        .running_in(namespace.to_owned())
        .pulling_from(settings.registry(), settings.pull_secrets())
}

/// What this replica does while it leads.
struct Work {
    /// Each controller; its task returns its name when it ends.
    controllers: JoinSet<&'static str>,
    end_of_controllers: CancellationToken,
    events_written: JoinHandle<()>,
    end_of_events: CancellationToken,
}

impl Work {
    fn start(context: Context, trust: Trust, event_writer: Writer, identity: String) -> Self {
        let end_of_events = CancellationToken::new();
        let writing = event_writer.run(context.client.clone(), identity, end_of_events.clone());
        let events_written = tokio::spawn(writing);
        let end_of_controllers = CancellationToken::new();
        let controllers = controllers::all(context, trust, &end_of_controllers)
            .into_iter()
            .map(|(name, controller)| async move {
                controller.await;
                name
            })
            .collect();
        Self {
            controllers,
            end_of_controllers,
            events_written,
            end_of_events,
        }
    }

    /// Returns when this replica must not lead any more.
    async fn lead(&mut self, election: &mut Option<Election>, stop: &CancellationToken) -> Result<(), ControllerError> {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = lost(election) => Err(ControllerError::LeaseLost),
            Some(ended) = self.controllers.join_next() => Err(ControllerError::Ended(ended.unwrap_or("panicked"))),
        }
    }

    /// Tells the controllers to end, and waits for so long; then for the Events that they have left.
    async fn end(mut self, limit: Duration) {
        self.end_of_controllers.cancel();
        let all = async { while self.controllers.join_next().await.is_some() {} };
        if timeout(limit, all).await.is_err() {
            warn!("controllers did not end in time: the next leader finds their work in the API");
            self.controllers.abort_all();
        }
        self.end_of_events.cancel();
        if timeout(LAST_EVENTS, self.events_written).await.is_err() {
            warn!("events were not written in time");
        }
    }
}

/// Waits until this replica leads; false if `stop` came first.
async fn won(election: &mut Option<Election>, health: &Health, stop: &CancellationToken) -> bool {
    match election {
        Some(election) => election.win(stop, |standing| health.set(standing.into())).await,
        None => true,
    }
}

/// Returns when another replica may lead. Who takes no part in the election leads for good.
async fn lost(election: &mut Option<Election>) {
    match election {
        Some(election) => election.hold().await,
        None => std::future::pending().await,
    }
}

fn stop_on_signal() -> Result<CancellationToken, ControllerError> {
    let stop = CancellationToken::new();
    let mut signals = Signals::listen().map_err(ControllerError::Signals)?;
    let cancel = stop.clone();
    tokio::spawn(async move {
        info!("got {}", signals.next().await);
        cancel.cancel();
    });
    Ok(stop)
}

/// Says why the controller ended, with the whole chain of causes. On standard error itself, since the log may not have
/// begun.
pub fn report(error: &ControllerError) {
    let _ = writeln!(std::io::stderr(), "flex-provisioner: {}", chain(error));
}
