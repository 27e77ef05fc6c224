//! The program of client `s3` in its image, with an agent of the test's own and without a server.
#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
#[allow(dead_code)]
mod node;

use std::process::Output;

use node::{Node, refusal};

/// Runs no s3fs, but says what one says that asks a server with the bucket `bucket`: there is an object for the directory
/// `made`, and another tool's object under `uploaded`.
const AGENT: &str = r#"
check() {
    echo "Check bucket failed, S3 response: <Error><Code>$1</Code><Message>of the server</Message></Error>"
    echo "Failed to check bucket and directory for mount point : $2(host=h, message=of the server)"
    exit 75
}
not_found() { check "$1" "Bucket or directory$2 not found"; }
case "$*" in
*" closed"*) check AccessDenied "Invalid Credentials" ;;
*" nowhere:"*) not_found NoSuchBucket "(/x)" ;;
*" nowhere "*) not_found NoSuchBucket "" ;;
*compat_dir* | *" bucket "* | *" bucket:/made "*) ;;
*" bucket:/odd "*) echo "Remote mountpath /odd not found, this may be resolved with the compat_dir option." && exit 75 ;;
*) not_found NoSuchKey "(/x)" ;;
esac >&2
case "$*" in
*" bucket:/uploaded "* | *" bucket:/odd "*) : >"$NODE/target/letter" ;;
esac"#;

fn mount(path: &str, options: &str) -> (Node, Output) {
    let node = Node::new("client-s3/s3");
    for folder in ["state", "target"] {
        std::fs::create_dir(node.at(folder)).unwrap();
    }
    for key in ["access-key-id", "secret-access-key"] {
        node.write(format!("secrets/v1/{key}"), "key");
    }
    node.command("agent", AGENT);
    let target = node.at("target").display().to_string();
    let source = format!("https://server/{path}");
    let output = node.run(
        "v1",
        &["mount", &source, &target],
        &[("MOORING_MOUNT_OPTIONS", options)],
    );
    (node, output)
}

/// How often s3fs was started, and how often with `compat_dir`.
fn starts(node: &Node) -> (usize, usize) {
    let calls = node.calls();
    (
        calls.matches("agent service daemon").count(),
        calls.matches("compat_dir").count(),
    )
}

#[test]
fn a_prefix_of_objects_that_another_tool_uploaded_is_mounted() {
    for path in ["bucket/uploaded", "bucket/odd"] {
        let (node, output) = mount(path, "uid=1000,gid=2000,umask=0027,mp_umask=0027");
        assert!(output.status.success(), "{path}: {output:?}");
        assert_eq!(starts(&node), (2, 1), "{path}");
        let calls = node.calls();
        assert!(
            calls.contains(" -o uid=1000 -o gid=2000 -o umask=0027 -o mp_umask=0027"),
            "{calls}"
        );
    }
}

#[test]
fn a_bucket_and_a_directory_with_its_own_object_are_mounted_at_once_even_if_they_are_empty() {
    for path in ["bucket", "bucket/made"] {
        let (node, output) = mount(path, "");
        assert!(output.status.success(), "{path}: {output:?}");
        assert_eq!(starts(&node), (1, 0), "{path}");
    }
}

#[test]
fn a_missing_bucket_a_missing_prefix_and_a_refusal_are_told_apart() {
    for (path, words) in [
        ("nowhere", "server has no bucket nowhere: make it"),
        ("nowhere/photos", "server has no bucket nowhere: make it"),
        (
            "bucket/photos",
            "bucket bucket of the server server has no object under /photos: upload one",
        ),
        (
            "closed",
            "does not let the key in the volume's Secret use the bucket closed",
        ),
        (
            "closed/photos",
            "does not let the key in the volume's Secret use the bucket closed",
        ),
    ] {
        let (_, output) = mount(path, "");
        let said = refusal(&output);
        assert!(said.contains(words), "{path}: {said}");
    }
}
