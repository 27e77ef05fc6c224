//! The program of client `iscsi` in its image, with a `/sys` and an `iscsiadm` of the test's own and without a target.
#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
mod node;

use std::process::Output;

use mooring_mounter::volume::device_owner::DeviceOwner;
use node::{Node, refusal};

const TARGET: &str = "iqn.2020-01.com.example:target";

/// The initiator's name of the node.
const INITIATOR: &str = "iqn.2025-01.dev.mooring:node-1";

/// Makes sessions as open-iscsi does.
const ISCSIADM: &str = include_str!("support/iscsiadm.sh");

/// Opens a device exclusively, unless it is in the file `in-use`.
const PERL: &str = r#"for last; do :; done; ! grep -qsxF "${last##*/}" "$NODE/in-use""#;

fn new_node() -> Node {
    let node = Node::new("client-iscsi/iscsi");
    for module in ["iscsi_tcp", "sd_mod"] {
        node.write(format!("sys/module/{module}/there"), "");
    }
    node.write("proc/net/unix", "0: 2 0 0 1 1 1 @ISCSIADM_ABSTRACT_NAMESPACE\n");
    node.write("etc/iscsi/plain.conf", "node.startup = manual\n");
    node.write("etc/iscsi/initiatorname.iscsi", format!("InitiatorName={INITIATOR}\n"));
    node.write("run/mooring/iscsi/there", "");
    node.command("iscsiadm", ISCSIADM);
    node.command("perl", PERL);
    node
}

/// A volume and what it says.
#[derive(Clone, Copy)]
struct Volume {
    name: &'static str,
    portals: &'static str,
    lun: u8,
    login: Option<(&'static str, &'static str)>,
    login_in: Option<(&'static str, &'static str)>,
    initiator: &'static str,
}

const VOLUME: Volume = Volume {
    name: "v1",
    portals: "10.0.0.1",
    lun: 1,
    login: Some(("user", "password-1")),
    login_in: None,
    initiator: "",
};

fn mount(node: &Node, volume: &Volume) -> Output {
    node.write(format!("secrets/{}/there", volume.name), "");
    for (side, login) in [("", volume.login), ("-in", volume.login_in)] {
        let Some((user, password)) = login else { continue };
        node.write(format!("secrets/{}/chap-username{side}", volume.name), user);
        node.write(format!("secrets/{}/chap-password{side}", volume.name), password);
    }
    let source = format!("iscsi://{}/{TARGET}/{}", volume.portals, volume.lun);
    let initiator = [("MOORING_OPTION_INITIATOR", volume.initiator)];
    node.run(volume.name, &["mount", &source, "/target"], &initiator)
}

/// Mounts a volume, and returns the device that it got.
fn device(node: &Node, volume: &Volume) -> String {
    let output = mount(node, volume);
    assert!(output.status.success(), "{output:?}{}", node.calls());
    let calls = node.calls();
    let call = calls.lines().rfind(|call| call.starts_with("mount ")).unwrap();
    let device = call.split(' ').nth_back(1).unwrap();
    device.rsplit_once('/').unwrap().1.to_owned()
}

fn unmount(node: &Node, volume: &Volume) {
    let output = node.run(volume.name, &["unmount", "/target"], &[]);
    assert!(output.status.success(), "{output:?}");
}

/// The node's sessions by their numbers.
fn sessions(node: &Node) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(node.at("sys/class/iscsi_session")) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Marks devices as used by something, and shows their file systems in the mount table.
fn are_in_use(node: &Node, devices: &[&str]) {
    node.write("in-use", devices.join("\n"));
    let mounts = devices.iter().map(|device| {
        let (session, lun) = device.strip_prefix("sd").unwrap().split_once('-').unwrap();
        format!("50 40 8:{session}{lun} / /kubelet/pods/u/volumes/x/{device} rw - ext4 {device} rw\n")
    });
    node.write("mountinfo", mounts.collect::<String>());
}

#[test]
fn two_pods_of_a_volume_and_two_luns_of_a_target_share_its_session_until_the_last_one_goes() {
    for login_in in [None, Some(("target", "password-in"))] {
        let node = new_node();
        let volume = Volume { login_in, ..VOLUME };
        assert_eq!(device(&node, &volume), "sd1-1");
        are_in_use(&node, &["sd1-1"]);
        let second = Volume { name: "v2", ..volume };
        assert_eq!(device(&node, &second), "sd1-1");
        let beside = Volume {
            name: "v3",
            lun: 2,
            ..volume
        };
        assert_eq!(device(&node, &beside), "sd1-2");
        assert_eq!(sessions(&node), ["session1"]);
        are_in_use(&node, &["sd1-2"]);
        unmount(&node, &volume);
        unmount(&node, &second);
        assert_eq!(sessions(&node), ["session1"]);
        are_in_use(&node, &[]);
        unmount(&node, &beside);
        assert_eq!(sessions(&node), Vec::<String>::new());
    }
}

