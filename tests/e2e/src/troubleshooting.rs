//! Keeps `docs/troubleshooting.md` true: an Event that it names is one that a program reports.

use std::collections::BTreeSet;

use mooring_testbed::layout::repository;

/// Where the reasons of Events are.
const REASONS: &[&str] = &["program/src/reasons.rs", "provisioner/src/operation/describe.rs"];

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap()
}

/// Whether it is written like an Event's reason: `VolumeKept`.
fn is_reason(word: &str) -> bool {
    let capitals = word.matches(|c: char| c.is_ascii_uppercase()).count();
    capitals > 1 && word.starts_with(char::is_uppercase) && word.chars().all(|c| c.is_ascii_alphanumeric())
}

/// The reasons in the first cell of a row that is about an Event.
fn events(page: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    let mut of_events = false;
    for line in page.lines() {
        let Some(cell) = line.strip_prefix('|').and_then(|row| row.split('|').next()) else {
            continue;
        };
        match cell.trim() {
            "symptom" | "where" => of_events = false,
            "Event" => of_events = true,
            cell if of_events || cell.contains("Event") => {
                found.extend(cell.split('`').skip(1).step_by(2).filter(|word| is_reason(word)));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn every_event_that_the_page_of_symptoms_names_is_reported() {
    let sources: String = REASONS.iter().map(|path| read(path)).collect();
    let page = read("docs/troubleshooting.md");
    let named = events(&page);
    assert!(named.len() > 20, "{named:?}");
    for event in named {
        assert!(sources.contains(&format!("\"{event}\"")), "{event}");
    }
}

#[test]
fn events_are_read_from_first_cells() {
    let page = "| symptom | cause |\n| --- | --- |\n| Event `VolumeKept` of `run_x` | Event `NotThis` |\n| `Pending` | |\n\n\
        | Event | see |\n| `MountWaits`, `FsGroupWaits` | x |\n\n| where | |\n| Pod, `NoAnswer` | |\n";
    assert_eq!(
        events(page),
        BTreeSet::from(["FsGroupWaits", "MountWaits", "VolumeKept"])
    );
}
