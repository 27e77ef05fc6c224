//! `mounter serve`: puts the parts together, and takes them apart.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use kube::Client as KubeClient;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::args::{LogFormat, ServeArgs};
use crate::client::Client;
use crate::client_pods::{ClientPods, Identity};
use crate::clients::container::ContainerClient;
use crate::clients::registry::Registry;
use crate::core::{Core, Places};
use crate::give_up::GiveUp;
use crate::kubelet_root::Lost;
use crate::metrics::Metrics;
use crate::node_pods::NodePods;
use crate::publish::{self, Publisher};
use crate::revive::Reviver;
use crate::revive::tell::Teller;
use crate::status::Status;
use crate::{config_watch, door, http, privilege, readiness, uninstall};

/// Longest that the API may take to accept a connection.
const API_CONNECT: Duration = Duration::from_secs(5);

/// Longest silence of the API; a watch hears from it at least every 290 s.
const API_READ: Duration = Duration::from_secs(295);

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Not root.
    #[error("failed to give up capabilities (the mounter runs as root in a privileged container): {0}")]
    Privilege(#[from] caps::errors::CapsError),
    /// In the kubelet's mount namespace.
    #[error(transparent)]
    KubeletRoot(#[from] Lost),
    /// No runtime.
    #[error("failed to start the runtime: {0}")]
    Runtime(#[source] io::Error),
    /// No signals.
    #[error("failed to listen for signals: {0}")]
    Signal(#[source] io::Error),
    /// The address can't be had.
    #[error("failed to serve health and metrics on {listen}: {source}")]
    Http {
        /// The address.
        listen: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// Runs the daemon until it is told to end.
pub fn run(mut args: ServeArgs) -> Result<(), DaemonError> {
    start_log(args.log_format);
    args.node.settle()?;
    privilege::give_up()?;
    // One thread: what blocks is done by workers, and memory is counted.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DaemonError::Runtime)?;
    let result = runtime.block_on(serve(Arc::new(args)));
    runtime.shutdown_background();
    result
}

/// The log goes to standard error.
pub(crate) fn start_log(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("MOORING_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(false).with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}

async fn serve(args: Arc<ServeArgs>) -> Result<(), DaemonError> {
    let stop = CancellationToken::new();
    stop_on_signals(&stop)?;
    let config = api_config(&args).await;
    let kube = config.clone().and_then(connect);
    let metrics = Metrics::default();
    let registry = Registry::new(args.mount_containers.clone());
    let status = Status::new(Arc::clone(&args));
    let places = Places {
        kubelet_root: args.node.kubelet_root().to_owned(),
        pool: args.pool_dir.clone(),
        host_namespace: args.host_mount_namespace.clone(),
    };
    let pods = kube.as_ref().and_then(|kube| client_pods(kube, &args, &registry));
    let container = pods
        .clone()
        .map(|pods| Arc::new(ContainerClient::new(pods)) as Arc<dyn Client>);
    let core = Core::new(places, registry.clone(), container, metrics.clone());
    let core = Arc::new(core.unless(readiness::not_shared));
    core.workers().start_ahead();
    if let (Some(kube), Some(pods)) = (&kube, pods.clone()) {
        let teller = Teller::new(kube.clone(), args.node_name.clone());
        let reviver = Reviver::new(pods, core.workers().clone(), metrics.clone(), teller);
        tokio::spawn(reviver.run());
    }
    if let (Some(kube), Some(config), Some(pods)) = (&kube, config, pods.clone()) {
        let teller = Teller::new(kube.clone(), args.node_name.clone());
        start_giving_up(config, &args, pods, &core, teller);
    }
    let publisher = kube.clone().zip(args.node_name.clone()).map(|(kube, node)| {
        let publisher = Publisher::new(kube, node, status.clone(), registry.clone(), pods);
        tokio::spawn(publisher.run(stop.clone()))
    });
    if let Some(kube) = kube.clone() {
        let (namespace, node) = (args.namespace.clone(), args.node_name.clone());
        tokio::spawn(config_watch::follow(
            kube,
            namespace,
            node,
            registry,
            metrics,
            status.clone(),
        ));
    }
    let door = tokio::spawn(door::keep(
        Arc::clone(&args),
        Arc::clone(&core),
        status.clone(),
        stop.clone(),
    ));
    let listen = args.listen;
    tokio::select! {
        result = http::serve(listen, core, status.clone()) => {
            result.map_err(|source| DaemonError::Http { listen, source })?;
        }
        () = stop.cancelled() => {}
    }
    status.stopping();
    let plugins = door.await.unwrap_or_else(|error| {
        error!(%error, "the door's task broke");
        Vec::new()
    });
    if let Some(kube) = kube {
        let unwanted = uninstall::if_unwanted(kube.clone(), &args, plugins).await;
        if let (true, Some(publisher), Some(node)) = (unwanted, publisher, &args.node_name) {
            // What it has begun to say comes before it is taken back.
            let _ = publisher.await;
            publish::take_back(&kube, node).await;
        }
    }
    info!("ended");
    Ok(())
}

fn stop_on_signals(stop: &CancellationToken) -> Result<(), DaemonError> {
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind).map_err(DaemonError::Signal)?;
        let stop = stop.clone();
        tokio::spawn(async move {
            signals.recv().await;
            stop.cancel();
        });
    }
    Ok(())
}

/// Where the Kubernetes API is, if there is one. Without it the mounter still serves what needs no client container.
async fn api_config(args: &ServeArgs) -> Option<kube::Config> {
    let mut config = kube::Config::infer().await.map_err(|error| no_api(&error)).ok()?;
    config.connect_timeout = Some(API_CONNECT);
    config.read_timeout = Some(API_READ);
    config.default_namespace.clone_from(&args.namespace);
    Some(config)
}

fn connect(config: kube::Config) -> Option<KubeClient> {
    KubeClient::try_from(config).map_err(|error| no_api(&error)).ok()
}

fn no_api(error: &dyn std::error::Error) {
    warn!("no access to the Kubernetes API, so no client containers and no ConfigMap mounter-config: {error}");
}

fn start_giving_up(config: kube::Config, args: &ServeArgs, pods: Arc<ClientPods>, core: &Core, teller: Teller) {
    let (Some(node), Some(pod)) = (args.node_name.clone(), args.pod_name.clone()) else {
        return;
    };
    let node_pods = match NodePods::new(config, node, (args.namespace.clone(), pod)) {
        Ok(node_pods) => node_pods,
        Err(error) => return warn!("{error}"),
    };
    let (workers, metrics) = (core.workers().clone(), core.metrics().clone());
    let namespace = args.host_mount_namespace.clone();
    let give_up = GiveUp::new(pods, workers, namespace, node_pods, metrics, teller);
    drop(tokio::spawn(give_up.run()));
}

fn client_pods(kube: &KubeClient, args: &ServeArgs, registry: &Registry) -> Option<Arc<ClientPods>> {
    let (Some(node), Some(pod)) = (&args.node_name, &args.pod_name) else {
        warn!(
            "no client containers: the mounter does not know its node and Pod; set --node-name and --pod-name (NODE_NAME, POD_NAME)"
        );
        return None;
    };
    let identity = Identity {
        node: node.clone(),
        namespace: args.namespace.clone(),
        pod: pod.clone(),
        kubelet_root: args.node.kubelet_root().to_owned(),
    };
    let args = args.client_pods.clone();
    Some(ClientPods::start(kube.clone(), identity, args, registry.clone()))
}
