use super::CheckError;
use crate::volume::clients::Speaker::{Administrator, Attach, Image, Tenant};
use crate::volume::{NodeAccess, Speaker, Volume};

fn check(speaker: Speaker, line: &str) -> Result<(), CheckError> {
    let granted = ["log-file=/var/log/x".to_owned()];
    Volume::from_options(&options(line)).unwrap().check(speaker, &granted)
}

/// `client=x;source=y`: a source may have commas.
fn options(line: &str) -> std::collections::BTreeMap<String, String> {
    let pairs = line.split(';').map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn storage_elsewhere_passes() {
    for line in [
        "client=nfs;source=10.10.2.4:/exports/a..b;fs-type=nfs4;mount-options=vers=4.1,ro",
        "client=nfs;source=[fe80::1%eth0]:/x y",
        "client=smb;source=//server/share;fs-type=cifs;mount-options=uid=5,log-file=/var/log/x",
        "client=smb;source=//2001:db8::4/volumes/ä",
        "client=x;source=//server/share;fs-type=cifs",
        "client=s3;source=https://[fe80::1]:9000/bucket/prefix;region=eu-1;path-style=no;size-gi=5",
        "client=local;source=pvc-1.img;fs-type=xfs",
        "client=sshfs;source=tom@[fe80::1]:/srv/x;port=22;host-key-check=yes",
        "client=sshfs;source=files:x;port=",
        "client=rbd;source=rbd://10.0.0.4:6789,10.0.0.5/pool/space/image;fs-type=ext4;mount-options=noatime;driver=kernel",
        "client=cephfs;source=[v2:10.0.0.4:3300,v1:10.0.0.4:6789]:/volumes/a;user=tom;fs-name=a",
        "client=block;source=iscsi://10.0.0.4:3261/iqn.2026-01.com.example:disk/3;initiator=iqn.2026-01.com.example:node",
        "client=iscsi;source=iscsi://10.0.0.4:3261,10.0.1.4/iqn.2026-01.com.example:disk/3",
        "client=block;source=nbd://10.0.0.4/disk;fs-type=raw;io-timeout=20",
        "client=block;source=nfs://[fe80::1]/exports/volumes/disk 1",
        "client=block;source=nfs://h/.hidden/..a/...",
        "client=iscsi;source=iscsi://h/iqn.x:t/0",
        "client=glusterfs;source=a.svc:/vol/dir;backup-servers=b:10.0.0.4",
        "client=pool",
        "client=acme;source=bucket/prefix;storagePool=/exports;fs-type=acme",
    ] {
        assert_eq!(check(Image, line), Ok(()), "{line}");
        assert_eq!(check(Administrator, line), Ok(()), "{line}");
    }
}

#[test]
fn what_gives_out_the_node_is_refused() {
    for line in [
        "client=x;source=/",
        "client=x;source=/dev/vda1;fs-type=ext4",
        "client=x;source=//dev/vda1;fs-type=ext4",
        "client=ext4;source=//dev/loop1",
        "client=ext4;source=///dev/loop1",
        "client=sshfs;source=//dev/loop1",
        "client=smb;source=/dev/loop1",
        "client=x;source=./dev/vda1",
        "client=x;source=../dev/vda1",
        "client=x;source=bucket/../../dev/vda1",
        "client=x;source=UUID=1-2",
        "client=x;source=label=root",
        "client=x;source=server:/exports/../etc",
        "client=x;source=server:../etc",
        "client=x;source=a;fs-type=overlay",
        "client=proc;source=a",
        "client=cgroup;source=a",
        "client=x;source=a;mount-options=source=/dev/vda1",
        "client=x;source=a;mount-options=logdev=/dev/vda1",
        "client=x;source=a;mount-options=credentials=etc/passwd",
        "client=x;source=a;mount-options=trans=unix",
        "client=x;source=a;mount-options=suid",
        "client=x;source=a;mount-options=ro,dev",
    ] {
        for speaker in [Tenant, Image] {
            let refused = check(speaker, line);
            assert!(matches!(refused, Err(CheckError::Node(_))), "{line}: {refused:?}");
        }
    }
}

/// What is a server's name to one client is a device to another, so both are said by one record.
#[test]
fn the_form_of_a_source_and_the_type_that_it_is_mounted_as_belong_together() {
    let by_type = check(Administrator, "client=smb;source=//dev/loop1;fs-type=ext4");
    assert!(matches!(by_type, Err(CheckError::FsType { .. })), "{by_type:?}");
    for line in [
        "client=sshfs;source=//dev/loop1",
        "client=sshfs;source=letters",
        "client=nfs;source=fd00::10%a,b:/x",
        "client=s3;source=https://fd00::10,h/bucket",
        "client=sshfs;source=[-oProxyCommand=sh]:/x",
        "client=sshfs;source=-oProxyCommand=sh@h:/x",
        "client=sshfs;source=u@-h:/x",
        "client=nfs;source=/dev/loop1",
        "client=nfs;source=a,b:/x",
        "client=smb;source=//server",
        "client=glusterfs;source=-x:/vol",
        "client=glusterfs;source=server:vol",
        "client=rbd;source=rbd://m/pool/a,b",
        "client=block;source=iscsi://h,-x/iqn/0",
        "client=block;source=iscsi://h,/iqn/0",
        "client=block;source=nbd://h,x/disk",
        "client=block;source=nfs://h:2049/exports/disk",
        "client=block;source=nfs://h/a,driver=file/disk",
        // Two names of one device.
        "client=block;source=iscsi://h/iqn.x:t/010",
        "client=iscsi;source=iscsi://h/iqn.x:t/010",
        "client=iscsi;source=iscsi://h:03260/iqn.x:t/1",
        "client=block;source=nbd://h:010809/e",
        "client=block;source=nfs://h//a/disk",
        "client=block;source=nfs://h/./disk",
        "client=block;source=nfs://h/a/../disk",
        "client=iscsi;source=nbd://h/x",
        "client=s3;source=https://tom@h/bucket",
        "client=local;source=../x",
        "client=pool;source=x",
        "client=nfs",
    ] {
        let refused = check(Administrator, line);
        assert!(matches!(refused, Err(CheckError::Source { .. })), "{line}: {refused:?}");
        assert!(check(Image, line).is_err(), "{line}");
    }
}

#[test]
fn an_ipv6_address_is_refused_with_the_reason_where_the_program_reads_none() {
    for line in [
        "client=glusterfs;source=[fd00::10]:/vol",
        "client=glusterfs;source=fd00::10:/vol",
        "client=glusterfs;source=a:/vol;backup-servers=fd00::10",
        "client=glusterfs;source=a:/vol;backup-servers=[fd00::10]:b",
    ] {
        let error = check(Image, line).unwrap_err().to_string();
        assert!(error.contains("GlusterFS reads no IPv6 address"), "{error}");
    }
}

#[test]
fn an_option_that_is_on_no_list_is_refused_and_so_is_a_value_that_is_not_what_it_should_be() {
    for (line, words) in [
        (
            "client=nfs;source=a:/b;server=c",
            "it has source, mount-options, fs-type, client-image;",
        ),
        (
            "client=sshfs;source=a:/b;Port=22",
            "host-key-check; remove it, or correct its name",
        ),
        ("client=sshfs;source=a:/b;port=22x", "write a port's number"),
        ("client=sshfs;source=a:/b;host-key-check=no", "write yes or accept-new"),
        ("client=glusterfs;source=a:/b;backup-servers=-x", "write servers' names"),
        (
            "client=glusterfs;source=a:/b;backup-servers=b,c",
            "write servers' names",
        ),
        (
            "client=block;source=nbd://a/b;initiator=a,b",
            "write an initiator's name",
        ),
        (
            "client=block;source=nbd://a/b;io-timeout=-1",
            "write a number of seconds",
        ),
        ("client=rbd;source=rbd://a/b/c;driver=x", "write kernel or fuse"),
        ("client=rbd;source=rbd://a/b/c;fs-type=btrfs", "use ext4, xfs or raw"),
        ("client=local;source=a.img;fs-type=btrfs", "use ext4 or xfs"),
        (
            "client=x;source=a;kubernetes.io/fsType=ext4",
            "options of letters, digits",
        ),
    ] {
        for speaker in [Image, Administrator] {
            let error = check(speaker, line).unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}

#[test]
fn an_ipv6_address_is_a_server_of_every_client_that_reads_one_with_brackets_and_without_them() {
    for address in ["fd00::10", "[fd00::10]", "::1", "[::ffff:10.0.0.1]"] {
        for (client, source) in [
            ("nfs", "{}:/exports"),
            ("smb", "//{}/share"),
            ("sshfs", "tom@{}:/srv"),
            ("cephfs", "{},mon,{}:/dir"),
            ("rbd", "rbd://{},{}/pool/image"),
            ("block", "iscsi://{},h:3261,{}/iqn/1"),
            ("block", "nbd://{}/export"),
            ("block", "nfs://{}/dir/file"),
            ("iscsi", "iscsi://{},{}/iqn/1"),
            ("s3", "https://{}/bucket"),
        ] {
            let source = source.replace("{}", address);
            let volume = Volume::from_options(&options(&format!("client={client};source={source}"))).unwrap();
            assert_eq!(volume.check(Image, &[]), Ok(()), "{source}");
            assert_eq!(volume.server(), address.trim_matches(['[', ']']), "{source}");
            // Admission policies judge the source as it is written.
            let pattern = crate::volume::clients::record(client, "").unwrap().source.pattern;
            assert!(super::matches(pattern, &source), "{source}");
        }
    }
}

/// Proves: M5
#[test]
fn a_tenant_says_less_than_an_image() {
    for line in [
        "client=nfs;source=a:/b;mount-options=ro,noatime",
        "client=rbd;source=rbd://a/b/c;fs-type=xfs;user=tom;io-timeout=9",
        "client=sshfs;source=a:/b;host-key-check=accept-new",
        "client=acme;source=a:b",
    ] {
        assert_eq!(check(Tenant, line), Ok(()), "{line}");
    }
    for line in [
        "client=nfs;source=a:/b;mount-options=vers=4.1",
        "client=nfs;source=a:/b;fs-type=nfs4",
        "client=rbd;source=rbd://a/b/c;fs-type=raw",
        "client=sshfs;source=a:/b;port=23",
        "client=glusterfs;source=a:/b;backup-servers=c",
        "client=block;source=iscsi://a/b/0;initiator=iqn.x",
        "client=iscsi;source=iscsi://a/b/0;initiator=iqn.x",
        "client=cephfs;source=a:/b;fs-name=c",
        "client=acme;source=a:b;pool=c",
        "client=acme;source=a:b;client-image=c",
    ] {
        assert_eq!(check(Image, line), Ok(()), "{line}");
        let error = check(Tenant, line).unwrap_err().to_string();
        assert!(error.contains("use a PersistentVolumeClaim"), "{line}: {error}");
    }
}

#[test]
fn an_administrator_may_name_the_node_with_a_client_that_is_not_known_and_that_is_seen() {
    for source in ["/dev/vda1", "//dev/vda1", "./x", "UUID=1-2"] {
        let volume = Volume::from_options(&options(&format!("client=disk;fs-type=ext4;source={source}"))).unwrap();
        assert_eq!(volume.check(Administrator, &[]), Ok(()), "{source}");
        assert!(volume.is_of_the_node(), "{source}");
        let refused = volume.check(Image, &[]);
        assert!(
            matches!(refused, Err(CheckError::Node(NodeAccess::Source(_)))),
            "{source}"
        );
    }
    for line in [
        "client=smb;source=//dev/vda1",
        "client=x;source=a:/dev",
        "client=x;fs-type=tmpfs",
    ] {
        assert!(
            !Volume::from_options(&options(line)).unwrap().is_of_the_node(),
            "{line}"
        );
    }
}

#[test]
fn a_disk_of_the_node_is_an_administrator_s_to_give_or_is_what_was_attached() {
    let disk = "client=node-disk;fs-type=xfs;source=serial://0b1c2d3e-0000-4a5b-8";
    for speaker in [Administrator, Attach] {
        assert_eq!(check(speaker, disk), Ok(()), "{speaker:?}");
    }
    for line in [
        disk,
        "client=node-disk;source=SERIAL://1",
        "client=acme;source=serial://1",
    ] {
        for speaker in [Tenant, Image] {
            let refused = check(speaker, line);
            let by_source = matches!(refused, Err(CheckError::Node(NodeAccess::Source(_))));
            assert!(by_source, "{speaker:?} {line}");
        }
        assert!(Volume::from_options(&options(line)).unwrap().is_of_the_node());
    }
    for line in [
        "client=node-disk;source=/dev/vda",
        "client=node-disk;source=serial://../x",
        "client=node-disk;source=serial://",
        "client=node-disk;source=serial://1;fs-type=raw",
        "client=acme;source=serial://1",
        "client=acme;source=/dev/vda",
    ] {
        assert!(check(Attach, line).is_err(), "{line}");
    }
    assert_eq!(check(Attach, "client=nfs;source=10.0.0.1:/x"), Ok(()));
}

#[test]
fn the_server_is_found_in_every_way_of_writing_a_source_and_nowhere_else() {
    for (source, server) in [
        ("10.10.2.4:/exports", "10.10.2.4"),
        ("tom@files.example:/srv", "files.example"),
        ("//nas/share/deep", "nas"),
        ("https://s3.example/bucket", "s3.example"),
        ("https://s3.example:9000/bucket/prefix", "s3.example"),
        ("iscsi://10.0.0.4/iqn.2025-01.dev.mooring:pvc-1/1", "10.0.0.4"),
        ("https://[fe80::1]:9000/bucket", "fe80::1"),
        ("[fe80::1]:/exports", "fe80::1"),
        ("tom@[fe80::1]:/exports", "fe80::1"),
        // What a tenant may write into a path names no server.
        ("10.10.2.4:/exports/a@victim:/b", "10.10.2.4"),
        ("10.10.2.4:/exports/a://victim/b", "10.10.2.4"),
        ("//nas/share/a@victim:/b", "nas"),
        ("disk.img", "disk.img"),
        ("", ""),
    ] {
        let volume = Volume::from_line(&format!("client=x,source={source},server=victim")).unwrap();
        assert_eq!(volume.server(), server, "{source}");
    }
}