#[test]
fn a_lun_of_another_persistent_volume_is_refused_and_another_lun_of_its_session_is_not() {
    let node = new_node();
    for (volume, name) in [("v1", "pv-1"), ("v2", "pv-1"), ("other", "pv-2")] {
        node.target(volume, &format!("pods/{volume}/volumes/kubernetes.io~csi/{name}/mount"));
    }
    assert_eq!(device(&node, &VOLUME), "sd1-1");
    are_in_use(&node, &["sd1-1"]);
    let other = Volume {
        name: "other",
        ..VOLUME
    };
    let source = format!("iscsi://{}/{TARGET}/1", VOLUME.portals);
    let mounts = node.calls().matches("\nmount ").count();
    for (action, options) in [("mount", "nosuid,nodev"), ("mount", "ro"), ("device", "ro")] {
        mount(&node, &other);
        let output = node.run(
            "other",
            &[action, &source, "/target"],
            &[("MOORING_MOUNT_OPTIONS", options)],
        );
        let said = refusal(&output);
        assert!(said.contains("PersistentVolume pv-1 has disk sd1-1"), "{said}");
        let calls = node.calls();
        assert_eq!(calls.matches("\nmount ").count(), mounts, "{calls}");
        assert!(
            !calls.contains("give-device") && !calls.contains("blockdev --setro"),
            "{calls}"
        );
        unmount(&node, &other);
    }
    let second = Volume { name: "v2", ..VOLUME };
    assert_eq!(device(&node, &second), "sd1-1");
    let beside = Volume { lun: 2, ..other };
    assert_eq!(device(&node, &beside), "sd1-2");
    assert_eq!(sessions(&node), ["session1"]);
    unmount(&node, &VOLUME);
    assert!(refusal(&mount(&node, &other)).contains("PersistentVolume pv-1"));
    unmount(&node, &second);
    assert_eq!(device(&node, &other), "sd1-1");
}

#[test]
fn another_portal_or_initiator_gets_a_session_of_its_own() {
    let elsewhere = Volume {
        name: "v2",
        portals: "10.0.0.2",
        ..VOLUME
    };
    let by_another = Volume {
        name: "v2",
        initiator: "iqn.2020-01.com.example:other",
        ..VOLUME
    };
    for other in [elsewhere, by_another] {
        let node = new_node();
        assert_eq!(device(&node, &VOLUME), "sd1-1");
        are_in_use(&node, &["sd1-1"]);
        let other = Volume { lun: 2, ..other };
        assert_eq!(device(&node, &other), "sd2-2", "the session of another volume");
        are_in_use(&node, &["sd2-2"]);
        unmount(&node, &VOLUME);
        assert_eq!(sessions(&node), ["session2"]);
        are_in_use(&node, &[]);
        unmount(&node, &other);
        assert_eq!(sessions(&node), Vec::<String>::new());
    }
}

#[test]
fn another_login_gets_nothing_of_a_session_that_is_used() {
    for (login, login_in) in [
        (None, None),
        (Some(("user", "password-2")), None),
        (Some(("user-2", "password-1")), None),
        (VOLUME.login, Some(("target", "password-in"))),
    ] {
        let node = new_node();
        assert_eq!(device(&node, &VOLUME), "sd1-1");
        are_in_use(&node, &["sd1-1"]);
        for lun in [1, 2] {
            let other = Volume {
                name: "v2",
                lun,
                login,
                login_in,
                ..VOLUME
            };
            let said = refusal(&mount(&node, &other));
            assert!(said.contains("another login") && said.contains(TARGET), "{said}");
            assert!(!said.contains("password-"), "{said}");
            unmount(&node, &other);
            assert_eq!(sessions(&node), ["session1"]);
        }
        // Once nobody uses it, the session ends with it.
        are_in_use(&node, &[]);
        let other = Volume {
            name: "v2",
            login,
            login_in,
            ..VOLUME
        };
        assert_eq!(device(&node, &other), "sd2-1");
        assert_eq!(sessions(&node), ["session2"]);
    }
}

