//! Waits until nobody uses a StorageClass any more.
//!
//! Claims and PVs are watched only while a class waits to be given up: nothing is kept in memory or asked of the API
//! server the rest of the time.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use kube::{Client, ResourceExt};
use tokio::sync::watch;

use crate::cache::mirror::Mirror;

/// How many PVs and claims name each of some classes.
pub type Uses = BTreeMap<String, usize>;

/// Watches for as long as it is polled. Sends how often each of `classes` is used, whenever that may have changed, but
/// nothing before everything has been listed.
pub async fn follow(client: Client, classes: BTreeSet<String>, uses: watch::Sender<Option<Uses>>) {
    let config = || Config::default().page_size(50);
    // Failed watches begin again with backoff; until then nothing is sent, so no class is given up.
    let mut volumes = watcher(Api::<PersistentVolume>::all(client.clone()), config())
        .default_backoff()
        .boxed();
    let mut claims = watcher(Api::<PersistentVolumeClaim>::all(client), config())
        .default_backoff()
        .boxed();
    let mut by_volume = Mirror::default();
    let mut by_claim = Mirror::default();
    let of_interest = |class: Option<String>| class.filter(|class| classes.contains(class));
    loop {
        tokio::select! {
            Some(event) = volumes.next() => match event {
                Ok(event) => by_volume.take(event, |volume| of_interest(volume.spec?.storage_class_name)),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "failed to watch persistent volumes");
                }
            },
            Some(event) = claims.next() => match event {
                Ok(event) => by_claim.take(event, |claim: PersistentVolumeClaim| of_interest(class_of(claim))),
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "failed to watch claims"),
            },
            else => return,
        }
        if by_volume.is_synced() && by_claim.is_synced() {
            let counts = count(&classes, by_volume.values().chain(by_claim.values()));
            uses.send_if_modified(|last| {
                let changed = last.as_ref() != Some(&counts);
                *last = Some(counts);
                changed
            });
        }
    }
}

/// The class of a claim, by its field or by the older annotation.
fn class_of(claim: PersistentVolumeClaim) -> Option<String> {
    let old = claim
        .annotations()
        .get("volume.beta.kubernetes.io/storage-class")
        .cloned();
    claim.spec.and_then(|spec| spec.storage_class_name).or(old)
}

fn count<'a>(classes: &BTreeSet<String>, named: impl Iterator<Item = &'a String>) -> Uses {
    let mut counts: Uses = classes.iter().map(|class| (class.clone(), 0)).collect();
    for class in named {
        *counts.entry(class.clone()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::count;

    #[test]
    fn a_class_without_users_counts_as_zero() {
        let classes = BTreeSet::from(["gold".to_owned(), "silver".to_owned()]);
        let named = ["silver".to_owned(), "silver".to_owned()];
        let counts = count(&classes, named.iter());
        assert_eq!((counts["gold"], counts["silver"]), (0, 2));
    }
}
