//! `flex-provisioner lint` in the controller's image: the program `mooring` lies beside it there.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An empty folder with the controller's program.
fn image(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_flex-provisioner"), folder.join("flex-provisioner")).unwrap();
    folder
}

fn lint(folder: &Path) -> Output {
    let mut program = Command::new(folder.join("flex-provisioner"));
    program.args(["lint", "--allowed-images", "a/*", "-"]).output().unwrap()
}

#[test]
fn the_program_beside_it_gets_all_arguments_and_its_exit_code_counts() {
    let folder = image("lint-beside");
    let other = folder.join("mooring");
    fs::write(&other, "#!/bin/sh\necho \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&other, Permissions::from_mode(0o755)).unwrap();
    let output = lint(&folder);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "lint --allowed-images a/* -\n");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn without_the_other_program_it_says_what_to_run() {
    let output = lint(&image("lint-alone"));
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("run `mooring lint` instead"), "{said}");
}
