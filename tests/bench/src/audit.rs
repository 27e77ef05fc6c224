//! Requests to the API server, counted from its audit log.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use mooring_testbed::audit::each_line;
use mooring_testbed::layout::{CONTROL_PLANE, Layout};

/// Requests by client and by verb.
pub(super) type Counts = BTreeMap<String, BTreeMap<String, usize>>;

/// The beginning and the end of a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    verb: String,
    user: User,
    object_ref: Option<Object>,
    request_received_timestamp: Timestamp,
}

#[derive(Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Debug, Deserialize)]
struct Object {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
}

/// Counts the requests in a window. Periodic ones are left out unless `all`.
pub(super) fn count(layout: &Layout, window: Window, all: bool) -> Result<Counts> {
    let counts = count_each(layout, &[window], all)?;
    Ok(counts.into_iter().next().unwrap_or_default())
}

/// [`count`] for several windows, by reading the log once.
pub(super) fn count_each(layout: &Layout, windows: &[Window], all: bool) -> Result<Vec<Counts>> {
    let folder = layout.logs(CONTROL_PLANE);
    let mut counts = vec![Counts::new(); windows.len()];
    each_line(&folder, |line| {
        if let Ok(line) = serde_json::from_str(line) {
            for (counts, window) in counts.iter_mut().zip(windows) {
                take(counts, &line, *window, all);
            }
        }
    })?;
    Ok(counts)
}

fn take(counts: &mut Counts, line: &Line, window: Window, all: bool) {
    let at = line.request_received_timestamp;
    if at < window.from || at > window.until {
        return;
    }
    let by_clock = line.object_ref.as_ref().is_some_and(|object| {
        object.resource == "leases" || (object.resource == "nodes" && object.subresource == "status")
    });
    let Some(client) = client(&line.user.username).filter(|_| all || !by_clock) else {
        return;
    };
    let verbs = counts.entry(client.to_owned()).or_default();
    *verbs.entry(line.verb.clone()).or_default() += 1;
}

/// The client that a user stands for; none for the bench itself.
fn client(user: &str) -> Option<&str> {
    let account = user.strip_prefix("system:serviceaccount:");
    Some(match account.and_then(|account| account.split_once(':')) {
        Some(("kube-system", _)) => "kube-controller-manager",
        Some((_, "local-path-provisioner-service-account")) => super::processes::PEER,
        Some((_, name)) => name,
        None => match user {
            "mooring-testbed-admin" => return None,
            "system:apiserver" => "kube-apiserver",
            user if user.starts_with("system:node:") => "kubelet",
            user => user.strip_prefix("system:").unwrap_or(user),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::{Counts, Line, Window, client, take};

    #[test]
    fn requests_are_counted_by_client_and_by_verb() {
        let line = |user: &str, verb: &str, object: &str, at: &str| -> Line {
            let text = format!(
                r#"{{"kind": "Event", "verb": "{verb}", "user": {{"username": "{user}", "uid": "x"}},
                    "objectRef": {object}, "requestReceivedTimestamp": "2026-11-21T08:00:{at}Z", "more": 1}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let window = Window {
            from: "2026-11-21T08:00:10Z".parse().unwrap(),
            until: "2026-11-21T08:00:20Z".parse().unwrap(),
        };
        let pods = r#"{"resource": "pods", "namespace": "a"}"#;
        let ours = "system:serviceaccount:mooring:flex-provisioner";
        let lines = [
            line(ours, "create", pods, "10.000001"),
            line(ours, "create", pods, "20.000000"),
            line(ours, "create", pods, "09.999999"),
            line(ours, "update", r#"{"resource": "leases"}"#, "15.000000"),
            line(
                "system:node:node-1",
                "patch",
                r#"{"resource": "nodes", "subresource": "status"}"#,
                "15.000000",
            ),
            line("mooring-testbed-admin", "create", pods, "15.000000"),
        ];
        let counted = |all| {
            let mut counts = Counts::new();
            for line in &lines {
                take(&mut counts, line, window, all);
            }
            counts
        };
        assert_eq!(
            serde_json::json!(counted(false)),
            serde_json::json!({"flex-provisioner": {"create": 2}})
        );
        assert_eq!(
            serde_json::json!(counted(true)),
            serde_json::json!({"flex-provisioner": {"create": 2, "update": 1}, "kubelet": {"patch": 1}})
        );
        assert_eq!(
            client("system:serviceaccount:kube-system:persistent-volume-binder"),
            Some("kube-controller-manager")
        );
    }
}
