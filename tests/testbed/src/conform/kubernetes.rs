//! `cargo testbed conform kubernetes`: Kubernetes' own storage suite (`test/e2e/storage` of Kubernetes, by its
//! definitions of external drivers) on Mooring's classes. `tests/conformance` has a class and a definition for each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::machine::Machine;
use super::report::Report;
use super::server::Server;
use super::snapshots::SnapshotController;
use super::{suite_images, zones};
use crate::binaries::ensure_e2e_test;
use crate::cluster::Wanted;
use crate::command::{command, output_with_input, watched_within};
use crate::images::Selection;
use crate::install::{apply, install};
use crate::layout::{Layout, make_folder, repository};
use crate::packages;
use crate::progress::{Step, say};
use crate::target::Target;

const AFTER_HELP: &str = "\
The suite is built from Kubernetes' Go module, once (some five minutes on two cores). A class is judged by what
tests/conformance/CLASS.driver.yaml says that it can do.

Examples:
  cargo testbed conform kubernetes                             the class local, without the slow specs
  cargo testbed conform kubernetes --class rbd                 on a Ceph that it starts in the cluster
  cargo testbed conform kubernetes --class nfs                 on a node in a virtual machine, which is slow
  cargo testbed conform kubernetes --class manila              on OpenStack's services, which it starts
  cargo testbed conform kubernetes --class manila-nfs          the same, by NFS, in a virtual machine
  cargo testbed conform kubernetes --focus 'subPath.*existing'
  cargo testbed conform kubernetes --slow                      with those that take a minute and more each";

/// What to run.
#[derive(Debug, Clone, Args)]
#[command(after_help = AFTER_HELP)]
pub struct KubernetesArgs {
    /// The class: a file of tests/conformance.
    #[arg(long, default_value = "local")]
    class: String,
    /// Only specs whose names match this regular expression.
    #[arg(long)]
    focus: Option<String>,
    /// Also those that are slow.
    #[arg(long)]
    slow: bool,
    /// Where to leave the suite's reports and its log.
    #[arg(long, default_value = "target/conformance")]
    report: PathBuf,
}

/// Mooring's images that the classes need, and their servers.
const IMAGES: &[&str] = &[
    "flex-provisioner",
    "mounter",
    "provisioner-local",
    "provisioner-directory",
    "provisioner-ceph",
    "client-cephfs",
    "client-block",
    "testbed-ceph",
    "testbed-nfs",
];

/// What is left out: `Disruptive` specs restart services of nodes by ssh, and `Serial` ones want a whole cluster.
const LEFT_OUT: &str = r"\[Disruptive\]|\[Serial\]";

/// Of the specs that want parts which a cluster need not have, those whose parts are there.
const LABELS: &str = "Feature: isSubsetOf {VolumeSnapshotDataSource, VolumeSourceXFS}";

/// Longest time for the whole suite.
const LIMIT: Duration = Duration::from_hours(2);

/// Storage services that some classes need.
#[derive(Debug, Clone, Copy)]
pub struct Services {
    /// Starts them if a class, as text, needs them; whether it does.
    pub start: fn(&Target, &str) -> Result<bool>,
    pub remove: fn(&Target) -> Result<()>,
}

/// Runs the suite; whether all selected specs passed.
pub fn kubernetes(layout: &Layout, args: &KubernetesArgs, services: Services) -> Result<bool> {
    let definitions = repository().join("tests/conformance");
    let file = |end: &str| definitions.join(format!("{}{end}", args.class));
    let class = std::fs::read_to_string(file(".yaml")).with_context(|| {
        format!(
            "there is no class {:?}: {} lists them",
            args.class,
            definitions.display()
        )
    })?;
    packages::ensure_packages()?;
    let program = ensure_e2e_test()?;
    let definition = file(".driver.yaml");
    let wanted =
        std::fs::read_to_string(&definition).with_context(|| format!("failed to read {}", definition.display()))?;
    zones::start_nodes(layout, &wanted)?;
    let target = Target::own(layout, Wanted::default(), None)?;
    let built = target.load_images(Selection::Named(IMAGES))?;
    let images = suite_images::load(&target, &program)?;
    install(&target, &built)?;
    let machine = Machine::of_definition(&target, &wanted, &images)?;
    let has_services = (services.start)(&target, &class)?;
    let servers = Server::of_class(&definitions, &class)?;
    let class = servers
        .iter()
        .try_fold(class, |class, server| server.start(&target, &class))?;
    apply(&target, &class)?;
    let _snapshots = SnapshotController::start(&target)?;
    let judged = run(&target, &program, &definition, args);
    let mut delete = target.kubectl(["delete", "--wait=false", "-f", "-"]);
    output_with_input(&mut delete, class.as_bytes())?;
    for server in servers {
        server.remove(&target)?;
    }
    drop(machine);
    if has_services {
        (services.remove)(&target)?;
    }
    let report = judged?;
    report.print();
    Ok(report.passed())
}

