use crate::grant::Grant;
use crate::grant::request::MountRequest;
use crate::grant::tests::granted;
use crate::sys::fake::Fake;
use crate::volume::job::{MountError, Secrets};
use crate::volume::pod_group::PodGroup;
use crate::worker::clients::remote::tests::{
    assert_each_failure_is_told, assert_known_by_its_address, assert_mounted_from_the_host_s_network,
    assert_refused_before_anything_happens,
};
use crate::worker::clients::self_mode;
use crate::worker::task::tests::{asked, task};
use nix::errno::Errno;

const LINE: &str = "client=smb,source=//10.0.0.4/volumes/a";

fn secrets(password: &str) -> Secrets {
    let entries = [("username", "tom"), ("password", password)];
    Secrets(
        entries
            .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
            .into(),
    )
}

fn asked_by_tom(line: &str) -> MountRequest {
    MountRequest {
        secrets: secrets("hunter2"),
        ..asked(line)
    }
}

fn by_tom(line: &str) -> Grant {
    granted(asked_by_tom(line))
}

fn try_with(fake: &Fake, line: &str) -> Result<(), MountError> {
    self_mode::mount(fake, None, &by_tom(line))
}

#[test]
fn the_newest_version_is_mounted_from_the_host_s_network_for_the_secret_s_user() {
    assert_mounted_from_the_host_s_network(
        try_with,
        &format!("{LINE}/,mount-options=seal"),
        LINE,
        "cifs //10.0.0.4/volumes/a \
         vers=3.1.1,ip=10.0.0.4,port=445,iocharset=utf8,nodfs,seal,file_mode=0777,dir_mode=0777,password=hunter2,username=tom",
    );
}

#[test]
fn a_pod_s_group_has_the_files() {
    let fake = Fake::default();
    let grant = granted(MountRequest {
        fs_group: Some(PodGroup::always(2000)),
        ..asked_by_tom(LINE)
    });
    self_mode::mount(&fake, None, &grant).unwrap();
    let mounts = fake.new_mounts();
    assert!(
        mounts[0].contains("gid=2000,file_mode=0770,dir_mode=02770"),
        "{mounts:?}"
    );
}

#[test]
fn an_open_share_needs_no_secret_and_sends_none() {
    let fake = Fake::default();
    try_with(&fake, &format!("{LINE},mount-options=sec=none")).unwrap();
    let mounts = fake.new_mounts();
    assert!(
        !mounts[0].contains("tom") && !mounts[0].contains("hunter2"),
        "{mounts:?}"
    );
    let fake = Fake::default();
    let error = self_mode::mount(&fake, None, &task(LINE)).unwrap_err();
    assert!(error.to_string().contains("mooring.dev/vcs"), "{error}");
    assert!(fake.calls().is_empty());
}

#[test]
fn the_next_address_of_a_server_is_tried_where_one_can_t_be_reached() {
    let fake = Fake::default()
        .host("nas", &["[2001:db8::4]:0", "10.0.0.4:0"])
        .fail("new_mount", 0, Errno::ENETUNREACH);
    try_with(&fake, "client=smb,source=//nas/volumes").unwrap();
    let mounts = fake.new_mounts();
    assert!(
        mounts[0].contains("ip=2001:db8::4,") && mounts[1].contains("ip=10.0.0.4,"),
        "{mounts:?}"
    );
}

#[test]
fn a_silent_server_does_not_reach_the_kernel_which_would_keep_all_others_waiting() {
    for (errno, category, words) in [
        (Errno::ETIMEDOUT, "timeout", "10.0.0.4 did not answer"),
        (
            Errno::ECONNREFUSED,
            "failed",
            "no SMB server listens on port 445 of 10.0.0.4",
        ),
    ] {
        let fake = Fake::default().fail("wait_for_smb", 0, errno);
        let error = try_with(&fake, LINE).unwrap_err();
        assert_eq!(error.category(), category, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(fake.new_mounts().is_empty());
    }
}

#[test]
fn every_failure_says_what_to_do_and_contains_no_secret() {
    let failures = [
        (Errno::ENODEV, "node", "modprobe -a cifs"),
        (Errno::ELIBACC, "node", "nls_utf8"),
        (
            Errno::ECONNREFUSED,
            "failed",
            "no SMB server listens on port 445 of 10.0.0.4",
        ),
        (Errno::EACCES, "failed", "does not take the user and password"),
        (Errno::EKEYREJECTED, "failed", "does not take the user and password"),
        (Errno::EKEYEXPIRED, "failed", "has expired"),
        (Errno::ENOENT, "failed", "no share or no directory volumes/a"),
        (Errno::EOPNOTSUPP, "failed", "does not speak SMB 3.1.1"),
        (Errno::EREMOTE, "failed", "refers to another server"),
        (Errno::ENETUNREACH, "failed", "no route to 10.0.0.4"),
        (Errno::EHOSTDOWN, "timeout", "10.0.0.4 did not answer"),
        (Errno::EINPROGRESS, "timeout", "10.0.0.4 did not answer"),
        (Errno::EIO, "failed", "dmesg"),
    ];
    assert_each_failure_is_told(try_with, LINE, &failures, &["hunter2", "tom"]);
}

#[test]
fn a_volume_that_makes_no_sense_is_refused_before_any_system_call() {
    let lines = [
        "client=smb",
        "client=smb,source=nas:/volumes",
        "client=smb,source=//10.0.0.4",
        "client=smb,source=//10.0.0.4/volumes/../other",
        "client=smb,source=//10.0.0.4/volumes,fs-type=ext4",
        "client=smb,source=//10.0.0.4/volumes,mount-options=ip=10.0.0.9",
        "client=other,source=//10.0.0.4/volumes,fs-type=cifs,mount-options=ip=10.0.0.9",
        "client=other,source=//10.0.0.4/volumes,fs-type=smb3,mount-options=unc=//10.0.0.9/x",
        "client=cifs,source=//10.0.0.4/volumes,mount-options=credentials=/etc/passwd",
        "client=smb3,source=//10.0.0.4/volumes,mount-options=vers=1.0",
    ];
    assert_refused_before_anything_happens(try_with, &lines);
}

#[test]
fn a_server_that_the_kernel_knows_by_another_name_is_known_by_its_address() {
    let (same, other) = ("client=smb,source=//nas/volumes", "client=smb,source=//nas/other");
    assert_known_by_its_address(try_with, ("cifs", "//10.0.0.4/volumes"), same, other);
}

#[test]
fn what_goes_to_the_kernel_is_printed_without_the_secret() {
    let printed = format!("{:?}", by_tom(LINE));
    assert!(
        printed.contains("password") && !printed.contains("hunter2"),
        "{printed}"
    );
}
