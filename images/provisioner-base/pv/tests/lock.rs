//! `pv lock` replaces its process, so it is tested as a program.

use std::process::Command;

fn locked(path: &std::path::Path, script: &str) -> Command {
    let mut pv = Command::new(env!("CARGO_BIN_EXE_pv"));
    pv.arg("lock").arg(path).args(["sh", "-euc", script]);
    pv
}

#[test]
fn one_of_many_runs_at_a_time_has_the_lock_and_the_command_s_code_is_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    std::fs::write(&count, "0").unwrap();
    let script = format!("seen=$(cat {0}); sleep 0.05; echo $((seen + 1)) >{0}", count.display());
    let runs: Vec<_> = (0..8)
        .map(|_| locked(folder.path(), &script).spawn().unwrap())
        .collect();
    for mut run in runs {
        assert!(run.wait().unwrap().success());
    }
    assert_eq!(std::fs::read_to_string(&count).unwrap().trim(), "8");
    assert_eq!(locked(folder.path(), "exit 75").status().unwrap().code(), Some(75));
}

#[test]
fn a_killed_run_releases_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let mut held = locked(folder.path(), "echo; exec sleep 1000")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0];
    std::io::Read::read_exact(held.stdout.as_mut().unwrap(), &mut line).unwrap();
    held.kill().unwrap();
    held.wait().unwrap();
    assert!(locked(folder.path(), "true").status().unwrap().success());
}

#[test]
fn what_can_t_be_locked_is_tried_again_and_what_is_no_command_is_not() {
    let missing = locked("/nowhere".as_ref(), "true").output().unwrap();
    let said = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(missing.status.code(), Some(75), "{said}");
    assert!(said.contains("failed to lock /nowhere"), "{said}");
    let mut pv = Command::new(env!("CARGO_BIN_EXE_pv"));
    let none = pv.args(["lock", "/", "/no/command"]).output().unwrap();
    let said = String::from_utf8(none.stderr).unwrap();
    assert_eq!(none.status.code(), Some(78), "{said}");
    assert!(said.contains("failed to run \"/no/command\""), "{said}");
}
