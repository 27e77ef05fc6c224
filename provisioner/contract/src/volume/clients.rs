//! One record per client: what may be said about its volumes (each option with who may set it and how its value is
//! judged), what it needs of a node, and which services of the agent its image uses.
//!
//! The one list of clients. The mounter judges a node by what they need. [`Volume::check`](super::Volume::check) goes
//! by it: for the controller, for `lint` and for the mounter. The tables in `configmaps/install/admission.yaml` are the
//! same ones, which tests of `tests/e2e` compare word for word and with generated volumes, and so are those in
//! `docs/clients/`.
//!
//! A type of a vendor's own has no record here: see [`UNKNOWN_OPTION`]. Its client image may bring one: see
//! [`image_record`].

pub mod image_record;

use serde::{Deserialize, Serialize};

use super::check::matches;
use super::keys;
use crate::named;

/// Who says something about a volume, from whom may say least to whom may say most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Speaker {
    /// The author of an inline volume in a Pod.
    Tenant,
    /// A provisioning image, or the ConfigMap that names it.
    Image,
    /// A provisioning image, of the node that it has just had a volume attached to. Nobody else hears of it.
    Attach,
    /// The author of a `PersistentVolume` or a `StorageClass`.
    Administrator,
}

/// How a value is judged: by a regular expression that Rust and the API server (RE2) read alike, and that matches the
/// whole of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// The expression. It has no quotation mark and no blank, so that a policy can have it as it is.
    pub pattern: &'static str,
    /// What it should be, in words that end a sentence.
    pub wanted: &'static str,
}

/// One option of a client's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionRule {
    /// Its key among the volume's options, for example `io-timeout`.
    pub name: &'static str,
    /// Who may set it, and all who may say more.
    pub by: Speaker,
    /// Its value; an empty one counts as none.
    pub value: Value,
}

impl OptionRule {
    /// Whether it can have this value.
    pub fn accepts(&self, value: &str) -> bool {
        value.is_empty() || matches(self.value.pattern, value)
    }
}

/// What a client needs of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A directory for local volumes.
    Pool,
    LoopDevices,
    Fuse,
    /// The kubelet's namespaces: what the kernel serves from the node's network is mounted there.
    HostNamespace,
    /// No iSCSI daemon of the node's own, of which a node can have one only.
    NoIscsid,
    /// A file system of the kernel, there or to be loaded.
    FileSystem {
        /// As the kernel lists it.
        name: &'static str,
        module: &'static str,
    },
    /// A driver of the kernel, which the kernel loads when it is asked for.
    Module(&'static str),
}

named! {
    /// A service of the agent: what a client image needs beyond one mount command. The image's program asks for it by
    /// its name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Service {
        /// A program that runs for as long as the volume is mounted.
        Daemon = "daemon",
        /// A file behind a loop device.
        Loop = "loop",
        /// An error instead of endless waiting, where a server is silent.
        WatchServer = "watch-server",
        /// A device as a file of the volume's directory.
        ShowDevice = "show-device",
        /// A device as the Pod's own, for a raw block volume.
        GiveDevice = "give-device",
    }
}

/// Who finishes the growth of a volume, once its storage is larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// Nobody: the volume is a directory, of which the server alone knows the size.
    AtServer,
    /// Each node that has it mounted: there is a device, or a file that is used as one, with a file system on it.
    AtNode,
}

/// How the files of a volume come to belong to the Pod's group (`fsGroup`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FsGroup {
    /// The storage keeps a group for each file, which the mounter changes.
    ByOwner,
    /// The mount shows all files as the group's. On the storage, nothing changes.
    ByMountOption,
    /// Not at all.
    Unable,
}

