//! The report of the suite: each check while it runs, and at the end where the time went, what failed and why, and one
//! line with the counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use mooring_testbed::extra_checks::Verdict;
use mooring_testbed::progress::{fail, say, spoken};

use super::libtest::{Ended, Results, is_stopped};
use super::outcome::{Outcome, Ran, Times};

struct Step {
    name: String,
    took: Duration,
    /// Use of all processors, in percent.
    busy: Option<u64>,
    well: bool,
}

pub(super) struct Report {
    started: Instant,
    steps: Vec<Step>,
    ran: Vec<Ran>,
    lanes: Vec<Times>,
    results: Results,
}

impl Report {
    pub(super) fn begin() -> Self {
        Self {
            started: Instant::now(),
            steps: Vec::new(),
            ran: Vec::new(),
            lanes: Vec::new(),
            results: Results::default(),
        }
    }

    /// Runs a preparation. It counts as a test only if it fails.
    pub(super) fn step(&mut self, name: &str, run: impl FnOnce() -> Result<()>) {
        self.timed(name, |_| match run() {
            Ok(()) => Results::default(),
            Err(error) => {
                fail(&error);
                Results::broken(name, &error)
            }
        });
    }

    /// Runs a check, which counts as a test.
    pub(super) fn check(&mut self, name: &str, run: impl FnOnce() -> Result<()>) {
        self.timed(name, |_| match run() {
            Ok(()) => Results {
                passed: 1,
                ..Results::default()
            },
            Err(error) => {
                fail(&error);
                Results::broken(name, &error)
            }
        });
    }

    /// Runs a check that may be impossible here.
    pub(super) fn verdict(&mut self, name: &str, run: impl FnOnce() -> Result<Verdict>) {
        self.timed(name, |_| match run() {
            Ok(Verdict::Passed) => Results {
                passed: 1,
                ..Results::default()
            },
            Ok(Verdict::Skipped(reason)) => Results {
                skipped: BTreeMap::from([("not made here".to_owned(), reason)]),
                ..Results::default()
            },
            Err(error) => {
                fail(&error);
                Results::broken(name, &error)
            }
        });
    }

    pub(super) fn tests(&mut self, name: &str, run: impl FnOnce() -> Results) {
        self.timed(name, |_| run());
    }

    /// How each test ended so far.
    pub(super) fn ended(&self) -> &[Ended] {
        &self.results.ended
    }

    /// Adds the steps of a report that was written beside this one.
    pub(super) fn absorb(&mut self, other: Self) {
        self.steps.extend(other.steps);
        let Results {
            passed,
            failed,
            skipped,
            ..
        } = other.results;
        self.results.passed += passed;
        self.results.failed.extend(failed);
        self.results.skipped.extend(skipped);
    }

    /// Notes a failure of something that has no step.
    pub(super) fn failed(&mut self, name: &str, error: &anyhow::Error) {
        fail(error);
        self.results.add(name, Results::broken(name, error));
    }

    /// Adds the results of the lanes.
    pub(super) fn end_to_end(&mut self, outcome: Outcome, took: Duration, busy: Option<u64>) {
        let mut well = outcome.errors.is_empty();
        for error in &outcome.errors {
            self.failed("end-to-end tests", error);
        }
        for ran in &outcome.ran {
            well &= ran.results.failed.is_empty();
            self.results.add(&ran.title, ran.results.clone());
        }
        self.ran = outcome.ran;
        self.lanes = outcome.lanes;
        self.steps.push(Step {
            name: "end-to-end tests".to_owned(),
            took,
            busy,
            well,
        });
    }

    fn timed(&mut self, name: &str, run: impl FnOnce(&mut Self) -> Results) {
        if is_stopped() {
            let error = anyhow!("this command was told to stop");
            return self.results.add("not run", Results::broken(name, &error));
        }
        say(format!("== {name}"));
        let (began, load) = (Instant::now(), Load::now());
        let results = run(self);
        self.steps.push(Step {
            name: name.to_owned(),
            took: began.elapsed(),
            busy: load.busy(),
            well: results.failed.is_empty(),
        });
        self.results.add(name, results);
    }

    /// Prints the report; returns whether nothing failed.
    pub(super) fn finish(self) -> bool {
        say(format!("\n== where the time went ({})", spoken(self.started.elapsed())));
        for step in &self.steps {
            let word = if step.well { "ok    " } else { "FAILED" };
            let busy = step
                .busy
                .map(|busy| format!(", processors {busy} % busy"))
                .unwrap_or_default();
            say(format!("{word} {} ({}{busy})", step.name, spoken(step.took)));
        }
        for (index, lane) in self.lanes.iter().enumerate() {
            say(format!(
                "lane {}, {} nodes: {} tests, {} to start and remove, {} waited",
                index + 1,
                lane.nodes,
                spoken(lane.tests),
                spoken(lane.set_up),
                spoken(lane.waited)
            ));
        }
        let mut ran: Vec<_> = self.ran.iter().collect();
        ran.sort_by_key(|ran| std::cmp::Reverse(ran.took));
        for ran in ran {
            let word = if ran.results.failed.is_empty() {
                "ok    "
            } else {
                "FAILED"
            };
            say(format!(
                "{word} {} ({}, lane {})",
                ran.title,
                spoken(ran.took),
                ran.lane
            ));
        }
        told("skipped", &self.results.skipped);
        if !self.results.known_failing.is_empty() {
            say(format!("\n== known failing: {}", self.results.known_failing.len()));
        }
        for name in &self.results.known_failing {
            say(format!("known failing {name}"));
        }
        told("FAILED", &self.results.failed);
        say(format!("\n{}", self.results.counts()));
        self.results.failed.is_empty()
    }
}

fn told(word: &str, tests: &BTreeMap<String, String>) {
    if !tests.is_empty() {
        say(format!("\n== {word}"));
    }
    for (name, said) in tests {
        say(format!("{word} {name}: {said}"));
    }
}

/// Use of the machine's processors so far, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    ticks: Option<(u64, u64)>,
}

impl Load {
    /// The values at this moment.
    pub(super) fn now() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self {
            ticks: ticks(text.lines().next().unwrap_or_default()),
        }
    }

    /// Use of all processors since then, in percent.
    pub(super) fn busy(self) -> Option<u64> {
        let ((idle_before, before), (idle, all)) = (self.ticks?, Self::now().ticks?);
        let all = all.checked_sub(before).filter(|all| *all > 0)?;
        Some(100 - (idle - idle_before).min(all) * 100 / all)
    }
}

/// Idle ticks and all ticks of the first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq,
/// softirq, steal.
fn ticks(line: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> = line
        .strip_prefix("cpu ")?
        .split_whitespace()
        .take(8)
        .filter_map(|word| word.parse().ok())
        .collect();
    let idle = numbers.get(3)? + numbers.get(4)?;
    Some((idle, numbers.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::ticks;

    #[test]
    fn idle_time_includes_waits_for_a_disk() {
        assert_eq!(ticks("cpu  10 0 20 60 10 0 0 0 0 0"), Some((70, 100)));
        assert_eq!(ticks("cpu0 1 2"), None);
    }
}
