//! Programs of provisioning images that log in at a server, with a `pv` and an `ssh` of the test's own.
#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
#[allow(dead_code)]
mod node;

use std::collections::BTreeSet;
use std::fs;
use std::process::Output;

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

/// As [`PV`], for every image.
const ANY_PV: &str = r#"
for last; do :; done
case "$1 $2 $3" in
"lock "*) shift 2; exec sh "$@" ;;
"get client ") echo "$CLIENT" ;;
"get monitors ") echo 192.0.2.1 ;;
"get source ") echo "$SOURCE" ;;
"get directory ") echo "$DIRECTORY" ;;
"get attached-only "*) echo true ;;
"get --volume source") echo "${STANDS:-$last}" ;;
"get --source source") echo "$COPIED" ;;
get*--default) echo "$last" ;;
get*) echo x ;;
esac"#;

/// A node that is the server too: a login runs its command here.
fn server(program: &str) -> Node {
    let node = Node::new(program);
    node.command("pv", ANY_PV);
    node.command("ssh", "for last; do :; done; exec sh -c \"$last\"");
    node.command("tgtadm", "");
    node.command("tgt-admin", "");
    node
}

fn run_there(node: &Node, operation: &str, variables: &[(&str, &str)]) -> Output {
    let directory = node.at("volumes");
    let mut all = vec![
        ("OPERATION", operation),
        ("PV_NAME", "pv-1"),
        ("SOURCE_PV_NAME", "pv-0"),
        ("SNAPSHOT_NAME", "snap-1"),
        ("BACKUP_NAME", ""),
        ("SIZE", "1024"),
        ("ACCESS_MODES", "ReadWriteOnce"),
        ("VOLUME_MODE", "Filesystem"),
        ("INITIATOR_NAME", "iqn.x:node-a"),
        ("DIRECTORY", directory.to_str().unwrap()),
        ("SOURCE", "//files/volumes/team"),
    ];
    all.extend(variables);
    node.run("v1", &[], &all)
}

/// What a run said, after its exit code.
fn end(output: &Output) -> String {
    let said = [output.stdout.as_slice(), &output.stderr].concat();
    format!("{} {}", output.status.code().unwrap(), String::from_utf8_lossy(&said))
}

const RBD: [(&str, &str); 2] = [("CLIENT", "rbd"), ("STANDS", "rbd://192.0.2.1/rbd/pv-1")];
const CEPHFS: [(&str, &str); 2] = [("CLIENT", "cephfs"), ("STANDS", "192.0.2.1:/volumes/mooring/pv-1/x")];
/// What Ceph's manager answers without a group, or without a volume: a removal by force succeeds.
const NO_GROUP: &str = "case \"$*\" in *--force*) exit 0 ;; esac
    echo \"Error ENOENT: subvolume group 'mooring' does not exist\" >&2; exit 2";
const NO_SUBVOLUME: &str = "case \"$*\" in *--force* | *\" getpath \"*) exit 0 ;; esac
    echo \"Error ENOENT: subvolume 'pv-1' does not exist\" >&2; exit 2";

