//! A Cinder for tests that remembers what it was told, with a Keystone beside it. It can cut off a call, before it has
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

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) volumes: Vec<Value>,
    pub(crate) snapshots: Vec<Value>,
    pub(crate) attachments: Vec<Value>,
    /// Calls since the last one that was cut off, or was to be.
    calls: usize,
    cut: Option<Cut>,
    made: usize,
}

impl State {
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
                Some(at) => (200, json!({"volume": self.shown(at)})),
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
            ("DELETE", ["attachments", id]) => removed(&mut self.attachments, id).unwrap_or(gone),
            _ => (
                500,
                json!({"computeFault": {"message": format!("{method} {path} is not known here")}}),
            ),
        }
    }

    /// A volume with its attachments that are complete.
    fn shown(&self, at: usize) -> Value {
        let mut volume = self.volumes[at].clone();
        let of = with(&self.attachments, "volume_id", volume["id"].as_str());
        let complete = of.iter().filter(|one| one["status"] == "attached");
        let complete: Vec<_> = complete
            .map(|one| json!({"attachment_id": one["id"], "device": one["device"]}))
            .collect();
        volume["status"] = json!(if of.is_empty() { "available" } else { "in-use" });
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
            let (status, answer) = match path.strip_prefix("/v3/p") {
                Some(path) => state.answer(method, path, &body),
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
    let endpoint = json!({"interface": "public", "url": format!("{address}/v3/p")});
    json!({"token": {"project": {"id": "p"}, "catalog": [{"type": "block-storage", "endpoints": [endpoint]}]}})
}