/// All that is needed, each by one of its alternatives. The first alternative is the easiest to provide: a node that
/// has none is told to provide that one.
pub type Needs = &'static [&'static [Need]];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientRecord {
    /// The client, and what its file system is called besides.
    pub names: &'static [&'static str],
    pub source: Value,
    /// Its `fs-type`, if any of these; anything that is no view of the node if there are none.
    pub fs_types: &'static [&'static str],
    /// Those that a tenant may name.
    pub tenant_fs_types: &'static [&'static str],
    /// What the kernel calls its file systems that have a server: the mounter asks whether they answer.
    pub kernel_types: &'static [&'static str],
    pub options: &'static [OptionRule],
    /// The keys of a volume's Secret that it reads, whichever image serves it. Others may differ or change.
    pub secret_keys: &'static [&'static str],
    /// What its client image needs, if that is one of Mooring's. What others need, they alone know.
    pub image_needs: Needs,
    /// What it needs where the mounter or the kernel serves it (`TYPE=self`).
    pub kernel_needs: Needs,
    /// What its client image has the agent do, if that is one of Mooring's.
    pub services: &'static [Service],
    /// Who finishes the growth of its volumes.
    pub grows: Growth,
    pub fs_group: FsGroup,
    /// Whether it can give a Pod a volume as a raw block device (`volumeMode: Block`).
    pub gives_devices: bool,
    /// Whether its client image would make a device for each Pod, of which a node must have one only: each would have a
    /// cache of its own. Devices of the kernel and files of the pool are one for all Pods by themselves.
    pub one_device: bool,
}

pub const TENANT_MOUNT_OPTIONS: &[&str] = &[
    "ro",
    "rw",
    "noexec",
    "noatime",
    "nodiratime",
    "relatime",
    "nosuid",
    "nodev",
];

/// The name of an option of a client that has no record: what it means is known to its client image alone, which an
/// administrator allowed. A tenant can say nothing but `source` and mount options.
pub const UNKNOWN_OPTION: &str = r"^[A-Za-z0-9][A-Za-z0-9._-]*$";

/// A server's name or IPv4 address, and nothing that a program could take for an option of its own.
macro_rules! name {
    () => {
        "[A-Za-z0-9_][A-Za-z0-9._-]*"
    };
}

/// The same or an IPv6 address, which may lack its brackets: [`address`](super::address) adds them.
macro_rules! host {
    () => {
        concat!(
            "(",
            name!(),
            r"|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]|",
            r"[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f.]*(%[A-Za-z0-9._-]+)?)"
        )
    };
}

/// The same with a port, if it has one.
macro_rules! server {
    () => {
        // Some programs take a number with a zero before it for an octal one.
        concat!(host!(), r"(:[1-9][0-9]{0,4})?")
    };
}

/// Portals of one iSCSI target.
macro_rules! portals {
    () => {
        concat!(server!(), "(,", server!(), ")*")
    };
}

/// A LUN of an iSCSI target.
macro_rules! lun {
    () => {
        "/[^/,]+/(0|[1-9][0-9]*)"
    };
}

macro_rules! monitors {
    () => {
        r"[A-Za-z0-9:\[][A-Za-z0-9.,:_%\[\]-]*"
    };
}

const fn option(name: &'static str, by: Speaker, pattern: &'static str, wanted: &'static str) -> OptionRule {
    OptionRule {
        name,
        by,
        value: Value { pattern, wanted },
    }
}

const fn file_system(name: &'static str, module: &'static str) -> Need {
    Need::FileSystem { name, module }
}

const EXT4_OR_XFS: &[Need] = &[file_system("ext4", "ext4"), file_system("xfs", "xfs")];
const CEPH_KEYS: &[&str] = &["key", "user", "userKey", "userID"];
const FILE_SYSTEMS: &[&str] = &["ext4", "xfs"];
const FILE_SYSTEMS_OR_RAW: &[&str] = &["ext4", "xfs", "raw"];

/// A device that a daemon shows as a file, with a file system on it or without one.
const SHOWN_DEVICE: &[Service] = &Service::ALL;

