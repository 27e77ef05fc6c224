//! The programs of client images get what a volume says as arguments, whatever is in it: no shell reads it.
#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
#[allow(dead_code)]
mod node;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::JoinHandle;

use node::Node;

/// What a shell would do something with: it would make the file `$PWNED`, split the value, or replace it by the names
/// of files.
const HOSTILE: [&str; 8] = [
    "$(touch $PWNED)",
    "$(touch${IFS}$PWNED)",
    "`touch${IFS}$PWNED`",
    "x;touch${IFS}$PWNED",
    "x\"$(touch${IFS}$PWNED)",
    "*",
    "a b",
    "a\nb",
];

/// What no shell minds.
const HARMLESS: &str = "harmless0";

/// Writes down each argument whole, with a byte after it that no argument has.
const RECORD: &str = r#"{ printf '\001%s\000' "${0##*/}"; printf '%s\000' "$@"; } >>"$NODE/given""#;

/// Where a volume has a value. The value is in place of `{}`.
#[derive(Debug, Clone, Copy)]
enum Place {
    Source(&'static str),
    MountOptions(&'static str),
    /// A variable, such as `MOORING_OPTION_PORT`.
    Variable(&'static str),
    /// A key of the volume's Secret.
    Secret(&'static str),
}
use Place::{MountOptions, Secret, Source, Variable};

/// A client's program, with a volume that it mounts.
#[derive(Debug, Clone, Copy)]
struct Client {
    /// Below `images`.
    program: &'static str,
    source: &'static str,
    variables: &'static [(&'static str, &'static str)],
    secret: &'static [(&'static str, &'static str)],
    /// What else the node has.
    prepare: fn(&Node),
    places: &'static [Place],
}

const CEPH_SECRET: &[(&str, &str)] = &[("key", "QUJD"), ("user", "team")];
const CHAP: &[(&str, &str)] = &[("chap-username", "user"), ("chap-password", "password")];
const BY_KERNEL: &[(&str, &str)] = &[("MOORING_OPTION_DRIVER", "kernel")];

const CLIENTS: [Client; 9] = [
    Client {
        program: "client-sshfs/sshfs",
        source: "user@server:/path",
        variables: &[],
        secret: &[("ssh-privatekey", "key\n"), ("known_hosts", "server key\n")],
        prepare: |node| record(node, "sshfs", ""),
        places: &[
            Source("{}"),
            Source("{}@server:/path"),
            Source("user@{}:/path"),
            Source("user@server:/{}"),
            MountOptions("{}"),
            MountOptions("ServerAliveInterval={},ro"),
            Variable("MOORING_OPTION_PORT"),
            Variable("MOORING_OPTION_HOST_KEY_CHECK"),
            Secret("ssh-privatekey"),
            Secret("known_hosts"),
        ],
    },
    Client {
        program: "client-s3/s3",
        source: "https://server/bucket/prefix",
        variables: &[],
        secret: &[("access-key-id", "id"), ("secret-access-key", "key")],
        prepare: |node| record(node, "s3fs", ""),
        places: &[
            Source("{}"),
            Source("https://{}/bucket"),
            Source("https://server/{}"),
            Source("https://server/bucket/{}"),
            MountOptions("{}"),
            MountOptions("retries={},ro"),
            Variable("MOORING_OPTION_REGION"),
            Variable("MOORING_OPTION_PATH_STYLE"),
            Variable("MOORING_OPTION_SIZE_GI"),
            Secret("access-key-id"),
            Secret("secret-access-key"),
            Secret("ca.crt"),
        ],
    },
    Client {
        program: "client-glusterfs/glusterfs",
        source: "server:/volume/directory",
        variables: &[],
        secret: &[],
        prepare: |node| {
            for name in ["glusterfs", "stat", "mountpoint"] {
                record(node, name, "");
            }
        },
        places: &[
            Source("{}"),
            Source("{}:/volume"),
            Source("server:/{}"),
            Source("server:/volume/{}"),
            MountOptions("{}"),
            MountOptions("lru-limit={},ro"),
            Variable("MOORING_OPTION_BACKUP_SERVERS"),
        ],
    },
    Client {
        program: "client-cephfs/cephfs",
        source: "192.0.2.1:6789:/path",
        variables: &[],
        secret: CEPH_SECRET,
        prepare: |node| {
            node.write("proc/filesystems", "nodev\tproc\n");
            record(node, "mount", "[ \"$1\" != -i ]");
        },
        places: CEPHFS,
    },
    Client {
        program: "client-cephfs/cephfs",
        source: "192.0.2.1:6789:/path",
        variables: BY_KERNEL,
        secret: CEPH_SECRET,
        prepare: |node| {
            node.write("proc/filesystems", "nodev\tceph\n");
            // Whatever is asked for has an address.
            record(node, "getent", "echo '192.0.2.9 STREAM name'");
            record(node, "mount", READ_TABLE);
        },
        places: CEPHFS,
    },
    Client {
        program: "client-block/block",
        source: "iscsi://192.0.2.1/iqn.2020-01.com.example:target/1",
        variables: &[],
        secret: CHAP,
        prepare: |node| record(node, "qemu-img", "exit 1"),
        places: &[
            Source("{}"),
            Source("iscsi://{}/iqn.2020-01.com.example:target/1"),
            Source("iscsi://192.0.2.1,{}/iqn.2020-01.com.example:target/1"),
            Source("iscsi://192.0.2.1:{}/iqn.2020-01.com.example:target/1"),
            Source("iscsi://192.0.2.1/{}/1"),
            Source("iscsi://192.0.2.1/iqn.2020-01.com.example:target/{}"),
            Source("nbd://{}/export"),
            Source("nbd://192.0.2.1:{}/export"),
            Source("nbd://192.0.2.1/{}"),
            Source("nfs://{}/directory/file"),
            Source("nfs://192.0.2.1/{}"),
            Source("nfs://192.0.2.1/directory/{}"),
            MountOptions("{}"),
            MountOptions("data={},noatime"),
            Variable("MOORING_OPTION_INITIATOR"),
            Variable("MOORING_OPTION_IO_TIMEOUT"),
            Variable("MOORING_FS_TYPE"),
            Secret("chap-username"),
            Secret("chap-password"),
            Secret("node.session.auth.username"),
        ],
    },
    Client {
        program: "client-block/rbd",
        source: "rbd://192.0.2.1:6789/pool/namespace/image",
        variables: &[("MOORING_OPTION_DRIVER", "fuse")],
        secret: CEPH_SECRET,
        prepare: |node| record(node, "perl", ""),
        places: RBD,
    },
    Client {
        program: "client-block/rbd",
        source: "rbd://192.0.2.1:6789/pool/namespace/image",
        variables: BY_KERNEL,
        secret: CEPH_SECRET,
        prepare: |node| {
            node.write("sys/bus/rbd/there", "");
            record(node, "getent", "echo '192.0.2.9 STREAM name'");
            record(node, "perl", ADD_DEVICE);
        },
        places: RBD,
    },
    Client {
        program: "client-iscsi/iscsi",
        source: "iscsi://192.0.2.1/iqn.2020-01.com.example:target/1",
        variables: &[],
        secret: CHAP,
        prepare: |node| {
            for module in ["iscsi_tcp", "sd_mod"] {
                node.write(format!("sys/module/{module}/there"), "");
            }
            node.write("proc/net/unix", "0: 2 0 0 1 1 1 @ISCSIADM_ABSTRACT_NAMESPACE\n");
            node.write("etc/iscsi/plain.conf", "node.startup = manual\n");
            node.write(
                "etc/iscsi/initiatorname.iscsi",
                "InitiatorName=iqn.2025-01.dev.mooring:node-1\n",
            );
            node.write("run/mooring/iscsi/there", "");
            record(node, "iscsiadm", include_str!("support/iscsiadm.sh"));
            record(node, "perl", "");
        },
        places: &[
            Source("{}"),
            Source("iscsi://{}/iqn.2020-01.com.example:target/1"),
            Source("iscsi://192.0.2.1,{}/iqn.2020-01.com.example:target/1"),
            Source("iscsi://192.0.2.1:{}/iqn.2020-01.com.example:target/1"),
            Source("iscsi://192.0.2.1/{}/1"),
            Source("iscsi://192.0.2.1/iqn.2020-01.com.example:target/{}"),
            MountOptions("{}"),
            MountOptions("data={},noatime"),
            Variable("MOORING_OPTION_INITIATOR"),
            Variable("MOORING_FS_TYPE"),
            Secret("chap-username"),
            Secret("chap-password"),
            Secret("chap-username-in"),
            Secret("node.session.auth.username"),
        ],
    },
];

const CEPHFS: &[Place] = &[
    Source("{}"),
    Source("{}:/path"),
    Source("192.0.2.1:6789:/{}"),
    MountOptions("{}"),
    MountOptions("client_cache_size={},ro"),
    MountOptions("rsize={},ro"),
    Variable("MOORING_OPTION_USER"),
    Variable("MOORING_OPTION_FS_NAME"),
    Variable("MOORING_OPTION_DRIVER"),
    Secret("key"),
    Secret("user"),
    Secret("userKey"),
];

const RBD: &[Place] = &[
    Source("{}"),
    Source("rbd://{}/pool/image"),
    Source("rbd://192.0.2.1:6789/{}/image"),
    Source("rbd://192.0.2.1:6789/pool/{}/image"),
    Source("rbd://192.0.2.1:6789/pool/{}"),
    MountOptions("{}"),
    MountOptions("data={},noatime"),
    Variable("MOORING_OPTION_USER"),
    Variable("MOORING_OPTION_DRIVER"),
    Variable("MOORING_OPTION_IO_TIMEOUT"),
    Variable("MOORING_OPTION_FROZEN"),
    Variable("MOORING_FS_TYPE"),
    Secret("key"),
    Secret("user"),
    Secret("userKey"),
];

/// Writes down the fields of the table that `mount` is to read, as libmount decodes them.
const READ_TABLE: &str = r#"
[ "${2-}" = --fstab ] || exit 0
while read -r what where type options rest; do
    for field in "$what" "$where" "$type" "$options" "$rest"; do
        printf '%s\000' "$field" | sed -e 's/\\040/ /g' -e 's/\\043/#/g' -e 's/\\134/\\/g'
    done
done <"$3" >>"$NODE/given""#;

/// Writes down the line that the kernel gets, which then has a device.
const ADD_DEVICE: &str = r#"
printf '%s\000' "$(cat)" >>"$NODE/given"
mkdir -p "$NODE/sys/bus/rbd/devices/0" "$NODE/sys/block/rbd0"
echo 252:0 >"$NODE/sys/block/rbd0/dev""#;

/// Has the node write down how a command is called.
fn record(node: &Node, name: &str, script: &str) {
    node.command(name, &format!("{RECORD}\n{script}"));
}

/// How a run ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    said: String,
    pwned: bool,
    /// Each call of a command with each of its arguments, and the files that the commands read. The node's directory is
    /// `@`.
    given: String,
}

/// Mounts a client's volume with a value in one place.
fn mount(client: &Client, place: Place, value: &str) -> Ended {
    let node = Node::new(client.program);
    node.write("state/there", "");
    node.write("secrets/v1/there", "");
    record(&node, "mount", "");
    record(&node, "agent", "[ \"$2\" != loop ] || echo /dev/loop9");
    (client.prepare)(&node);
    let mut source = client.source.to_owned();
    let pwned = node.at("pwned");
    let mut variables = vec![("PWNED", pwned.to_str().unwrap())];
    variables.extend(client.variables);
    let mut secret = client.secret.to_vec();
    let options;
    match place {
        Source(template) => source = template.replace("{}", value),
        MountOptions(template) => {
            options = template.replace("{}", value);
            variables.push(("MOORING_MOUNT_OPTIONS", &options));
        }
        Variable(name) => variables.push((name, value)),
        Secret(key) => {
            match key {
                "userKey" => secret = vec![("userID", "team")],
                "chap-username-in" => secret.push(("chap-password-in", "password-in")),
                "node.session.auth.username" => secret = vec![("node.session.auth.password", "password")],
                _ => secret.retain(|(other, _)| *other != key),
            }
            secret.push((key, value));
        }
    }
    for (key, value) in secret {
        node.write(Path::new("secrets/v1").join(key), value);
    }
    let output = node.run("v1", &["mount", &source, "/target"], &variables);
    let mut given = fs::read_to_string(node.at("given")).unwrap_or_default();
    // Not the Secret itself, which is what it is.
    for file in [
        "state/ceph.conf",
        "state/look",
        "secrets/v1/.passwd-s3fs",
        "etc/iscsi/iscsid.conf",
    ] {
        let content = fs::read_to_string(node.at(file)).unwrap_or_default();
        let _ = write!(given, "\u{1}{file}\0{content}\0");
    }
    Ended {
        code: output.status.code(),
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
        pwned: pwned.exists(),
        given: given.replace(&*node.at("").to_string_lossy(), "@/"),
    }
}

/// Mounts a client's volume with each value in each place; how many were accepted.
fn mount_all(client: &Client) -> usize {
    let name = format!("{} {:?}", client.program, client.variables);
    let mut accepted = 0;
    for place in client.places {
        for value in HOSTILE {
            let hostile = mount(client, *place, value);
            assert!(!hostile.pwned, "{name} {place:?}: a shell ran {value:?}");
            if hostile.code == Some(75) {
                continue;
            }
            let why = format!("{name} {place:?} {value:?}: {}", hostile.said);
            assert_eq!(hostile.code, Some(0), "{why}");
            let harmless = mount(client, *place, HARMLESS);
            assert_eq!(
                harmless.code,
                Some(0),
                "{why}: only this value is accepted: {}",
                harmless.said
            );
            let whole = harmless.given.replace(HARMLESS, value);
            assert_eq!(hostile.given, whole, "{why}: it is not one argument");
            accepted += 1;
        }
    }
    accepted
}

/// Proves: M4
#[test]
fn no_shell_reads_what_a_volume_says_and_each_value_is_refused_or_stays_one_argument() {
    std::thread::scope(|threads| {
        let all = CLIENTS
            .each_ref()
            .map(|client| (client, threads.spawn(|| mount_all(client))));
        for (client, accepted) in all {
            let accepted = accepted.join().unwrap();
            assert!(accepted > 0, "{} refuses all of them", client.program);
        }
    });
}

/// Without this, all could be refused for another reason.
#[test]
fn each_client_mounts_its_volume_where_no_value_is_hostile() {
    for client in &CLIENTS {
        let ended = mount(client, Source(client.source), "");
        assert_eq!(ended.code, Some(0), "{}: {}", client.program, ended.said);
        assert!(ended.given.contains('\u{1}'), "{}", client.program);
    }
}

/// Mooring has put the address into brackets; not every program reads it so.
#[test]
fn each_client_gets_an_ipv6_address_as_its_program_reads_it() {
    const ISCSI: &str = "iscsi://[fd00::10]/iqn.2020-01.com.example:target/1";
    for (program, source, wanted) in [
        ("client-sshfs/sshfs", "tom@[fd00::10]:/path", "\0tom@[fd00::10]:/path\0"),
        (
            "client-s3/s3",
            "https://[fd00::10]:9000/bucket",
            "url=https://[fd00::10]:9000\0",
        ),
        (
            "client-cephfs/cephfs",
            "[fd00::10]:3300,[fd00::11]:/path",
            "\0[fd00::10]:3300,[fd00::11]\0",
        ),
        ("client-block/block", ISCSI, "portal=[fd00::10]:3260,"),
        (
            "client-block/block",
            "nbd://[fd00::10]/export",
            "host=fd00::10,server.port=10809,",
        ),
        (
            "client-block/block",
            "nbd://[fd00::10]:99/export",
            "host=fd00::10,server.port=99,",
        ),
        (
            "client-block/block",
            "nfs://[fd00::10]/directory/file",
            "host=fd00::10,path=/directory/file,",
        ),
        (
            "client-block/rbd",
            "rbd://[fd00::10]:3300,[fd00::11]/pool/image",
            "mon_host = [fd00::10]:3300,[fd00::11]\n",
        ),
        ("client-iscsi/iscsi", ISCSI, "--portal\0[fd00::10]:3260\0"),
    ] {
        let client = CLIENTS.iter().find(|client| client.program == program).unwrap();
        let ended = mount(client, Source(source), "");
        assert!(
            ended.code == Some(0) && ended.given.contains(wanted),
            "{source}: {ended:?}"
        );
    }
}

/// The kernel gets addresses, with brackets and ports.
#[test]
fn the_kernel_gets_the_ipv6_addresses_of_ceph_monitors_in_brackets() {
    for (program, source) in [
        ("client-cephfs/cephfs", "[fd00::10]:6790,[fd00::11]:/path"),
        ("client-block/rbd", "rbd://[fd00::10]:6790,[fd00::11]/pool/image"),
    ] {
        let by_kernel = |client: &&Client| client.program == program && client.variables == BY_KERNEL;
        let mut client = *CLIENTS.iter().find(by_kernel).unwrap();
        client.prepare = |node| {
            node.write("proc/filesystems", "nodev\tceph\n");
            node.write("sys/bus/rbd/there", "");
            record(node, "getent", "echo \"$2 STREAM $2\"");
            record(node, "mount", READ_TABLE);
            record(node, "perl", ADD_DEVICE);
        };
        let ended = mount(&client, Source(source), "");
        let wanted = "\0[fd00::10]:6790,[fd00::11]:6790";
        assert!(
            ended.code == Some(0) && ended.given.contains(wanted),
            "{source}: {ended:?}"
        );
    }
}

/// A comma separates the parts of what qemu is told.
#[test]
fn a_device_of_nbd_or_nfs_has_one_server() {
    let block = CLIENTS
        .iter()
        .find(|client| client.program == "client-block/block")
        .unwrap();
    for source in [
        "nbd://192.0.2.1,tls-creds=x/export",
        "nfs://192.0.2.1,user=0/directory/file",
    ] {
        let ended = mount(block, Source(source), "");
        assert!(
            ended.code == Some(75) && ended.said.contains("several servers"),
            "{source}: {ended:?}"
        );
    }
}

/// What the exit code says: after 78 the kubelet goes on without the expansion, and further Pods of the volume start.
#[test]
fn a_volume_that_keeps_its_size_while_it_is_mounted_is_told_from_one_that_may_grow_soon() {
    const WANTED: u64 = 4096;
    const GROWS: &str = "";
    const LACKS_CAPABILITY: &str = "echo 'resize2fs: Permission denied to resize filesystem' >&2; exit 1";
    const READ_ONLY: &str = "36 35 7:1 / @ ro,nosuid shared:1 - ext4 /dev/loop1 rw\n";
    const MADE_READ_ONLY: &str = "36 35 7:1 / @ rw,nosuid - ext4 /dev/loop1 ro,errors=remount-ro\n";
    const WRITABLE: &str = "36 35 7:1 / @ ro - ext4 a ro\n37 36 7:1 / @ rw - ext4 /dev/loop1 rw,errors=remount-ro\n";
    const IS_BUSY: &str = "echo 'resize2fs: Device or resource busy While trying to add group #2' >&2; exit 1";
    // Its kind of device and its bytes, its file system, what resize2fs does, and how the program ends.
    for (loops, bytes, file_system, grown, ended) in [
        (true, WANTED, "ext2/ext3", GROWS, 0),
        (true, WANTED, "ext2/ext3", LACKS_CAPABILITY, 78),
        (true, WANTED, "ext2/ext3", IS_BUSY, 75),
        (true, WANTED, "xfs", GROWS, 0),
        (true, WANTED, "btrfs", GROWS, 78),
        (true, 512, "ext2/ext3", GROWS, 78),
        (false, 512, "ext2/ext3", GROWS, 75),
        (false, WANTED, "ext2/ext3", GROWS, 0),
    ] {
        let node = Node::new("lib/expand");
        node.write("sys/dev/block/7:1/size", (bytes / 512).to_string());
        if loops {
            node.write("sys/dev/block/7:1/loop/there", "");
        }
        node.write("volume/there", "");
        node.command("mountpoint", "echo 7:1");
        node.command("losetup", "");
        node.command("stat", &format!("echo {file_system}"));
        node.command("resize2fs", grown);
        node.command("xfs_growfs", "");
        let volume = node.at("volume").display().to_string();
        let output = node.run("v1", &[&volume, &WANTED.to_string()], &[]);
        let what = format!("{loops} {bytes} {file_system} {grown}: {output:?}");
        assert_eq!(output.status.code(), Some(ended), "{what}");
    }
    // Its mounts, what stat does, and how the program ends.
    for (table, looked, ended) in [
        (WRITABLE, "echo ext2/ext3", 0),
        (READ_ONLY, "echo ext2/ext3", 78),
        (MADE_READ_ONLY, "echo ext2/ext3", 78),
        (WRITABLE, "echo 'Input/output error' >&2; exit 1", 75),
    ] {
        let node = Node::new("lib/expand");
        node.write("sys/dev/block/7:1/size", (WANTED / 512).to_string());
        node.write("volume/there", "");
        let volume = node.at("volume").display().to_string();
        node.write("mountinfo", table.replace('@', &volume));
        node.command("mountpoint", "echo 7:1");
        node.command("stat", looked);
        node.command("resize2fs", GROWS);
        let output = node.run("v1", &[&volume, &WANTED.to_string()], &[]);
        assert_eq!(output.status.code(), Some(ended), "{table} {looked}: {output:?}");
    }
    for (bytes, ended) in [(Some(WANTED), 0), (Some(512), 78), (None, 75)] {
        let node = Node::new("lib/expand");
        node.write("volume/there", "");
        if let Some(bytes) = bytes {
            node.write("volume/disk", vec![0; usize::try_from(bytes).unwrap()]);
        }
        let volume = node.at("volume").display().to_string();
        let args = [volume.as_str(), &WANTED.to_string()];
        let output = node.run("v1", &args, &[("MOORING_FS_TYPE", "raw")]);
        assert_eq!(output.status.code(), Some(ended), "{output:?}");
    }
}

/// A QMP monitor, which gives this answer to the request to enlarge the device, or ends. Looked at anew, the device has
/// so many bytes.
fn monitor(node: &Node, answer: Option<String>, bytes: u64) -> JoinHandle<()> {
    let monitor = UnixListener::bind(node.at("state/monitor")).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = monitor.accept().unwrap();
        for line in BufReader::new(&stream).lines() {
            let line = line.unwrap();
            let said = if line.contains("block_resize") {
                answer.clone()
            } else if line.contains("query-named-block-nodes") {
                let nodes = r#"{"node-name": "disk"}, {"node-name": "look", "image": {"virtual-size": @}}"#;
                Some(format!("{{\"return\": [{}]}}", nodes.replace('@', &bytes.to_string())))
            } else {
                Some(DONE.to_owned())
            };
            let Some(said) = said else { return };
            writeln!(&stream, "{said}").unwrap();
        }
    })
}

/// What a QMP monitor answers.
const DONE: &str = r#"{"return": {}}"#;

#[test]
fn a_served_device_keeps_its_size_where_its_program_refuses_and_is_tried_again_where_it_does_not_answer() {
    let refused = |why: &str| Some(format!("{{\"error\": {{\"desc\": \"{why}\"}}}}"));
    for (answer, ended) in [
        (refused("Image format driver does not support resize"), 78),
        (refused("Cannot grow NBD nodes"), 78),
        (refused("Cannot grow iSCSI devices"), 75),
        (None, 75),
        (Some(DONE.to_owned()), 0),
    ] {
        let node = Node::new("lib/expand");
        node.write("sys/dev/block/7:1/size", "8");
        node.write("volume/there", "");
        for name in ["losetup", "resize2fs"] {
            node.command(name, "");
        }
        node.command("mountpoint", "echo 7:1");
        node.command("stat", "echo ext2/ext3");
        node.write("state/disk", "");
        let served = monitor(&node, answer, 4096);
        let volume = node.at("volume").display().to_string();
        let output = node.run("v1", &[&volume, "4096"], &[]);
        served.join().unwrap();
        assert_eq!(output.status.code(), Some(ended), "{output:?}");
    }
}

/// The kernel has a file's size of up to a second ago, and drops an answer that a write overtakes.
#[test]
fn a_served_device_has_its_new_size_although_the_kernel_takes_it_late() {
    const NEVER: &str = "";
    const LATE: &str = r#"[ "$(grep -c cached=never "$NODE/calls")" -lt 3 ] || echo 8 >"$NODE/sys/dev/block/7:1/size""#;
    // What the kernel does, the bytes of an image that is looked at anew, and how the program ends.
    for (takes, image, ended) in [
        (LATE, None, 0),
        (LATE, Some(4096), 0),
        // It takes it when the kubelet has it asked again.
        (NEVER, None, 75),
        (NEVER, Some(4096), 75),
        // The image itself is smaller.
        (NEVER, Some(512), 78),
    ] {
        let node = Node::new("lib/expand");
        node.write("sys/dev/block/7:1/size", "1");
        node.write("sys/dev/block/7:1/loop/there", "");
        node.write("volume/there", "");
        node.write("state/disk", "");
        if image.is_some() {
            node.write("state/look", "{}");
        }
        node.command("mountpoint", "echo 7:1");
        node.command("resize2fs", "");
        node.command("stat", "echo ext2/ext3");
        node.command("losetup", takes);
        let served = monitor(&node, Some(DONE.to_owned()), image.unwrap_or_default());
        let volume = node.at("volume").display().to_string();
        let output = node.run("v1", &[&volume, "4096"], &[]);
        served.join().unwrap();
        assert_eq!(output.status.code(), Some(ended), "{takes} {image:?}: {output:?}");
    }
}

/// What a Pod deletes reaches the server, where the file system passes it on.
#[test]
fn a_device_that_a_program_serves_passes_on_what_is_discarded() {
    for program in ["client-block/block", "client-block/rbd"] {
        let client = CLIENTS.iter().find(|client| client.program == program).unwrap();
        let ended = mount(client, Source(client.source), "");
        assert!(ended.given.contains("node-name=disk,discard=unmap,"), "{ended:?}");
    }
}

/// The journal of a copy may be larger than the memory that all volumes of the client Pod share.
#[test]
fn the_journal_of_a_frozen_image_is_replayed_on_the_disk_in_small_blocks() {
    let rbd = CLIENTS
        .iter()
        .find(|client| client.program == "client-block/rbd")
        .unwrap();
    let mut client = *rbd;
    client.variables = &[("MOORING_OPTION_FROZEN", "true")];
    client.prepare = |node| {
        record(node, "perl", "");
        record(node, "qemu-img", ": >\"$NODE/tmp/overlay-v1\"");
        record(
            node,
            "agent",
            "[ \"$2\" != loop ] || { [ ! -e \"$NODE/tmp/overlay-v1\" ] && echo /dev/loop9; }",
        );
    };
    let ended = mount(&client, MountOptions("ro"), "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.given.contains("\0extended_l2=on\0") && ended.given.contains("file.filename=@/tmp/overlay-v1\0"),
        "{ended:?}"
    );
}
