//! `mooring lint` as its users run it: the program, files, exit codes.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn lint(args: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mooring"))
        .arg("lint")
        .args(args)
        .env_remove("MOORING_ALLOWED_IMAGES")
        .env_remove("MOORING_CONFIG_NAMESPACES")
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn example(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap())
        .join("../../configmaps/examples")
        .join(name)
}

#[test]
fn the_examples_are_good() {
    for name in ["local.yaml", "s3.yaml", "sshfs.yaml", "silver.yaml"] {
        let output = lint(&[&example(name)]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", said(&output));
    }
}

#[test]
fn a_missing_space_is_found_with_its_line_and_its_cure() {
    let good = std::fs::read_to_string(example("silver.yaml")).unwrap();
    let bad = good.replace("zone: west", "zone:west");
    assert_ne!(good, bad);
    let file = std::env::temp_dir().join(format!("mooring-lint-{}.yaml", std::process::id()));
    std::fs::write(&file, &bad).unwrap();
    let output = lint(&[&file]);
    std::fs::remove_file(&file).unwrap();
    let line = bad.lines().position(|line| line.contains("zone:west")).unwrap() + 1;
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!(".yaml:{line}: ")), "{text}");
    assert!(text.contains("write \"zone: west\""), "{text}");
}

#[test]
fn a_file_that_is_not_there_is_no_clean_bill() {
    let output = lint(&[Path::new("there/is/no/such-file.yaml")]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("such-file.yaml"));
}
