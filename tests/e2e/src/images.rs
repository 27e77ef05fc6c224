//! The images that a file of tests uses: all those that build in seconds, and of the others those that its source is
//! about.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::Path;

use anyhow::{Context, Result};

use crate::File;

/// What every file gets: Mooring itself, what tests without a storage system of their own use, and class `sshfs`.
const ALWAYS: &[&str] = &[
    "client-sshfs",
    "flex-provisioner",
    "iscsi-provision",
    "mounter",
    "provisioner-base",
    "provisioner-directory",
    "provisioner-local",
    "provisioner-sshfs",
    "testbed-pooled",
    "testbed-scripted",
    "testbed-sshd",
];

/// Words in a test's source, in any case, and the images that such a test uses besides.
const BY_WORD: &[(&str, &[&str])] = &[
    ("acme", &["testbed-acme"]),
    (
        "ceph",
        &["client-block", "client-cephfs", "provisioner-ceph", "testbed-ceph"],
    ),
    ("gluster", &["client-glusterfs", "testbed-glusterfs"]),
    (
        "iscsi",
        &["client-block", "client-iscsi", "provisioner-tgt", "testbed-tgt"],
    ),
    ("nbd", &["client-block"]),
    ("nfs", &["client-block", "nfs-locks", "testbed-nfs"]),
    ("openstack", &["provisioner-openstack", "provisioner-openstack-ceph"]),
    ("s3", &["client-s3", "testbed-versitygw"]),
    ("smb", &["provisioner-smb", "testbed-samba"]),
];

/// The images of these files, by the last parts of their names.
///
/// # Errors
/// If the source of one can't be read.
pub fn images(files: &[&File], root: &Path) -> Result<BTreeSet<&'static str>> {
    let mut images: BTreeSet<_> = ALWAYS.iter().copied().collect();
    for file in files {
        let path = root.join("tests/e2e/tests").join(file.group).join(file.name);
        for source in std::iter::once(path.with_extension("rs")).chain(parts(&path)) {
            let text = read_to_string(&source).with_context(|| format!("failed to read {}", source.display()))?;
            let text = text.to_lowercase();
            let used = BY_WORD.iter().filter(|(word, _)| text.contains(word));
            images.extend(used.flat_map(|(_, images)| images.iter()));
        }
    }
    Ok(images)
}

/// The files of a module's folder, if it has one.
fn parts(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mooring_testbed::images::recipes;
    use mooring_testbed::layout::repository;

    use super::{ALWAYS, BY_WORD, images};
    use crate::FILES;

    fn of(title: &str) -> BTreeSet<&'static str> {
        let file = FILES.iter().find(|file| file.title() == title).unwrap();
        images(&[file], repository()).unwrap()
    }

    #[test]
    fn a_file_gets_what_its_source_is_about() {
        assert_eq!(of("mount_hung").len(), ALWAYS.len());
        assert!(of("mount_block").contains("client-block"));
        assert!(of("mount_s3").contains("testbed-versitygw") && !of("mount_s3").contains("testbed-ceph"));
    }

    #[test]
    fn every_image_here_exists() {
        let all: BTreeSet<_> = recipes(repository(), "target/x/dist")
            .unwrap()
            .iter()
            .map(mooring_testbed::images::Recipe::file_name)
            .collect();
        for name in ALWAYS.iter().chain(BY_WORD.iter().flat_map(|(_, images)| *images)) {
            assert!(all.contains(*name), "{name}");
        }
    }
}
