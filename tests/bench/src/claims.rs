//! One claim after another: created, bound and removed, in turn with bare Pods and with the peer.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;

use super::observer::Mark;
use super::report::{Timing, compared};
use super::systems::{BARE, LIMIT, System, World};
use mooring_testbed::progress::Step;

pub(super) const BOUND: &str = "claim created → Bound";
pub(super) const REMOVED: &str = "claim deleted → volume gone";

#[derive(Default)]
struct Samples {
    made: Vec<f64>,
    removed: Vec<f64>,
    steps: BTreeMap<usize, (&'static str, Vec<f64>)>,
}

/// Measures. Each round has every system once, in an order that changes from round to round. Names begin with `prefix`,
/// which no other call may have used: what happens to an object is recorded under its name.
pub(super) async fn measure(
    world: &World,
    systems: &[System],
    rounds: usize,
    prefix: &str,
    step: &mut Step,
) -> Result<Vec<Timing>> {
    let mut samples: Vec<Samples> = systems.iter().map(|_| Samples::default()).collect();
    for round in 0..rounds {
        step.update(&format!("round {} of {rounds}", round + 1));
        for turn in 0..systems.len() {
            let at = (round + turn) % systems.len();
            one(
                world,
                &systems[at],
                &mut samples[at],
                &format!("{prefix}-{at}-{round}"),
                round,
            )
            .await?;
        }
    }
    let all = || systems.iter().zip(&samples);
    let mut made: Vec<_> = all()
        .filter_map(|(system, samples)| Timing::of(BOUND, &system.name, &samples.made))
        .collect();
    made = compared(made, BARE);
    let removed = all()
        .filter(|(system, _)| system.class.is_some())
        .filter_map(|(system, samples)| Timing::of(REMOVED, &system.name, &samples.removed));
    let steps = all().flat_map(|(system, samples)| {
        let steps = samples.steps.values();
        steps.filter_map(|(name, samples)| Timing::of(&format!("… {name}"), &system.name, samples))
    });
    made.extend(steps);
    made.extend(removed);
    Ok(made)
}

async fn one(world: &World, system: &System, samples: &mut Samples, name: &str, round: usize) -> Result<()> {
    let made = world.make_one(system, name, round).await?;
    samples.made.push(made.took.as_secs_f64());
    for (at, (name, seconds)) in made.steps.into_iter().enumerate() {
        samples.steps.entry(at).or_insert((name, Vec::new())).1.push(seconds);
    }
    world.settled(system).await?;
    let began = Instant::now();
    world.remove(system, name).await?;
    let gone = world
        .observer
        .wait(&world.last_of(system, name), Mark::Gone, LIMIT)
        .await?;
    samples.removed.push(gone.duration_since(began).as_secs_f64());
    world.settled(system).await
}
