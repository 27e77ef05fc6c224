//! Every relative link of a page leads somewhere: to a file, and to a heading in it. So does every page that a source
//! file or a manifest names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mooring_testbed::layout::repository;

/// The files in a folder and in its subfolders whose names end like that.
fn files_in(folder: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            files_in(&path, ends, found);
        } else if path
            .extension()
            .is_some_and(|end| ends.iter().any(|known| end == *known))
        {
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

/// The pages that a text names by their path in the repository, also with a heading.
fn named(text: &str) -> Vec<&str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-#".contains(c);
    let words = text.split(|c| !is_path(c)).map(|word| word.trim_end_matches('.'));
    words
        .filter(|word| word.starts_with("docs/") && word.contains(".md"))
        .collect()
}

/// Whether a link leads from this page, or from this folder, to a file and a heading.
fn leads(from: &Path, link: &str) -> bool {
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, to)| (file, Some(to)));
    let target = match file {
        "" => from.to_path_buf(),
        file if from.is_dir() => from.join(file),
        file => from.parent().unwrap().join(file),
    };
    let has = |heading| anchors(&std::fs::read_to_string(&target).unwrap()).contains(heading);
    target.exists() && heading.is_none_or(has)
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let mut pages = vec![repository().join("README.md"), repository().join("CHANGELOG.md")];
    files_in(&repository().join("docs"), &["md"], &mut pages);
    let mut checked = 0;
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.contains(['`', ' ', '"']) {
                continue;
            }
            assert!(leads(page, &link), "{}: {link}", page.display());
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
fn every_page_that_a_source_file_or_a_manifest_names_exists_and_so_does_the_heading() {
    let mut files = Vec::new();
    for folder in ["configmaps", "images", "mounter", "program", "provisioner", "tests"] {
        files_in(&repository().join(folder), &["rs", "toml", "txt", "yaml"], &mut files);
    }
    let mut checked = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        for page in named(&text) {
            assert!(leads(repository(), page), "{} names {page}", file.display());
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} were found");
}

#[test]
fn pages_are_found_in_a_comment_and_in_a_message() {
    let text =
        "// See docs/clients/nfs.md#offer-it, docs/no-page.\n\"apply it (docs/install.md).\" https://x.org/docs/b.md";
    assert_eq!(named(text), ["docs/clients/nfs.md#offer-it", "docs/install.md"]);
}

#[test]
fn an_anchor_is_made_as_git_hub_makes_it() {
    assert_eq!(anchor(" A Pod's `fsGroup`, and more"), "a-pods-fsgroup-and-more");
    assert_eq!(anchor(" [Kubernetes](a.md) 1.33 to 1.35"), "kubernetes-133-to-135");
}
