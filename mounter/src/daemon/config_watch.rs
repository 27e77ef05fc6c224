//! The ConfigMap `mounter-config`: watched, and applied while the daemon runs.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::events::EventType;
use kube::runtime::watcher::watch_object;
use kube::{Client, Resource};
use mooring_contract::names::MOUNTER_CONFIG;
use mooring_program::error::chain;
use mooring_program::reasons;
use tracing::{debug, info, info_span, warn};

use crate::api::recorder::{Event, Recorder};
use crate::core::metrics::MounterMetrics;
use crate::daemon::status::Status;
use crate::volume::registry::{BadConfig, Registry};

/// Follows the ConfigMap; never returns. A bad one changes nothing; an Event, the log, the status and a metric report
/// it.
pub async fn follow(
    client: Client,
    namespace: String,
    events: Recorder,
    registry: Registry,
    metrics: MounterMetrics,
    status: Status,
) {
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let mut changes = std::pin::pin!(watch_object(api, MOUNTER_CONFIG).default_backoff());
    let mut last = None;
    while let Some(change) = changes.next().await {
        let config = match change {
            Ok(config) => config,
            Err(error) => {
                warn!(
                    error = %chain(&error),
                    "failed to watch ConfigMap {MOUNTER_CONFIG}: its last good version stays in force"
                );
                continue;
            }
        };
        let data = config
            .as_ref()
            .and_then(|config| config.data.clone())
            .unwrap_or_default();
        // A restarted watch reports the same again.
        if last.as_ref() == Some(&data) {
            continue;
        }
        info_span!("config", config.name = MOUNTER_CONFIG)
            .in_scope(|| take_over(&events, config.as_ref(), &data, &registry, &metrics, &status));
        last = Some(data);
    }
}

fn take_over(
    events: &Recorder,
    config: Option<&ConfigMap>,
    data: &BTreeMap<String, String>,
    registry: &Registry,
    metrics: &MounterMetrics,
    status: &Status,
) {
    let result = registry.configure(data);
    metrics.bad_config(result.is_err());
    status.config(result.as_ref().err().map(ToString::to_string));
    match result {
        Ok(true) => info!(rules = ?registry.rules(), "ConfigMap {MOUNTER_CONFIG} is in force"),
        Ok(false) => debug!("ConfigMap {MOUNTER_CONFIG} says nothing new"),
        Err(error) => {
            warn!(
                "ConfigMap {MOUNTER_CONFIG} has an error, so its last good version stays in force: {}",
                chain(&error)
            );
            if let Some(config) = config {
                record(events, config, &error);
            }
        }
    }
}

fn record(events: &Recorder, config: &ConfigMap, error: &BadConfig) {
    // If there is no room for the Event, the log, the status and a metric have it.
    let _ = events.record(Event {
        type_: EventType::Warning,
        reason: reasons::BAD_CONFIG,
        action: "Configure",
        note: format!("the ConfigMap has an error, so its last good version stays in force: {error}"),
        about: config.object_ref(&()),
        joined: true,
    });
}
