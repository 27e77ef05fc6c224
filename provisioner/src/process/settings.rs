//! The administrator's settings: read before the controller leads. When they change, the controller begins anew, as it
//! does with other flags.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::Client;
use mooring_contract::names::SETTINGS_CONFIG;
use mooring_program::settings::{BadSettings, Seen, Settings, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::process::health::{Health, Phase};

/// What the ConfigMap says, and when that changes.
pub(crate) struct SettingsWatch {
    seen: BoxStream<'static, Seen>,
}

impl SettingsWatch {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            seen: watch(client, namespace).boxed(),
        }
    }

    /// Waits for settings that can be read. Returns none if the controller was stopped meanwhile.
    pub(crate) async fn first(&mut self, health: &Health, stop: &CancellationToken) -> Option<Settings> {
        loop {
            tokio::select! {
                () = stop.cancelled() => return None,
                Some(seen) = self.seen.next() => match seen.settings {
                    Ok(settings) => return Some(of_the_controller(settings)),
                    Err(error) => {
                        health.set(Phase::BadSettings);
                        report(&error, "this replica does not lead");
                    }
                },
            }
        }
    }

    /// Returns when settings other than these are to be in force.
    pub(crate) async fn changed(&mut self, in_force: &Settings) {
        while let Some(seen) = self.seen.next().await {
            match seen.settings {
                Ok(settings) => {
                    let settings = of_the_controller(settings);
                    if settings != *in_force {
                        info!(
                            ?settings,
                            "ConfigMap {SETTINGS_CONFIG} has changed: the controller begins anew with it"
                        );
                        return;
                    }
                }
                Err(error) => report(&error, "its last good version stays in force"),
            }
        }
        std::future::pending::<()>().await;
    }
}

/// Those that the controller goes by.
fn of_the_controller(settings: Settings) -> Settings {
    Settings {
        allowed_client_images: None,
        ..settings
    }
}

fn report(error: &BadSettings, consequence: &str) {
    error!("{error}. So {consequence}, until somebody corrects the key or removes it");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::StreamExt as _;
    use futures::stream;
    use mooring_program::settings::{Seen, Settings};
    use tokio::time::timeout;
    use tokio_util::sync::CancellationToken;

    use super::SettingsWatch;
    use crate::process::health::{Health, Phase};
    use crate::process::metrics::Metrics;

    fn seen(key: &str, value: &str) -> Seen {
        Seen {
            config: None,
            settings: Settings::parse(&[(key.to_owned(), value.to_owned())].into()),
        }
    }

    fn watch(all: Vec<Seen>) -> SettingsWatch {
        SettingsWatch {
            seen: stream::iter(all).chain(stream::pending()).boxed(),
        }
    }

    fn health() -> Health {
        Health::new(|| true, Metrics::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_waits_for_settings_that_can_be_read() {
        let (health, stop) = (health(), CancellationToken::new());
        let good = seen("pull-secrets", "login");
        let mut watch = watch(vec![seen("registry", "a/"), seen("other", "x"), good]);
        let first = watch.first(&health, &stop).await.unwrap();
        assert_eq!(first.pull_secrets.unwrap(), ["login"]);
        assert_eq!(health.phase(), Phase::BadSettings);
        let ended = stop.clone();
        ended.cancel();
        assert_eq!(watch.first(&health, &stop).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_good_change_of_its_own_settings_has_it_begin_anew() {
        let in_force = seen("pull-secrets", "login").settings.unwrap();
        let same = || seen("pull-secrets", " login");
        let mut bad = watch(vec![same(), seen("registry", "a/"), same()]);
        let limit = Duration::from_secs(1);
        assert!(timeout(limit, bad.changed(&in_force)).await.is_err());
        let mut other = watch(vec![seen("registry", "a/"), seen("pull-secrets", "other")]);
        assert!(timeout(limit, other.changed(&in_force)).await.is_ok());
        let mut client_images = watch(vec![seen("allowed-client-images", "a/*")]);
        assert!(
            timeout(limit, client_images.changed(&Settings::default()))
                .await
                .is_err()
        );
        let mut removed = watch(vec![Seen {
            config: None,
            settings: Ok(Settings::default()),
        }]);
        assert!(timeout(limit, removed.changed(&in_force)).await.is_ok());
    }
}
