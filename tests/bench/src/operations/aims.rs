//! What the figures have to reach, and how far they do.

use super::figures::Figures;
use super::many::{ARE_RAISED, AS_SHIPPED};
use super::{Operation, SIDECARS, WORKER};
use crate::claims;
use crate::processes::{CONTROLLER, MOUNTER, WORKER as MOUNT_WORKER};
use crate::report::Aim;
use crate::summary::{Summary, number, p99};
use crate::systems::LOCAL;

/// The times that are compared with the sidecars' besides a claim's binding, which may not take longer than theirs.
const NEARLY: [Operation; 4] = [
    Operation::Expand,
    Operation::Snapshot,
    Operation::Restore,
    Operation::Delete,
];

/// Each aim with what was measured; without those of which nothing was.
pub(super) fn aims(figures: &Figures) -> Vec<Aim> {
    let mut all = times_of_operations(figures);
    all.extend(rates(figures));
    all.extend(costs(figures));
    all.into_iter().flatten().collect()
}

fn times_of_operations(figures: &Figures) -> Vec<Option<Aim>> {
    let samples = |operation, who| {
        let mut all = figures.operations.iter();
        let found = all.find(|(what, of, _)| *what == operation && *of == who);
        found.map_or(&[][..], |(.., samples)| samples)
    };
    let ratio = |operation| times(samples(operation, WORKER), samples(operation, SIDECARS));
    let slowest = p99(samples(Operation::Provision, WORKER));
    let mut local = figures.local.iter();
    let local = local.find(|timing| timing.what == claims::BOUND && timing.who == LOCAL);
    let attached = format!("{WORKER}, attached");
    let attached = figures.attach.iter().find(|timing| timing.who == attached);
    let longer = attached.and_then(|timing| timing.over.as_ref());
    let mut all = vec![
        at_most(
            "claim → Bound, p50, at most",
            1.0,
            ratio(Operation::Provision),
            "times theirs",
        ),
        at_most("claim → Bound, p99, at most", 200.0, milliseconds(slowest), "ms"),
    ];
    all.extend(NEARLY.map(|operation| {
        let what = format!("{}, p50, at most", operation.name());
        at_most(&what, 1.5, ratio(operation), "times theirs")
    }));
    all.extend([
        at_most(
            "selected node → Bound, local, p50, at most",
            60.0,
            milliseconds(local.map(|local| local.seconds.median)),
            "ms",
        ),
        at_most(
            "an attachment adds, p50, at most",
            100.0,
            milliseconds(longer.map(|over| over.seconds.median)),
            "ms",
        ),
    ]);
    all
}

fn rates(figures: &Figures) -> Vec<Option<Aim>> {
    let many = &figures.many;
    let steady = |who| {
        let mut all = many.steady.iter();
        all.find(|(of, _)| of == who).map_or(&[][..], |(_, samples)| samples)
    };
    let rate = |limits, who| {
        let mut all = many.bursts.iter();
        let found = all.find(|burst| burst.limits == limits && burst.who == who);
        found.map(|burst| burst.bound)
    };
    let raised = rate(ARE_RAISED, WORKER).zip(rate(ARE_RAISED, SIDECARS));
    vec![
        at_most(
            "claim → Bound, p50, 20 a second, at most",
            1.0,
            times(steady(WORKER), steady(SIDECARS)),
            "times theirs",
        ),
        at_most(
            "claim → Bound, p99, 20 a second, at most",
            200.0,
            milliseconds(p99(steady(WORKER))),
            "ms",
        ),
        at_least(
            "burst, limits as shipped, at least",
            5.0,
            rate(AS_SHIPPED, WORKER),
            "/s",
        ),
        at_least(
            "burst, limits raised, at least",
            1.0,
            raised.map(|(ours, theirs)| ours / theirs),
            "times theirs",
        ),
        at_most("Events ClaimLost, at most", 0.0, Some(number(many.lost)), "Events"),
    ]
}

fn costs(figures: &Figures) -> Vec<Option<Aim>> {
    let writes = |operation| {
        let mut all = figures.requests.iter();
        let found = all.find(|(what, requests, _)| *what == operation && requests.who == WORKER);
        found.map(|(_, requests, own)| requests.sums(Some(own)).0)
    };
    let memory = |name: &str| figures.memory.get(name).copied();
    let mounter = memory(MOUNTER).map(|daemon| daemon + memory(MOUNT_WORKER).unwrap_or_default());
    let after = format!("controller's memory after {} claims, at most", figures.many.claims);
    vec![
        at_most(
            "writes for a claim, Events included, at most",
            5.0,
            writes(Operation::Provision),
            "writes",
        ),
        at_most(
            "writes for a deletion, at most",
            4.0,
            writes(Operation::Delete),
            "writes",
        ),
        at_most("controller's memory, idle, at most", 24.0, memory(CONTROLLER), "MiB"),
        at_most(&after, 48.0, Some(figures.many.controller), "MiB"),
        at_most("mounter's memory with its worker, at most", 12.0, mounter, "MiB"),
    ]
}

fn milliseconds(seconds: Option<f64>) -> Option<f64> {
    seconds.map(|seconds| seconds * 1000.0)
}

/// How many times as long ours take as theirs, by their medians.
fn times(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    Some(Summary::of(ours)?.median / Summary::of(theirs)?.median)
}

fn at_most(what: &str, aim: f64, measured: Option<f64>, unit: &str) -> Option<Aim> {
    aim_of(what, aim, measured, unit, |measured| measured <= aim)
}

fn at_least(what: &str, aim: f64, measured: Option<f64>, unit: &str) -> Option<Aim> {
    aim_of(what, aim, measured, unit, |measured| measured >= aim)
}

fn aim_of(what: &str, aim: f64, measured: Option<f64>, unit: &str, met: impl Fn(f64) -> bool) -> Option<Aim> {
    let measured = measured?;
    Some(Aim {
        what: what.to_owned(),
        aim,
        measured,
        unit: unit.to_owned(),
        met: met(measured),
    })
}
