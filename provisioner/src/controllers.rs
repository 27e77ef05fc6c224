//! The loops that reconcile. Each observes its objects, has a pure plan decide, and has the decision carried out.
//!
//! [`all`] is what the process runs. [`provisioning`] starts the controllers of claims, PVs, snapshots, discoveries and
//! orphaned runs, and the watches that they share. `claim` brings a claim to its volume, `volume` deletes the volume
//! when the claim is gone, `attachment` has nodes have it where it has to be attached, `snapshot` takes and deletes
//! snapshots, all in the loop of `reconcile`; `discover` has images list what their storage can serve; `workers` keeps
//! Pods in which runs need not wait for a start; `storage_capacity` keeps what the scheduler reads of classes;
//! `cluster_features` says what the cluster is without; `orphan` settles runs that have none of them. All plan with
//! [`crate::operation`], and read and write the API through [`crate::apply`]. Only [`config`] does not: it keeps
//! ConfigMaps and StorageClasses in step and has nothing to do with volumes. [`retry`] says when an object that failed
//! is looked at again.

mod attachment;
mod claim;
mod cluster_features;
pub mod config;
mod discover;
mod orphan;
pub mod provisioning;
mod reconcile;
#[cfg(test)]
mod rehearsal;
pub mod retry;
mod serving;
mod snapshot;
mod storage_capacity;
mod volume;
mod workers;

use std::pin::Pin;

use tokio_util::sync::CancellationToken;

use crate::cache::store::Cache;
use crate::config::trust::Trust;
use crate::context::Context;

/// A controller's loop; it ends when its token is cancelled.
pub type Controller = Pin<Box<dyn Future<Output = ()> + Send>>;

/// All controllers, each with its name; they end when the token is cancelled.
pub fn all(context: Context, trust: Trust, stop: &CancellationToken) -> Vec<(&'static str, Controller)> {
    let cache = Cache::new(&context.settings.config_namespaces);
    let config = config::run(context.clone(), trust, cache.clone(), stop.clone());
    vec![
        ("config", Box::pin(config)),
        (
            "provisioning",
            Box::pin(provisioning::run(context, cache, stop.clone())),
        ),
    ]
}
