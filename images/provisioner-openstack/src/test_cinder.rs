//! A Cinder for tests that remembers what it was told, with a Keystone and a Nova beside it. It can cut off a call, before it has
//! done what is asked or after that: to the service that is a run that was killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// A call that is cut off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Which one, from 1.
    pub(crate) at: usize,
    /// The service has done what was asked.
    pub(crate) done: bool,
}

/// How often a volume is looked at until Nova is done with it.
const LOOKS: u64 = 3;

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) volumes: Vec<Value>,
    pub(crate) snapshots: Vec<Value>,
    pub(crate) attachments: Vec<Value>,
    /// Nova's, with `id` and `status`.
    pub(crate) servers: Vec<Value>,
    /// The volumes of Nova's servers: `server` and `volume`.
    pub(crate) disks: Vec<Value>,
    /// What the next work of Nova's ends with, instead of success.
    pub(crate) gives_up: bool,
    /// Calls since the last one that was cut off, or was to be.
    calls: usize,
    cut: Option<Cut>,
    made: usize,
}

impl State {
    /// With one server of Nova, which runs.
    pub(crate) fn with_server(id: &str) -> Self {
        Self {
            servers: vec![json!({"id": id, "status": "ACTIVE"})],
            ..Self::default()
        }
    }

    /// Cuts off a call to come.
    pub(crate) fn cut(&mut self, cut: Option<Cut>) {
        self.calls = 0;
        self.cut = cut;
    }

    fn new_id(&mut self) -> String {
        self.made += 1;
        format!("id{:03}", self.made)
    }

