//! `cargo testbed conform csi`: csi-sanity of kubernetes-csi on the driver of a node, with client `local`.
//!
//! Mooring has no controller's side of CSI. `tests/go/sanity` stands in for one, so that those specs of a node run too
//! that need a volume.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use mooring_contract::names::CSI_SOCKET;

use super::report::Report;
use crate::binaries::ensure_sanity;
use crate::cluster::Wanted;
use crate::command::{output, output_with_input, watched_within};
use crate::images::Selection;
use crate::install::install;
use crate::layout::{Layout, make_folder, repository, write_file};
use crate::packages;
use crate::progress::{Step, say};
use crate::target::Target;

const AFTER_HELP: &str = "\
csi-sanity is built from its Go module, once (a minute on two cores). Its specs of services that Mooring's driver does
not offer are left out, and those of capabilities that it does not have are skipped.

Examples:
  cargo testbed conform csi
  cargo testbed conform csi --focus NodePublishVolume";

/// What to run.
#[derive(Debug, Clone, Args)]
#[command(after_help = AFTER_HELP)]
pub struct CsiArgs {
    /// Only specs whose names match this regular expression.
    #[arg(long)]
    focus: Option<String>,
    /// Where to leave csi-sanity's report and its log.
    #[arg(long, default_value = "target/conformance-csi")]
    report: PathBuf,
}

/// The services of a node, and those only.
const SERVICES: &str = "(Node|Identity) Service";

/// Longest time for all specs.
const LIMIT: Duration = Duration::from_mins(15);

/// Where its Pods are, on a cluster of its own.
const NAMESPACE: &str = "default";

/// The node that is judged, and the kubelet's root and the pool on it.
const NODE: u8 = 1;
const KUBELET_ROOT: &str = "/var/lib/kubelet";
const POOL: &str = "/var/lib/mooring/pool";

/// Runs csi-sanity; whether all selected specs passed.
pub fn csi(layout: &Layout, args: &CsiArgs) -> Result<bool> {
    packages::ensure_packages()?;
    let target = Target::own(layout, Wanted::default(), None)?;
    let built = target.load_images(Selection::All)?;
    install(&target, &built)?;
    let report = judge_driver(
        &target,
        NAMESPACE,
        args.focus.as_deref().unwrap_or_default(),
        &args.report,
    )?;
    report.print();
    Ok(report.passed())
}

/// Runs csi-sanity on the driver of the first node of the testbed's own cluster, which Mooring is installed on. Two Pods
/// in the namespace `namespace` lend it their directories. `focus` is a regular expression for the specs' names. In
/// `folder` it leaves its report and its log.
pub fn judge_driver(target: &Target, namespace: &str, focus: &str, folder: &Path) -> Result<Report> {
    let program = ensure_sanity()?;
    let pods = std::fs::read_to_string(repository().join("tests/conformance/csi.yaml"))
        .context("failed to read the Pods of csi-sanity")?;
    let namespaced = |verb: &str| target.kubectl([verb, "-n", namespace]);
    output_with_input(namespaced("apply").args(["-f", "-"]), pods.as_bytes())?;
    let judged = run(target, &program, namespace, focus, folder);
    let mut delete = namespaced("delete");
    output_with_input(delete.args(["--wait=false", "-f", "-"]), pods.as_bytes())?;
    judged
}

fn run(target: &Target, program: &Path, namespace: &str, focus: &str, folder: &Path) -> Result<Report> {
    let folder = std::path::absolute(folder).context("failed to find the folder of the report")?;
    make_folder(&folder)?;
    let json = folder.join("report.json");
    // An earlier run's would be taken for this one's.
    let _ = std::fs::remove_file(&json);
    let cluster = target.own_cluster().context("not the testbed's own cluster")?;
    let flag = |name: &str, value: &str| format!("--{name}={value}");
    let driver = Path::new(KUBELET_ROOT).join(CSI_SOCKET.iter().collect::<PathBuf>());
    let program = program.to_str().context("the program's path is not UTF-8")?;
    let mut sanity = cluster.in_node(
        NODE,
        program,
        [
            flag("driver", &driver.to_string_lossy()),
            flag("pool", POOL),
            flag("namespace", namespace),
            flag("pod", &directory_of(target, namespace, "sanity")?),
            flag("other-pod", &directory_of(target, namespace, "sanity-other")?),
            flag("ginkgo.focus", &format!("{SERVICES}.*(?:{focus})")),
            flag("ginkgo.no-color", "true"),
            flag("ginkgo.v", "true"),
            flag("ginkgo.json-report", &json.to_string_lossy()),
        ],
    )?;
    let mut log = Vec::new();
    let progress = Step::begin("csi-sanity".to_owned());
    let result = watched_within(&mut sanity, LIMIT, |line| log.push(line.to_owned()));
    let written = folder.join("sanity.log");
    write_file(&written, log.join("\n"))?;
    // It also fails if a spec does: what the report says is what counts.
    let report = Report::read(&json).with_context(|| match &result {
        Ok(()) => "csi-sanity ended well and left no report".to_owned(),
        Err(error) => format!("csi-sanity did not run to its end: {error}"),
    })?;
    ensure!(
        report.ran() > 0,
        "no spec was selected: see {}, and check --focus",
        written.display()
    );
    progress.done(&format!("{} specs", report.ran()));
    say(format!("The report is in {}.", folder.display()));
    Ok(report)
}

/// The kubelet's directory of a Pod that is ready.
fn directory_of(target: &Target, namespace: &str, pod: &str) -> Result<String> {
    let name = format!("pod/{pod}");
    output(&mut target.kubectl([
        "wait",
        "--for=condition=Ready",
        "--timeout=120s",
        "-n",
        namespace,
        &name,
    ]))?;
    let uid = output(&mut target.kubectl(["get", "-n", namespace, &name, "-o", "jsonpath={.metadata.uid}"]))?;
    ensure!(!uid.is_empty(), "{name} has no uid");
    Ok(format!("{KUBELET_ROOT}/pods/{uid}"))
}
