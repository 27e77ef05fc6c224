//! Whole runs for tests, from the properties to the answer, against [`crate::test_server`].

use std::fs;

use serde_json::Value;

use crate::error::OpenstackError;
use crate::given::tests::given;
use crate::run::run;
use crate::test_server::{PACE, Reply, login, reply, serve};

/// A run that has ended.
pub(crate) struct Ran {
    pub(crate) result: Result<String, OpenstackError>,
    /// Method and path of each call behind the login and the question for versions, with its body.
    pub(crate) calls: Vec<String>,
    /// The answer to Mooring.
    pub(crate) message: Value,
}

/// Carries out a run against these answers, all of which have to be asked for. The server is Kubernetes too.
pub(crate) fn ran(service: &str, changes: &Value, properties: &[(&str, &str)], replies: Vec<Reply>) -> Ran {
    let versions = r#"{"versions": [{"version": ""}, {"version": "2.89"}, {"version": "3.71"}]}"#;
    let mut all = vec![login("t", "URL/v3/p"), reply(300, versions)];
    all.extend(replies);
    let (url, seen) = serve(all);
    let clouds = format!("clouds: {{one: {{auth: {{auth_url: '{url}', username: u, password: p, project_name: x}}}}}}");
    let mut whole = vec![("clouds.yaml", clouds.as_str()), ("service", service)];
    whole.extend_from_slice(properties);
    let mut changes = changes.clone();
    changes["kube-api"] = Value::from(url.as_str());
    let (folder, _) = given(&changes, &whole);
    let to = folder.path().join("message");
    let result = run(folder.path(), &to, PACE);
    let line = |call: &String| {
        let first = call.lines().next().unwrap_or_default();
        let path = first
            .trim_end_matches(" HTTP/1.1")
            .replace("/v3/p", "")
            .replace("/v2/p", "")
            .replace("/v2.1/p", "");
        let body = call.split_once("\n\n").map_or("", |(_, body)| body);
        format!("{path} {body}").trim().to_owned()
    };
    let calls = seen.join().unwrap();
    let message = fs::read_to_string(&to).unwrap_or_default();
    Ran {
        result,
        calls: calls.iter().skip(2).map(line).collect(),
        message: serde_json::from_str(&message).unwrap_or_default(),
    }
}

/// What a service answers where something is not there.
pub(crate) fn gone() -> Reply {
    reply(404, r#"{"itemNotFound": {"message": "not found"}}"#)
}

/// What a service answers that has begun with something.
pub(crate) fn done() -> Reply {
    reply(202, "")
}
