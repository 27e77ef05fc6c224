//! The controllers of claims, volumes and snapshots, and the watches that they share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{cluster_features, discover, orphan, reconcile, storage_capacity, workers};
use crate::apply::Shared;
use crate::apply::signer::Signer;
use crate::cache::expectations::Expectations;
use crate::cache::limiter::Limiter;
use crate::cache::store::Cache;
use crate::cache::watches::watch;
use crate::cache::work_queue::WorkQueue;
use crate::context::Context;
use crate::operation::backoff::Backoff;
use crate::operation::limits::Limits;

/// Provisions and deletes until `stop`. Only one replica should be in here, but two are harmless: names derive from
/// uids, and every write expects what was seen.
pub async fn run(context: Context, cache: Cache, stop: CancellationToken) {
    let (queue, queued) = WorkQueue::new();
    let limiter = Arc::new(Limiter::new(usize::from(context.settings.max_pods)));
    let expectations = Arc::new(Expectations::default());
    let resync = context.settings.resync;
    let shared = Shared {
        limits: Limits {
            backoff: Backoff {
                cap: context.settings.max_backoff,
                ..Backoff::default()
            },
            ..Limits::default()
        },
        cache: cache.clone(),
        limiter: limiter.clone(),
        expectations: expectations.clone(),
        signer: Signer::default(),
        context: context.clone(),
    };
    let stores = watch(context, cache.clone(), queue.clone(), limiter, expectations);
    let controllers = async {
        tokio::select! {
            () = cache.ready() => {}
            () = stop.cancelled() => return,
        }
        let (snapshots, groups) = (&cache.snapshots.contents, &cache.groups.contents);
        tokio::join!(
            reconcile::run(shared.clone(), &cache.claims, queued.claims, stop.clone()),
            reconcile::run(shared.clone(), &cache.volumes, queued.volumes, stop.clone()),
            reconcile::run(shared.clone(), snapshots, queued.snapshots, stop.clone()),
            reconcile::run(shared.clone(), groups, queued.groups, stop.clone()),
            discover::run(shared.clone(), queue.clone(), stop.clone()),
            workers::run(shared.clone(), queue.clone(), stop.clone()),
            storage_capacity::run(shared.clone(), stop.clone()),
            cluster_features::run(shared.clone(), stop.clone()),
            orphan::run(shared, resync, stop.clone()),
        );
    };
    let look_again = async {
        loop {
            tokio::time::sleep(resync).await;
            cache.queue_all(&queue);
        }
    };
    // The controllers end by themselves after `stop`; the rest has no end of its own.
    tokio::select! {
        () = controllers => {}
        () = stores => {}
        () = look_again => {}
    }
}
