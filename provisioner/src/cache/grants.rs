//! What is known of the cluster's `ReferenceGrant`s that are about claims. A cluster may have no such API: then nobody
//! waits for it, until a watch finds it.

use std::sync::Arc;

use kube::runtime::watcher::Event;
use tokio::sync::watch;

use super::mirror::Mirror;
use crate::operation::content::Permission;
use crate::volume::grant::{ReferenceGrant, Use, Version};

/// The grants that the watch has brought. A clone is another handle on the same.
#[derive(Debug, Clone, Default)]
pub struct Grants(Arc<watch::Sender<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The cluster has no such API.
    no_api: bool,
    /// The version that is watched.
    version: Version,
    grants: Mirror<ReferenceGrant>,
}

impl Grants {
    /// Whether a claim may use an object of another namespace.
    pub fn access(&self, wanted: &Use<'_>) -> Permission {
        let known = self.0.borrow();
        if known.no_api {
            Permission::NoApi
        } else if !known.grants.is_synced() {
            Permission::NotKnown
        } else if known.grants.values().any(|grant| grant.allows(wanted)) {
            Permission::Granted
        } else {
            Permission::Refused(known.version)
        }
    }

    /// The cluster has no such API.
    pub(super) fn none(&self) {
        self.0.send_replace(Known {
            no_api: true,
            ..Known::default()
        });
    }

    /// The watch of this version has brought this.
    pub(crate) fn take(&self, version: Version, event: Event<ReferenceGrant>) {
        self.0.send_modify(|known| {
            known.no_api &= !matches!(event, Event::InitDone);
            known.version = version;
            known.grants.take(event, |mut grant| {
                grant.metadata.annotations = None;
                grant.is_for_claims().then_some(grant)
            });
        });
    }

    /// Returns when all have been listed once, or the cluster is known to have none.
    pub(super) async fn ready(&self) {
        let mut known = self.0.subscribe();
        let _ = known.wait_for(|known| known.no_api || known.grants.is_synced()).await;
    }

    /// Just these are there.
    #[cfg(test)]
    pub(crate) fn know(&self, version: Version, grants: Vec<ReferenceGrant>) {
        let listed = grants.into_iter().map(Event::InitApply);
        for event in std::iter::once(Event::Init).chain(listed).chain([Event::InitDone]) {
            self.take(version, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;

    use super::Grants;
    use crate::operation::content::Permission;
    use crate::volume::grant::tests::grant;
    use crate::volume::grant::{Use, Version};
    use serde_json::json;

    #[test]
    fn what_a_claim_may_use_changes_with_the_grants() {
        let wanted = Use {
            by: "default",
            namespace: "prod",
            group: "",
            kind: "PersistentVolumeClaim",
            name: "old",
        };
        let grants = Grants::default();
        assert_eq!(grants.access(&wanted), Permission::NotKnown);
        grants.none();
        assert_eq!(grants.access(&wanted), Permission::NoApi);
        grants.know(Version::V1Beta1, vec![]);
        assert_eq!(grants.access(&wanted), Permission::Refused(Version::V1Beta1));
        let mut given = grant(&json!({"group": "", "kind": "PersistentVolumeClaim"}));
        grants.take(Version::V1Beta1, Event::Apply(given.clone()));
        assert_eq!(grants.access(&wanted), Permission::Granted);
        grants.take(Version::V1Beta1, Event::Delete(given.clone()));
        assert_eq!(grants.access(&wanted), Permission::Refused(Version::V1Beta1));
        grants.know(Version::V1, vec![given.clone()]);
        assert_eq!(grants.access(&wanted), Permission::Granted);
        // It is for others now.
        given.spec.from[0].kind = "HTTPRoute".to_owned();
        grants.take(Version::V1, Event::Apply(given));
        assert_eq!(grants.access(&wanted), Permission::Refused(Version::V1));
    }
}
