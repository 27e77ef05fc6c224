use crate::sys::fake::{Fake, target};
use crate::volume::job::MountError;
use crate::worker::clients::remote::tests::{
    assert_each_failure_is_told, assert_known_by_its_address, assert_mounted_from_the_host_s_network,
    assert_refused_before_anything_happens,
};
use crate::worker::clients::self_mode;
use crate::worker::task::tests::task;
use nix::errno::Errno;

const LINE: &str = "client=nfs,source=10.0.0.4:/exports/a";

fn try_with(fake: &Fake, line: &str) -> Result<(), MountError> {
    self_mode::mount(fake, None, &task(line))
}

#[test]
fn the_newest_version_is_mounted_from_the_host_s_network() {
    assert_mounted_from_the_host_s_network(
        try_with,
        &format!("{LINE}/,mount-options=soft,nconnect=2"),
        LINE,
        "nfs4 10.0.0.4:/ vers=4.2,addr=10.0.0.4,soft,nconnect=2",
    );
}

#[test]
fn a_server_of_an_older_version_is_mounted_by_that() {
    let fake = Fake::default()
        .fail("new_mount", 0, Errno::EPROTONOSUPPORT)
        .fail("new_mount", 0, Errno::EINVAL);
    try_with(&fake, LINE).unwrap();
    assert_eq!(
        fake.new_mounts(),
        [
            "nfs4 10.0.0.4:/ vers=4.2,addr=10.0.0.4",
            "nfs4 10.0.0.4:/ vers=4.1,addr=10.0.0.4",
            "nfs4 10.0.0.4:/ vers=4.0,addr=10.0.0.4",
        ]
    );
}

