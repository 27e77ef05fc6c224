//! What was written through the API server and by whom, from its audit log. Only that log proves it: a program's own
//! count may be wrong.

use std::fmt;

use anyhow::Result;
use mooring_contract::names::NAMESPACE;
use mooring_testbed::audit::each_line;
use mooring_testbed::layout::CONTROL_PLANE;
use serde_json::Value;

use super::scope::Scope;

/// One request to change something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// As RBAC calls it.
    pub verb: String,
    /// Plural of the kind, with the subresource behind a slash.
    pub resource: String,
    /// `namespace/name`, without the slash if it has no namespace.
    pub object: String,
    /// The status code of the API server's answer.
    pub code: u64,
}

impl Write {
    /// Whether it stores nothing: creating a token only returns one.
    pub fn is_token(&self) -> bool {
        self.resource == "serviceaccounts/token"
    }

    fn read(event: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        let with = |first: String, mark: &str, second: String| match (first.as_str(), second.as_str()) {
            ("", _) => second,
            (_, "") => first,
            _ => format!("{first}{mark}{second}"),
        };
        Self {
            verb: text(&event["verb"]),
            resource: with(text(&object["resource"]), "/", text(&object["subresource"])),
            object: with(text(&object["namespace"]), "/", text(&object["name"])),
            code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} {} {}: {}",
            self.verb, self.resource, self.object, self.code
        )
    }
}

/// The writes one a line, for the message of a failure.
pub fn listed(writes: &[Write]) -> String {
    let lines: Vec<String> = writes.iter().map(|write| format!("\n  {write}")).collect();
    lines.concat()
}

impl Scope {
    /// What Mooring's controller asked to write for a claim, in order: to the claim itself, to every object with the
    /// claim's uid in its name, and the tokens of `account`, whose names have no uid.
    pub fn controller_writes(&self, claim: &str, uid: &str, account: Option<&str>) -> Result<Vec<Write>> {
        let user = format!("system:serviceaccount:{NAMESPACE}:flex-provisioner");
        let folder = self.own_cluster()?.layout.logs(CONTROL_PLANE);
        let of_claim = format!("{}/{claim}", self.namespace);
        let (mut writes, mut begun) = (Vec::new(), false);
        let mut events = Vec::new();
        each_line(&folder, |line| {
            if line.contains(&user) {
                events.extend(serde_json::from_str::<Value>(line));
            }
        })?;
        for event in events {
            let write = Write::read(&event);
            let changes = ["create", "update", "patch", "delete", "deletecollection"].contains(&write.verb.as_str());
            // Events are recorded in the background, and leases are renewed by the clock.
            let apart = ["events", "leases"].contains(&write.resource.as_str());
            if event["user"]["username"] != user.as_str() || !changes || apart {
                continue;
            }
            let own =
                write.object.contains(uid) || (write.resource == "persistentvolumeclaims" && write.object == of_claim);
            begun |= own;
            let token =
                write.is_token() && account.is_some_and(|account| write.object.ends_with(&format!("/{account}")));
            if own || (begun && token) {
                writes.push(write);
            }
        }
        Ok(writes)
    }
}
