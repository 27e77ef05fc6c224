//! What clusters need before they start: programs, images, and what single files of tests use.

use mooring_e2e::{File, images as images_of_tests};
use mooring_testbed::image_store::ImageStore;
use mooring_testbed::images::{self, Built, Selection};
use mooring_testbed::layout::repository;
use mooring_testbed::{binaries, earlier};

use super::TestArgs;
use super::report::Report;

#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// The images; none if one could not be built.
    pub(super) built: Option<Vec<Built>>,
    /// The same, unpacked for new nodes.
    pub(super) store: Option<ImageStore>,
}

/// Files that use the controller of the snapshot API.
const WITH_SNAPSHOTS: [&str; 5] = [
    "provision_backup",
    "provision_discover",
    "provision_grant",
    "provision_group",
    "provision_snapshot",
];

/// Files that render or install the chart.
const WITH_HELM: [&str; 4] = ["chaos_settings", "smoke_install", "smoke_manifests", "smoke_release"];

/// Prepares the testbed's own clusters for these files. Each step is in the returned report.
pub(super) fn prepare(args: &TestArgs, wanted: &[&'static File], ran_before: bool) -> (Report, Prepared) {
    let mut report = Report::begin();
    let mut prepared = Prepared::default();
    let mut binaries = None;
    report.step("Kubernetes, etcd and containerd", || {
        binaries = Some(binaries::ensure_binaries(binaries::Releases::default())?);
        Ok(())
    });
    let Some(binaries) = binaries else {
        return (report, prepared);
    };
    report.step("images", || {
        let named: Vec<_> = images_of_tests::images(wanted, repository())?.into_iter().collect();
        let selection = if args.prefix.is_empty() {
            Selection::All
        } else {
            Selection::Named(&named)
        };
        prepared.built = Some(images::build(selection, args.form())?);
        Ok(())
    });
    let is_wanted = |name: &str| wanted.iter().any(|file| file.title() == name);
    if is_wanted("scale_bench") {
        report.step("what the bench compares with", || binaries::ensure_peer().map(drop));
    }
    if WITH_HELM.into_iter().any(is_wanted) {
        report.step("Helm", || binaries::ensure_helm().map(drop));
    }
    if is_wanted("smoke_release") {
        report.step("a registry", || binaries::ensure_registry().map(drop));
        report.step("cosign", || binaries::ensure_cosign().map(drop));
    }
    if WITH_SNAPSHOTS.into_iter().any(is_wanted) {
        report.step("snapshot-controller", || {
            binaries::ensure_snapshot_controller().map(drop)
        });
    }
    if wanted.iter().any(|file| file.title().starts_with("chaos_upgrade")) {
        // A clone without that commit has no such programs; the test says so.
        report.step("programs of an earlier version", || match earlier::missing() {
            Some(_) => Ok(()),
            None => earlier::ensure().map(drop),
        });
    }
    if let (false, Some(built)) = (ran_before, &prepared.built) {
        report.step("images for the nodes", || {
            prepared.store = Some(ImageStore::ensure(&binaries, built)?);
            Ok(())
        });
    }
    (report, prepared)
}
