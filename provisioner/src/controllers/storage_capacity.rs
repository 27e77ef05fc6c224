//! Keeps the `CSIStorageCapacity` objects, by which the scheduler knows what a class has left.
//!
//! One loop looks at all of them: it is woken by watches, at most once a second.

use std::time::Duration;

use futures::StreamExt;
use mooring_contract::names::CSI_DRIVER;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span, warn};

use super::retry::{Pace, woken};
use crate::apply::{Shared, storage_capacity};
use crate::volume::storage_capacity::{CapacityAction, plan};

const CONTROLLER: &str = "storage-capacities";

/// Shortest time between two looks: nodes change all the time.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest time without a look: a safeguard.
const LOOK_AGAIN: Duration = Duration::from_mins(5);

/// Calls at once. There may be an object for each node.
const AT_ONCE: usize = 4;

/// Looks whenever something has changed, until `stop`.
pub(super) async fn run(shared: Shared, stop: CancellationToken) {
    let mut changes = shared.context.configs.subscribe();
    let mut next = Instant::now();
    let mut pace = Pace::new();
    while woken(&stop, &mut changes, shared.cache.capacities.changed(), next).await {
        let is_well = Box::pin(look(&shared))
            .instrument(info_span!("turn", controller = CONTROLLER))
            .await;
        shared.context.metrics.turned(CONTROLLER, is_well);
        next = pace.next(is_well, LOOK_AGAIN);
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(PAUSE) => {}
        }
    }
}

/// One look at everything: whether nothing failed.
pub(crate) async fn look(shared: &Shared) -> bool {
    let (cache, configs) = (&shared.cache, &shared.context.configs);
    let Some(there) = cache.capacities.all().filter(|_| configs.is_synced()) else {
        // Their lists wake this.
        return true;
    };
    let classes = cache.classes.state_filter(|class| class.provisioner == CSI_DRIVER);
    if classes.is_empty() && there.is_empty() {
        // As in most clusters: then what the nodes say need not be read.
        return true;
    }
    let actions = plan(
        classes.iter().map(AsRef::as_ref),
        |class| configs.for_class(class),
        &shared.context.settings.config_namespaces,
        &cache.pools(),
        there,
    );
    let (deletions, others): (Vec<_>, Vec<_>) = actions
        .into_iter()
        .partition(|action| matches!(action, CapacityAction::Delete(_)));
    // Nothing goes before what comes in its place is there: a Pod could be refused in between.
    carry_out(shared, others).await && carry_out(shared, deletions).await
}

/// Does these; whether none failed.
async fn carry_out(shared: &Shared, actions: Vec<CapacityAction>) -> bool {
    let done = futures::stream::iter(actions).map(|action| storage_capacity::carry_out(shared, action));
    let done: Vec<_> = done.buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<_> = done.into_iter().filter_map(Result::err).collect();
    if let Some(error) = failed.first() {
        warn!(
            error = error.chain(),
            failed = failed.len(),
            "failed to see to CSIStorageCapacity objects; trying again"
        );
    }
    failed.is_empty()
}
