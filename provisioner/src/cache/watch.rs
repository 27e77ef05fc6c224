//! One watch, of any kind, and which kinds a cluster has. It may get some at any time, or lose them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::StreamExt;
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use mooring_program::error::chain;
use mooring_program::repeated::Repeated;
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use super::PAGE;
use crate::process::call::is_not_found;

/// How often the controller looks whether an API has come. It is one small request; a watch of the cluster's
/// `CustomResourceDefinition`s would need rights on all of them.
pub(super) const LOOK_FOR_API: Duration = Duration::from_secs(10);

/// What a watch is of, as logs call it.
#[derive(Debug)]
pub(super) enum Kind {
    /// Every cluster has it: that it is not found is a failure like any other.
    Required(Cow<'static, str>),
    /// A cluster may lack it.
    Optional(Cow<'static, str>),
}

/// All objects, in pages.
pub(super) fn pages() -> Config {
    Config::default().page_size(PAGE)
}

/// Watches objects of a kind for as long as the cluster has it, which for a required kind is for good.
pub(super) async fn follow<K>(kind: &Kind, api: &Api<K>, config: Config, mut seen: impl FnMut(Event<K>) + Send)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut events = std::pin::pin!(watcher(api.clone(), config).default_backoff());
    let mut logged = Repeated::default();
    while let Some(event) = events.next().await {
        match (event, kind) {
            (Ok(event), _) => {
                // Another try to list begins with `Init`.
                if !matches!(event, Event::Init) {
                    logged.end();
                }
                seen(event.modify(|object| object.meta_mut().managed_fields = None));
            }
            (Err(Error::InitialListFailed(error) | Error::WatchStartFailed(error)), Kind::Optional(_))
                if is_not_found(&error) =>
            {
                return;
            }
            (Err(error), Kind::Required(kind) | Kind::Optional(kind)) => {
                let error = chain(&error);
                if logged.is_due(&error) {
                    warn!(kind = kind.as_ref(), error, "failed to watch; trying again");
                }
            }
        }
    }
}

/// Which optional kinds the cluster has, as far as that is known. A clone is another handle on the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Presence(Arc<RwLock<BTreeMap<String, bool>>>);

impl Presence {
    /// Whether the cluster has this kind, and its objects are known; `None` where that is not known yet.
    pub(super) fn of<K: Resource<DynamicType = ()>>(&self) -> Option<bool> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.get(K::plural(&()).as_ref()).copied()
    }

    /// The cluster has this kind, and its objects have been listed; or it does not have it.
    pub(super) fn note(&self, kind: &str, there: bool) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.insert(kind.to_owned(), there) != Some(there) && !there {
            info!(kind, "the cluster has no such API; looked for from time to time");
        }
    }
}
