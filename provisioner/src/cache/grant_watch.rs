//! The watch of `ReferenceGrant`s, whose API a cluster may get at any time, or lose.

use std::time::Duration;

use futures::StreamExt;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{Config, Error as WatchError, Event, watcher};
use kube::{Client, ResourceExt};
use tracing::{info, warn};

use super::PAGE;
use super::store::Cache;
use super::work_queue::WorkQueue;
use crate::process::call::is_not_found;
use crate::volume::grant::{ReferenceGrant, Version};

/// How often the controller looks whether the API has come. A watch of the cluster's `CustomResourceDefinition`s would
/// need rights on all of them.
const LOOK_FOR_API: Duration = Duration::from_secs(10);

/// How long the watch waits after an error.
const AGAIN: Duration = Duration::from_secs(5);

/// Keeps [`Grants`](super::grants::Grants) up to date and the queue filled, for as long as it is not dropped.
pub(super) async fn watch(client: Client, cache: Cache, queue: WorkQueue) {
    loop {
        match served(&client).await {
            Ok(Some(version)) => {
                let error = follow(&client, version, &cache, &queue).await;
                warn!(
                    error = error.as_ref().map(|error| error as &dyn std::error::Error),
                    "failed to watch ReferenceGrants; trying again"
                );
                tokio::time::sleep(AGAIN).await;
            }
            Ok(None) => {
                if !cache.grants.is_known() {
                    info!("the cluster has no ReferenceGrants; looked for from time to time");
                }
                cache.grants.none();
                tokio::time::sleep(LOOK_FOR_API).await;
            }
            Err(error) => {
                warn!(
                    error = &error as &dyn std::error::Error,
                    "failed to look for ReferenceGrants; trying again"
                );
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

fn all(client: &Client, version: Version) -> Api<ReferenceGrant> {
    Api::all_with(client.clone(), &version)
}

/// The newest version of the API that the cluster has.
async fn served(client: &Client) -> Result<Option<Version>, kube::Error> {
    for version in Version::ALL {
        let one = ListParams::default().limit(1);
        match all(client, version).list_metadata(&one).await {
            Ok(_) => return Ok(Some(version)),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Watches until something goes wrong.
async fn follow(client: &Client, version: Version, cache: &Cache, queue: &WorkQueue) -> Option<WatchError> {
    let events = watcher(all(client, version), Config::default().page_size(PAGE));
    let mut events = std::pin::pin!(events);
    let mut listing = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Err(error) => return Some(error),
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(grant)) => listing.push(slim(grant)),
            Ok(Event::InitDone) => {
                cache.grants.replace(version, std::mem::take(&mut listing));
                cache.queue_grantees(queue, None);
            }
            Ok(Event::Apply(grant)) => {
                let namespace = grant.namespace();
                cache.grants.put(slim(grant));
                cache.queue_grantees(queue, namespace.as_deref());
            }
            // What is being made goes on; what is begun next is refused.
            Ok(Event::Delete(grant)) => cache.grants.remove(&grant),
        }
    }
    None
}

/// Without what nobody here reads.
fn slim(mut grant: ReferenceGrant) -> ReferenceGrant {
    grant.metadata.managed_fields = None;
    grant.metadata.annotations = None;
    grant
}
