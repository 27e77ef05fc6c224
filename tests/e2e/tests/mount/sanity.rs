//! The CSI driver of a node, judged by csi-sanity of kubernetes-csi.

use std::time::Duration;

use anyhow::ensure;
use mooring_harness::in_namespace_within;
use mooring_testbed::conform::judge_driver;
use mooring_testbed::layout::repository;

/// csi-sanity may have to be built first.
const LIMIT: Duration = Duration::from_mins(15);

/// How many specs csi-sanity has for what the driver offers.
const SPECS: usize = 25;

#[test]
fn the_driver_of_a_node_passes_csi_sanity() {
    in_namespace_within(LIMIT, "sanity", async |scope| {
        scope.own_cluster()?;
        let folder = repository().join("target/conformance-csi");
        let report = judge_driver(&scope.target, &scope.namespace, "", &folder)?;
        ensure!(report.failed().is_empty(), "{}", report.failed().join("; "));
        ensure!(report.ran() >= SPECS, "only {} specs ran", report.ran());
        Ok(())
    });
}
