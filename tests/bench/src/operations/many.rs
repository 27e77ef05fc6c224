//! Claims by the hundred: at once and at a steady rate, with the limits of requests to the API server as all are
//! shipped, and raised.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;

use crate::burst;
use crate::observer::{Mark, Subject};
use crate::options::at_least_one;
use crate::processes::{CONTROLLER, snapshot};
use crate::sidecars::Sidecars;
use crate::systems::{LIMIT, System, World};
use mooring_harness::rollout::Installed;
use mooring_testbed::control_plane::ApiLimits;
use mooring_testbed::progress::Step;

/// Limits of Mooring and of the sidecars that neither reaches.
const RAISED: ApiLimits = ApiLimits { qps: 400, burst: 800 };

/// How many to make.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Amounts {
    /// How many claims at once.
    #[arg(long, default_value_t = 200, value_parser = at_least_one)]
    burst: usize,
    /// How many claims at a steady rate of 20 a second.
    #[arg(long, default_value_t = 300, value_parser = at_least_one)]
    steady: usize,
    /// After how many claims to look at the controller's memory.
    #[arg(long, default_value_t = 2000)]
    in_all: usize,
}

/// How many a second of the steady rate.
pub(super) const RATE: u32 = 20;

/// A burst of one side's.
#[derive(Debug)]
pub(super) struct Burst {
    pub(super) limits: &'static str,
    pub(super) who: String,
    /// A second.
    pub(super) bound: f64,
    pub(super) removed: f64,
}

pub(super) const AS_SHIPPED: &str = "as shipped";
pub(super) const ARE_RAISED: &str = "raised";

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Many {
    pub(super) bursts: Vec<Burst>,
    /// Seconds from each claim to its binding at the steady rate, by side.
    pub(super) steady: Vec<(String, Vec<f64>)>,
    /// Events that say of a claim that it has lost its volume.
    pub(super) lost: usize,
    /// Claims made by the controller whose memory it is.
    pub(super) claims: usize,
    /// The controller's resident memory after these, and the largest seen, in MiB.
    pub(super) controller: f64,
}

/// Measures `ours` and `theirs`. Afterwards the limits are as before.
pub(super) async fn measure(
    world: &World,
    sidecars: &Sidecars<'_>,
    sides: [&System; 2],
    amounts: Amounts,
) -> Result<Many> {
    let controllers = Installed::controllers(&world.scope).await?;
    let measured = Box::pin(with_limits(world, sidecars, &controllers, sides, amounts)).await;
    world.scope.own_cluster()?.limit_controller_manager(ApiLimits::RAISED)?;
    controllers.roll_back().await?;
    measured
}

async fn with_limits(
    world: &World,
    sidecars: &Sidecars<'_>,
    controllers: &Installed<'_>,
    [ours, theirs]: [&System; 2],
    amounts: Amounts,
) -> Result<Many> {
    let mut many = Many::default();
    let cluster = world.scope.own_cluster()?;
    cluster.limit_controller_manager(ApiLimits::SHIPPED)?;
    for (at, side) in [ours, theirs].into_iter().enumerate() {
        many.burst(world, side, AS_SHIPPED, amounts.burst, &format!("shipped-{at}"))
            .await?;
    }
    cluster.limit_controller_manager(ApiLimits::RAISED)?;
    let (qps, burst) = (RAISED.qps.to_string(), RAISED.burst.to_string());
    controllers
        .set(&[("MOORING_API_QPS", &qps), ("MOORING_API_BURST", &burst)])
        .await?;
    sidecars.apply(RAISED)?;
    for (at, side) in [theirs, ours].into_iter().enumerate() {
        many.burst(world, side, ARE_RAISED, amounts.burst, &format!("raised-{at}"))
            .await?;
        let step = Step::begin(format!("{RATE} claims a second: {}", side.name));
        let samples = steady(world, side, amounts.steady, &format!("steady-{at}")).await?;
        step.done("");
        many.steady.push((side.name.clone(), samples));
    }
    many.claims = amounts.burst + amounts.steady;
    for round in 0.. {
        let left = amounts.in_all.saturating_sub(many.claims).min(amounts.burst);
        if left == 0 {
            break;
        }
        many.burst(world, ours, "", left, &format!("more-{round}")).await?;
        many.claims += left;
    }
    many.lost = lost(world).await?;
    many.looks_at_controller(world)?;
    Ok(many)
}

impl Many {
    async fn burst(
        &mut self,
        world: &World,
        side: &System,
        limits: &'static str,
        claims: usize,
        prefix: &str,
    ) -> Result<()> {
        let step = Step::begin(format!("{claims} at once: {} {limits}", side.name));
        // Whoever has just begun anew has to see everything first, and a worker to be there.
        for time in 0..2 {
            let first = format!("{prefix}-first-{time}");
            world.make_one(side, &first, 0).await?;
            world.remove(side, &first).await?;
            world
                .observer
                .wait(&world.last_of(side, &first), Mark::Gone, LIMIT)
                .await?;
            world.settled(side).await?;
        }
        let cluster = world.scope.own_cluster()?;
        let outcome = burst::run(world, &cluster.layout, side, claims, prefix).await?;
        let (bound, removed) = (outcome.made.per_second, outcome.removed.per_second);
        step.done(&format!("{bound:.2} a second bound, {removed:.2} removed"));
        self.looks_at_controller(world)?;
        if !limits.is_empty() {
            self.bursts.push(Burst {
                limits,
                who: side.name.clone(),
                bound,
                removed,
            });
        }
        Ok(())
    }

    fn looks_at_controller(&mut self, world: &World) -> Result<()> {
        let cluster = world.scope.own_cluster()?;
        let processes = snapshot(&cluster.layout, &world.leader()?)?;
        let resident = processes.get(CONTROLLER).map_or(0, |taken| taken.resident);
        self.controller = self.controller.max(super::mib(resident));
        Ok(())
    }
}

/// Makes claims at [`RATE`], and removes them when all are bound; returns how long each took.
async fn steady(world: &World, side: &System, count: usize, prefix: &str) -> Result<Vec<f64>> {
    let names: Vec<_> = (0..count).map(|index| format!("{prefix}-{index}")).collect();
    let first = Instant::now();
    let bound = names.iter().enumerate().map(|(index, name)| async move {
        let turn = Duration::from_secs(index as u64) / RATE;
        tokio::time::sleep_until((first + turn).into()).await;
        let began = Instant::now();
        world.make(side, name, index).await?;
        let subject = Subject::Claim(name.clone());
        let at = world.observer.wait(&subject, Mark::Bound, LIMIT).await?;
        anyhow::Ok(at.duration_since(began).as_secs_f64())
    });
    let samples = futures::future::try_join_all(bound).await?;
    stream::iter(&names)
        .map(|name| world.remove(side, name))
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await?;
    for name in &names {
        let last = world.last_of(side, name);
        world.observer.wait(&last, Mark::Gone, LIMIT).await?;
    }
    world.settled(side).await?;
    Ok(samples)
}

async fn lost(world: &World) -> Result<usize> {
    let events: Api<Event> = world.scope.api();
    let lost = events
        .list_metadata(&ListParams::default().fields("reason=ClaimLost"))
        .await;
    Ok(lost.context("failed to list Events")?.items.len())
}
