//! The FUSE programs of client images show the id of the volume as the source of its mount.
#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
#[allow(dead_code)]
mod node;

use std::fs;
use std::path::PathBuf;

use node::Node;

const ID: &str = "mooring:0123456789abcdef0123456789abcdef";

/// The calls of an image's program that mounts a source, with these files in its Secret.
fn calls(program: &str, source: &str, secret: &[&str], variables: &[(&str, &str)]) -> String {
    let node = Node::new(program);
    let images = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../images");
    for part in ["fuse.sh", "kernel.sh"] {
        let text = fs::read(images.join("client-cephfs").join(part)).unwrap();
        node.write(PathBuf::from("lib").join(part), text);
    }
    for key in secret {
        node.write(PathBuf::from("secrets/v1").join(key), "x\n");
    }
    node.write("state/there", "");
    node.command("sshfs", "");
    let output = node.run("v1", &["mount", source, "/target"], variables);
    assert!(output.status.success(), "{output:?}");
    node.calls()
}

#[test]
fn each_fuse_program_shows_the_id_of_the_volume() {
    let s3 = "https://server/bucket";
    let label = ("MOORING_SELINUX_LABEL", "u:r:t:s0:c1,c2");
    for (program, source, secret, variable, expected) in [
        (
            "client-sshfs/sshfs",
            "tom@server:/x",
            &["ssh-privatekey", "known_hosts"][..],
            None,
            format!(" -o fsname={ID} "),
        ),
        (
            "client-s3/s3",
            s3,
            &["access-key-id", "secret-access-key"],
            Some(label),
            format!(" -o fsname={ID},context=\"u:r:t:s0:c1\\,c2\" "),
        ),
        (
            "client-cephfs/cephfs",
            "server:/x",
            &["key", "user"],
            Some(("MOORING_OPTION_DRIVER", "fuse")),
            format!(" -o fsname={ID},subtype=ceph-fuse "),
        ),
    ] {
        let mut variables: Vec<_> = variable.into_iter().collect();
        let old = calls(program, source, secret, &variables);
        assert!(!old.contains("fsname="), "an agent that gives no id: {old}");
        variables.push(("MOORING_VOLUME_ID", ID));
        let calls = calls(program, source, secret, &variables);
        assert!(calls.contains(&expected), "{expected} is not in {calls}");
    }
}