/// Another node's name would take that node's session from it.
const INITIATOR: OptionRule = option(
    INITIATOR_OPTION,
    Speaker::Image,
    r"^[A-Za-z0-9][A-Za-z0-9._:-]*$",
    "an initiator's name, such as iqn.2020-01.com.example:node",
);
/// Fewer bytes than a block would make inodes that can never be used.
pub const BYTES_PER_INODE: OptionRule = option(
    keys::BYTES_PER_INODE,
    Speaker::Image,
    r"^(4096|8192|16384|32768|65536)$",
    "4096, 8192, 16384, 32768 or 65536",
);
const IO_TIMEOUT: OptionRule = option("io-timeout", Speaker::Tenant, r"^[0-9]{1,5}$", "a number of seconds");
const CEPH_USER: OptionRule = option(
    "user",
    Speaker::Tenant,
    r"^[A-Za-z0-9_][A-Za-z0-9._-]*$",
    "the name of a Ceph client",
);
/// Nobody writes it any more.
const FROZEN: OptionRule = option("frozen", Speaker::Tenant, r"^(true|false)$", "true or false");
const DRIVER: OptionRule = option("driver", Speaker::Tenant, r"^(kernel|fuse)$", "kernel or fuse");

/// Clients that give out something of the node that an image does not make: its pool, any file of the pool, and what
/// the host's own mount helpers can mount. Only the options of a PersistentVolume name them.
pub const NODE_CLIENTS: [&str; 3] = ["pool", "local", "host"];

/// The client of disks that a node has already, such as those that its cloud attaches to it.
pub const NODE_DISK: &str = "node-disk";

/// Begins the source of such a disk. What follows is the disk's serial.
pub const SERIAL: &str = "serial://";

const NO_SERVER: &str = "names no server: write source=server:/path";
const ISCSI: &str = "names no device: write source=iscsi://server/target/lun, with numbers that do not begin with a \
                     zero";

/// What most clients have in common: a directory of a server, whose files have groups.
const PLAIN: ClientRecord = ClientRecord {
    names: &[],
    source: Value {
        pattern: "^$",
        wanted: "",
    },
    fs_types: &[],
    tenant_fs_types: &[],
    kernel_types: &[],
    options: &[],
    secret_keys: &[],
    image_needs: &[],
    kernel_needs: &[],
    services: &[],
    grows: Growth::AtServer,
    fs_group: FsGroup::ByOwner,
    gives_devices: false,
    one_device: false,
};

