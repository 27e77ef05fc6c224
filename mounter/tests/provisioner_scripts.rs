//! Programs of provisioning images that log in at a server, with a `pv` and an `ssh` of the test's own.
#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
#[allow(dead_code)]
mod node;

use node::Node;

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
