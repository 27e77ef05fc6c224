//! The report for people: tables in Markdown that can be pasted into a document.

use super::processes::{CONTROLLER, MOUNTER, PEER};
use super::report::{Aim, Report, Requests, Summary, Timing};
use super::systems::MOORING;

/// Times below this are shown in milliseconds.
const SHORT: f64 = 0.1;

pub(super) fn show(report: &Report) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "{} cores, {}, cgroup {}, {} node{}; {:.0} min\n",
        machine.cores,
        machine.system,
        machine.cgroups,
        machine.nodes,
        if machine.nodes == 1 { "" } else { "s" },
        report.seconds / 60.0
    );
    for (title, table) in [
        ("One at a time: median (a tenth below – a tenth above)", times(report)),
        ("Many at once", bursts(report)),
        (
            "Requests to the API server per volume: writes + others",
            requests(report),
        ),
        ("Processes", processes(report)),
        ("Aims", aims(&report.aims)),
    ] {
        text.extend(["\n", title, "\n\n"]);
        text.push_str(&lines(&table));
    }
    for note in &report.notes {
        text.extend(["\nNot measured: ", note, "\n"]);
    }
    text
}

fn times(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![row(["what", "who", "time", "over", "times as long", "longer by"])];
    rows.extend(report.times.iter().map(|timing| {
        let over = timing.over.as_ref();
        vec![
            timing.what.clone(),
            timing.who.clone(),
            spread_time(timing),
            over.map(|over| over.whom.clone()).unwrap_or_default(),
            over.map(|over| spread(&over.ratio)).unwrap_or_default(),
            over.map(|over| time(over.seconds.median)).unwrap_or_default(),
        ]
    }));
    rows
}

fn bursts(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![row(["what", "at once", "who", "a second", "times a bare Pod's"])];
    rows.extend(report.bursts.iter().map(|burst| {
        vec![
            burst.what.clone(),
            burst.size.to_string(),
            burst.who.clone(),
            spread(&burst.per_second),
            burst.over_bare.as_ref().map(spread).unwrap_or_default(),
        ]
    }));
    rows
}

fn requests(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![row(["phase", "who", "volumes", "its own", "whole cluster"])];
    rows.extend(report.requests.iter().map(|requests| {
        let own = match requests.who.as_str() {
            name if name.starts_with(MOORING) => both(requests, Some(CONTROLLER)),
            name if name.starts_with(PEER) => both(requests, Some(PEER)),
            _ if requests.phase == "idle" => {
                format!(
                    "{}, mounters {}",
                    both(requests, Some(CONTROLLER)),
                    both(requests, Some(MOUNTER))
                )
            }
            _ => String::new(),
        };
        let volumes = if requests.volumes == 0 {
            String::new()
        } else {
            requests.volumes.to_string()
        };
        vec![
            requests.phase.clone(),
            requests.who.clone(),
            volumes,
            own,
            both(requests, None),
        ]
    }));
    rows
}

pub(super) fn both(requests: &Requests, client: Option<&str>) -> String {
    let (writes, others) = requests.sums(client);
    format!("{writes:.1} + {others:.1}")
}

fn processes(report: &Report) -> Vec<Vec<String>> {
    let mut systems: Vec<&String> = report
        .processes
        .iter()
        .flat_map(|one| one.ms_per_volume.keys())
        .collect();
    systems.sort();
    systems.dedup();
    let mut heads = row([
        "process",
        "number",
        "MiB idle",
        "MiB loaded",
        "MiB after",
        "CPU ms/min idle",
    ]);
    heads.extend(systems.iter().map(|system| format!("CPU ms/volume: {system}")));
    let mut rows = vec![heads];
    rows.extend(report.processes.iter().map(|process| {
        let mut cells = vec![process.process.clone(), process.processes.to_string()];
        cells.extend([process.idle_mib, process.loaded_mib, process.after_mib].map(|mib| format!("{mib:.1}")));
        cells.push(format!("{:.0}", process.idle_ms_per_minute));
        cells.extend(systems.iter().map(|system| {
            let taken = process.ms_per_volume.get(*system);
            taken.map(|taken| format!("{taken:.1}")).unwrap_or_default()
        }));
        cells
    }));
    rows
}

pub(super) fn aims(all: &[Aim]) -> Vec<Vec<String>> {
    let mut rows = vec![row(["aim", "bound", "measured", "reached"])];
    rows.extend(all.iter().map(|aim| {
        vec![
            aim.what.clone(),
            format!("{:.2} {}", aim.aim, aim.unit),
            format!("{:.2} {}", aim.measured, aim.unit),
            if aim.met { "yes" } else { "no" }.to_owned(),
        ]
    }));
    rows
}

pub(super) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

pub(super) fn time(seconds: f64) -> String {
    if seconds.abs() < SHORT {
        format!("{:.2} ms", seconds * 1000.0)
    } else {
        format!("{seconds:.2} s")
    }
}

pub(super) fn spread_time(timing: &Timing) -> String {
    let Summary { median, low, high, .. } = timing.seconds;
    format!("{} ({} – {})", time(median), time(low), time(high))
}

pub(super) fn spread(summary: &Summary) -> String {
    let Summary {
        count,
        median,
        low,
        high,
    } = *summary;
    if count == 1 {
        format!("{median:.2}")
    } else {
        format!("{median:.2} ({low:.2} – {high:.2})")
    }
}

/// Rows of cells, with the heads in the first one, as a table with aligned columns.
pub(super) fn lines(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<_> = (0..columns)
        .map(|at| {
            rows.iter()
                .map(|row| row[at].chars().count())
                .max()
                .unwrap_or_default()
                .max(3)
        })
        .collect();
    let line = |cells: &[String]| -> String {
        let padded = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!(" {cell:<width$} |"));
        std::iter::once("|".to_owned())
            .chain(padded)
            .chain(["\n".to_owned()])
            .collect()
    };
    let rule: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut text: Vec<_> = rows.iter().map(|row| line(row)).collect();
    text.insert(1.min(text.len()), line(&rule));
    text.concat()
}

#[cfg(test)]
mod tests {
    use super::{lines, row, spread, time};
    use crate::summary::Summary;

    #[test]
    fn a_table_is_aligned_and_is_markdown() {
        let text = lines(&[row(["what", "a"]), row(["→ x", "long one"])]);
        assert_eq!(text, "| what | a        |\n| ---- | -------- |\n| → x  | long one |\n");
    }

    #[test]
    fn numbers_are_shown_as_a_person_reads_them() {
        assert_eq!(time(0.00123), "1.23 ms");
        assert_eq!(time(1.5), "1.50 s");
        assert_eq!(spread(&Summary::of(&[1.0]).unwrap()), "1.00");
        assert_eq!(spread(&Summary::of(&[1.0, 2.0, 3.0]).unwrap()), "2.00 (1.00 – 3.00)");
    }
}