    /// Answers a call for the project's resources.
    fn answer(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let asked = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(&format!("{key}=")));
        let gone = (404, json!({"itemNotFound": {"message": "not found"}}));
        match (method, parts.as_slice()) {
            ("GET", ["messages"]) => (200, json!({"messages": []})),
            ("GET", ["volumes", "detail"]) => (200, json!({"volumes": with(&self.volumes, "name", asked("name"))})),
            ("GET", ["snapshots", "detail"]) => {
                (200, json!({"snapshots": with(&self.snapshots, "name", asked("name"))}))
            }
            ("GET", ["snapshots"]) => {
                let of = with(&self.snapshots, "volume_id", asked("volume_id"));
                (200, json!({"snapshots": of}))
            }
            ("GET", ["attachments"]) => {
                let of = with(&self.attachments, "volume_id", asked("volume_id"));
                (200, json!({"attachments": of}))
            }
            ("GET", ["volumes", id]) => match at(&self.volumes, id) {
                Some(at) => {
                    let shown = self.shown(at);
                    // As it is seen, it was before Nova went on.
                    self.go_on(id);
                    (200, json!({"volume": shown}))
                }
                None => gone,
            },
            ("GET", ["attachments", id]) => match at(&self.attachments, id) {
                Some(at) => (200, json!({"attachment": self.attachments[at]})),
                None => gone,
            },
            ("POST", ["volumes"]) => {
                let mut volume = body["volume"].clone();
                volume["id"] = json!(self.new_id());
                volume["status"] = json!("available");
                volume["created_at"] = volume["id"].clone();
                self.volumes.push(volume.clone());
                (202, json!({"volume": volume}))
            }
            ("POST", ["volumes", id, "metadata"]) => {
                let Some(at) = at(&self.volumes, id) else { return gone };
                for (key, value) in body["metadata"].as_object().into_iter().flatten() {
                    self.volumes[at]["metadata"][key] = value.clone();
                }
                (200, json!({}))
            }
            ("DELETE", ["volumes", id]) => {
                let tied = !with(&self.snapshots, "volume_id", Some(*id)).is_empty();
                let held = !with(&self.attachments, "volume_id", Some(*id)).is_empty();
                match at(&self.volumes, id) {
                    Some(_) if tied || held => (400, json!({"badRequest": {"message": "it has snapshots"}})),
                    Some(at) => {
                        self.volumes.remove(at);
                        (202, Value::Null)
                    }
                    None => gone,
                }
            }
            ("POST", ["snapshots"]) => {
                let mut snapshot = body["snapshot"].clone();
                snapshot["id"] = json!(self.new_id());
                snapshot["status"] = json!("available");
                self.snapshots.push(snapshot);
                (202, json!({}))
            }
            ("POST", ["attachments"]) => {
                let id = body["attachment"]["volume_uuid"].as_str().unwrap_or_default();
                if !with(&self.attachments, "volume_id", Some(id)).is_empty() {
                    return (400, json!({"badRequest": {"message": "it is attached"}}));
                }
                let attachment = json!({
                    "id": self.new_id(), "volume_id": id, "instance": null, "status": "attaching",
                    "connection_info": {"driver_volume_type": "rbd", "name": "p/i", "hosts": ["h"], "ports": ["1"],
                                        "auth_username": "u"},
                    "device": body["attachment"]["connector"]["mountpoint"],
                });
                self.attachments.push(attachment.clone());
                (200, json!({"attachment": attachment}))
            }
            ("POST", ["attachments", id, "action"]) => match at(&self.attachments, id) {
                Some(at) => {
                    self.attachments[at]["status"] = json!("attached");
                    (204, Value::Null)
                }
                None => gone,
            },
            ("DELETE", ["snapshots", id]) => removed(&mut self.snapshots, id).unwrap_or(gone),
            ("DELETE", ["attachments", id]) if self.is_nova_s(id) => {
                let message = "Cannot detach it as you: it is in use by server";
                (409, json!({"conflictingRequest": {"message": message}}))
            }
            ("DELETE", ["attachments", id]) => removed(&mut self.attachments, id).unwrap_or(gone),
            _ => (
                500,
                json!({"computeFault": {"message": format!("{method} {path} is not known here")}}),
            ),
        }
    }

    /// Answers a call to Nova.
    fn nova(&mut self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let gone = (404, json!({"itemNotFound": {"message": "not found"}}));
        let bad = |why: &str| (400, json!({"badRequest": {"message": why}}));
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let (server, volume) = match *parts.as_slice() {
            ["servers", server] => {
                let server = at(&self.servers, server);
                return server.map_or(gone, |at| (200, json!({"server": self.servers[at]})));
            }
            ["servers", server, "os-volume_attachments"] => (
                server,
                body["volumeAttachment"]["volumeId"].as_str().unwrap_or_default(),
            ),
            ["servers", server, "os-volume_attachments", volume] => (server, volume),
            _ => {
                return (
                    500,
                    json!({"computeFault": {"message": format!("{path} is not known here")}}),
                );
            }
        };
        if at(&self.servers, server).is_none() {
            return gone;
        }
        let disk = json!({"server": server, "volume": volume});
        let listed = self.disks.contains(&disk);
        let state = self.state_of(volume);
        match method {
            "GET" if listed => (200, json!({"volumeAttachment": disk})),
            "POST" if listed || !state.is_empty() => bad("Invalid volume: its status must be available"),
            "POST" => {
                let attachment = json!({"id": self.new_id(), "volume_id": volume, "instance": server,
                                        "status": "reserved", "device": "/dev/vdb", "looks": LOOKS});
                self.attachments.push(attachment);
                self.disks.push(disk);
                (
                    200,
                    json!({"volumeAttachment": {"volumeId": volume, "serverId": server}}),
                )
            }
            "DELETE" if listed && state != "attached" => bad("Invalid volume: its status must be in-use"),
            "DELETE" if listed => {
                let of = self.attachments.iter_mut().filter(|one| one["volume_id"] == volume);
                of.for_each(|one| {
                    one["status"] = json!("detaching");
                    one["looks"] = json!(LOOKS);
                });
                (202, Value::Null)
            }
            _ => gone,
        }
    }

    /// What Nova does in the background, while others look at the volume.
    fn go_on(&mut self, volume: &str) {
        let gives_up = self.gives_up;
        let Some(attachment) = self.attachments.iter_mut().find(|one| one["volume_id"] == volume) else {
            return;
        };
        let left = attachment["looks"].as_u64().unwrap_or_default();
        if left > 1 {
            attachment["looks"] = json!(left - 1);
            return;
        }
        match attachment["status"].as_str() {
            Some("reserved") if !gives_up => attachment["status"] = json!("attached"),
            Some("detaching") if gives_up => attachment["status"] = json!("attached"),
            Some("reserved" | "detaching") => {
                let server = attachment["instance"].clone();
                self.attachments.retain(|one| one["volume_id"] != volume);
                self.disks
                    .retain(|disk| disk["volume"] != volume || disk["server"] != server);
            }
            _ => {}
        }
    }

    fn is_nova_s(&self, attachment: &str) -> bool {
        at(&self.attachments, attachment).is_some_and(|at| self.attachments[at]["instance"].is_string())
    }

    /// The state of a volume's attachment, if it has one.
    fn state_of(&self, volume: &str) -> &str {
        let attachment = self.attachments.iter().find(|one| one["volume_id"] == volume);
        attachment.map_or("", |one| one["status"].as_str().unwrap_or_default())
    }

    /// A volume with its attachments that are complete.
    fn shown(&self, at: usize) -> Value {
        let mut volume = self.volumes[at].clone();
        let of = with(&self.attachments, "volume_id", volume["id"].as_str());
        let complete = of
            .iter()
            .filter(|one| one["status"] == "attached" || one["status"] == "detaching");
        let complete: Vec<_> = complete
            .map(|one| json!({"attachment_id": one["id"], "device": one["device"], "server_id": one["instance"]}))
            .collect();
        volume["status"] = match of.first().and_then(|one| one["status"].as_str()) {
            None => json!("available"),
            Some(status @ ("reserved" | "detaching")) => json!(status),
            Some(_) => json!("in-use"),
        };
        volume["attachments"] = json!(complete);
        volume
    }
}

