//! The daemon's process, `mounter serve`: puts the parts together, and takes them apart.
//!
//! Files: [`args`] (its flags), [`status`] (its state) and who asks for that: [`http`] (health and metrics),
//! [`status_socket`] (`mounter status`), [`publish`] (the cluster); [`config_watch`] (the ConfigMaps), `held` (whether
//! admission policies hold it), [`privilege`] (its capabilities).

pub mod args;
pub mod config_watch;
mod held;
pub mod http;
pub mod privilege;
pub mod publish;
pub mod status;
pub mod status_socket;

use std::io;
use std::sync::Arc;

use kube::Client as KubeClient;
use mooring_program::environment;
use mooring_program::error::chain;
use mooring_program::signals::Signals;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::args::ServeArgs;
use self::publish::NodePublisher;
use self::status::Status;
use crate::api;
use crate::api::recorder::Recorder;
use crate::api::volume_events::VolumeRecorder;
use crate::client_pods::client::ContainerClient;
use crate::client_pods::kept::KeptVolumes;
use crate::client_pods::{ClientPods, Cluster, MounterIdentity};
use crate::core::client::Client;
use crate::core::metrics::MounterMetrics;
use crate::core::waits::Waits;
use crate::core::{Core, CoreParts, Places};
use crate::drivers::plugin_directories::PluginDirectory;
use crate::drivers::uninstall::Left;
use crate::drivers::{csi, endpoint, uninstall};
use crate::grant::granter::{GrantApi, Granter};
use crate::node::attachments::api::ClusterAttachments;
use crate::node::attachments::{Attachments, CleanUps};
use crate::node::grants::ClusterGrants;
use crate::node::kubelet_root::KubeletRootError;
use crate::node::node_pods::NodePods;
use crate::node::readiness;
use crate::node::volume_secrets::VolumeSecrets;
use crate::recovery::give_up::GiveUp;
use crate::recovery::revive::Reviver;
use crate::settings::SettingsInForce;
use crate::volume::registry::Registry;
use crate::worker::Workers;

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("failed to give up capabilities (the mounter runs as root in a privileged container): {0}")]
    Privilege(#[from] caps::errors::CapsError),
    /// In the kubelet's mount namespace.
    #[error(transparent)]
    KubeletRoot(#[from] KubeletRootError),
    #[error("failed to start the runtime: {0}")]
    Runtime(#[source] io::Error),
    #[error("failed to listen for signals: {0}")]
    Signal(#[source] io::Error),
    #[error("failed to serve health and metrics on {listen}: {source}")]
    Http {
        listen: std::net::SocketAddr,
        source: io::Error,
    },
}

/// Runs until a signal ends it. `program` has all flags of the program.
pub fn run(mut args: ServeArgs, program: &clap::Command) -> Result<(), DaemonError> {
    args.log.start("info");
    environment::warn_of_unknown(program);
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

async fn serve(args: Arc<ServeArgs>) -> Result<(), DaemonError> {
    let stop = CancellationToken::new();
    stop_on_signals(&stop)?;
    let config = api_config(&args).await;
    let kube = config.clone().and_then(connect);
    let metrics = MounterMetrics::default();
    let registry = Registry::new(args.mount_containers.clone());
    let settings = SettingsInForce::new(&args.namespace);
    registry.place_images(settings.registry());
    let status = Status::new(Arc::clone(&args));
    let places = Places {
        kubelet_root: args.node.kubelet_root().to_owned(),
        pool: args.pool_dir.clone(),
        host_namespace: args.host_mount_namespace.clone(),
    };
    let events = kube.clone().map(|kube| Recorder::start(kube, args.node_name.clone()));
    let attachments = attachments(kube.as_ref(), &args);
    let volume_secrets = volume_secrets(kube.as_ref(), config.clone(), &args);
    let node_pods = config.and_then(|config| node_pods(config, &args));
    let workers = Workers::default();
    let pods = kube.as_ref().zip(events.as_ref()).and_then(|(kube, events)| {
        let cluster = Cluster {
            client: kube.clone(),
            events: events.clone(),
            node_pods: node_pods.clone(),
            volume_secrets,
            settings: settings.clone(),
        };
        client_pods(cluster, &args, &registry, &workers)
    });
    if let Some(attachments) = attachments.clone() {
        let pods = pods.clone();
        tokio::spawn(async move {
            let clean_ups = pods.as_deref().map(|pods| pods as &dyn CleanUps);
            attachments.tend(clean_ups).await;
        });
    }
    let waits = Waits::new(events.clone());
    let container = pods
        .clone()
        .map(|pods| Arc::new(ContainerClient::new(pods, waits.clone())) as Arc<dyn Client>);
    let core = Arc::new(Core::new(CoreParts {
        places,
        registry: registry.clone(),
        container,
        workers,
        metrics: metrics.clone(),
        obstacle: readiness::not_shared,
        unheld: status.unheld(),
        waits,
        events: events.clone().zip(args.node_name.clone()),
        granter: granter(kube.as_ref(), node_pods.clone(), settings.clone(), &args),
        attachments,
    }));
    core.workers().start_ahead();
    if let Some((events, pods)) = events.as_ref().zip(pods.clone()) {
        recover(&core, events, pods, node_pods, &args);
    }
    let api = kube.clone().zip(events.clone());
    let publisher = api.clone().zip(args.node_name.clone()).map(|((kube, events), node)| {
        let publisher = NodePublisher::new(kube, events, node, status.clone(), registry.clone(), pods);
        tokio::spawn(publisher.run(stop.clone()))
    });
    if let (Some(kube), Some(node), Some(own)) = (kube.clone(), args.node_name.clone(), args.pod_name.clone()) {
        tokio::spawn(held::watch(kube, args.namespace.clone(), node, own, status.unheld()));
    }
    if let Some((kube, events)) = api {
        let reports = config_watch::Reports {
            events,
            metrics,
            status: status.clone(),
        };
        let namespace = args.namespace.clone();
        let rules = config_watch::follow(kube.clone(), namespace.clone(), reports.clone(), registry.clone());
        tokio::spawn(rules);
        tokio::spawn(config_watch::follow_settings(
            kube, namespace, reports, settings, registry,
        ));
    }
    let (flexvolume, csi) = open_drivers(&core, &status, &args, &stop);
    let socket = args.status_socket.clone();
    tokio::spawn(status_socket::serve(socket, Arc::clone(&core), status.clone()));
    let listen = args.listen;
    tokio::select! {
        result = http::serve(listen, core, status.clone()) => {
            result.map_err(|source| DaemonError::Http { listen, source })?;
        }
        () = stop.cancelled() => {}
    }
    status.stopping();
    let plugins = drivers_ended(flexvolume, csi).await;
    if let Some(kube) = kube {
        withdraw_if_unwanted(kube, &args, plugins, publisher).await;
    }
    info!("ended");
    Ok(())
}

/// Starts what looks after mounted volumes: those whose program ended, and those that do not answer.
fn recover(core: &Core, events: &Recorder, pods: Arc<ClientPods>, node_pods: Option<Arc<NodePods>>, args: &ServeArgs) {
    let (workers, metrics) = (core.workers().clone(), core.metrics().clone());
    let recorder = || VolumeRecorder::new(events.clone());
    let reviver = Reviver::new(Arc::clone(&pods), workers.clone(), metrics.clone(), recorder());
    tokio::spawn(reviver.run());
    if let Some(node_pods) = node_pods {
        let namespace = args.host_mount_namespace.clone();
        let untold = core.untold().clone();
        let give_up = GiveUp::new(pods, workers, untold, namespace, node_pods, metrics, recorder());
        tokio::spawn(give_up.run());
    }
}

/// Opens the endpoints of both drivers until `stop`. That of FlexVolume ends with the directories that have the shim.
fn open_drivers(
    core: &Arc<Core>,
    status: &Status,
    args: &ServeArgs,
    stop: &CancellationToken,
) -> (JoinHandle<Vec<PluginDirectory>>, JoinHandle<()>) {
    let settings = endpoint::EndpointSettings {
        node: args.node.clone(),
        shim: args.shim.clone(),
        call_timeout: args.call_timeout,
    };
    let shown = status.clone();
    let installed = move |result, is_new| {
        shown.installed(result);
        if is_new {
            say_checks(&shown);
        }
    };
    let flexvolume = tokio::spawn(endpoint::keep(settings, Arc::clone(core), installed, stop.clone()));
    let settings = csi::endpoint::CsiSettings {
        kubelet_root: args.node.kubelet_root().to_owned(),
        node: args.node_name.clone(),
        max_volumes: args.max_volumes,
        call_timeout: args.call_timeout,
    };
    let csi = tokio::spawn(csi::endpoint::keep(settings, Arc::clone(core), stop.clone()));
    (flexvolume, csi)
}

/// Waits for the end of what [`open_drivers`] has started. Returns the directories that have the shim.
async fn drivers_ended(flexvolume: JoinHandle<Vec<PluginDirectory>>, csi: JoinHandle<()>) -> Vec<PluginDirectory> {
    let plugins = flexvolume.await.unwrap_or_else(|error| {
        error!(error = %chain(&error), "the endpoint's task broke");
        Vec::new()
    });
    if let Err(error) = csi.await {
        error!(error = %chain(&error), "the task of the CSI sockets broke");
    }
    plugins
}

/// Takes from the node what this mounter has put there, if none is to follow it.
async fn withdraw_if_unwanted(
    kube: KubeClient,
    args: &ServeArgs,
    plugins: Vec<PluginDirectory>,
    publisher: Option<JoinHandle<()>>,
) {
    let (namespace, node_name) = (&args.namespace, args.node_name.as_deref());
    let left = uninstall::if_unwanted(kube.clone(), namespace, &args.daemonset, &args.node, node_name, plugins).await;
    let (Some(publisher), Some(node)) = (publisher, node_name) else {
        return;
    };
    if let Left::All = left {
        return;
    }
    // What it has begun to say comes before it is taken back.
    let _ = publisher.await;
    match &left {
        Left::NoMounter(why) | Left::Driver(why) => publish::say_only(&kube, node, why).await,
        Left::All | Left::Nothing => publish::take_back(&kube, node).await,
    }
    if !matches!(left, Left::Driver(_)) {
        ClusterAttachments::new(kube, args.namespace.clone(), node.to_owned())
            .withdraw()
            .await;
    }
}

fn stop_on_signals(stop: &CancellationToken) -> Result<(), DaemonError> {
    let mut signals = Signals::listen().map_err(DaemonError::Signal)?;
    let stop = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        stop.cancel();
    });
    Ok(())
}

/// Where the Kubernetes API is, if there is one. Without it the mounter still unmounts what is mounted.
async fn api_config(args: &ServeArgs) -> Option<kube::Config> {
    if args.standalone {
        warn!("--standalone: no Kubernetes API is asked, and every volume counts as an administrator's");
        return None;
    }
    let mut config = kube::Config::infer().await.map_err(|error| no_api(&error)).ok()?;
    config.default_namespace.clone_from(&args.namespace);
    Some(config)
}

fn connect(config: kube::Config) -> Option<KubeClient> {
    api::client(config).map_err(|error| no_api(&error)).ok()
}

fn no_api(error: &dyn std::error::Error) {
    warn!(
        "failed to reach the Kubernetes API, so no volume is mounted: the API shows who wrote it. For a kubelet that \
         stands alone, use --standalone: {}",
        chain(&error)
    );
}

/// Grants mounts by what the API shows.
fn granter(
    kube: Option<&KubeClient>,
    node_pods: Option<Arc<NodePods>>,
    settings: SettingsInForce,
    args: &ServeArgs,
) -> Granter {
    if args.standalone {
        return Granter::standalone();
    }
    let api = kube.map(|kube| Arc::new(ClusterGrants::new(kube.clone(), node_pods)) as Arc<dyn GrantApi>);
    Granter::new(api, settings)
}

fn attachments(kube: Option<&KubeClient>, args: &ServeArgs) -> Option<Arc<Attachments>> {
    let (kube, node) = kube.cloned().zip(args.node_name.clone())?;
    let api = ClusterAttachments::new(kube, args.namespace.clone(), node.clone());
    let kubelet_root = args.node.kubelet_root().to_owned();
    Some(Arc::new(Attachments::new(Box::new(api), node, kubelet_root)))
}

/// Lists the Pods of this node.
fn node_pods(config: kube::Config, args: &ServeArgs) -> Option<Arc<NodePods>> {
    let (node, pod) = args.node_name.clone().zip(args.pod_name.clone())?;
    let node_pods = NodePods::new(config, node, (args.namespace.clone(), pod));
    node_pods
        .inspect_err(|error| warn!("{}", chain(&error)))
        .ok()
        .map(Arc::new)
}

/// Reads the Secrets of this node's volumes.
fn volume_secrets(kube: Option<&KubeClient>, config: Option<kube::Config>, args: &ServeArgs) -> Option<VolumeSecrets> {
    let (kube, (config, node)) = kube.zip(config.zip(args.node_name.as_ref()))?;
    let secrets = VolumeSecrets::new(kube.clone(), config, node);
    secrets.inspect_err(|error| warn!("{}", chain(&error))).ok()
}

fn client_pods(cluster: Cluster, args: &ServeArgs, registry: &Registry, workers: &Workers) -> Option<Arc<ClientPods>> {
    let (Some(node), Some(pod)) = (&args.node_name, &args.pod_name) else {
        warn!(
            "no client containers: the mounter does not know its node and Pod; set --node-name and --pod-name \
             (NODE_NAME, POD_NAME)"
        );
        return None;
    };
    let identity = MounterIdentity {
        node: node.clone(),
        namespace: args.namespace.clone(),
        pod: pod.clone(),
        kubelet_root: args.node.kubelet_root().to_owned(),
    };
    let kept = KeptVolumes::open(&args.kept_dir);
    let args = args.client_pods.clone();
    let (registry, workers) = (registry.clone(), workers.clone());
    Some(ClientPods::start(cluster, identity, args, registry, kept, workers))
}

fn say_checks(status: &Status) {
    for check in status.checks() {
        if check.ok {
            info!(check = check.name, "{}", check.message);
        } else {
            warn!(check = check.name, check.required, "{}", check.message);
        }
    }
}
