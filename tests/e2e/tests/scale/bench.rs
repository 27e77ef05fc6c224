//! `cargo testbed bench` with the smallest possible numbers: it measures everything, and compares each aim with its
//! number. Seconds don't count here, since the machine does other things besides. What is far within its aim
//! (docs/performance.md) must be reached: a claim's time in relation to a bare Pod's, and the controller's memory.

use mooring_bench::report::{Report, Timing};
use mooring_bench::{Options, measure};
use mooring_harness::{open_target, skip};

/// What must have been measured, and for which parts.
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

/// The mounter's waiting process, by its name in the report: it counts as the mounter's.
const MOUNT_WORKER: &str = "mounter's waiting worker";

#[test]
fn the_bench_measures_everything_and_leaves_nothing() {
    let target = open_target().unwrap();
    let Some(cluster) = target.own_cluster() else {
        return skip("the bench works on the nodes of the testbed's own cluster");
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

    // As it is stored.
    let text = serde_json::to_string(&report).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    assert_eq!(
        (&report.options, report.machine.nodes),
        (&options, cluster.description.nodes)
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
        // A bare Pod has no volume to remove.
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
    aims(&report);
}

/// The aims: which number of the report each is measured by, whether more is better, and whether it has to be reached
/// here.
fn aims(report: &Report) {
    let time = |what: &str, who: &str| {
        let mut times = report.times.iter();
        times
            .find(|time| time.what == what && time.who == who)
            .unwrap_or_else(|| panic!("{what} by {who} is missing"))
    };
    let claim = time("claim created → Bound", "Mooring");
    let local = time("claim created → Bound", "Mooring, local").seconds.median * 1000.0;
    let mount = time("mount", "shim and mounter");
    let program = time("mount", "mount(8)").seconds.median * 1000.0;
    let burst = report
        .bursts
        .iter()
        .find(|burst| burst.what == "claims bound" && burst.who == "Mooring");
    let largest = |name: &str| {
        let of = report.processes.iter().find(|process| process.process == name);
        of.map_or(0.0, |of| of.idle_mib.max(of.loaded_mib).max(of.after_mib))
    };
    let over = |timing: &Timing| {
        timing
            .over
            .clone()
            .unwrap_or_else(|| panic!("{timing:?} is over nothing"))
    };
    let mounter = largest("mounter") + largest(MOUNT_WORKER);
    let wanted = [
        (
            "claim → Bound over a bare Pod, at most",
            1.3,
            over(claim).ratio.median,
            true,
        ),
        ("claim → Bound, at most", 1.0, claim.seconds.median, false),
        ("selected node → Bound, local, at most", 60.0, local, false),
        (
            "claims a second in a burst, at least",
            2.0,
            burst.map_or(0.0, |burst| burst.per_second.median),
            false,
        ),
        (
            "mount over the same system calls, at most",
            2.0,
            over(mount).seconds.median * 1000.0,
            false,
        ),
        // Three mounts are too few to tell.
        (
            "mount, at most what mount(8) takes",
            program,
            mount.seconds.median * 1000.0,
            false,
        ),
        // It is close to its aim, and other load on the node counts.
        ("mounter's memory, at most", 8.0, mounter, false),
        ("controller's memory, at most", 24.0, largest("flex-provisioner"), true),
    ];
    let names: Vec<_> = report.aims.iter().map(|aim| aim.what.as_str()).collect();
    assert_eq!(names, wanted.map(|(what, ..)| what));
    for (aim, (what, bound, measured, is_reached)) in report.aims.iter().zip(wanted) {
        assert!(
            (aim.aim - bound).abs() < 1e-6,
            "{aim:?}: the bound of {what} is {bound}"
        );
        assert!(
            (aim.measured - measured).abs() < 1e-6,
            "{aim:?}, but {measured} was measured"
        );
        let met = if what.ends_with("at least") {
            measured >= bound
        } else {
            measured <= bound
        };
        assert_eq!(aim.met, met, "{aim:?}");
        assert!(aim.met || !is_reached, "not reached: {aim:?}");
    }
}
