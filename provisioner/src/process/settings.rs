//! The administrator's settings: read before the controller leads. When they change, the controller begins anew, as it
//! does with other flags.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::Client;
use mooring_contract::names::SETTINGS_CONFIG;
use mooring_program::settings::{BadSettings, Seen, Settings, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::process::health::{Health, Phase};

/// How long settings stay the same before the controller begins anew with them, so that several changes are one.
const SETTLED: Duration = Duration::from_secs(3);

/// Longest that changes without a pause hold that up.
const LATEST: Duration = Duration::from_secs(30);

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

    /// Returns when settings other than these are to be in force, and have not changed for a while.
    pub(crate) async fn changed(&mut self, in_force: &Settings) {
        // Those that are to be in force, when they were first other ones, and when they last changed.
        let mut pending: Option<(Settings, Instant, Instant)> = None;
        loop {
            let settled = pending
                .as_ref()
                .map(|(_, first, last)| (*last + SETTLED).min(*first + LATEST));
            let seen = tokio::select! {
                Some(seen) = self.seen.next() => seen,
                () = sleep_until(settled.unwrap_or_else(Instant::now)), if settled.is_some() => break,
                // The watch has ended, and nothing is to come.
                else => return std::future::pending().await,
            };
            let now = Instant::now();
            match seen.settings.map(of_the_controller) {
                Ok(settings) if settings == *in_force => pending = None,
                Ok(settings) => {
                    let first = pending.map_or(now, |(_, first, _)| first);
                    pending = Some((settings, first, now));
                }
                Err(error) => {
                    // A controller that began anew with them would not lead.
                    pending = None;
                    report(&error, "its last good version stays in force");
                }
            }
        }
        let settings = pending.map(|(settings, ..)| settings);
        info!(
            ?settings,
            "ConfigMap {SETTINGS_CONFIG} has changed: the controller begins anew with it"
        );
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
        let limit = Duration::from_secs(10);
        assert!(timeout(limit, bad.changed(&in_force)).await.is_err());
        let mut other = watch(vec![seen("registry", "a/"), seen("pull-secrets", "other")]);
        assert!(timeout(limit, other.changed(&in_force)).await.is_ok());
        let mut client_images = watch(vec![seen("allowed-client-images", "a/*")]);
        assert!(
            timeout(limit, client_images.changed(&Settings::default()))
                .await
                .is_err()
        );
        let mut mistaken = watch(vec![seen("pull-secrets", "other"), seen("registry", "a/")]);
        assert!(timeout(limit, mistaken.changed(&in_force)).await.is_err());
        let mut removed = watch(vec![Seen {
            config: None,
            settings: Ok(Settings::default()),
        }]);
        assert!(timeout(limit, removed.changed(&in_force)).await.is_ok());
    }
    #[tokio::test(start_paused = true)]
    async fn changes_one_after_the_other_are_one_and_hold_it_up_for_half_a_minute_at_most() {
        let every = |seconds: u64, values: Vec<&'static str>| SettingsWatch {
            seen: stream::iter(values)
                .then(move |value| async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    seen("pull-secrets", value)
                })
                .chain(stream::pending())
                .boxed(),
        };
        let in_force = seen("pull-secrets", "a").settings.unwrap();
        let took = async |mut watch: SettingsWatch| {
            let begun = tokio::time::Instant::now();
            let ended = timeout(Duration::from_mins(5), watch.changed(&in_force)).await;
            ended.is_ok().then(|| begun.elapsed().as_secs())
        };
        assert_eq!(took(every(2, vec!["b", "c"])).await, Some(2 + 2 + 3));
        assert_eq!(took(every(2, ["b", "c"].repeat(50))).await, Some(2 + 30));
        // What is as it was in the end is no change.
        assert_eq!(took(every(2, vec!["b", "a"])).await, None);
    }
}
