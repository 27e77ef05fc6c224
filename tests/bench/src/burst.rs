//! Many claims at once: how many per second are bound and removed, and what that costs the API server and the
//! processes.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::jiff::Timestamp;

use super::audit::Window;
use super::observer::Mark;
use super::processes::{Snapshot, snapshot};
use super::summary::number;
use super::systems::{System, World};
use mooring_testbed::layout::Layout;

/// Most requests that the bench makes at once.
const AT_ONCE: usize = 16;

/// How long after the end of a burst its remaining work counts for it: Events, and late deletions.
const TAIL: Duration = Duration::from_secs(3);

pub(super) struct Phase {
    pub(super) per_second: f64,
    pub(super) window: Window,
}

pub(super) struct Outcome {
    pub(super) made: Phase,
    pub(super) removed: Phase,
    /// The processes before, while all volumes exist, and after.
    pub(super) processes: [Snapshot; 3],
}

/// Time limit of a burst. It is for hangs, and does not judge slow systems.
fn limit(size: usize) -> Duration {
    Duration::from_mins(3) + Duration::from_secs(10) * u32::try_from(size).unwrap_or(u32::MAX)
}

/// Creates and removes `size` at once. Names begin with `prefix`.
pub(super) async fn run(world: &World, layout: &Layout, system: &System, size: usize, prefix: &str) -> Result<Outcome> {
    let names: Vec<_> = (0..size).map(|index| format!("{prefix}-{index}")).collect();
    let leader = world.leader()?;
    let before = snapshot(layout, &leader)?;

    let (from, began) = (Timestamp::now(), Instant::now());
    stream::iter(names.iter().enumerate())
        .map(|(index, name)| world.make(system, name, index))
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<_>>()
        .await?;
    let mut last = began;
    for name in &names {
        let (subject, mark) = world.end_of(system, name);
        last = last.max(world.observer.wait(&subject, mark, limit(size)).await?);
    }
    let made = phase(world, system, size, from, last.duration_since(began)).await?;
    let loaded = snapshot(layout, &leader)?;

    let (from, began) = (Timestamp::now(), Instant::now());
    stream::iter(&names)
        .map(|name| world.remove(system, name))
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<_>>()
        .await?;
    let mut last = began;
    for name in &names {
        let subject = world.last_of(system, name);
        last = last.max(world.observer.wait(&subject, Mark::Gone, limit(size)).await?);
    }
    let removed = phase(world, system, size, from, last.duration_since(began)).await?;
    let after = snapshot(layout, &leader)?;
    Ok(Outcome {
        made,
        removed,
        processes: [before, loaded, after],
    })
}

async fn phase(world: &World, system: &System, size: usize, from: Timestamp, took: Duration) -> Result<Phase> {
    world.settled(system).await?;
    tokio::time::sleep(TAIL).await;
    Ok(Phase {
        per_second: number(size) / took.as_secs_f64(),
        window: Window {
            from,
            until: Timestamp::now(),
        },
    })
}
