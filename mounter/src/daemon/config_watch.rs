//! The ConfigMaps `mounter-config` and `mooring-settings`: watched, and applied while the daemon runs. A bad one changes
//! nothing; an Event, the log, the status and a metric report it.

use std::fmt::Display;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Client, Resource};
use mooring_contract::names::{MOUNTER_CONFIG, SETTINGS_CONFIG};
use mooring_program::error::chain;
use mooring_program::repeated::Repeated;
use mooring_program::{reasons, settings};
use tracing::{debug, info, info_span, warn};

use crate::api::recorder::{Event, Recorder};
use crate::core::metrics::MounterMetrics;
use crate::daemon::status::Status;
use crate::settings::SettingsInForce;
use crate::volume::registry::Registry;

/// Where a ConfigMap's mistakes are reported.
#[derive(Clone)]
pub struct Reports {
    pub events: Recorder,
    pub metrics: MounterMetrics,
    pub status: Status,
}

impl Reports {
    /// Says whether the ConfigMap of this name is in force, and if not, why. `is_read` is whether an earlier version of
    /// it is.
    fn say<T, E: Display>(&self, name: &'static str, config: Option<&ConfigMap>, result: &Result<T, E>, is_read: bool) {
        let error = result.as_ref().err().map(|error| mistake(&error.to_string(), is_read));
        if let Some(error) = &error {
            warn!("ConfigMap {name} {error}");
            if let Some(config) = config {
                self.record(config, error);
            }
        }
        self.metrics.bad_config(self.status.config(name, error));
    }

    fn record(&self, config: &ConfigMap, error: &str) {
        // If there is no room for the Event, the log, the status and a metric have it.
        let note = format!("the ConfigMap {error}");
        let _ = self.events.record(Event {
            joined: true,
            ..Event::warning(reasons::BAD_CONFIG, "Configure", note, config.object_ref(&()))
        });
    }
}

/// What is wrong with a ConfigMap, and what counts meanwhile.
fn mistake(error: &str, is_read: bool) -> String {
    let consequence = if is_read {
        "its last good version stays in force"
    } else {
        "nothing of it is in force: this mounter has read no earlier version"
    };
    format!("has an error, so {consequence}: {error}")
}

/// Follows `mounter-config`; never returns.
pub async fn follow(client: Client, namespace: String, reports: Reports, registry: Registry) {
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let mut changes = std::pin::pin!(watch_object(api, MOUNTER_CONFIG).default_backoff());
    let (mut last, mut is_read, mut logged) = (None, false, Repeated::default());
    while let Some(change) = changes.next().await {
        let config = match change {
            Ok(config) => config,
            Err(error) => {
                let error = chain(&error);
                if logged.is_due(&error) {
                    warn!(
                        error,
                        "failed to watch ConfigMap {MOUNTER_CONFIG}: its last good version stays in force"
                    );
                }
                continue;
            }
        };
        logged.end();
        let data = config
            .as_ref()
            .and_then(|config| config.data.clone())
            .unwrap_or_default();
        // A restarted watch reports the same again.
        if last.as_ref() == Some(&data) {
            continue;
        }
        info_span!("config", config.name = MOUNTER_CONFIG).in_scope(|| {
            let result = registry.configure(&data);
            reports.say(MOUNTER_CONFIG, config.as_ref(), &result, is_read);
            is_read |= result.is_ok();
            match result {
                Ok(true) => info!(rules = ?registry.rules(), "ConfigMap {MOUNTER_CONFIG} is in force"),
                Ok(false) => debug!("ConfigMap {MOUNTER_CONFIG} says nothing new"),
                Err(_) => {}
            }
        });
        last = Some(data);
    }
}

/// Follows `mooring-settings`; never returns.
pub async fn follow_settings(
    client: Client,
    namespace: String,
    reports: Reports,
    in_force: SettingsInForce,
    registry: Registry,
) {
    let mut changes = std::pin::pin!(settings::watch(client, &namespace));
    while let Some(settings::Seen { config, settings }) = changes.next().await {
        info_span!("config", config.name = SETTINGS_CONFIG).in_scope(|| {
            reports.say(SETTINGS_CONFIG, config.as_ref(), &settings, in_force.is_read());
            if let Ok(settings) = settings {
                if config.is_none() {
                    warn!(
                        "there is no ConfigMap {SETTINGS_CONFIG}, so the API server lets no client Pod in: make it, and \
                         it may be empty"
                    );
                }
                info!(?settings, "ConfigMap {SETTINGS_CONFIG} is in force");
                in_force.set(settings);
                registry.place_images(in_force.registry());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::mistake;

    #[test]
    fn only_where_an_earlier_version_was_read_does_that_stay_in_force() {
        let words = |is_read| mistake("key x: no such setting", is_read);
        assert!(words(true).contains("its last good version stays in force: key x"));
        assert!(!words(false).contains("last good") && words(false).contains("nothing of it is in force"));
    }
}
