//! What every controller works with.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;

use crate::config::discovered::Discoveries;
use crate::config::store::ConfigStore;
use crate::process::events::EventRecorder;
use crate::process::metrics::Metrics;

/// Handles and settings; a clone is cheap and shares them.
#[derive(Clone)]
pub struct Context {
    /// The Kubernetes API, with limits on time and rate, and counted.
    pub client: Client,
    /// The ConfigMaps in force.
    pub configs: ConfigStore,
    /// What the images of the ConfigMaps have discovered.
    pub discoveries: Discoveries,
    pub events: EventRecorder,
    pub metrics: Metrics,
    /// What the command line says.
    pub settings: Settings,
}

/// The part of the command line that controllers read.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The namespace that this Mooring runs in.
    pub namespace: String,
    /// Namespaces whose ConfigMaps are honoured: provisioning Pods run in these and nowhere else.
    pub config_namespaces: BTreeSet<String>,
    /// Address of the Kubernetes API that images are given, without a slash at its end.
    pub kube_api: String,
    /// Most objects that one controller works on at once.
    pub max_in_flight: u16,
    /// Most provisioning Pods at once, over all ConfigMaps.
    pub max_pods: u16,
    /// How often an object is looked at again even if nothing woke it.
    pub resync: Duration,
    /// Longest wait between two tries of one volume.
    pub max_backoff: Duration,
}