fn with(all: &[Value], key: &str, value: Option<&str>) -> Vec<Value> {
    all.iter().filter(|one| one[key].as_str() == value).cloned().collect()
}

fn at(all: &[Value], id: &str) -> Option<usize> {
    all.iter().position(|one| one["id"] == id)
}

fn removed(all: &mut Vec<Value>, id: &str) -> Option<(u16, Value)> {
    let at = at(all, id)?;
    all.remove(at);
    Some((202, Value::Null))
}

/// Serves it until the test's process ends; returns its address.
pub(crate) fn serve(state: &Arc<Mutex<State>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (state, address) = (state.clone(), url.clone());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let mut length = 0;
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).unwrap();
                if header.trim().is_empty() {
                    break;
                }
                if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let mut words = line.split_whitespace();
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let mut state = state.lock().unwrap();
            state.calls += 1;
            let cut = state.cut.filter(|cut| cut.at == state.calls);
            if cut.is_some_and(|cut| !cut.done) {
                continue;
            }
            let nova = path.strip_prefix("/v2.1/p");
            let (status, answer) = match path.strip_prefix("/v3/p") {
                Some(path) => state.answer(method, path, &body),
                None if nova.is_some() => state.nova(method, nova.unwrap_or_default(), &body),
                None if path == "/v2.1/" => (200, json!({"version": {"id": "v2.1", "version": "2.96"}})),
                None if path == "/v3/" => (200, json!({"versions": [{"version": "3.71"}]})),
                None => (201, login(&address)),
            };
            if cut.is_some() {
                continue;
            }
            let text = if answer.is_null() {
                String::new()
            } else {
                answer.to_string()
            };
            write!(
                stream,
                "HTTP/1.1 {status} X\r\nconnection: close\r\nx-subject-token: t\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            )
            .unwrap();
        }
    });
    url
}

fn login(address: &str) -> Value {
    let service = |kind: &str, path: &str| json!({"type": kind, "endpoints": [{"interface": "public", "url": format!("{address}{path}")}]});
    let catalog = [service("block-storage", "/v3/p"), service("compute", "/v2.1")];
    json!({"token": {"project": {"id": "p"}, "catalog": catalog}})
}
