//! Which claim a call is for, and a name for the call that is the same in every claim's life.

use std::fmt;

use http::Method;
use serde_json::Value;

/// A claim, and what its calls can be recognized by.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// One call in a claim's life. The same step in another claim's life is equal to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// Method, kind, and the rest of the object's name without the claim's.
    pub name: String,
    /// Its number among the calls of that name, from 1.
    pub nth: usize,
}

impl Step {
    /// Whether it only asks. A life may do without: a watch can have told before.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.name.starts_with("GET ")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} #{}", self.name, self.nth)
    }
}

/// The call's name, if it is for this claim.
pub(super) fn name(claim: &Known, method: &Method, path: &str, body: &Value) -> Option<String> {
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    if parts.get(2) == Some(&"namespaces") && parts.len() > 4 {
        let namespace = parts[3];
        parts.drain(2..4);
        if parts[2] == "persistentvolumeclaims" {
            let ours = namespace == claim.namespace && parts.get(3) == Some(&claim.name.as_str());
            return ours.then(|| format!("{method} persistentvolumeclaims"));
        }
    }
    let kind = *parts.get(2)?;
    let object = match parts.get(3) {
        None => body["metadata"]["name"].as_str().unwrap_or_default(),
        // The token is for a service account, and bound to the Pod.
        Some(_) if parts.get(4) == Some(&"token") => {
            body["spec"]["boundObjectRef"]["name"].as_str().unwrap_or_default()
        }
        Some(name) => name,
    };
    // `provision-<uid>`, `pvc-<uid>`, `provision-<uid>-<when>`.
    let (before, _) = object.split_once(claim.uid.as_str())?;
    Some(format!("{method} {kind} {}", before.trim_end_matches('-')))
}

#[cfg(test)]
mod tests {
    use super::{Known, Step, name};
    use http::Method;
    use serde_json::json;

    #[test]
    fn only_what_asks_is_a_read() {
        let is_read = |name: &str| {
            let name = name.to_owned();
            Step { name, nth: 1 }.is_read()
        };
        assert!(is_read("GET persistentvolumes pvc"));
        assert!(!is_read("PATCH persistentvolumeclaims"));
    }

    #[test]
    fn calls_have_the_same_names_in_every_life() {
        let claim = Known {
            namespace: "t".into(),
            name: "a".into(),
            uid: "u-1".into(),
        };
        let bound = json!({"spec": {"boundObjectRef": {"name": "provision-u-1"}}});
        for (method, path, body, expected) in [
            (
                Method::PATCH,
                "/api/v1/namespaces/t/persistentvolumeclaims/a",
                json!({}),
                Some("PATCH persistentvolumeclaims"),
            ),
            (
                Method::PATCH,
                "/api/v1/namespaces/t/persistentvolumeclaims/b",
                json!({}),
                None,
            ),
            (
                Method::PATCH,
                "/api/v1/namespaces/x/persistentvolumeclaims/a",
                json!({}),
                None,
            ),
            (
                Method::POST,
                "/api/v1/namespaces/m/pods",
                json!({"metadata": {"name": "provision-u-1"}}),
                Some("POST pods provision"),
            ),
            (
                Method::POST,
                "/api/v1/namespaces/m/pods",
                json!({"metadata": {"name": "provision-u-2"}}),
                None,
            ),
            (
                Method::POST,
                "/api/v1/namespaces/m/secrets",
                json!({"metadata": {"name": "delete-u-1-ab"}}),
                Some("POST secrets delete"),
            ),
            (
                Method::POST,
                "/api/v1/namespaces/m/serviceaccounts/x/token",
                bound,
                Some("POST serviceaccounts provision"),
            ),
            (
                Method::DELETE,
                "/api/v1/persistentvolumes/pvc-u-1",
                json!({}),
                Some("DELETE persistentvolumes pvc"),
            ),
            (Method::GET, "/api/v1/persistentvolumes", json!(null), None),
        ] {
            assert_eq!(
                name(&claim, &method, path, &body).as_deref(),
                expected,
                "{method} {path}"
            );
        }
    }
}
