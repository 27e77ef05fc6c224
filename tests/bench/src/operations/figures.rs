//! What was measured of operations, and its tables.

use std::collections::BTreeMap;

use super::Operation;
use crate::report::{Requests, Timing};
use crate::sidecars::PROGRAMS;
use crate::systems::BARE;
use crate::table::{both, lines, row, spread, spread_time, time};

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Times of a bare Pod, and of each operation.
    pub(super) bare: Vec<f64>,
    pub(super) operations: Vec<(Operation, &'static str, Vec<f64>)>,
    pub(super) requests: Vec<(Operation, Requests, &'static str)>,
    pub(super) attach: Vec<Timing>,
    /// Resident memory in MiB, by program.
    pub(super) memory: BTreeMap<String, f64>,
}

impl Figures {
    /// The figures as tables in Markdown.
    pub(crate) fn show(&self) -> String {
        let tables = [
            ("Operations: median (a tenth below – a tenth above)", self.times()),
            (
                "Requests to the API server of each operation: writes + others",
                self.writes(),
            ),
            ("A Pod with a bound claim", self.attachments()),
            ("Memory of the control plane", self.memory()),
        ];
        let mut text = String::new();
        for (title, table) in tables {
            text.extend([title, "\n\n", &lines(&table), "\n"]);
        }
        text
    }

    fn times(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(["operation", "who", "time", "times a bare Pod's"])];
        let bare = Timing::of(BARE, BARE, &self.bare);
        rows.extend(bare.iter().map(|bare| row([BARE, "", &spread_time(bare), ""])));
        for (operation, who, samples) in &self.operations {
            let Some((timing, bare)) = Timing::of(operation.name(), who, samples).zip(bare.as_ref()) else {
                continue;
            };
            let timing = timing.over(bare);
            let ratio = timing.over.as_ref().map(|over| spread(&over.ratio)).unwrap_or_default();
            rows.push(row([operation.name(), who, &spread_time(&timing), &ratio]));
        }
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
        rows
    }
}