pub const RECORDS: &[ClientRecord] = &[
    ClientRecord {
        names: &["local"],
        source: Value {
            pattern: r"^[^/.-][^/]*$",
            wanted: "of a local volume is not a file name: name an image file of the node's pool, without a directory \
                     and a leading dot or dash",
        },
        fs_types: FILE_SYSTEMS,
        options: &[BYTES_PER_INODE],
        kernel_needs: &[&[Need::Pool], &[Need::LoopDevices], EXT4_OR_XFS],
        grows: Growth::AtNode,
        gives_devices: true,
        ..PLAIN
    },
    ClientRecord {
        names: &["pool"],
        source: Value {
            pattern: r"^$",
            wanted: "does not apply to the pool itself: leave it out",
        },
        kernel_needs: &[&[Need::Pool]],
        fs_group: FsGroup::Unable,
        ..PLAIN
    },
    ClientRecord {
        names: &["nfs", "nfs4"],
        source: Value {
            pattern: concat!("^", host!(), r":/.*$"),
            wanted: NO_SERVER,
        },
        fs_types: &["nfs", "nfs4"],
        kernel_types: &["nfs", "nfs4"],
        kernel_needs: &[&[Need::HostNamespace], &[file_system("nfs4", "nfsv4")]],
        ..PLAIN
    },
    ClientRecord {
        names: &["smb", "smb3", "cifs"],
        source: Value {
            pattern: r"^//([A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:.]+|\[[0-9A-Fa-f:.]+\])/.+$",
            wanted: "names no share: write source=//server/share or source=//server/share/directory",
        },
        fs_types: &["smb", "smb3", "cifs"],
        kernel_types: &["cifs", "smb3"],
        secret_keys: &["username", "password", "domain"],
        kernel_needs: &[&[Need::HostNamespace], &[file_system("cifs", "cifs")]],
        fs_group: FsGroup::ByMountOption,
        ..PLAIN
    },
    ClientRecord {
        names: &["sshfs"],
        source: Value {
            pattern: concat!(r"^([A-Za-z0-9_][A-Za-z0-9._+-]*@)?", host!(), r":.*$"),
            wanted: "names no server: write source=user@host:/path",
        },
        options: &[
            // What listens on another port may be somebody else's.
            option("port", Speaker::Image, r"^[0-9]{1,5}$", "a port's number"),
            option(
                "host-key-check",
                Speaker::Tenant,
                r"^(yes|accept-new)$",
                "yes or accept-new",
            ),
        ],
        secret_keys: &["ssh-privatekey", "known_hosts"],
        image_needs: &[&[Need::Fuse]],
        fs_group: FsGroup::ByMountOption,
        ..PLAIN
    },
    ClientRecord {
        names: &["glusterfs"],
        source: Value {
            pattern: concat!("^", name!(), r":/[^/].*$"),
            wanted: "names no volume of a server: write source=server:/volume or source=server:/volume/directory, with \
                     the server's name or IPv4 address. GlusterFS reads no IPv6 address (its issue 4643)",
        },
        // What such a server says a volume is made of is obeyed by a privileged container.
        options: &[option(
            "backup-servers",
            Speaker::Image,
            concat!("^", name!(), "(:", name!(), ")*$"),
            "servers' names or IPv4 addresses with colons between them: GlusterFS reads no IPv6 address",
        )],
        image_needs: &[&[Need::Fuse]],
        ..PLAIN
    },
    ClientRecord {
        names: &["cephfs"],
        source: Value {
            pattern: concat!("^", monitors!(), r":/.*$"),
            wanted: "names no directory of a Ceph cluster: write source=monitor:/directory or \
                     source=monitor1,monitor2:/directory",
        },
        kernel_types: &["ceph"],
        options: &[
            CEPH_USER,
            // Another file system of the cluster is not what its source says.
            option(
                "fs-name",
                Speaker::Image,
                r"^[A-Za-z0-9_][A-Za-z0-9._-]*$",
                "the name of a Ceph file system",
            ),
            DRIVER,
        ],
        secret_keys: CEPH_KEYS,
        image_needs: &[&[Need::Fuse, file_system("ceph", "ceph")]],
        services: &[Service::Daemon],
        ..PLAIN
    },
    ClientRecord {
        names: &["rbd"],
        source: Value {
            pattern: concat!(r"^rbd://", monitors!(), r"/[^/,@]+(/[^/,@]+){1,2}$"),
            wanted: "names no image of a pool: write source=rbd://monitor/pool/image or \
                     source=rbd://monitor/pool/namespace/image",
        },
        fs_types: FILE_SYSTEMS_OR_RAW,
        tenant_fs_types: FILE_SYSTEMS,
        options: &[BYTES_PER_INODE, CEPH_USER, DRIVER, FROZEN, IO_TIMEOUT],
        secret_keys: CEPH_KEYS,
        image_needs: &[
            &[Need::Fuse, Need::Module("rbd")],
            &[Need::LoopDevices, Need::Module("rbd")],
        ],
        services: SHOWN_DEVICE,
        grows: Growth::AtNode,
        gives_devices: true,
        one_device: true,
        ..PLAIN
    },
    ClientRecord {
        names: &["block"],
        source: Value {
            pattern: concat!(
                r"^(iscsi://",
                portals!(),
                lun!(),
                "|nbd://",
                server!(),
                r"/[^,]+|nfs://",
                host!(),
                // Nor "." nor "..": a file has one path.
                r"(/([^/,.][^/,]*|\.[^/,.][^/,]*|\.\.[^/,]+))+)$"
            ),
            wanted: "names no device: write source=iscsi://server/target/lun, source=nbd://server/export or \
                     source=nfs://server/directory/file, with numbers that do not begin with a zero, and with no //, \
                     . or .. in a file's path",
        },
        fs_types: FILE_SYSTEMS_OR_RAW,
        tenant_fs_types: FILE_SYSTEMS,
        options: &[BYTES_PER_INODE, INITIATOR, IO_TIMEOUT],
        secret_keys: &[
            "chap-username",
            "chap-password",
            "node.session.auth.username",
            "node.session.auth.password",
        ],
        image_needs: &[&[Need::Fuse], &[Need::LoopDevices]],
        services: SHOWN_DEVICE,
        grows: Growth::AtNode,
        gives_devices: true,
        one_device: true,
        ..PLAIN
    },
    ClientRecord {
        names: &["iscsi"],
        source: Value {
            pattern: concat!("^iscsi://", portals!(), lun!(), "$"),
            wanted: ISCSI,
        },
        fs_types: FILE_SYSTEMS_OR_RAW,
        tenant_fs_types: FILE_SYSTEMS,
        options: &[BYTES_PER_INODE, INITIATOR],
        secret_keys: &[
            "chap-username",
            "chap-password",
            "chap-username-in",
            "chap-password-in",
            "node.session.auth.username",
            "node.session.auth.password",
            "node.session.auth.username_in",
            "node.session.auth.password_in",
        ],
        image_needs: &[&[Need::NoIscsid], &[Need::Module("iscsi_tcp")]],
        services: &[Service::Daemon, Service::ShowDevice, Service::GiveDevice],
        grows: Growth::AtNode,
        gives_devices: true,
        ..PLAIN
    },
    ClientRecord {
        names: &[NODE_DISK],
        source: Value {
            pattern: r"^serial://[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
            wanted: "names no disk by its serial: write source=serial://serial",
        },
        fs_types: FILE_SYSTEMS,
        options: &[BYTES_PER_INODE],
        image_needs: &[EXT4_OR_XFS],
        services: &[Service::GiveDevice],
        grows: Growth::AtNode,
        gives_devices: true,
        ..PLAIN
    },
    ClientRecord {
        names: &["s3"],
        source: Value {
            pattern: concat!(r"^https?://", server!(), r"/[A-Za-z0-9._-]+(/[^,]*)?$"),
            wanted: "names no bucket of a server: write source=https://server/bucket or \
                     source=https://server/bucket/prefix",
        },
        options: &[
            option("region", Speaker::Tenant, r"^[A-Za-z0-9._-]+$", "a region's name"),
            option("path-style", Speaker::Tenant, r"^(yes|no)$", "yes or no"),
            option("size-gi", Speaker::Tenant, r"^[0-9]{1,9}$", "a number of GiB"),
        ],
        secret_keys: &["access-key-id", "secret-access-key", "ca.crt"],
        image_needs: &[&[Need::Fuse]],
        services: &[Service::Daemon],
        fs_group: FsGroup::ByMountOption,
        ..PLAIN
    },
];

