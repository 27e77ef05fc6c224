//! `configmaps/uninstall.sh` with a kubectl that notes what it is asked. Against a real API server it runs in
//! `tests/smoke/install.rs`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use mooring_testbed::layout::repository;

/// Notes its arguments, and has a controller with two replicas.
const KUBECTL: &str = r#"#!/bin/sh
echo "$*" >>"$NOTES"
case "$*" in
ANSWER
*'{.spec.replicas}'*) echo 2 ;;
esac
"#;

/// Where the script notes how many replicas the controller had.
const NOTED: &str = "mooring.dev/replicas-before-uninstall";

struct Run {
    output: Output,
    /// What kubectl was asked, without the questions that change nothing.
    changes: Vec<String>,
}

impl Run {
    /// How many controllers there are to be, each time that it says so.
    fn replicas(&self) -> Vec<&str> {
        let scaled = self.changes.iter();
        scaled.filter_map(|line| line.split("--replicas=").nth(1)).collect()
    }
}

/// Runs the script with a further case of kubectl.
fn run(answer: &str) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let (kubectl, notes) = (folder.path().join("kubectl"), folder.path().join("notes"));
    fs::write(&kubectl, KUBECTL.replace("ANSWER", answer)).unwrap();
    fs::set_permissions(&kubectl, Permissions::from_mode(0o755)).unwrap();
    let mut script = Command::new("sh");
    script.arg(repository().join("configmaps/uninstall.sh"));
    let output = script.env("KUBECTL", &kubectl).env("NOTES", &notes).output().unwrap();
    let asked = fs::read_to_string(&notes).unwrap();
    let changes = asked.lines().filter(|line| !line.split(' ').any(|word| word == "get"));
    Run {
        output,
        changes: changes.map(str::to_owned).collect(),
    }
}

#[test]
fn nothing_changes_while_a_volume_is_left_which_is_named() {
    for kind in ["persistentvolumes", "persistentvolumeclaims", "pods"] {
        let run = run(&format!(
            "*'get {kind} '*) echo 'Kind <none> pvc-1 team-a data vcs.mooring.dev' ;;"
        ));
        assert_eq!(run.changes, Vec::<String>::new(), "{kind}");
        assert!(!run.output.status.success(), "{kind}");
        let said = String::from_utf8(run.output.stderr).unwrap();
        assert!(said.starts_with("Kind <none> pvc-1 team-a data"), "{said}");
    }
}

#[test]
fn nothing_changes_if_it_is_not_known_whether_a_volume_is_left() {
    for kind in [
        "persistentvolumes",
        "persistentvolumeclaims",
        "pods",
        "customresourcedefinition",
    ] {
        let run = run(&format!("*'get {kind} '*) exit 1 ;;"));
        assert_eq!(run.changes, Vec::<String>::new(), "{kind}");
        assert!(!run.output.status.success(), "{kind}");
    }
}

#[test]
fn the_controller_is_back_if_a_claim_came_while_it_was_stopped_or_a_worker_does_not_end() {
    for answer in [
        r#"*'get persistentvolumeclaims '*) ! grep -q scale "$NOTES" || echo 'mooring.dev/provisioning' ;;"#,
        "*'delete pods --all'*) exit 1 ;;",
    ] {
        let run = run(answer);
        assert_eq!(run.replicas(), ["0", "2"], "{answer}");
        let changes = run.changes.join("\n");
        assert!(!changes.contains("delete daemonset"), "{changes}");
        assert!(changes.ends_with(&format!("{NOTED}-")), "{changes}");
        assert!(!run.output.status.success(), "{answer}");
    }
}

#[test]
fn a_run_that_was_cut_off_has_left_how_many_controllers_there_were() {
    const CUT_OFF: &str = "*'replicas-before-uninstall}'*) echo 3 ;; *'{.spec.replicas}'*) echo 0 ;;";
    let used = run(&format!(
        "{CUT_OFF} *'get pods '*) echo 'Pod <none> vcs.mooring.dev' ;;"
    ));
    assert_eq!(used.replicas(), ["3"]);
    let unused = run(CUT_OFF);
    assert_eq!(unused.replicas(), ["0"]);
    assert!(
        unused.changes[0].ends_with(&format!("{NOTED}=3")),
        "{:?}",
        unused.changes
    );
    assert!(unused.output.status.success(), "{:?}", unused.output);
}

#[test]
fn pods_that_do_not_end_are_named_with_what_to_do() {
    for what in ["delete pods --all", "delete daemonset "] {
        let run = run(&format!("*'{what}'*) exit 1 ;;"));
        assert!(!run.output.status.success(), "{what}");
        let said = String::from_utf8(run.output.stderr).unwrap();
        assert!(said.contains("delete the Nodes, and run this again"), "{what}: {said}");
    }
}

#[test]
fn nothing_changes_if_mooring_is_installed_in_another_namespace_which_is_named() {
    let run = run("*'get clusterrolebinding mooring-mounter '*) printf storage ;;");
    assert_eq!(run.changes, Vec::<String>::new());
    assert!(!run.output.status.success());
    let said = String::from_utf8(run.output.stderr).unwrap();
    assert!(said.ends_with("sh uninstall.sh storage\n"), "{said}");
}

#[test]
fn workers_go_before_the_mounters_and_these_before_their_rights() {
    let run = run("");
    assert!(run.output.status.success(), "{:?}", run.output);
    let place = |words: &str| run.changes.iter().position(|line| line.contains(words)).expect(words);
    let order = [
        "--replicas=0",
        "delete pods --all-namespaces",
        "delete daemonset mounter",
        "clusterroles",
        "delete namespaces",
    ];
    assert!(order.map(place).is_sorted(), "{:?}", run.changes);
}

#[test]
fn at_the_end_it_says_that_it_is_done_and_whether_the_namespace_stays() {
    let stays = "Namespace mooring stays, with its provisioner ConfigMaps and Secrets.\n";
    for (answer, more) in [("", ""), ("*'get namespace '*) echo namespace/mooring ;;", stays)] {
        let said = String::from_utf8(run(answer).output.stdout).unwrap();
        assert_eq!(said, format!("Mooring is uninstalled.\n{more}"));
    }
}
