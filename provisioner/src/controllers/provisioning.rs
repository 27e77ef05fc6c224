//! The two controllers of volumes, and the watches that they share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{claim, orphan, volume};
use crate::apply::Shared;
use crate::cache::expectations::SeenTo;
use crate::cache::limiter::Slots;
use crate::cache::store::{Watched, watch};
use crate::cache::work_queue::Waker;
use crate::operation::Limits;
use crate::operation::backoff::Backoff;
use crate::process::context::Context;

/// Provisions and deletes until `stop`. Only one replica should be in here, but two are harmless: names derive from uids, and
/// every write expects what was seen.
pub async fn run(context: Context, stop: CancellationToken) {
    let (watched, writers) = Watched::new(&context.settings.config_namespaces);
    let (waker, calls) = Waker::new();
    let slots = Arc::new(Slots::new(usize::from(context.settings.max_pods)));
    let seen_to = Arc::new(SeenTo::default());
    let resync = context.settings.resync;
    let shared = Shared {
        limits: Limits {
            backoff: Backoff {
                cap: context.settings.max_backoff,
                ..Backoff::default()
            },
            ..Limits::default()
        },
        watched: watched.clone(),
        slots: slots.clone(),
        seen_to: seen_to.clone(),
        context: context.clone(),
    };
    let stores = watch(context, watched.clone(), writers, waker.clone(), slots, seen_to);
    let (claim_calls, volume_calls) = calls.split();
    let controllers = async {
        tokio::select! {
            () = watched.ready() => {}
            () = stop.cancelled() => return,
        }
        tokio::join!(
            claim::run(shared.clone(), claim_calls, stop.clone()),
            volume::run(shared.clone(), volume_calls, stop.clone()),
            orphan::run(shared, resync, stop.clone()),
        );
    };
    let look_again = async {
        loop {
            tokio::time::sleep(resync).await;
            watched.wake_all(&waker);
        }
    };
    // The controllers end by themselves after `stop`; the rest has no end of its own.
    tokio::select! {
        () = controllers => {}
        () = stores => {}
        () = look_again => {}
    }
}