#[test]
fn no_volume_is_gone_or_given_up_while_the_place_is_missing_where_it_would_be() {
    type Row<'r> = (
        &'r str,
        &'r [&'r str],
        &'r [(&'r str, &'r str)],
        (&'r str, &'r str),
        &'r str,
    );
    let rows: [Row<'_>; 6] = [
        (
            "provisioner-tgt/provision",
            &["provision", "expand", "delete", "attach", "detach"],
            &[],
            ("none", ""),
            "is not a directory on the server",
        ),
        (
            "provisioner-sshfs/provision",
            &["provision", "expand", "delete"],
            &[],
            ("none", ""),
            "is not a directory on the server",
        ),
        (
            "provisioner-smb/provision",
            &["provision", "expand", "delete"],
            &[],
            (
                "smbclient",
                "echo 'tree connect failed: NT_STATUS_BAD_NETWORK_NAME'; exit 1",
            ),
            "has no share volumes",
        ),
        (
            "provisioner-smb/provision",
            &["provision", "expand", "delete"],
            &[],
            (
                "smbclient",
                r"echo 'cd \team\: NT_STATUS_OBJECT_NAME_NOT_FOUND'; exit 1",
            ),
            "has no directory /team",
        ),
        (
            "provisioner-ceph/provision",
            &[
                "provision",
                "expand",
                "delete",
                "snapshot",
                "delete-snapshot",
                "restore",
            ],
            &RBD,
            (
                "rbd",
                r#"echo "rbd: error opening pool 'rbd': (2) No such file or directory" >&2; exit 2"#,
            ),
            "no pool or no namespace",
        ),
        (
            "provisioner-ceph/provision",
            &["provision", "expand", "delete", "snapshot", "delete-snapshot"],
            &CEPHFS,
            ("ceph", NO_GROUP),
            "group 'mooring' does not exist",
        ),
    ];
    let mut wrong = Vec::new();
    for (program, operations, variables, (command, script), words) in rows {
        for operation in operations {
            let node = server(program);
            node.command(command, script);
            let end = end(&run_there(&node, operation, variables));
            if !end.starts_with("75 ") || !end.contains(words) {
                wrong.push(format!("{program} {operation}: {end}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_volume_that_is_missing_in_its_place_is_deleted_and_else_tried_again() {
    type Row<'r> = (&'r str, &'r [&'r str], &'r [&'r str], &'r [(&'r str, &'r str)]);
    let volume = ("STANDS", "pv-1.img");
    let copy = [("COPIED", "pv-0.img"), volume];
    let backup = [("BACKUP_NAME", "b-1"), volume];
    let rows: [Row<'_>; 8] = [
        ("provisioner-tgt/provision", &["delete"], &["expand", "attach"], &[]),
        ("provisioner-sshfs/provision", &["delete"], &["expand"], &[]),
        ("provisioner-smb/provision", &["delete"], &["expand"], &[]),
        (
            "provisioner-directory/provision",
            &["delete"],
            &["expand", "clone"],
            &[("COPIED", "files:/pv-0")],
        ),
        (
            "provisioner-local/provision",
            &["delete", "delete-snapshot"],
            &["expand", "modify", "clone", "snapshot", "restore"],
            &copy,
        ),
        (
            "provisioner-local/provision",
            &["delete-backup"],
            &["backup", "restore"],
            &backup,
        ),
        (
            "provisioner-ceph/provision",
            &["delete", "delete-snapshot"],
            &["expand", "snapshot", "restore"],
            &RBD,
        ),
        (
            "provisioner-ceph/provision",
            &["delete", "delete-snapshot"],
            &["expand", "snapshot"],
            &CEPHFS,
        ),
    ];
    let mut wrong = Vec::new();
    for (program, deletions, others, variables) in rows {
        for (operation, is_done) in deletions
            .iter()
            .map(|operation| (operation, true))
            .chain(others.iter().map(|operation| (operation, false)))
        {
            let node = server(program);
            for folder in ["volumes", "etc/tgt/conf.d", "run/mooring/backend", "run/mooring/backup"] {
                fs::create_dir_all(node.at(folder)).unwrap();
            }
            node.command("smbclient", r"echo 'NT_STATUS_NO_SUCH_FILE listing \team\pv-1'; exit 1");
            node.command("rbd", "echo 'rbd: error: (2) No such file or directory' >&2; exit 2");
            node.command("ceph", NO_SUBVOLUME);
            let end = end(&run_there(&node, operation, variables));
            if !end.starts_with(if is_done { "0 " } else { "75 " }) {
                wrong.push(format!("{program} {operation}: {end}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A target that nodes A and B have open, and that A has before B.
const SHARED: &str = "<target iqn.2025-01.dev.mooring:pv-1>
backing-store pv-1.img
initiator-address ALL
initiator-name iqn.x:node-a
incominguser user-a word-a
initiator-name iqn.x:node-b
incominguser user-b word-b
</target>
";

/// Answers as tgtd does for [`SHARED`]. One call fails.
const TGTADM: &str = r#"
mode=; op=
for word; do
    case $before in
    --mode) mode=$word ;;
    --op) op=$word ;;
    esac
    before=$word
done
case "$mode $op" in
"$FAILS")
    echo "tgtadm: tgtd closed the socket" >&2
    exit "$STATUS"
    ;;
"target show")
    echo "Target 1: iqn.2025-01.dev.mooring:pv-0"
    echo "Target 7: iqn.2025-01.dev.mooring:pv-1"
    echo "    Account information:"
    echo "        user-a"
    echo "        user-b"
    echo "    ACL information:"
    echo "        ALL"
    echo "        iqn.x:node-a"
    echo "        iqn.x:node-b"
    ;;
"account show") printf 'Account list:\n    user-b\n    user-a\n' ;;
"conn show")
    for one in 3:a 4:b 5:a; do
        printf 'Session: %s\n    Connection: 0\n        Initiator: iqn.x:node-%s\n' "${one%:*}" "${one#*:}"
    done
    ;;
esac"#;

fn shared() -> Node {
    let node = server("provisioner-tgt/provision");
    node.command("tgtadm", TGTADM);
    node.command(
        "tgt-admin",
        "[ \"$1\" != --show ] || exec tgtadm --op show --mode target",
    );
    node.write("volumes/pv-1.img", "content");
    node.write("etc/tgt/conf.d/pv-1.conf", SHARED);
    node
}

/// The calls of tgt's commands.
fn tgt_calls(node: &Node) -> Vec<String> {
    let calls = node.calls();
    let calls = calls.lines().filter(|call| call.starts_with("tgt"));
    calls
        .map(|call| call.replace("tgtadm --lld iscsi --mode ", ""))
        .collect()
}

#[test]
fn a_node_is_cut_off_or_nothing_is_written() {
    let many = ("ACCESS_MODES", "ReadWriteMany");
    let new = ("INITIATOR_NAME", "iqn.x:node-c");
    let mut wrong = Vec::new();
    // tgtadm may exit with 0 where it failed.
    for (operation, fails, who, status) in [
        ("detach", "target show", many, "0"),
        ("detach", "target show", many, "107"),
        ("detach", "target unbind", many, "0"),
        ("detach", "account unbind", many, "0"),
        ("detach", "account show", many, "0"),
        ("detach", "account delete", many, "0"),
        ("detach", "account bind", many, "0"),
        ("detach", "conn show", many, "0"),
        ("detach", "conn delete", many, "0"),
        ("attach", "target show", new, "0"),
        ("attach", "account new", new, "0"),
        ("attach", "account bind", new, "0"),
        ("attach", "target bind", new, "0"),
        ("delete", "target show", many, "0"),
        ("delete", "target delete", many, "0"),
        ("expand", "target show", many, "0"),
    ] {
        let node = shared();
        let output = run_there(&node, operation, &[many, who, ("FAILS", fails), ("STATUS", status)]);
        let end = end(&output);
        let is_there = |path: &str, content| fs::read_to_string(node.at(path)).is_ok_and(|found| found == content);
        if !end.starts_with("75 ")
            || !end.contains("tgtd closed the socket")
            || !is_there("etc/tgt/conf.d/pv-1.conf", SHARED)
            || !is_there("volumes/pv-1.img", "content")
        {
            wrong.push(format!("{operation} without {fails}, {status}: {end}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    let node = shared();
    let output = run_there(&node, "detach", &[many, ("FAILS", "")]);
    assert!(output.status.success(), "{output:?}");
    let kept = SHARED.replace("initiator-name iqn.x:node-a\nincominguser user-a word-a\n", "");
    let config = fs::read_to_string(node.at("etc/tgt/conf.d/pv-1.conf")).unwrap();
    assert_eq!(config, kept);
    let calls = tgt_calls(&node);
    let of = |op: &str| -> Vec<&str> {
        calls
            .iter()
            .map(String::as_str)
            .filter(|call| call.contains(op))
            .collect()
    };
    assert_eq!(
        of("conn --op delete"),
        [
            "conn --op delete --tid 7 --sid 3 --cid 0",
            "conn --op delete --tid 7 --sid 5 --cid 0"
        ]
    );
    assert_eq!(
        of("target --op unbind"),
        ["target --op unbind --tid 7 --initiator-name iqn.x:node-a"]
    );
    // Between any two of them the target's list of users is without a gap.
    assert_eq!(
        of("account --op"),
        [
            "account --op unbind --tid 7 --user user-b",
            "account --op unbind --tid 7 --user user-a",
            "account --op show",
            "account --op delete --user user-a",
            "account --op bind --tid 7 --user user-b",
        ]
    );
}

#[test]
fn a_node_that_comes_to_others_does_not_disturb_them() {
    let node = shared();
    let new = [
        ("ACCESS_MODES", "ReadWriteMany"),
        ("INITIATOR_NAME", "iqn.x:node-c"),
        ("FAILS", ""),
    ];
    let output = run_there(&node, "attach", &new);
    assert!(output.status.success(), "{output:?}");
    let config = fs::read_to_string(node.at("etc/tgt/conf.d/pv-1.conf")).unwrap();
    assert!(
        config.contains("iqn.x:node-a\nincominguser user-a word-a\n"),
        "{config}"
    );
    assert!(
        config.contains("initiator-name iqn.x:node-c\nincominguser pv-1-"),
        "{config}"
    );
    let disturbing = |call: &String| call.contains("--op delete") || call.contains("--update");
    assert!(!tgt_calls(&node).iter().any(disturbing), "{}", node.calls());
}
