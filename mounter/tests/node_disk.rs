//! The program of client `node-disk` in its image, with a `/sys` of the test's own and without a device.
#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
mod node;

use std::process::Output;

use node::{Node, refusal};

const SERIAL: &str = "0b1c2d3e-0000-4a5b-8c7d-0123456789ab";

/// What virtio-blk has room for.
const SHORT: &str = "0b1c2d3e-0000-4a5b-8";

/// A node without a disk. A disk of it would not be in use.
fn new_node() -> Node {
    let node = Node::new("client-block/node-disk");
    is_in_use(&node, false);
    node
}

/// Whether the kernel refuses to open the disk exclusively.
fn is_in_use(node: &Node, yes: bool) {
    node.command("perl", if yes { "exit 1" } else { "" });
}

/// A disk with a file of the kernel's that has its serial.
fn disk(node: &Node, name: &str, file: &str, content: impl AsRef<[u8]>) {
    node.write(format!("sys/block/{name}/{file}"), content);
    node.write(format!("sys/block/{name}/dev"), "252:16\n");
}

fn mount(node: &Node, volume: &str) -> Output {
    node.run(volume, &["mount", &format!("serial://{SERIAL}"), "/target"], &[])
}

fn unmount(node: &Node, volume: &str) -> Output {
    node.run(volume, &["unmount", "/target"], &[])
}

/// What an administrator is told.
fn refused(node: &Node, volume: &str) -> String {
    let mounts = || node.calls().matches("\nmount ").count();
    let before = mounts();
    let said = refusal(&mount(node, volume));
    assert_eq!(mounts(), before, "{}", node.calls());
    said
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
        let node = new_node();
        // Others, and what the kernel makes itself.
        disk(&node, "vda", "serial", "0b1c2d3e-0000-4a5b-9");
        disk(&node, "sda", "device/vpd_pg80", page("0b1c2d3e"));
        disk(&node, "loop0", "size", b"0");
        disk(&node, name, file, &content);
        let output = mount(&node, "v1");
        assert!(output.status.success(), "{name}: {output:?}");
        let calls = node.calls();
        let mounted = format!(
            "mount -t ext4 -o nosuid,nodev,errors=remount-ro {}/{name} /target",
            node.at("devices").display()
        );
        assert!(
            calls.contains("\nagent make-file-system --if-blank --type ext4 ") && calls.contains(&mounted),
            "{calls}"
        );
    }
}

#[test]
fn a_disk_that_is_not_there_and_one_of_several_are_refused() {
    let node = new_node();
    disk(&node, "vda", "serial", "0b1c2d3e-0000-4a5b-9");
    let says = refused(&node, "v1");
    assert!(says.contains("no disk with serial") && says.contains(SERIAL), "{says}");
    disk(&node, "vdb", "serial", SHORT);
    disk(&node, "vdc", "serial", SHORT);
    let says = refused(&node, "v1");
    assert!(says.contains("several disks") && says.contains("(vdb vdc)"), "{says}");
}

#[test]
fn a_disk_that_the_node_itself_uses_is_refused_and_one_of_another_pod_is_not() {
    let node = new_node();
    disk(&node, "vdb", "serial", SHORT);
    is_in_use(&node, true);
    let says = refused(&node, "v1");
    assert!(says.contains("vdb") && says.contains("in use on this node"), "{says}");

    is_in_use(&node, false);
    assert!(mount(&node, "v1").status.success());
    is_in_use(&node, true);
    assert!(mount(&node, "v2").status.success());
    // Without either, it is the node's again.
    assert!(unmount(&node, "v1").status.success());
    is_in_use(&node, false);
    for _ in 0..2 {
        assert!(unmount(&node, "v2").status.success());
    }
    is_in_use(&node, true);
    let output = mount(&node, "v3");
    assert_eq!(output.status.code(), Some(75), "{output:?}");
}