/// The record of a client. One without a record of its own that says by its type whose it is has that one's.
pub fn record(client: &str, fs_type: &str) -> Option<&'static ClientRecord> {
    let named = |name: &str| RECORDS.iter().find(|record| record.names.contains(&name));
    named(client).or_else(|| named(fs_type))
}

/// Name of the option by which a volume says what its node logs in as.
pub const INITIATOR_OPTION: &str = "initiator";

/// The rule of a client's own option of this name, as far as its record says. Where two clients have the same rule, the
/// option means the same.
pub fn option_rule(client: &str, fs_type: &str, name: &str) -> Option<&'static OptionRule> {
    record(client, fs_type)?
        .options
        .iter()
        .find(|option| option.name == name)
}

/// Whether a client has an option of its own of this name, as far as its record says.
pub fn has_option(client: &str, fs_type: &str, name: &str) -> bool {
    option_rule(client, fs_type, name).is_some()
}

/// Who finishes the growth of a volume. A type that has no record is a vendor's own: it has a device if its volumes
/// name the file system on it.
pub fn growth(client: &str, fs_type: &str) -> Growth {
    match record(client, fs_type) {
        Some(record) => record.grows,
        None if fs_type.is_empty() => Growth::AtServer,
        None => Growth::AtNode,
    }
}