/// Else, a rolling restart after a change of the CHAP Secret would never end: the old Pod has the session until the new
/// one is ready.
#[test]
fn a_pod_of_a_persistent_volume_has_the_device_of_another_one_though_the_secret_was_changed() {
    let persistent = DeviceOwner::persistent_volume;
    let inline = |name: &str| DeviceOwner::inline("shop", name);
    let new = Volume {
        name: "v2",
        login: Some(("user", "password-2")),
        ..VOLUME
    };
    for (of_first, of_second, lun, shares) in [
        (persistent("pv-1"), persistent("pv-1"), 1, true),
        // What it says that it has is not there for it.
        (persistent("pv-1"), persistent("pv-1"), 2, false),
        (persistent("pv-1"), persistent("pv-2"), 1, false),
        (persistent("pv-1"), persistent("pv-2"), 2, false),
        (persistent("pv-1"), inline("pv-1"), 1, false),
        // A tenant's volume shows by its Secret alone whose it is.
        (inline("pv-1"), inline("pv-1"), 1, false),
    ] {
        let node = new_node();
        for (volume, owner) in [("v1", &of_first), ("v2", &of_second)] {
            let target = format!("pods/{volume}/volumes/mooring.dev~vcs/pv-1");
            node.target_of(volume, &target, Some(owner));
        }
        assert_eq!(device(&node, &VOLUME), "sd1-1");
        are_in_use(&node, &["sd1-1"]);
        let second = Volume { lun, ..new };
        if shares {
            assert_eq!(device(&node, &second), "sd1-1");
            unmount(&node, &VOLUME);
            assert_eq!(sessions(&node), ["session1"]);
            are_in_use(&node, &[]);
            unmount(&node, &second);
            assert_eq!(sessions(&node), Vec::<String>::new());
        } else {
            let said = refusal(&mount(&node, &second));
            assert!(said.contains("another login"), "{of_first} {of_second} {lun}: {said}");
        }
    }
}

#[test]
fn a_session_with_an_ipv6_address_is_found_again() {
    let node = new_node();
    let volume = Volume {
        portals: "[fd00::10]",
        ..VOLUME
    };
    assert_eq!(device(&node, &volume), "sd1-1");
    are_in_use(&node, &["sd1-1"]);
    let second = Volume { name: "v2", ..volume };
    assert_eq!(device(&node, &second), "sd1-1");
    assert_eq!(sessions(&node), ["session1"]);
}

#[test]
fn a_server_that_refuses_the_login_is_not_passed_by_through_another_session() {
    let node = new_node();
    node.write("logins/10.0.0.2:3260", "user:password-2");
    assert_eq!(device(&node, &VOLUME), "sd1-1");
    let other = Volume {
        name: "v2",
        portals: "10.0.0.2",
        ..VOLUME
    };
    let said = refusal(&mount(&node, &other));
    assert!(said.contains("10.0.0.2 does not let this node use target"), "{said}");
}

#[test]
fn a_lun_is_not_used_through_two_sessions_at_once() {
    for (identifier, is_another) in [("naa.1", false), ("", false), ("naa.2", true)] {
        let node = new_node();
        node.write("identifiers/10.0.0.1:3260", "naa.1\n");
        node.write("identifiers/10.0.0.2:3260", format!("{identifier}\n"));
        assert_eq!(device(&node, &VOLUME), "sd1-1");
        are_in_use(&node, &["sd1-1"]);
        let other = Volume {
            name: "v2",
            portals: "10.0.0.2",
            ..VOLUME
        };
        if is_another {
            assert_eq!(device(&node, &other), "sd2-1", "the session of another volume");
            continue;
        }
        let output = mount(&node, &other);
        let count = sessions(&node).len();
        assert_eq!(count, 2, "the session of another volume");
        let said = refusal(&output);
        assert!(said.contains("another session") && said.contains("LUN 1"), "{said}");
        unmount(&node, &other);
        assert_eq!(sessions(&node), ["session1"]);
    }
}

#[test]
fn any_portal_of_a_list_that_has_the_session_is_the_volume_s_own() {
    let node = new_node();
    node.write("logins/10.0.0.1:3260", "nobody:nothing");
    let volume = Volume {
        portals: "10.0.0.1,10.0.0.2",
        ..VOLUME
    };
    assert_eq!(device(&node, &volume), "sd1-1");
    are_in_use(&node, &["sd1-1"]);
    let second = Volume { name: "v2", ..volume };
    assert_eq!(device(&node, &second), "sd1-1");
    assert_eq!(sessions(&node), ["session1"]);
}