/// Once it is unmounted the storage may take the disk from the node, with what the kernel has not written.
#[test]
fn a_disk_that_is_in_use_after_its_last_unmount_stays_the_volume_s() {
    for file_system in ["ext4", "xfs"] {
        let node = new_node();
        disk(&node, "vdb", "serial", SHORT);
        let run = |volume: &str, args: &[&str]| node.run(volume, args, &[("MOORING_FS_TYPE", file_system)]);
        for volume in ["v1", "v2"] {
            assert!(
                run(volume, &["mount", &format!("serial://{SERIAL}"), "/target"])
                    .status
                    .success()
            );
        }
        is_in_use(&node, true);
        let record = |volume: &str| node.at(format!("kubelet/plugins/mooring.dev/node-disk-volume-{volume}"));
        assert!(
            run("v1", &["unmount", "/target"]).status.success(),
            "another Pod has it"
        );
        for _ in 0..2 {
            let says = refusal(&run("v2", &["unmount", "/target"]));
            assert!(says.contains("vdb") && says.contains("still in use"), "{says}");
            assert!(record("v2").exists() && !record("v1").exists());
        }
        is_in_use(&node, false);
        assert!(run("v2", &["unmount", "/target"]).status.success());
        assert!(!record("v2").exists());
    }
}

#[test]
fn a_disk_that_is_gone_or_has_another_name_since_the_kernel_started_keeps_no_volume() {
    for change in ["gone", "renamed", "restarted"] {
        let node = new_node();
        disk(&node, "vdb", "serial", SHORT);
        assert!(mount(&node, "v1").status.success());
        is_in_use(&node, true);
        match change {
            "restarted" => node.write("boot_id", "boot-2\n"),
            _ => std::fs::remove_dir_all(node.at("sys/block/vdb")).unwrap(),
        }
        if change == "renamed" {
            disk(&node, "vdc", "serial", SHORT);
        }
        let output = unmount(&node, "v1");
        assert!(output.status.success(), "{change}: {output:?}");
    }
}