/// How a volume's files come to belong to the Pod's group. Of a client that has no record here its client image may say
/// so ([`image_record`]).
pub fn fs_group(client: &str, fs_type: &str) -> Option<FsGroup> {
    let record = record(client, fs_type)?;
    // A device that is shown as a file is root's.
    Some(if fs_type == "raw" {
        FsGroup::Unable
    } else {
        record.fs_group
    })
}

/// Whether a client can give a Pod a volume as a raw block device (`volumeMode: Block`). Of one that has no record here
/// its client image says so ([`image_record`]).
pub fn gives_devices(client: &str, fs_type: &str) -> bool {
    record(client, fs_type).is_none_or(|record| record.gives_devices)
}

/// Whether all Pods of a node get one device of such a volume. A client without a record here says itself whether it
/// `gives` devices.
pub fn has_one_device(client: &str, fs_type: &str, gives: impl FnOnce() -> bool) -> bool {
    record(client, fs_type).map_or_else(gives, |record| record.one_device)
}

/// The keys of a volume's Secret that a client reads. Of one that has no record here its client image says so; if it
/// does not, none is returned: it may read all of them.
pub fn secret_keys(client: &str, fs_type: &str, of_image: impl FnOnce() -> Option<Vec<String>>) -> Option<Vec<String>> {
    record(client, fs_type).map_or_else(of_image, |record| {
        Some(record.secret_keys.iter().map(|&key| key.to_owned()).collect())
    })
}

/// The clients that give devices, as words of a sentence.
pub fn device_clients() -> String {
    // A cloud's disks nobody chooses.
    let records = RECORDS
        .iter()
        .filter(|record| record.gives_devices && record.names[0] != NODE_DISK);
    alternatives(&records.map(|record| record.names[0]).collect::<Vec<_>>())
}

