use crate::sys::fake::{Fake, target};
use crate::volume::job::{MountError, Secrets};
use crate::worker::clients::kernel;
use crate::worker::task::MountTask;
use crate::worker::task::tests::task;
use rustix::io::Errno;

const LINE: &str = "client=smb,source=//10.0.0.4/volumes/a";

fn secrets(password: &str) -> Secrets {
    let entries = [("username", "tom"), ("password", password)];
    Secrets(
        entries
            .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
            .into(),
    )
}

fn by_tom(line: &str) -> MountTask {
    MountTask {
        secrets: secrets("hunter2"),
        ..task(line)
    }
}

fn try_with(fake: &Fake, line: &str) -> Result<(), MountError> {
    kernel::mount(fake, None, &by_tom(line))
}

#[test]
fn the_newest_version_is_mounted_from_the_host_s_network_for_the_secret_s_user() {
    let fake = Fake::default();
    try_with(&fake, &format!("{LINE}/,mount-options=seal")).unwrap();
    assert_eq!(
        fake.new_mounts(),
        [
            "cifs //10.0.0.4/volumes/a vers=3.1.1,ip=10.0.0.4,port=445,iocharset=utf8,nodfs,seal,\
          file_mode=0777,dir_mode=0777,password=hunter2,username=tom"
        ]
    );
    assert_eq!(fake.mounts_on(&target()), 1);
    let calls = fake.calls();
    let place = |name: &str| calls.iter().position(|call| call == name).unwrap();
    assert!(place("resolve") < place("enter_host_network"), "{calls:?}");
    assert!(place("enter_host_network") < place("new_mount"), "{calls:?}");
    assert!(!calls.contains(&"run".to_owned()), "no program is needed");
    // A second time it is there.
    try_with(&fake, LINE).unwrap();
    assert_eq!((fake.new_mounts().len(), fake.mounts_on(&target())), (1, 1));
}

#[test]
fn a_pod_s_group_has_the_files() {
    let fake = Fake::default();
    let task = MountTask {
        fs_group: Some(2000),
        ..by_tom(LINE)
    };
    kernel::mount(&fake, None, &task).unwrap();
    let mounts = fake.new_mounts();
    assert!(
        mounts[0].contains("gid=2000,file_mode=0770,dir_mode=02770"),
        "{mounts:?}"
    );
}

#[test]
fn a_share_for_everybody_takes_no_secret_and_none_is_sent() {
    let fake = Fake::default();
    try_with(&fake, &format!("{LINE},mount-options=sec=none")).unwrap();
    let mounts = fake.new_mounts();
    assert!(
        !mounts[0].contains("tom") && !mounts[0].contains("hunter2"),
        "{mounts:?}"
    );
    let fake = Fake::default();
    let error = kernel::mount(&fake, None, &task(LINE)).unwrap_err();
    assert!(error.to_string().contains("mooring.dev/vcs"), "{error}");
    assert!(fake.calls().is_empty());
}

#[test]
fn the_next_address_of_a_server_is_tried_where_one_can_t_be_reached() {
    let fake = Fake::default()
        .host("nas", &["[2001:db8::4]:0", "10.0.0.4:0"])
        .fail("new_mount", 0, Errno::NETUNREACH);
    try_with(&fake, "client=smb,source=//nas/volumes").unwrap();
    let mounts = fake.new_mounts();
    assert!(
        mounts[0].contains("ip=2001:db8::4,") && mounts[1].contains("ip=10.0.0.4,"),
        "{mounts:?}"
    );
}

#[test]
fn every_failure_says_what_to_do_and_nothing_of_the_secret() {
    for (errno, category, words) in [
        (Errno::NODEV, "node", "modprobe -a cifs"),
        (Errno::LIBACC, "node", "nls_utf8"),
        (
            Errno::CONNREFUSED,
            "failed",
            "no SMB server listens on port 445 of 10.0.0.4",
        ),
        (Errno::ACCESS, "failed", "does not take the user and password"),
        (Errno::KEYREJECTED, "failed", "does not take the user and password"),
        (Errno::KEYEXPIRED, "failed", "has expired"),
        (Errno::NOENT, "failed", "no share or no directory volumes/a"),
        (Errno::OPNOTSUPP, "failed", "does not speak SMB 3.1.1"),
        (Errno::REMOTE, "failed", "refers to another server"),
        (Errno::NETUNREACH, "failed", "no way to 10.0.0.4"),
        (Errno::HOSTDOWN, "timeout", "10.0.0.4 did not answer"),
        (Errno::INPROGRESS, "timeout", "10.0.0.4 did not answer"),
        (Errno::IO, "failed", "dmesg"),
    ] {
        let error = try_with(&Fake::default().fail("new_mount", 0, errno), LINE).unwrap_err();
        assert_eq!(error.category(), category, "{error}");
        let error = error.to_string();
        assert!(error.contains(words), "{error}");
        assert!(!error.contains("hunter2") && !error.contains("tom"), "{error}");
    }
    let lost = Fake::default().fail("enter_host_network", 0, Errno::SRCH);
    assert_eq!(try_with(&lost, LINE).unwrap_err().category(), "node");
    assert!(lost.new_mounts().is_empty(), "nothing is mounted in a Pod's network");
}

#[test]
fn whatever_makes_no_sense_is_refused_before_anything_happens() {
    for line in [
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
    ] {
        let fake = Fake::default();
        let error = try_with(&fake, line).unwrap_err();
        assert!(matches!(error, MountError::BadOptions(_)), "{line}: {error}");
        assert!(fake.calls().is_empty(), "{line}");
    }
}

#[test]
fn a_server_that_the_kernel_knows_by_another_name_is_known_by_its_address() {
    let shown = |address: &str| {
        Fake::default().host("nas", &["10.0.0.4:0"]).mounted_with(
            &target(),
            "//10.0.0.4/volumes",
            "cifs",
            &format!("addr={address}"),
        )
    };
    let fake = shown("10.0.0.4");
    try_with(&fake, "client=smb,source=//nas/volumes").unwrap();
    assert!(fake.new_mounts().is_empty());
    for (fake, line) in [
        (shown("10.0.0.4"), "client=smb,source=//nas/other"),
        (shown("10.0.0.9"), "client=smb,source=//nas/volumes"),
    ] {
        let error = try_with(&fake, line).unwrap_err();
        assert!(matches!(error, MountError::Occupied { .. }), "{error}");
    }
}

#[test]
fn what_goes_to_the_kernel_is_printed_without_the_secret() {
    let printed = format!("{:?}", by_tom(LINE));
    assert!(
        printed.contains("password") && !printed.contains("hunter2"),
        "{printed}"
    );
}
