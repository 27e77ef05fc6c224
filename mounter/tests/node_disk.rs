//! The program of client `node-disk` in its image, with a `/sys` of the test's own and without a device.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SERIAL: &str = "0b1c2d3e-0000-4a5b-8c7d-0123456789ab";

/// What virtio-blk has room for.
const SHORT: &str = "0b1c2d3e-0000-4a5b-8";

/// A node with disks, whose programs write down what they are asked.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        let images = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../images");
        let at = |name: &str| node.path().join(name);
        for folder in ["bin", "lib", "sys/block", "kubelet", "boot"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        // The programs as they are, but for what they look at.
        let copy = |from: PathBuf, to: PathBuf| {
            let text = fs::read_to_string(&from).unwrap();
            let text = text
                .replace("/usr/libexec/mooring-lib", &at("lib").display().to_string())
                .replace("/proc/self/mountinfo", &at("mountinfo").display().to_string())
                .replace("/proc/sys/kernel/random/boot_id", &at("boot_id").display().to_string())
                .replace("/sys/", &format!("{}/", at("sys").display()))
                .replace("/run/mooring-devices", &at("devices").display().to_string());
            fs::write(to, text).unwrap();
        };
        for entry in fs::read_dir(images.join("lib")).unwrap() {
            let entry = entry.unwrap();
            copy(entry.path(), at("lib").join(entry.file_name()));
        }
        copy(images.join("client-block/node-disk"), at("node-disk"));
        fs::write(at("boot_id"), "boot-1\n").unwrap();
        fs::write(at("mountinfo"), "").unwrap();
        for name in ["mount", "mkfs.ext4", "mkfs.xfs", "agent"] {
            node.program(name, "");
        }
        node.program("blockdev", "echo 409600");
        node.program("dumpe2fs", "echo 'Block count: 100'; echo 'Block size: 4096'");
        node.program("sleep", "exec true");
        node.program("mknod", "exec touch \"$1\"");
        node.is_empty(true);
        node.is_in_use(false);
        node
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn program(&self, name: &str, does: &str) {
        let path = self.path().join("bin").join(name);
        let asked = self.path().join("asked");
        let text = format!("#!/bin/sh\necho {name} \"$@\" >>{}\n{does}\n", asked.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Whether there is nothing on the disk.
    fn is_empty(&self, yes: bool) {
        self.program("blkid", if yes { "exit 2" } else { "" });
    }

    /// Whether the kernel refuses to open the disk exclusively.
    fn is_in_use(&self, yes: bool) {
        self.program("perl", if yes { "exit 1" } else { "" });
    }

    /// A disk with a file of the kernel's that has its serial.
    fn disk(&self, name: &str, file: &str, content: &[u8]) {
        let disk = self.path().join("sys/block").join(name);
        let file = disk.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
        fs::write(disk.join("dev"), "252:16\n").unwrap();
    }

    fn run(&self, volume: &str, args: &[&str]) -> Output {
        let at = |name: &str| self.path().join(name);
        let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.arg(at("node-disk")).args(args).env("PATH", path);
        command
            .env("MOORING_KUBELET_ROOT", at("kubelet"))
            .env("MOORING_AGENT", at("bin/agent"))
            .env("MOORING_VOLUME", volume)
            .env("MOORING_MOUNT_OPTIONS", "nosuid,nodev")
            .output()
            .unwrap()
    }

    fn mount(&self, volume: &str) -> Output {
        self.run(volume, &["mount", &format!("serial://{SERIAL}"), "/target"])
    }

    /// What an administrator is told.
    fn refused(&self) -> String {
        let output = self.mount("v1");
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert!(!self.asked().contains("\nmount "), "{}", self.asked());
        String::from_utf8(output.stderr).unwrap()
    }

    /// What the programs were asked, from a fresh line on.
    fn asked(&self) -> String {
        let asked = fs::read_to_string(self.path().join("asked")).unwrap_or_default();
        format!("\n{asked}")
    }
}

#[test]
fn a_disk_is_found_by_its_serial_on_each_kind_of_bus() {
    let page = |serial: &str| [&[0, 0x80, 0, u8::try_from(serial.len()).unwrap()], serial.as_bytes()].concat();
    for (name, file, content) in [
        ("vdb", "serial", SHORT.as_bytes().to_vec()),
        ("sdb", "device/vpd_pg80", page(SERIAL)),
        ("sdc", "device/vpd_pg80", page(&format!("{SHORT}  "))),
        ("nvme0n1", "device/serial", format!("{SERIAL}\n").into_bytes()),
    ] {
        let node = Node::new();
        // Others, and what the kernel makes itself.
        node.disk("vda", "serial", b"0b1c2d3e-0000-4a5b-9");
        node.disk("sda", "device/vpd_pg80", &page("0b1c2d3e"));
        node.disk("loop0", "size", b"0");
        node.disk(name, file, &content);
        let output = node.mount("v1");
        assert!(output.status.success(), "{name}: {output:?}");
        let asked = node.asked();
        let mounted = format!(
            "mount -t ext4 -o nosuid,nodev {}/devices/{name} /target",
            node.path().display()
        );
        assert!(asked.contains("\nmkfs.ext4 ") && asked.contains(&mounted), "{asked}");
    }
}

#[test]
fn a_disk_that_is_not_there_and_one_of_several_are_refused() {
    let node = Node::new();
    node.disk("vda", "serial", b"0b1c2d3e-0000-4a5b-9");
    let says = node.refused();
    assert!(says.contains("no disk with serial") && says.contains(SERIAL), "{says}");
    node.disk("vdb", "serial", SHORT.as_bytes());
    node.disk("vdc", "serial", SHORT.as_bytes());
    let says = node.refused();
    assert!(says.contains("several disks") && says.contains("(vdb vdc)"), "{says}");
}

#[test]
fn a_disk_that_the_node_itself_uses_is_refused_and_one_of_another_pod_is_not() {
    let node = Node::new();
    node.disk("vdb", "serial", SHORT.as_bytes());
    node.is_in_use(true);
    let says = node.refused();
    assert!(says.contains("vdb") && says.contains("in use on this node"), "{says}");

    node.is_in_use(false);
    assert!(node.mount("v1").status.success());
    node.is_in_use(true);
    node.is_empty(false);
    assert!(node.mount("v2").status.success());
    assert_eq!(node.asked().matches("\nmkfs").count(), 1);
    // Without either, it is the node's again.
    for volume in ["v1", "v2", "v2"] {
        assert!(node.run(volume, &["unmount", "/target"]).status.success());
    }
    let output = node.mount("v3");
    assert_eq!(output.status.code(), Some(75), "{output:?}");
}

#[test]
fn what_volumes_had_before_the_kernel_started_counts_for_nothing() {
    let node = Node::new();
    node.disk("vdb", "serial", SHORT.as_bytes());
    assert!(node.mount("v1").status.success());
    fs::write(node.path().join("boot_id"), "boot-2\n").unwrap();
    node.is_in_use(true);
    assert_eq!(node.mount("v2").status.code(), Some(75));
}

#[test]
fn a_raw_block_volume_is_the_disk_itself_and_is_never_formatted() {
    let node = Node::new();
    node.disk("vdb", "serial", SHORT.as_bytes());
    let output = node.run("v1", &["device", &format!("serial://{SERIAL}"), "/target"]);
    assert!(output.status.success(), "{output:?}");
    let asked = node.asked();
    let given = format!("agent service give-device {}/devices/vdb", node.path().display());
    assert!(
        asked.contains(&given) && !asked.contains("mkfs") && !asked.contains("\nmount "),
        "{asked}"
    );
}

#[test]
fn what_is_no_serial_is_refused_before_any_disk_is_looked_at() {
    let node = Node::new();
    for source in ["/dev/vdb", "serial://", "serial://../x", "serial://a*", "serial://-x"] {
        let output = node.run("v1", &["mount", source, "/target"]);
        assert_eq!(output.status.code(), Some(75), "{source}: {output:?}");
    }
    assert_eq!(node.asked(), "\n");
}