/// Words with commas and an "or" between them.
pub(super) fn alternatives(words: &[&str]) -> String {
    match words {
        [.., last] if words.len() > 1 => format!("{} or {last}", words[..words.len() - 1].join(", ")),
        _ => words.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use regex::Regex;

    use super::{ClientRecord, Growth, RECORDS, Service, UNKNOWN_OPTION, gives_devices, growth};

    #[test]
    fn every_pattern_is_read_matches_the_whole_and_can_stand_in_a_policy() {
        let options = RECORDS.iter().flat_map(|record| record.options);
        let sources = RECORDS.iter().map(|record| record.source.pattern);
        let all = options.map(|option| option.value.pattern).chain(sources);
        for pattern in all.chain([UNKNOWN_OPTION]) {
            assert!(Regex::new(pattern).is_ok(), "{pattern}");
            assert!(pattern.starts_with('^') && pattern.ends_with('$'), "{pattern}");
            assert!(!pattern.contains(['\'', '"', ' ', '\n']), "{pattern}");
        }
    }

    #[test]
    fn a_name_belongs_to_one_client() {
        let mut names: Vec<_> = RECORDS.iter().flat_map(|record| record.names).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn what_has_a_device_grows_at_the_node_and_what_is_a_directory_does_not() {
        for record in RECORDS {
            let raw_or_formatted = record.fs_types.contains(&"ext4");
            assert_eq!(record.grows == Growth::AtNode, raw_or_formatted, "{}", record.names[0]);
        }
        for (client, fs_type, grows) in [
            ("nfs", "nfs4", Growth::AtServer),
            ("local", "xfs", Growth::AtNode),
            ("vendor", "", Growth::AtServer),
            ("vendor", "ext4", Growth::AtNode),
            ("vendor", "cifs", Growth::AtServer),
        ] {
            assert_eq!(growth(client, fs_type), grows, "{client} {fs_type}");
        }
    }

    #[test]
    fn a_client_gives_devices_where_its_volumes_have_one_or_its_image_may_say_so() {
        for record in RECORDS {
            let has_devices = record.grows == Growth::AtNode;
            assert_eq!(record.gives_devices, has_devices, "{}", record.names[0]);
            let by_image = !record.image_needs.is_empty() && record.gives_devices;
            assert_eq!(
                record.services.contains(&Service::GiveDevice),
                by_image,
                "{}",
                record.names[0]
            );
            assert_eq!(gives_devices(record.names[0], ""), record.gives_devices);
        }
        assert!(gives_devices("vendor", "") && !gives_devices("vendor", "nfs"));
    }

    /// What an image has in its folder of programs, by their names, and what these read: the files of this repository
    /// that its Containerfile copies.
    fn copied(containerfile: &str) -> Vec<PathBuf> {
        let repository = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../..");
        let words = containerfile.split_whitespace();
        let files = words.filter(|word| word.starts_with("images/"));
        files.map(|file| repository.join(file)).collect()
    }

    /// The services that a program asks for, and all that it reads.
    fn asked_for(program: &Path, copied: &[PathBuf]) -> BTreeSet<Service> {
        let script = fs::read_to_string(program).unwrap();
        let lines = script
            .lines()
            .map(str::trim_start)
            .filter(|line| !line.starts_with('#'));
        let mut found = BTreeSet::new();
        for line in lines {
            if let Some(file) = line.strip_prefix(". /usr/libexec/mooring-lib/") {
                let read = copied.iter().find(|path| path.ends_with(file));
                found.extend(asked_for(read.expect(file), copied));
            }
            let asked = |service: &Service| {
                let words = line.split([' ', '(']).collect::<Vec<_>>();
                words.windows(2).any(|pair| pair == ["service", service.as_str()])
            };
            found.extend(Service::ALL.into_iter().filter(asked));
        }
        found
    }

    /// What is found in the programs of the client images, each with its client's record.
    fn programs<T>(find: impl Fn(&Path, &[PathBuf]) -> T) -> Vec<(&'static ClientRecord, T)> {
        let images = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../../images");
        let images = fs::read_dir(images).unwrap().map(|entry| entry.unwrap().path());
        let images = images.filter(|image| image.file_name().unwrap().to_str().unwrap().starts_with("client-"));
        let mut found = Vec::new();
        for image in images {
            let files = copied(&fs::read_to_string(image.join("Containerfile")).unwrap());
            for record in RECORDS {
                if let Some(program) = files.iter().find(|file| file.ends_with(record.names[0])) {
                    found.push((record, find(program, &files)));
                }
            }
        }
        found
    }

    /// A program, with all that it reads.
    fn text_of(program: &Path, copied: &[PathBuf]) -> String {
        let script = fs::read_to_string(program).unwrap();
        let read = script
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix(". /usr/libexec/mooring-lib/"));
        let read = read.map(|file| copied.iter().find(|path| path.ends_with(file)).expect(file));
        let read: String = read.map(|path| text_of(path, copied)).collect();
        script + &read
    }

    #[test]
    fn a_record_has_the_keys_of_the_secret_that_the_programs_of_the_image_read() {
        let literal = Regex::new(r"\$(?:secrets|MOORING_SECRETS)/([a-z][A-Za-z0-9._-]*)").unwrap();
        for (record, text) in programs(text_of) {
            for (_, [key]) in literal.captures_iter(&text).map(|found| found.extract()) {
                assert!(record.secret_keys.contains(&key), "{} reads {key}", record.names[0]);
            }
            for key in record.secret_keys {
                // Those of the other side are made of these.
                let key = key.trim_end_matches("-in").trim_end_matches("_in");
                assert!(text.contains(key), "{} does not read {key}", record.names[0]);
            }
        }
    }

    #[test]
    fn a_record_has_the_services_that_the_programs_of_the_image_ask_for() {
        let programs = programs(asked_for);
        for record in RECORDS {
            let of_record = programs.iter().filter(|(of, _)| of.names == record.names);
            let found: BTreeSet<_> = of_record.flat_map(|(_, services)| services).copied().collect();
            let said = record.services.iter().copied().collect();
            assert_eq!(found, said, "{}", record.names[0]);
        }
        assert!(programs.len() >= 7, "only {} programs were found", programs.len());
    }
}
