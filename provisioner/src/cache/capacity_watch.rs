//! The watch of Mooring's own `CSIStorageCapacity` objects.

use futures::StreamExt;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use mooring_contract::names::labels;
use tracing::warn;

use super::PAGE;
use super::capacities::Capacities;
use crate::context::Context;

/// Keeps [`Capacities`] up to date, until it is dropped.
pub(super) async fn watch(context: Context, capacities: Capacities) {
    let own = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_MOORING);
    let api: Api<CSIStorageCapacity> = Api::namespaced(context.client, &context.settings.namespace);
    let events = watcher(api, Config::default().labels(&own).page_size(PAGE));
    let mut events = std::pin::pin!(events.default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let is_whole = !matches!(event, Event::Init | Event::InitApply(_));
                capacities.take(event);
                if is_whole {
                    capacities.wake();
                }
            }
            Err(error) => warn!(
                kind = "csistoragecapacities",
                error = &error as &dyn std::error::Error,
                "failed to watch; trying again"
            ),
        }
    }
}
