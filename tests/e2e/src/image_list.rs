//! Keeps the list of images for those who mirror them (`configmaps/images.txt`) in line with the images and manifests.

use std::collections::BTreeSet;
use std::path::Path;

use mooring_mounter::volume::stock::{STOCK, Stock, image};
use mooring_testbed::layout::repository;

/// Only other images start from it.
const BASE: &str = "provisioner-base";

/// The original ConfigMap's, a stand-in for a vendor's.
const STAND_IN: &str = "custom/iscsi-provision";

fn listed() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("configmaps/images.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(str::to_owned).collect()
}

/// The values of `image:` in all manifests of a folder.
fn named_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            named_in(&path, found);
        } else if path.extension().is_some_and(|end| end == "yaml") && !path.to_string_lossy().contains("/templates/") {
            let text = std::fs::read_to_string(&path).unwrap();
            let values = text.lines().filter_map(|line| line.trim().strip_prefix("image: "));
            found.extend(values.map(str::to_owned));
        }
    }
}

#[test]
fn the_list_has_each_image_that_a_cluster_may_pull_and_no_other() {
    let mut expected = BTreeSet::new();
    for folder in std::fs::read_dir(repository().join("images")).unwrap() {
        let path = folder.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.join("Containerfile").is_file() && name != BASE {
            expected.insert(image(name));
        }
    }
    let mut named = BTreeSet::new();
    named_in(&repository().join("configmaps"), &mut named);
    // kustomize sets the tags of OpenStack's.
    let (own, others): (Vec<_>, Vec<_>) = named.into_iter().partition(|image| image.starts_with("mooring.dev/"));
    for image in own {
        let is_known =
            expected.contains(&image) || expected.iter().any(|known| known.starts_with(&format!("{image}:")));
        assert!(is_known, "{image} is built by nothing in images/");
    }
    for (client, stock) in STOCK {
        if let Stock::Image(name) = stock {
            assert!(expected.contains(&image(name)), "{client}");
        }
    }
    expected.extend(others.into_iter().filter(|image| image != STAND_IN));
    assert_eq!(listed(), expected);
}
