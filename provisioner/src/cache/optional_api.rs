//! APIs that a cluster may get at any time, or lose: whether it has one, and the loop that watches it when it has.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher::Error as WatchError;
use tokio::sync::watch;
use tracing::{info, warn};

/// How often the controller looks whether an API has come. It is one small request; a watch of the cluster's
/// `CustomResourceDefinition`s would need rights on all of them.
const LOOK_FOR_API: Duration = Duration::from_secs(10);

/// How long a watch waits after an error.
const AGAIN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 5_000 });

/// Whether the cluster has an API; nothing is known at first. A clone is another handle on the same.
#[derive(Debug, Clone)]
pub(super) struct Presence(Arc<watch::Sender<Option<bool>>>);

impl Default for Presence {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Presence {
    /// Whether the cluster has it, or may have it.
    pub(super) fn may_be_there(&self) -> bool {
        *self.0.borrow() != Some(false)
    }

    /// Whether the cluster has it, and all its objects are known.
    pub(super) fn is_there(&self) -> bool {
        *self.0.borrow() == Some(true)
    }

    /// Whether it is known if the cluster has it.
    pub(super) fn is_known(&self) -> bool {
        self.0.borrow().is_some()
    }

    pub(super) fn note(&self, there: bool) {
        self.0.send_replace(Some(there));
    }

    /// Returns when its objects have been listed once, or the cluster is known not to have it.
    pub(super) async fn ready(&self) {
        let mut known = self.0.subscribe();
        let _ = known.wait_for(Option::is_some).await;
    }
}

/// An API that a cluster may lack.
pub(super) trait OptionalApi: Send {
    /// What logs call its objects.
    const OBJECTS: &'static str;
    /// What is found of it where it is.
    type Served: Send;

    /// Looks for it; `None` if the cluster does not have it.
    fn find(&self) -> impl Future<Output = Result<Option<Self::Served>, kube::Error>> + Send;

    /// Whether it is known if the cluster has it.
    fn is_known(&self) -> bool;

    /// It does not exist, or not any more: forgets what was known about it.
    fn forget(&mut self);

    /// Watches it until something goes wrong.
    fn follow(&mut self, served: Self::Served) -> impl Future<Output = Option<WatchError>> + Send;
}

/// Watches an API whenever the cluster has it, for as long as this is not dropped.
pub(super) async fn keep_watching<A: OptionalApi>(mut api: A) {
    loop {
        match api.find().await {
            Ok(Some(served)) => {
                let error = api.follow(served).await;
                warn!(
                    objects = A::OBJECTS,
                    error = error.as_ref().map(|error| error as &dyn std::error::Error),
                    "failed to watch; trying again"
                );
                tokio::time::sleep(AGAIN).await;
            }
            Ok(None) => {
                if !api.is_known() {
                    info!(
                        objects = A::OBJECTS,
                        "the cluster has no such API; looked for from time to time"
                    );
                }
                api.forget();
                tokio::time::sleep(LOOK_FOR_API).await;
            }
            Err(error) => {
                warn!(
                    objects = A::OBJECTS,
                    error = &error as &dyn std::error::Error,
                    "failed to look for an API; trying again"
                );
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
