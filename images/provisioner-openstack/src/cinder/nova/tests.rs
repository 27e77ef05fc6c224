//! Runs on nodes that are Nova's servers, against a Nova and a Cinder that remember what they were told.

use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use super::server_of;
use crate::error::OpenstackError;
use crate::given::tests::given;
use crate::run::run;
use crate::test_cinder::{State, serve};
use crate::test_run::{gone, ran};
use crate::test_server::{PACE, login, reply};

const SERVER: &str = "0b1c2d3e-0000-4a5b-8c7d-0123456789ab";
const OTHER: &str = "1b1c2d3e-0000-4a5b-8c7d-0123456789ab";

/// A cloud with one volume, and with one server, which is node a.
struct World {
    state: Arc<Mutex<State>>,
    clouds: String,
    provider: String,
    gone: bool,
    fs_type: &'static str,
    properties: Vec<(&'static str, &'static str)>,
}

impl World {
    fn new() -> Self {
        let volume = json!({"id": "v1", "name": "pvc-u1", "status": "available", "size": 1,
                            "metadata": {"mooring-pv-name": "pvc-u1"}});
        let mut state = State::with_server(SERVER);
        state.volumes.push(volume);
        let state = Arc::new(Mutex::new(state));
        let url = serve(&state);
        Self {
            state,
            clouds: format!(
                "clouds: {{one: {{auth: {{auth_url: '{url}', username: u, password: p, project_name: x}}}}}}"
            ),
            provider: format!("openstack:///{SERVER}"),
            gone: false,
            fs_type: "ext4",
            properties: vec![("service", "cinder"), ("client", "rbd"), ("ceph-key", "K==")],
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Has a server have the volume.
    fn give(&self, server: &str) {
        let mut state = self.state();
        state.attachments.push(
            json!({"id": "a9", "volume_id": "v1", "instance": server, "status": "attached",
                                      "device": "/dev/vdb"}),
        );
        state.disks.push(json!({"server": server, "volume": "v1"}));
    }

    fn has(&self) -> [usize; 2] {
        let state = self.state();
        [state.attachments.len(), state.disks.len()]
    }

    /// Runs it; the answer to Mooring, or why there is none.
    fn ran(&self, operation: &str) -> Result<Value, OpenstackError> {
        let options = json!({"client": "rbd", "source": "rbd://by-attach/cinder/volume-v1", "fs-type": self.fs_type,
                             "driver": "kernel"});
        let changes = json!({
            "operation": operation, "node-name": "a", "volume": options,
            "attachment": {"addresses": ["10.0.0.7"], "initiator": "iqn.x:a-1", "provider-id": self.provider,
                           "gone": self.gone},
        });
        let key = mooring_seal::new_key().unwrap();
        let mut properties = self.properties.clone();
        properties.extend([("clouds.yaml", self.clouds.as_str()), ("answer-key", key.as_str())]);
        let (folder, _) = given(&changes, &properties);
        let to = folder.path().join("message");
        run(folder.path(), &to, PACE)?;
        let said = std::fs::read_to_string(&to).unwrap_or_default();
        Ok(serde_json::from_str(&said).unwrap_or_default())
    }

    /// Why it can't be done now.
    fn refused(&self, operation: &str) -> String {
        let error = self.ran(operation).unwrap_err();
        assert_eq!(error.exit_code(), 75, "{error}");
        error.to_string()
    }
}

#[test]
fn a_node_is_nova_s_where_its_provider_id_names_a_server() {
    for text in [
        format!("openstack:///{SERVER}"),
        format!("openstack://RegionOne/{}", SERVER.to_uppercase()),
    ] {
        assert_eq!(server_of(&text).as_deref(), Some(SERVER), "{text}");
    }
    for other in [
        String::new(),
        SERVER.to_owned(),
        "openstack:///".to_owned(),
        "openstack:///../v3".to_owned(),
        "openstack:///0b1c2d3e".to_owned(),
        format!("metal3://metal/{SERVER}/x"),
        "aws:///eu-west-1/i-0123".to_owned(),
        format!("openstack://r/{SERVER}/x"),
    ] {
        assert_eq!(server_of(&other), None, "{other}");
    }
}

#[test]
fn a_node_finds_its_volume_by_the_serial_and_keeps_it() {
    let world = World::new();
    for _ in 0..2 {
        let said = world.ran("attach").unwrap();
        assert_eq!(said, json!({"client": "node-disk", "source": "serial://v1"}));
        assert_eq!(world.has(), [1, 1]);
    }
    for _ in 0..2 {
        world.ran("detach").unwrap();
        assert_eq!(world.has(), [0, 0]);
    }
}

#[test]
fn nodes_of_other_kinds_and_those_of_a_configmap_without_nova_are_attached_as_before() {
    for (provider, switch) in [("metal3://m/1", None), ("", None), (SERVER, Some("false"))] {
        let mut world = World::new();
        if provider != SERVER {
            world.provider = provider.to_owned();
        }
        world.properties.extend(switch.map(|switch| ("nova", switch)));
        let said = world.ran("attach").unwrap();
        assert_eq!(said["source"], "rbd://h:1/p/i", "{provider}");
        assert_eq!(world.has(), [1, 0]);
        world.ran("detach").unwrap();
        assert_eq!(world.has(), [0, 0]);
    }
    let mut world = World::new();
    world.properties.push(("nova", "no"));
    assert_eq!(world.ran("attach").unwrap_err().exit_code(), 78);
}

#[test]
fn what_a_node_has_stays_as_it_is_when_the_switch_is_turned() {
    let mut world = World::new();
    world.properties.push(("nova", "false"));
    world.ran("attach").unwrap();
    world.properties.pop();
    assert_eq!(world.ran("attach").unwrap()["source"], "rbd://h:1/p/i");
    world.ran("detach").unwrap();
    assert_eq!(world.has(), [0, 0]);

    world.ran("attach").unwrap();
    world.properties.push(("nova", "false"));
    assert_eq!(world.ran("attach").unwrap()["source"], "serial://v1");
    world.ran("detach").unwrap();
    assert_eq!(world.has(), [0, 0]);
}

#[test]
fn a_server_that_the_project_does_not_have_is_told_with_what_to_do() {
    let world = World::new();
    world.state().servers.clear();
    let says = world.refused("attach");
    assert!(says.contains(SERVER) && says.contains("nova: \"false\""), "{says}");
    assert_eq!(world.has(), [0, 0]);
    world.ran("detach").unwrap();
}

#[test]
fn a_volume_that_another_server_has_is_attached_when_that_has_ended() {
    let world = World::new();
    world.give(OTHER);
    let says = world.refused("attach");
    assert!(says.contains(&format!("elsewhere (server {OTHER} of Nova)")), "{says}");
    world.ran("detach").unwrap();
    assert_eq!(world.has(), [1, 1], "another's");
}

#[test]
fn what_nova_gives_up_is_told_at_once() {
    let world = World::new();
    world.state().gives_up = true;
    let says = world.refused("attach");
    assert!(says.contains("given it up"), "{says}");
    assert_eq!(world.has(), [0, 0]);
    world.give(SERVER);
    let says = world.refused("detach");
    assert!(says.contains("did not let go"), "{says}");
    assert_eq!(world.has(), [1, 1]);
}

#[test]
fn a_volume_that_a_node_could_not_mount_is_not_attached() {
    let mut world = World::new();
    world.fs_type = "raw";
    let error = world.ran("attach").unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert!(error.to_string().contains("fs-type"), "{error}");
    assert_eq!(world.has(), [0, 0]);
}

#[test]
fn what_nova_refuses_is_told_in_its_words_and_tried_again() {
    let volume = json!({"volume": {"id": "v1", "name": "pvc-u1", "status": "available", "size": 1,
                                   "metadata": {"mooring-pv-name": "pvc-u1"}}});
    let changes = json!({
        "operation": "attach", "node-name": "a",
        "volume": {"client": "block", "source": "iscsi://by-attach/volume-v1/0"},
        "attachment": {"addresses": [], "initiator": "i", "provider-id": format!("openstack:///{SERVER}")},
    });
    for (status, words) in [
        (409, "Instance is locked"),
        (403, "The maximum allowed number of disk devices (26) has been exceeded"),
        (400, "Invalid volume: it is busy"),
        (500, "Unexpected API Error"),
    ] {
        let fault = json!({"fault": {"message": words, "code": status}}).to_string();
        let replies = vec![
            reply(200, &volume.to_string()),
            reply(200, r#"{"version": {"id": "v2.1", "version": "2.96"}}"#),
            gone(),
            reply(200, &json!({"server": {"id": SERVER, "status": "ACTIVE"}}).to_string()),
            reply(200, &volume.to_string()),
            reply(200, r#"{"attachments": []}"#),
            reply(200, &volume.to_string()),
            reply(429, "{}").with("retry-after", "0"),
            reply(401, "{}"),
            login("t2", "URL/v3/p"),
            reply(status, &fault),
        ];
        let run = ran("cinder", &changes, &[], replies);
        let error = run.result.unwrap_err();
        assert_eq!(error.exit_code(), 75, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        let asked =
            format!("POST /servers/{SERVER}/os-volume_attachments {{\"volumeAttachment\":{{\"volumeId\":\"v1\"}}}}");
        assert_eq!([7, 8, 10].map(|at| run.calls[at].as_str()), [asked.as_str(); 3]);
    }
}

#[test]
fn a_node_that_is_gone_has_its_server_stopped_or_deleted_first() {
    let world_without = || {
        let mut world = World::new();
        world.give(SERVER);
        world.gone = true;
        world
    };
    for (status, task) in [("ACTIVE", None), ("ERROR", None), ("SHUTOFF", Some("powering-on"))] {
        let world = world_without();
        world.state().servers = vec![json!({"id": SERVER, "status": status, "OS-EXT-STS:task_state": task})];
        let says = world.refused("detach");
        assert!(says.contains(status) && says.contains("server stop"), "{says}");
        assert_eq!(world.has(), [1, 1]);
    }
    let world = world_without();
    world.state().servers = vec![json!({"id": SERVER, "status": "SHUTOFF", "OS-EXT-STS:task_state": null})];
    world.ran("detach").unwrap();
    assert_eq!(world.has(), [0, 0]);

    let mut world = world_without();
    world.properties.push(("fenced-nodes", "b, a"));
    world.ran("detach").unwrap();
    assert_eq!(world.has(), [0, 0]);

    // With a server that is deleted, its attachments go.
    let world = world_without();
    world.state().servers.clear();
    world.state().disks.clear();
    world.state().attachments[0]["status"] = json!("detaching");
    world.ran("detach").unwrap();
    assert_eq!(world.has(), [0, 0]);
}