#[test]
fn a_version_that_was_asked_for_is_the_only_one() {
    let fake = Fake::default().fail("new_mount", 0, Errno::EPROTONOSUPPORT);
    let error = try_with(&fake, &format!("{LINE},mount-options=vers=4.1"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("10.0.0.4 does not speak NFS 4.1:"), "{error}");
    assert_eq!(fake.new_mounts().len(), 1);
}

#[test]
fn version_3_is_mounted_where_its_locks_are_kept_or_not_asked_for() {
    let line = |options: &str| format!("{LINE},mount-options={options}");
    let without = Fake::default();
    let error = try_with(&without, &line("vers=3")).unwrap_err();
    assert_eq!(error.category(), "node");
    let words = error.to_string();
    assert!(words.contains("nfs-locks") && words.contains("nolock"), "{words}");
    assert!(without.new_mounts().is_empty());
    try_with(&without, &line("vers=3,nolock")).unwrap();
    assert_eq!(
        without.new_mounts(),
        ["nfs 10.0.0.4:/exports/a vers=3,addr=10.0.0.4,nolock"]
    );

    let with = Fake::default().with_statd();
    try_with(&with, &line("vers=3")).unwrap();
    assert_eq!(with.new_mounts(), ["nfs 10.0.0.4:/exports/a vers=3,addr=10.0.0.4"]);
    let calls = with.calls();
    let place = |name: &str| calls.iter().position(|call| call == name).unwrap();
    assert!(place("enter_host_network") < place("has_rpc_program"), "{calls:?}");

    assert!(!calls.contains(&"directory_of".to_owned()), "the server walks");
    for (errno, words) in [
        (Errno::ECONNREFUSED, "rpcbind"),
        (Errno::ENODEV, "modprobe nfsv3"),
        (Errno::ENOENT, "see how it is exported"),
    ] {
        let fake = Fake::default().fail("new_mount", 0, errno);
        let error = try_with(&fake, &line("vers=3,nolock")).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn each_address_of_a_name_is_tried_and_the_name_stays_in_the_mount_table() {
    let fake = Fake::default()
        .host("nas", &["[2001:db8::4]:0", "10.0.0.4:0"])
        .fail("new_mount", 0, Errno::ENETUNREACH);
    try_with(&fake, "client=nfs,source=nas:/a").unwrap();
    assert_eq!(
        fake.new_mounts(),
        [
            "nfs4 nas:/ vers=4.2,addr=2001:db8::4",
            "nfs4 nas:/ vers=4.2,addr=10.0.0.4"
        ]
    );
    assert_eq!(fake.sources_on(&target()), ["nas:/a"]);
    let fake = Fake::default().host("nas", &["[2001:db8::4]:0"]);
    let error = try_with(&fake, "client=nfs,source=nas:/a,mount-options=proto=tcp").unwrap_err();
    assert!(
        error.to_string().contains("has no address for mount option proto=tcp"),
        "{error}"
    );
}

#[test]
fn every_failure_says_what_to_do() {
    let failures = [
        (Errno::ENODEV, "node", "modprobe nfsv4"),
        (
            Errno::ECONNREFUSED,
            "failed",
            "no NFS server listens on port 2049 of 10.0.0.4",
        ),
        (Errno::EACCES, "failed", "add the node's own address"),
        (Errno::EPERM, "failed", "add the node's own address"),
        (Errno::ENOENT, "failed", "has no such path for this node"),
        (Errno::ENETUNREACH, "failed", "no route to 10.0.0.4"),
        (Errno::ETIMEDOUT, "timeout", "10.0.0.4 did not answer"),
        (Errno::EHOSTUNREACH, "timeout", "10.0.0.4 did not answer"),
        (Errno::EIO, "failed", "Input/output error"),
    ];
    assert_each_failure_is_told(try_with, LINE, &failures, &[]);
    for (errno, words) in [
        (Errno::ENOENT, "has no such path for this node"),
        (Errno::EACCES, "add the node's own address"),
        (
            Errno::ENOTDIR,
            "failed to mount 10.0.0.4:/exports/a as nfs4: Not a directory",
        ),
    ] {
        let error = try_with(&Fake::default().fail("directory_of", 0, errno), LINE).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let error = try_with(&Fake::default(), "client=nfs,source=nowhere:/a")
        .unwrap_err()
        .to_string();
    assert!(error.contains("nowhere") && error.contains("DNS"), "{error}");
}

#[test]
fn a_volume_that_makes_no_sense_is_refused_before_any_system_call() {
    let lines = [
        "client=nfs",
        "client=nfs,source=10.0.0.4",
        "client=nfs,source=/dev/vda1",
        "client=nfs,source=10.0.0.4:/a,fs-type=ext4",
        "client=nfs,source=10.0.0.4:/a,mount-options=addr=10.0.0.9",
        "client=other,source=10.0.0.4:/a,fs-type=nfs4,mount-options=addr=10.0.0.9",
        "client=nfs4,source=10.0.0.4:/a,mount-options=clientaddr=10.0.0.9",
        "client=nfs,source=10.0.0.4:/a,mount-options=vers=2",
        "client=nfs,source=10.0.0.4:/a,mount-options=source=other:/b",
    ];
    assert_refused_before_anything_happens(try_with, &lines);
}

#[test]
fn a_server_that_the_kernel_knows_by_another_name_is_known_by_its_address() {
    let (same, other) = ("client=nfs,source=nas:/a", "client=nfs,source=nas:/b");
    assert_known_by_its_address(try_with, ("nfs4", "10.0.0.4:/a"), same, other);
}

#[test]
fn something_else_on_the_target_is_an_error() {
    let fake = Fake::default().mounted(&target(), "10.0.0.4:/other", "nfs4");
    let error = try_with(&fake, LINE).unwrap_err();
    assert!(matches!(error, MountError::Occupied { .. }), "{error}");
}

#[test]
fn a_link_on_the_server_leads_to_no_other_directory() {
    for path in ["a/x", "a/x/deeper"] {
        let fake = Fake::default().link("10.0.0.4:/exports/a/x", "10.0.0.4:/exports/b");
        let result = try_with(&fake, &format!("client=nfs,source=10.0.0.4:/exports/{path}"));
        let found = fake.sources_on(&target());
        assert!(found.is_empty(), "another directory is mounted: {found:?}");
        let error = result.unwrap_err().to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }
}
