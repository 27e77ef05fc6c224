//! Every relative link of a page leads somewhere: to a file, and to a heading in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mooring_testbed::layout::repository;

/// The pages in a folder and in its subfolders.
fn pages_in(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages_in(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// The lines of a page outside of its blocks of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let (first, linked) = heading.split_once("](").unwrap_or((heading, ""));
    let text = first.to_owned() + linked.split_once(')').map_or("", |(_, rest)| rest);
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// The targets of a page's links; one may be broken over two lines.
fn links(page: &str) -> Vec<String> {
    let text = prose(page).collect::<Vec<_>>().join("\n");
    let found = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    found.map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let mut pages = vec![repository().join("README.md")];
    pages_in(&repository().join("docs"), &mut pages);
    let mut checked = 0;
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.contains(['`', ' ', '"']) {
                continue;
            }
            let (file, heading) = link
                .split_once('#')
                .map_or((link.as_str(), None), |(file, to)| (file, Some(to)));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link}", page.display());
            if let Some(heading) = heading {
                let there = anchors(&std::fs::read_to_string(&target).unwrap());
                assert!(there.contains(heading), "{}: {link}", page.display());
            }
            checked += 1;
        }
    }
    assert!(
        pages.len() > 50 && checked > 300,
        "{checked} links in {} pages",
        pages.len()
    );
}

#[test]
fn an_anchor_is_made_as_git_hub_makes_it() {
    assert_eq!(anchor(" A Pod's `fsGroup`, and more"), "a-pods-fsgroup-and-more");
    assert_eq!(anchor(" [Kubernetes](a.md) 1.33 to 1.35"), "kubernetes-133-to-135");
}
