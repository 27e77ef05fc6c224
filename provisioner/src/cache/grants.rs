//! What is known of the cluster's `ReferenceGrant`s that are about claims. A cluster may have no such API: then nobody
//! waits for it, until [`super::grant_watch`] finds it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::key;
use crate::operation::content::Permission;
use crate::volume::grant::{ReferenceGrant, Use, Version};

/// The grants that the watch has brought. A clone is another handle on the same.
#[derive(Debug, Clone)]
pub struct Grants(Arc<watch::Sender<Known>>);

#[derive(Debug, Clone, Default)]
enum Known {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The cluster has no such API.
    NoApi,
    /// All of them, by `namespace/name`.
    All(Version, BTreeMap<String, ReferenceGrant>),
}

impl Default for Grants {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Known::Nothing)))
    }
}

impl Grants {
    /// Whether a claim may use an object of another namespace.
    pub fn access(&self, wanted: &Use<'_>) -> Permission {
        match &*self.0.borrow() {
            Known::Nothing => Permission::NotKnown,
            Known::NoApi => Permission::NoApi,
            Known::All(_, grants) if grants.values().any(|grant| grant.allows(wanted)) => Permission::Granted,
            Known::All(version, _) => Permission::Refused(*version),
        }
    }

    /// Whether it is known if the cluster has the API.
    pub(super) fn is_known(&self) -> bool {
        !matches!(&*self.0.borrow(), Known::Nothing)
    }

    /// The cluster has no such API.
    pub(super) fn none(&self) {
        self.0.send_replace(Known::NoApi);
    }

    /// Just these are there.
    pub(crate) fn replace(&self, version: Version, grants: Vec<ReferenceGrant>) {
        let grants = grants.into_iter().filter(ReferenceGrant::is_for_claims);
        let grants = grants.map(|grant| (key(&grant), grant)).collect();
        self.0.send_replace(Known::All(version, grants));
    }

    pub(super) fn put(&self, grant: ReferenceGrant) {
        self.0.send_modify(|known| {
            if let Known::All(_, grants) = known {
                if grant.is_for_claims() {
                    grants.insert(key(&grant), grant);
                } else {
                    grants.remove(&key(&grant));
                }
            }
        });
    }

    pub(super) fn remove(&self, grant: &ReferenceGrant) {
        self.0.send_modify(|known| {
            if let Known::All(_, grants) = known {
                grants.remove(&key(grant));
            }
        });
    }

    /// Returns when all have been listed once, or the cluster is known to have none.
    pub(super) async fn ready(&self) {
        let mut known = self.0.subscribe();
        let _ = known.wait_for(|known| !matches!(known, Known::Nothing)).await;
    }
}

#[cfg(test)]
mod tests {
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
        grants.replace(Version::V1Beta1, vec![]);
        assert_eq!(grants.access(&wanted), Permission::Refused(Version::V1Beta1));
        let mut given = grant(&json!({"group": "", "kind": "PersistentVolumeClaim"}));
        grants.put(given.clone());
        assert_eq!(grants.access(&wanted), Permission::Granted);
        grants.remove(&given);
        assert_eq!(grants.access(&wanted), Permission::Refused(Version::V1Beta1));
        grants.replace(Version::V1, vec![given.clone()]);
        assert_eq!(grants.access(&wanted), Permission::Granted);
        // It is for others now.
        given.spec.from[0].kind = "HTTPRoute".to_owned();
        grants.put(given);
        assert_eq!(grants.access(&wanted), Permission::Refused(Version::V1));
    }
}
