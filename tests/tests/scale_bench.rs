//! `cargo testbed bench`, as little of it as there can be: that it measures everything. What it measures is no matter here.

use mooring_testbed::bench::report::Report;
use mooring_testbed::bench::{Options, measure};
use mooring_testbed::harness::open_target;
use mooring_testbed::progress::note;

/// What must have been measured, and over what.
const TIMES: &[(&str, &str, Option<&str>)] = &[
    ("claim created → Bound", "bare Pod", None),
    ("claim created → Bound", "Mooring", Some("bare Pod")),
    ("claim created → Bound", "Mooring, local", Some("bare Pod")),
    ("claim created → Bound", "local-path-provisioner", Some("bare Pod")),
    ("claim deleted → volume gone", "Mooring", None),
    ("claim deleted → volume gone", "local-path-provisioner", None),
    ("Pod with a fresh claim → running", "Pod without a claim", None),
    (
        "Pod with a fresh claim → running",
        "Mooring, local",
        Some("Pod without a claim"),
    ),
    (
        "Pod with a fresh claim → running",
        "local-path-provisioner",
        Some("Pod without a claim"),
    ),
    ("mount", "the same system calls", None),
    ("mount", "shim and mounter", Some("the same system calls")),
    ("mount", "mount(8)", Some("the same system calls")),
    ("unmount", "shim and mounter", Some("the same system calls")),
];

#[test]
fn the_bench_measures_everything_and_leaves_nothing() {
    let target = open_target().unwrap();
    let Some(cluster) = target.own_cluster() else {
        return note("skipped: the bench works on the nodes of the testbed's own cluster");
    };
    let options = Options {
        claims: 1,
        pods: 1,
        bursts: vec![2],
        mounts: 3,
        idle: 1,
        peer_threads: 8,
        skip_peer: false,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let report = runtime.block_on(measure(&target, &options)).unwrap();

    // As it is kept.
    let text = serde_json::to_string(&report).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    assert_eq!(
        (report.options, report.machine.nodes),
        (options, cluster.description.nodes)
    );
    for (what, who, over) in TIMES {
        let found = report.times.iter().find(|time| time.what == *what && time.who == *who);
        let found = found.unwrap_or_else(|| panic!("{what} by {who} is missing in {text}"));
        assert_eq!(found.samples.len(), found.seconds.count);
        assert!(found.samples.iter().all(|seconds| *seconds > 0.0), "{found:?}");
        assert_eq!(found.over.as_ref().map(|over| over.whom.as_str()), *over, "{found:?}");
    }
    let raised = "local-path-provisioner, 8 threads";
    for who in [
        "bare Pod",
        "Mooring",
        "Mooring, local",
        "local-path-provisioner",
        raised,
    ] {
        // A bare Pod has nothing to be removed.
        let phases = if who == "bare Pod" { 1 } else { 2 };
        for what in &["claims bound", "volumes removed"][..phases] {
            let burst = report
                .bursts
                .iter()
                .find(|burst| burst.what == *what && burst.who == who);
            assert!(
                burst.is_some_and(|burst| burst.per_second.median > 0.0),
                "{what} by {who}: {text}"
            );
        }
        for phase in &["provision", "delete"][..phases] {
            let found = report.requests.iter().find(|one| one.phase == *phase && one.who == who);
            let found = found.unwrap_or_else(|| panic!("{phase} by {who} is missing in {text}"));
            assert!(found.sums(None).0 > 0.0, "{found:?}");
            let own = match who {
                "bare Pod" => "kubelet",
                name if name.starts_with("Mooring") => "flex-provisioner",
                _ => "local-path-provisioner",
            };
            assert!(found.sums(Some(own)).0 > 0.0, "{found:?}");
        }
    }
    for name in [
        "mounter",
        "flex-provisioner",
        "local-path-provisioner",
        "kube-apiserver",
        "kubelet",
        "etcd",
    ] {
        let found = report.processes.iter().find(|process| process.process == name);
        let found = found.unwrap_or_else(|| panic!("{name} is missing in {text}"));
        let memory = [found.idle_mib, found.loaded_mib, found.after_mib];
        assert!(memory.iter().all(|mib| *mib > 0.5), "{found:?}");
        assert!(found.ms_per_volume.contains_key("Mooring"), "{found:?}");
    }
    assert_eq!(report.aims.len(), 7, "{:?}", report.aims);
}