fn run(target: &Target, program: &Path, definition: &Path, args: &KubernetesArgs) -> Result<Report> {
    let folder = std::path::absolute(&args.report).context("failed to find the folder of the reports")?;
    make_folder(&folder)?;
    let json = folder.join("report.json");
    // An earlier run's would be taken for this one's.
    let _ = std::fs::remove_file(&json);
    let kubeconfig = target.kubeconfig.clone().context("the cluster has no kubeconfig")?;
    let flag = |name: &str, path: &Path| format!("{name}={}", path.display());
    let slow = if args.slow { "" } else { r"|\[Slow\]" };
    let focus = args.focus.as_deref().unwrap_or_default();
    let mut suite = command(program, ["--provider=local", "--num-nodes=2", "--disable-log-dump"]);
    suite
        .current_dir(&folder)
        .arg(flag("--kubeconfig", &kubeconfig))
        .arg(flag("-storage.testdriver", definition))
        .arg(format!("--ginkgo.focus=External.Storage.*(?:{focus})"))
        .arg(format!("--ginkgo.skip={LEFT_OUT}{slow}"))
        .arg(format!("--ginkgo.label-filter={LABELS}"))
        .arg(format!("--ginkgo.timeout={}s", LIMIT.as_secs()))
        .args(["--ginkgo.no-color", "--ginkgo.v"])
        .arg(flag("--report-dir", &folder))
        .arg(flag("--ginkgo.json-report", &json));
    let mut log = Vec::new();
    let mut progress = Step::begin(format!("Kubernetes' storage suite on class {}", args.class));
    let mut done = 0_usize;
    let result = watched_within(&mut suite, LIMIT, |line| {
        log.push(line.to_owned());
        // One such line ends each spec that was run.
        if line.starts_with('•') {
            done += 1;
            progress.update(&format!("{done} specs"));
        }
    });
    let written = folder.join("suite.log");
    crate::layout::write_file(&written, log.join("\n"))?;
    // It also fails if a spec does: what the report says is what counts.
    let report = Report::read(&json).with_context(|| match &result {
        Ok(()) => "the suite ended well and left no report".to_owned(),
        Err(error) => format!("the suite did not run to its end: {error}"),
    })?;
    ensure!(
        report.ran() > 0,
        "no spec was selected: see {}, and check --focus",
        written.display()
    );
    progress.done(&format!("{done} specs"));
    say(format!("The reports are in {}.", folder.display()));
    Ok(report)
}

/// Names of the classes that there are definitions of.
#[cfg(test)]
fn classes() -> Vec<String> {
    let folder = repository().join("tests/conformance");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter_map(|name| name.strip_suffix(".driver.yaml").map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::classes;
    use crate::layout::repository;
    use crate::manifests;

    #[test]
    fn each_definition_has_its_class_and_no_capability_that_is_denied() {
        assert!(!classes().is_empty());
        for class in classes() {
            let read = |end: &str| {
                let path = repository().join(format!("tests/conformance/{class}{end}"));
                manifests::documents(&std::fs::read_to_string(path).unwrap()).unwrap()
            };
            let (config, driver) = (read(".yaml"), read(".driver.yaml"));
            let (config, driver) = (&config[0], &driver[0]);
            assert_eq!(config["metadata"]["name"], format!("conform-{class}"));
            assert_eq!(
                driver["StorageClass"]["FromExistingClassName"],
                format!("conform-{class}")
            );
            let capabilities = driver["DriverInfo"]["Capabilities"].as_object().unwrap();
            assert!(
                capabilities.values().all(|can| can == true),
                "{class}: leave out what it can't do"
            );
        }
    }
}