#[test]
fn a_disk_of_another_persistent_volume_is_refused_and_each_pod_of_one_gets_it() {
    let of_flexvolume = |pod: &str, name: &str| format!("pods/{pod}/volumes/mooring.dev~vcs/{name}");
    let of_csi = |pod: &str, name: &str| format!("pods/{pod}/volumes/kubernetes.io~csi/{name}/mount");
    let of_device = |pod: &str, name: &str| format!("plugins/kubernetes.io/csi/volumeDevices/publish/{name}/{pod}");
    for target in [of_flexvolume, of_csi, of_device] {
        let node = new_node();
        disk(&node, "vdb", "serial", SHORT);
        for (volume, name) in [("v1", "pv-1"), ("v2", "pv-1"), ("other", "pv-2")] {
            node.target(volume, &target(volume, name));
        }
        assert!(mount(&node, "v1").status.success());
        for used in [true, false] {
            is_in_use(&node, used);
            assert!(mount(&node, "v2").status.success());
            let says = refused(&node, "other");
            assert!(says.contains("PersistentVolume pv-1") && says.contains("vdb"), "{says}");
            // What was refused leaves nothing behind that would count as its use.
            assert!(unmount(&node, "other").status.success());
            assert!(refused(&node, "other").contains("PersistentVolume pv-1"));
            // A serial that the disk has no room for.
            let output = node.run("other", &["mount", &format!("serial://{SHORT}"), "/target"], &[]);
            assert!(refusal(&output).contains("PersistentVolume pv-1"));
        }
        for volume in ["v1", "v2"] {
            assert!(unmount(&node, volume).status.success());
        }
        let output = mount(&node, "other");
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn a_volume_that_is_gone_without_an_unmount_keeps_its_disk_only_while_that_is_in_use() {
    let node = new_node();
    disk(&node, "vdb", "serial", SHORT);
    assert!(mount(&node, "v1").status.success());
    std::fs::remove_dir_all(node.at("kubelet/pods/v1")).unwrap();
    node.target("other", "pods/other/volumes/mooring.dev~vcs/pv-2");
    assert!(mount(&node, "other").status.success());
}

#[test]
fn an_error_makes_an_ext4_read_only_whatever_the_volume_says() {
    for (options, label) in [
        ("nosuid,nodev", ""),
        ("", ""),
        ("errors=panic", ""),
        ("errors=continue,nosuid,errors=panic,nodev", ""),
        (
            "nosuid,nodev,errors=panic",
            "system_u:object_r:container_file_t:s0:c1,c2",
        ),
    ] {
        let node = new_node();
        disk(&node, "vdb", "serial", SHORT);
        let variables = [("MOORING_MOUNT_OPTIONS", options), ("MOORING_SELINUX_LABEL", label)];
        let output = node.run("v1", &["mount", &format!("serial://{SERIAL}"), "/target"], &variables);
        assert!(output.status.success(), "{output:?}");
        let calls = node.calls();
        let call = calls
            .lines()
            .find(|call| call.starts_with("mount ") || call.starts_with("agent mount-device "));
        let call = call.unwrap();
        let given = call.split_whitespace().find(|word| word.contains("errors="));
        assert!(
            given.is_some_and(|given| given.ends_with("errors=remount-ro") && given.matches("errors=").count() == 1),
            "the superblock or the volume decides what an error does: {call}"
        );
        assert_eq!(call.contains("nosuid"), options.contains("nosuid"), "{call}");
        assert!(!call.contains(",,") && !call.contains("-o ,"), "{call}");
    }
    // xfs has no such option.
    let node = new_node();
    disk(&node, "vdb", "serial", SHORT);
    let xfs = [("MOORING_FS_TYPE", "xfs")];
    let output = node.run("v1", &["mount", &format!("serial://{SERIAL}"), "/target"], &xfs);
    assert!(
        output.status.success() && !node.calls().contains("errors="),
        "{}",
        node.calls()
    );
}

#[test]
fn a_disk_that_is_too_small_is_refused_with_the_least_size_and_without_the_agent_s_command_with_the_cure() {
    let node = new_node();
    disk(&node, "vdb", "serial", SHORT);
    let agent = env!("CARGO_BIN_EXE_mounter");
    node.command(
        "agent",
        &format!("[ $1 != make-file-system ] || truncate -s 7M \"$5\"; exec {agent} \"$@\""),
    );
    let says = refused(&node, "v1");
    assert!(says.contains("8Mi at least") && says.contains("larger"), "{says}");
    node.command("agent", "[ $1 != make-file-system ] || exit 2");
    let says = refused(&node, "v1");
    assert!(says.contains("update both"), "{says}");
}

/// A node whose disk is the file that a command makes, and whose agent formats it.
fn with_real_disk(make: &str) -> Node {
    let node = new_node();
    disk(&node, "vdb", "serial", SHORT);
    node.command("mknod", make);
    let agent = env!("CARGO_BIN_EXE_mounter");
    node.command("agent", &format!("[ $1 = grow-file-system ] || exec {agent} \"$@\""));
    node
}

fn content(node: &Node) -> Vec<u8> {
    std::fs::read(node.at("devices/vdb")).unwrap()
}

#[test]
fn a_disk_with_anything_but_a_file_system_on_it_is_refused_with_the_cure_and_stays_as_it_is() {
    for file_system in ["ext4", "xfs"] {
        let node = with_real_disk(
            "truncate -s 320M \"$1\"; yes data | head -c 5000 | dd of=\"$1\" bs=1 seek=4096 conv=notrunc",
        );
        let run = || {
            let variables = [("MOORING_FS_TYPE", file_system)];
            node.run("v1", &["mount", &format!("serial://{SERIAL}"), "/target"], &variables)
        };
        let says = refusal(&run());
        assert!(says.contains("is not blank") && says.contains("new volume"), "{says}");
        assert!(!node.calls().contains("\nmount "), "{}", node.calls());
        let found = content(&node);
        assert!(found[..4096].iter().all(|byte| *byte == 0) && found[4096..].starts_with(b"data\n"));
    }
}

#[test]
fn a_blank_disk_is_formatted_and_again_where_that_was_interrupted() {
    for (file_system, remains) in [
        ("ext4", ""),
        ("xfs", ""),
        // As mkfs.xfs leaves it when it is killed.
        (
            "xfs",
            "mkfs.xfs -q \"$1\"; printf '\\377\\377\\377\\377\\377\\377\\377\\377' | dd of=\"$1\" bs=1 seek=56 conv=notrunc; \
             printf '\\1' | dd of=\"$1\" bs=1 seek=126 conv=notrunc",
        ),
    ] {
        let node = with_real_disk(&format!("truncate -s 320M \"$1\"; {remains}"));
        let variables = [("MOORING_FS_TYPE", file_system)];
        let output = node.run("v1", &["mount", &format!("serial://{SERIAL}"), "/target"], &variables);
        assert!(output.status.success(), "{output:?}");
        let found = content(&node);
        match file_system {
            "xfs" => assert!(found.starts_with(b"XFSB") && found[126] == 0, "it can't be mounted"),
            _ => assert_eq!(found[1080..1082], [0x53, 0xef]),
        }
    }
}

#[test]
fn a_file_system_grows_before_its_mount_or_after_it_and_one_that_failed_to_is_not_left_mounted() {
    let node = new_node();
    disk(&node, "vdb", "serial", SHORT);
    assert!(mount(&node, "v1").status.success());
    let calls = node.calls();
    let steps = [
        "agent grow-file-system ",
        "mount -t ext4 ",
        "agent grow-file-system --mounted ",
    ];
    let places = steps.map(|step| calls.find(&format!("\n{step}")).unwrap());
    assert!(places.is_sorted(), "{calls}");

    node.command("umount", "");
    node.command("agent", "[ \"$1 $2\" != 'grow-file-system --mounted' ] || exit 1");
    assert_eq!(mount(&node, "v1").status.code(), Some(75));
    assert!(node.calls().contains("\numount /target"), "{}", node.calls());
    let read_only = [("MOORING_MOUNT_OPTIONS", "ro")];
    let output = node.run("v1", &["mount", &format!("serial://{SERIAL}"), "/target"], &read_only);
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_volumes_had_before_the_kernel_started_counts_for_nothing() {
    let node = new_node();
    disk(&node, "vdb", "serial", SHORT);
    assert!(mount(&node, "v1").status.success());
    node.write("boot_id", "boot-2\n");
    is_in_use(&node, true);
    assert_eq!(mount(&node, "v2").status.code(), Some(75));
}

#[test]
fn a_raw_block_volume_is_the_disk_itself_and_is_never_formatted() {
    let node = new_node();
    disk(&node, "vdb", "serial", SHORT);
    let output = node.run("v1", &["device", &format!("serial://{SERIAL}"), "/target"], &[]);
    assert!(output.status.success(), "{output:?}");
    let calls = node.calls();
    let given = format!("agent service give-device {}/vdb", node.at("devices").display());
    assert!(
        calls.contains(&given) && !calls.contains("make-file-system") && !calls.contains("\nmount "),
        "{calls}"
    );
}

#[test]
fn what_is_no_serial_is_refused_before_any_disk_is_looked_at() {
    let node = new_node();
    for source in ["/dev/vdb", "serial://", "serial://../x", "serial://a*", "serial://-x"] {
        let output = node.run("v1", &["mount", source, "/target"], &[]);
        assert_eq!(output.status.code(), Some(75), "{source}: {output:?}");
    }
    assert_eq!(node.calls(), "\n");
}
