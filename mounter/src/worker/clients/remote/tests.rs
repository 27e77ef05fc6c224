//! What holds for both NFS and SMB: the tests of both call these functions.

use std::collections::BTreeSet;

use mooring_contract::volume::clients::record;
use nix::errno::Errno;

use super::source::RemoteSource;
use super::{Remote, each_once, text_of};
use crate::sys::fake::{Fake, target};
use crate::volume::job::MountError;
use crate::worker::clients::nfs::NfsPlan;
use crate::worker::clients::smb::SmbPlan;

#[test]
fn both_serve_what_their_records_name() {
    fn assert_served<R: Remote>() {
        let served: BTreeSet<_> = R::NAMES.iter().collect();
        let record = record(R::FS_TYPE, "").unwrap();
        assert_eq!(served, record.names.iter().collect());
    }
    assert_served::<NfsPlan>();
    assert_served::<SmbPlan>();
}

/// Mounts the volume of a line.
type Try = fn(&Fake, &str) -> Result<(), MountError>;

/// The name is resolved by the mounter's Pod, and the mount made in the host's network, by the kernel alone. A second
/// time nothing is done.
pub(in crate::worker::clients) fn assert_mounted_from_the_host_s_network(
    try_with: Try,
    first: &str,
    again: &str,
    mounted: &str,
) {
    let fake = Fake::default();
    try_with(&fake, first).unwrap();
    assert_eq!(fake.new_mounts(), [mounted]);
    assert_eq!(fake.mounts_on(&target()), 1);
    let calls = fake.calls();
    let place = |name: &str| calls.iter().position(|call| call == name).unwrap();
    assert!(place("resolve") < place("enter_host_network"), "{calls:?}");
    assert!(place("enter_host_network") < place("new_mount"), "{calls:?}");
    assert!(!calls.contains(&"run".to_owned()), "no program is needed");
    try_with(&fake, again).unwrap();
    assert_eq!((fake.new_mounts().len(), fake.mounts_on(&target())), (1, 1));
}

/// Each failure of the mount has this category and these words, and none of these secrets.
pub(in crate::worker::clients) fn assert_each_failure_is_told(
    try_with: Try,
    line: &str,
    failures: &[(Errno, &str, &str)],
    secrets: &[&str],
) {
    for (errno, category, words) in failures {
        let error = try_with(&Fake::default().fail("new_mount", 0, *errno), line).unwrap_err();
        assert_eq!(error.category(), *category, "{error}");
        let error = error.to_string();
        assert!(error.contains(words), "{error}");
        assert!(!secrets.iter().any(|secret| error.contains(secret)), "{error}");
    }
    let lost = Fake::default().fail("enter_host_network", 0, Errno::ESRCH);
    assert_eq!(try_with(&lost, line).unwrap_err().category(), "node");
    assert!(lost.new_mounts().is_empty(), "nothing is mounted in a Pod's network");
}

/// Each line is refused before any system call.
pub(in crate::worker::clients) fn assert_refused_before_anything_happens(try_with: Try, lines: &[&str]) {
    for line in lines {
        let fake = Fake::default();
        let error = try_with(&fake, line).unwrap_err();
        assert!(matches!(error, MountError::BadOptions(_)), "{line}: {error}");
        assert!(fake.calls().is_empty(), "{line}");
    }
}

/// What is mounted shows `shown` as its source. `same` is the same volume by its server's name `nas`, `other` is
/// another volume of that server.
pub(in crate::worker::clients) fn assert_known_by_its_address(
    try_with: Try,
    (fs_type, shown): (&str, &str),
    same: &str,
    other: &str,
) {
    let mounted = |address: &str| {
        let option = format!("addr={address}");
        let fake = Fake::default().host("nas", &["10.0.0.4:0"]);
        fake.mounted_with(&target(), shown, fs_type, &option)
    };
    let fake = mounted("10.0.0.4");
    try_with(&fake, same).unwrap();
    assert!(fake.new_mounts().is_empty());
    for (fake, line) in [(mounted("10.0.0.4"), other), (mounted("10.0.0.9"), same)] {
        let error = try_with(&fake, line).unwrap_err();
        assert!(matches!(error, MountError::Occupied { .. }), "{error}");
    }
}

/// Each source is read as this host and this text.
pub(in crate::worker::clients) fn assert_read<E: std::fmt::Debug>(
    read: impl Fn(&str) -> Result<RemoteSource, E>,
    sources: &[(&str, &str, &str)],
) {
    for (text, host, shown) in sources {
        let source = read(text).unwrap();
        assert_eq!((source.host.as_str(), source.text.as_str()), (*host, *shown), "{text}");
    }
}

#[test]
fn an_address_keeps_its_interface() {
    for (address, text) in [
        ("10.0.0.4:0", "10.0.0.4"),
        ("[2001:db8::4]:0", "2001:db8::4"),
        ("[fe80::1%3]:0", "fe80::1%3"),
    ] {
        assert_eq!(text_of(&address.parse().unwrap()), text);
    }
}

#[test]
fn each_address_is_tried_once() {
    let found: Vec<_> = ["[2001:db8::4]:0", "10.0.0.4:0", "10.0.0.4:0"]
        .map(|text| text.parse().unwrap())
        .into();
    assert_eq!(each_once(found.clone()), found[..2]);
}
