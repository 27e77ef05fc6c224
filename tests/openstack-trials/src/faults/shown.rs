//! A volume, a share, a snapshot or a backup that an answer shows, and how it gets into error.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::http::{Message, exchange};
use mooring_testbed::wait::{Look, wait_for};

/// As paths and JSON call several and one.
const KINDS: [(&str, &str); 4] = [
    ("volumes", "volume"),
    ("shares", "share"),
    ("snapshots", "snapshot"),
    ("backups", "backup"),
];

/// Longest until it has another state.
const LIMIT: Duration = Duration::from_mins(1);

/// Instead of a state.
const GONE: &str = "gone";

#[derive(Debug)]
pub(super) struct Shown {
    /// The call that shows it.
    pub(super) call: String,
    name: String,
    id: String,
    /// The path of all of its kind.
    all: String,
    status: String,
}

impl Shown {
    /// That of this name.
    pub(super) fn of(request: &Message, answer: &Message, name: &str) -> Option<Self> {
        if request.first[0] != "GET" {
            return None;
        }
        let read: Value = serde_json::from_slice(&answer.body).ok()?;
        KINDS.iter().find_map(|(several, one)| {
            let items = read[several].as_array().into_iter().flatten();
            let found = items.chain([&read[one]]).find(|item| item["name"] == *name)?;
            let end = request.first[1].find(&format!("/{several}"))?;
            Some(Self {
                call: request.call(),
                name: name.to_owned(),
                id: found["id"].as_str()?.to_owned(),
                all: format!("{}/{several}", &request.first[1][..end]),
                status: found["status"].as_str()?.to_owned(),
            })
        })
    }

    /// Sets its state once the service has ended its own work, with the token of this request.
    pub(super) fn break_it(&self, service: SocketAddr, request: &Message) -> Result<()> {
        if self.wait(service, request, |status| !is_passing(status))? == GONE {
            return Ok(());
        }
        let action = if request.header("x-openstack-manila-api-version").is_some() {
            "reset_status"
        } else {
            "os-reset_status"
        };
        let mut reset = request.clone();
        "POST".clone_into(&mut reset.first[0]);
        reset.first[1] = format!("{}/{}/action", self.all, self.id);
        reset.set("content-type", "application/json");
        reset.body = json!({action: {"status": "error"}}).to_string().into_bytes();
        let answer = exchange(service, &reset, || ())?;
        ensure!(
            ["202", "404"].contains(&answer.first[1].as_str()),
            "{} was answered {}: {}",
            reset.call(),
            answer.first[1],
            String::from_utf8_lossy(&answer.body)
        );
        // A backup's daemon sets its state later.
        self.wait(service, request, |status| status == "error").map(drop)
    }

    /// Waits for a state, or until it is gone; returns the state.
    fn wait(&self, service: SocketAddr, request: &Message, wanted: impl Fn(&str) -> bool) -> Result<String> {
        Ok(wait_for(
            &format!("another state of {}", self.name),
            LIMIT,
            &[],
            || {
                let answer = exchange(service, request, || ());
                let shown = answer.ok().and_then(|answer| Self::of(request, &answer, &self.name));
                let status = shown.map_or(GONE.to_owned(), |shown| shown.status);
                if status == GONE || wanted(&status) {
                    Look::Ready(status)
                } else {
                    Look::NotYet(status)
                }
            },
        )?)
    }
}

/// Whether the service is at work, whose end would end an error.
fn is_passing(status: &str) -> bool {
    status.ends_with("ing") || status.ends_with("_from_snapshot")
}
