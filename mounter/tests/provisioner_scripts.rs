//! Programs of provisioning images that log in at a server, with a `pv` and an `ssh` of the test's own.
#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
#[allow(dead_code)]
mod node;

use std::collections::BTreeSet;
use std::fs;

use mooring_contract::property::{env_name, keys};
use node::{Node, images};
use regex::Regex;

/// Answers with the default if the ConfigMap says nothing.
const PV: &str = r#"
for last; do :; done
case "$*" in
"get server") echo "$SERVER" ;;
"get directory") echo "${DIRECTORY:-/srv}" ;;
"get --volume source"*) echo "${STANDS:-$last}" ;;
get*--default*) echo "$last" ;;
"get mount-secret") echo login/default ;;
esac"#;

/// What is said to the commands in the run of an operation.
fn run(program: &str, operation: &str, variables: &[(&str, &str)]) -> String {
    let node = Node::new(program);
    node.command("pv", PV);
    node.command("ssh", "cat >>\"$NODE/calls\"");
    let mut all = vec![
        ("OPERATION", operation),
        ("PV_NAME", "pv-1"),
        ("SIZE", "1024"),
        ("ACCESS_MODES", "ReadWriteOnce"),
        ("VOLUME_MODE", "Filesystem"),
    ];
    all.extend(variables);
    let output = node.run("v1", &[], &all);
    assert!(output.status.success(), "{output:?}");
    node.calls()
}

#[test]
fn an_ipv6_address_is_logged_in_at_without_brackets_and_printed_with_them() {
    for server in ["fd00::10", "[fd00::10]"] {
        for (program, login, source) in [
            (
                "provisioner-sshfs/provision",
                " mooring@fd00::10 ",
                "mooring@[fd00::10]:/srv/pv-1",
            ),
            (
                "provisioner-tgt/provision",
                " root@fd00::10 ",
                "iscsi://[fd00::10]:3260/",
            ),
        ] {
            let calls = run(program, "provision", &[("SERVER", server)]);
            assert!(calls.contains(login), "{login}: {calls}");
            assert!(calls.contains(&format!(" source={source}")), "{source}: {calls}");
        }
    }
}

#[test]
fn a_new_volume_is_made_in_a_relative_directory_behind_every_address() {
    for (server, login) in [("fd00::10", " mooring@fd00::10 "), ("files", " mooring@files ")] {
        let variables = [("SERVER", server), ("DIRECTORY", "volumes")];
        let calls = run("provisioner-sshfs/provision", "provision", &variables);
        assert!(
            calls.contains(login) && calls.contains("\nvolumes/pv-1\n"),
            "{server}: {calls}"
        );
    }
}

#[test]
fn the_directory_of_an_existing_volume_is_found_behind_every_address() {
    for (source, login, directory) in [
        ("tom@[fd00::10]:/srv/pv-1", " tom@fd00::10 ", "\n/srv/pv-1\n"),
        ("tom@fd00::10:/srv/pv-1", " tom@fd00::10 ", "\n/srv/pv-1\n"),
        ("tom@files:/srv/pv-1", " tom@files ", "\n/srv/pv-1\n"),
        ("tom@files:volumes/pv-1", " tom@files ", "\nvolumes/pv-1\n"),
        ("tom@[fd00::10]:volumes/pv-1", " tom@fd00::10 ", "\nvolumes/pv-1\n"),
        ("[fd00::10]:volumes/a]:b/pv-1", " fd00::10 ", "\nvolumes/a]:b/pv-1\n"),
        ("tom@files:/a]:b/pv-1", " tom@files ", "\n/a]:b/pv-1\n"),
    ] {
        let calls = run(
            "provisioner-sshfs/provision",
            "delete",
            &[("STANDS", source), ("SERVER", "other")],
        );
        assert!(calls.contains(login) && calls.contains(directory), "{source}: {calls}");
    }
}

/// The programs of Mooring's own provisioning images that are scripts.
fn scripts() -> Vec<String> {
    let folders = fs::read_dir(images())
        .unwrap()
        .map(|folder| folder.unwrap().file_name());
    let programs = folders.map(|folder| format!("{}/provision", folder.to_str().unwrap()));
    let programs: Vec<_> = programs.filter(|program| images().join(program).exists()).collect();
    assert!(programs.len() >= 6, "{programs:?}");
    programs
}

#[test]
fn a_run_with_a_property_that_the_image_does_not_know_ends_before_anything_is_done() {
    for program in scripts() {
        let node = Node::new(&program);
        node.command("pv", "echo 'pv: write thin' >&2; exit 78");
        let output = node.run("v1", &[], &[("OPERATION", "provision"), ("PV_NAME", "pv-1")]);
        assert_eq!(output.status.code(), Some(78), "{program}: {output:?}");
        let calls = node.calls();
        let calls = calls.trim();
        assert!(
            calls.starts_with("pv expect ") && !calls.contains('\n'),
            "{program}: {calls}"
        );
    }
}

/// A script without its comments, and all that it reads.
fn text_of(program: &str) -> String {
    let path = images().join(program);
    let text = fs::read_to_string(&path).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    let read = Regex::new(r"\. /usr/libexec/mooring-lib/([^ \n]+)").unwrap();
    let read = read.captures_iter(&text).map(|found| {
        let beside = path.with_file_name(&found[1]);
        let name = if beside.exists() {
            beside
        } else {
            images().join("lib").join(&found[1])
        };
        text_of(name.strip_prefix(images()).unwrap().to_str().unwrap())
    });
    let read: String = read.collect();
    format!("{text}\n{read}")
}

#[test]
fn an_image_names_all_properties_that_it_reads_and_no_other() {
    let list = Regex::new(r"(?m)^pv expect ((?:.*\\\n)*.*)$").unwrap();
    let got = Regex::new(r"pv get ([a-z][a-z0-9_-]*)").unwrap();
    let variable = Regex::new(r"\$\{?([A-Z][A-Z_]*)").unwrap();
    let own: BTreeSet<_> = keys::ALL.iter().map(|key| env_name(key)).collect();
    for program in scripts() {
        let text = text_of(&program);
        let said = &list.captures(&text).expect(&program)[1];
        let known: BTreeSet<_> = said.split_whitespace().filter(|word| *word != "\\").collect();
        let rest = list.replace(&text, "");
        for (_, [key]) in got.captures_iter(&rest).map(|found| found.extract()) {
            assert!(known.contains(key), "{program} reads {key}");
        }
        let named: BTreeSet<_> = known.iter().map(|key| env_name(key)).collect();
        let variables = variable.captures_iter(&rest).map(|found| found[1].to_owned());
        let variables: BTreeSet<_> = variables.filter(|name| !own.contains(name)).collect();
        assert!(variables.is_subset(&named), "{program} reads one of {variables:?}");
        for key in known {
            let word = Regex::new(&format!(r"(^|[ \n(]){key}([ \n);]|$)")).unwrap();
            let is_read = word.is_match(&rest) || variables.contains(&env_name(key));
            assert!(is_read, "{program} does not read {key}");
        }
    }
}
