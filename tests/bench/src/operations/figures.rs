//! What was measured of operations, and its tables.

use std::collections::BTreeMap;

use super::Operation;
use super::many::{Many, RATE};
use crate::processes::CONTROLLER;
use crate::report::{Aim, Requests, Timing};
use crate::sidecars::PROGRAMS;
use crate::summary::p99;
use crate::systems::BARE;
use crate::table::{aims, both, lines, row, spread_time, time};

/// Everything that was measured.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Times of a bare Pod, and of each operation.
    pub(super) bare: Vec<f64>,
    pub(super) operations: Vec<(Operation, &'static str, Vec<f64>)>,
    pub(super) requests: Vec<(Operation, Requests, &'static str)>,
    /// Claims of the class `local`, and of local-path-provisioner.
    pub(super) local: Vec<Timing>,
    pub(super) attach: Vec<Timing>,
    pub(super) many: Many,
    /// Resident memory in MiB, by program.
    pub(super) memory: BTreeMap<String, f64>,
}

impl Figures {
    /// The figures as tables in Markdown.
    pub(crate) fn show(&self) -> String {
        let tables = [
            (
                "Operations: median (a tenth below – a tenth above), 99 % below",
                self.times(),
            ),
            (
                "Requests to the API server of each operation: writes + others",
                self.writes(),
            ),
            ("A Pod with a bound claim", self.attachments()),
            ("Many at once, a second", self.bursts()),
            ("Memory", self.memory()),
            ("Aims", aims(&self.aims())),
        ];
        let mut text = String::new();
        for (title, table) in tables {
            text.extend([title, "\n\n", &lines(&table), "\n"]);
        }
        text
    }

    pub(crate) fn aims(&self) -> Vec<Aim> {
        super::aims::aims(self)
    }

    fn times(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(["operation", "who", "times", "p50", "p99"])];
        let bare = Timing::of(BARE, BARE, &self.bare);
        let operations = self.operations.iter();
        let operations = operations.filter_map(|(operation, who, samples)| Timing::of(operation.name(), who, samples));
        let at_rate = format!("{RATE} a second: claim → Bound");
        let steady = self.many.steady.iter();
        let steady = steady.filter_map(|(who, samples)| Timing::of(&at_rate, who, samples));
        let local = self.local.iter().filter(|timing| !timing.what.starts_with('…'));
        for timing in bare.into_iter().chain(operations).chain(steady).chain(local.cloned()) {
            rows.push(row([
                &timing.what,
                &timing.who,
                &timing.samples.len().to_string(),
                &spread_time(&timing),
                &p99(&timing.samples).map(time).unwrap_or_default(),
            ]));
        }
        rows
    }

    fn bursts(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(["limits", "who", "bound", "removed"])];
        rows.extend(self.many.bursts.iter().map(|burst| {
            row([
                burst.limits,
                &burst.who,
                &format!("{:.2}", burst.bound),
                &format!("{:.2}", burst.removed),
            ])
        }));
        rows
    }

    fn writes(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(["operation", "who", "its controller", "everybody"])];
        rows.extend(self.requests.iter().map(|(operation, requests, own)| {
            row([
                operation.name(),
                &requests.who,
                &both(requests, Some(own)),
                &both(requests, None),
            ])
        }));
        rows
    }

    fn attachments(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(["volume", "Pod made → running", "longer by"])];
        rows.extend(self.attach.iter().map(|timing| {
            let longer = timing.over.as_ref().map(|over| {
                let (median, low, high) = (over.seconds.median, over.seconds.low, over.seconds.high);
                format!("{} ({} – {})", time(median), time(low), time(high))
            });
            row([&timing.who, &spread_time(timing), &longer.unwrap_or_default()])
        }));
        rows
    }

    fn memory(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(["program", "MiB"])];
        rows.extend(self.memory.iter().map(|(name, mib)| row([name, &format!("{mib:.1}")])));
        let theirs: f64 = PROGRAMS.iter().filter_map(|name| self.memory.get(*name)).sum();
        rows.push(row(["all sidecars", &format!("{theirs:.1}")]));
        let after = format!("{CONTROLLER}, after {} claims", self.many.claims);
        rows.push(row([&after, &format!("{:.1}", self.many.controller)]));
        rows
    }
}
