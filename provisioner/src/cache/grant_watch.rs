//! The watch of `ReferenceGrant`s.

use futures::StreamExt;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{Config, Error as WatchError, Event, watcher};
use kube::{Client, ResourceExt};

use super::PAGE;
use super::optional_api::OptionalApi;
use super::store::Cache;
use super::work_queue::WorkQueue;
use crate::process::call::is_not_found;
use crate::volume::grant::{ReferenceGrant, Version};

/// Keeps [`Grants`](super::grants::Grants) up to date and the queue filled.
pub(super) struct GrantApi {
    pub(super) client: Client,
    pub(super) cache: Cache,
    pub(super) queue: WorkQueue,
}

impl GrantApi {
    fn all(&self, version: Version) -> Api<ReferenceGrant> {
        Api::all_with(self.client.clone(), &version)
    }
}

impl OptionalApi for GrantApi {
    const OBJECTS: &'static str = "referencegrants";
    /// The newest version that the cluster has.
    type Served = Version;

    async fn find(&self) -> Result<Option<Version>, kube::Error> {
        for version in Version::ALL {
            let one = ListParams::default().limit(1);
            match self.all(version).list_metadata(&one).await {
                Ok(_) => return Ok(Some(version)),
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn is_known(&self) -> bool {
        self.cache.grants.is_known()
    }

    fn forget(&mut self) {
        self.cache.grants.none();
    }

    async fn follow(&mut self, version: Version) -> Option<WatchError> {
        let events = watcher(self.all(version), Config::default().page_size(PAGE));
        let Self { cache, queue, .. } = self;
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
}

/// Without what nobody here reads.
fn slim(mut grant: ReferenceGrant) -> ReferenceGrant {
    grant.metadata.managed_fields = None;
    grant.metadata.annotations = None;
    grant
}
