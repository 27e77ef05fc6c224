//! The rights that Mooring is installed with, and the requests for which the API server needed each of them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use mooring_yaml::documents;
use serde_json::Value;

use crate::audit::each_line;
use crate::layout::repository;

/// The manifests with the roles of Mooring's service accounts.
const MANIFESTS: [&str; 2] = ["configmaps/install/mounter.yaml", "configmaps/install/provisioner.yaml"];

/// One verb on one resource for one service account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The user's name in a request.
    user: String,
    /// The role that it is in, as the audit log has it: `ClusterRole "mooring-mounter"`.
    role: String,
    verb: String,
    group: String,
    /// With the subresource behind a slash.
    resource: String,
    /// The only object that it applies to.
    name: Option<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} may {} {}", self.user, self.verb, self.resource)?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        write!(f, ", by {}", self.role)
    }
}

/// The single rights in the roles that the manifests bind to service accounts.
pub fn installed() -> Result<BTreeSet<Right>> {
    let mut objects = Vec::new();
    for manifest in MANIFESTS {
        let path = repository().join(manifest);
        let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        objects.extend(documents(&text).with_context(|| format!("{manifest} is not YAML"))?);
    }
    let rights = granted_by(&objects);
    ensure!(!rights.is_empty(), "no role is bound in {}", MANIFESTS.join(" or "));
    Ok(rights)
}

fn granted_by(objects: &[Value]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for binding in objects {
        let kind = text(&binding["kind"]);
        if !["RoleBinding", "ClusterRoleBinding"].contains(&kind) {
            continue;
        }
        let role = &binding["roleRef"];
        let is_role = |object: &&Value| object["kind"] == role["kind"] && object["metadata"]["name"] == role["name"];
        let rules = objects.iter().filter(is_role).flat_map(|role| list(&role["rules"]));
        for (rule, subject) in rules.flat_map(|rule| list(&binding["subjects"]).map(move |subject| (rule, subject))) {
            let user = format!(
                "system:serviceaccount:{}:{}",
                text(&subject["namespace"]),
                text(&subject["name"])
            );
            let name = format!("{} \"{}\"", text(&role["kind"]), text(&role["name"]));
            rights.extend(rights_in(rule, &user, &name));
        }
    }
    rights
}

/// A rule's rights, each with one group, one resource, one verb and at most one name.
fn rights_in(rule: &Value, user: &str, of_role: &str) -> Vec<Right> {
    let mut names: Vec<_> = list(&rule["resourceNames"]).map(|name| Some(text(name))).collect();
    if names.is_empty() {
        names.push(None);
    }
    let mut rights = Vec::new();
    for group in list(&rule["apiGroups"]) {
        for resource in list(&rule["resources"]) {
            for verb in list(&rule["verbs"]) {
                rights.extend(names.iter().map(|name| Right {
                    user: user.to_owned(),
                    role: of_role.to_owned(),
                    verb: text(verb).to_owned(),
                    group: text(group).to_owned(),
                    resource: text(resource).to_owned(),
                    name: name.map(str::to_owned),
                }));
            }
        }
    }
    rights
}

/// Which of these rights the requests in a cluster's audit logs needed. A right counts where the API server allowed the
/// request, whatever became of it after that.
pub fn used(logs: &Path, rights: &BTreeSet<Right>) -> Result<BTreeSet<Right>> {
    let mut unused: Vec<_> = rights.iter().collect();
    each_line(logs, |line| {
        if !unused.is_empty()
            && line.contains("system:serviceaccount:")
            && let Ok(event) = serde_json::from_str::<Value>(line)
        {
            unused.retain(|right| !right.is_needed_by(&event));
        }
    })?;
    Ok(rights.iter().filter(|right| !unused.contains(right)).cloned().collect())
}

impl Right {
    fn is_needed_by(&self, event: &Value) -> bool {
        let object = &event["objectRef"];
        if event["user"]["username"] != *self.user {
            return false;
        }
        let resource = match text(&object["subresource"]) {
            "" => text(&object["resource"]).to_owned(),
            subresource => format!("{}/{subresource}", text(&object["resource"])),
        };
        let verb = text(&event["verb"]);
        if let Some(constraint) = event["authenticationMetadata"]["impersonationConstraint"].as_str() {
            // Such a request needs the right to be somebody, and the right to do this as somebody.
            let as_somebody = constraint.replacen("impersonate:", "impersonate-on:", 1);
            return self.verb == constraint
                || (self.verb == format!("{as_somebody}:{verb}") && self.resource == resource);
        }
        let annotations = &event["annotations"];
        annotations["authorization.k8s.io/decision"] == "allow"
            && text(&annotations["authorization.k8s.io/reason"]).contains(&format!("of {} to", self.role))
            && self.verb == verb
            && self.group == text(&object["apiGroup"])
            && self.resource == resource
            && self.name.as_deref().is_none_or(|name| object["name"] == name)
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::{Right, granted_by, installed};

    fn rights() -> BTreeSet<Right> {
        granted_by(&[
            json!({"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [
                {"apiGroups": ["", "x"], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
                {"apiGroups": ["y"], "resources": ["leases"], "resourceNames": ["a", "b"], "verbs": ["update"]},
                {"apiGroups": ["authentication.k8s.io"], "resources": ["nodes"], "verbs": ["impersonate:associated-node"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["impersonate-on:associated-node:list"]},
            ]}),
            json!({"kind": "RoleBinding", "metadata": {"name": "b", "namespace": "mooring"},
                   "roleRef": {"kind": "ClusterRole", "name": "r"},
                   "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "mooring"}]}),
            json!({"kind": "Role", "metadata": {"name": "of-nobody"}, "rules": [
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}),
        ])
    }

    fn needed_by(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut event = json!({
            "user": {"username": "system:serviceaccount:mooring:s"}, "verb": "get",
            "objectRef": {"resource": "pods", "namespace": "mooring", "name": "p"},
            "annotations": {
                "authorization.k8s.io/decision": "allow",
                "authorization.k8s.io/reason": "RBAC: allowed by RoleBinding \"b/x\" of ClusterRole \"r\" to s",
            },
        });
        change(&mut event);
        rights()
            .iter()
            .filter(|right| right.is_needed_by(&event))
            .map(|right| format!("{} {}/{} {:?}", right.verb, right.group, right.resource, right.name))
            .collect()
    }

    #[test]
    fn a_rule_is_a_right_for_each_verb_resource_and_name() {
        assert_eq!(rights().len(), 8 + 2 + 2);
    }

    #[test]
    fn a_request_needs_the_right_to_its_verb_resource_and_name() {
        assert_eq!(needed_by(|_| {}), ["get /pods None"]);
        assert_eq!(
            needed_by(|event| event["objectRef"]["subresource"] = json!("log")),
            ["get /pods/log None"]
        );
        assert_eq!(
            needed_by(|event| event["objectRef"]["apiGroup"] = json!("x")),
            ["get x/pods None"]
        );
        let lease = json!({"resource": "leases", "apiGroup": "y", "namespace": "mooring", "name": "b"});
        let updated = needed_by(|event| (event["verb"], event["objectRef"]) = (json!("update"), lease));
        assert_eq!(updated, ["update y/leases Some(\"b\")"]);
        let as_node = needed_by(|event| {
            event["verb"] = json!("list");
            event["authenticationMetadata"] = json!({"impersonationConstraint": "impersonate:associated-node"});
        });
        assert_eq!(
            as_node,
            [
                "impersonate-on:associated-node:list /pods None",
                "impersonate:associated-node authentication.k8s.io/nodes None"
            ]
        );
    }

    #[test]
    fn a_request_of_somebody_else_by_another_role_or_that_was_refused_needs_none() {
        let none: Vec<String> = Vec::new();
        assert_eq!(needed_by(|event| event["user"]["username"] = json!("admin")), none);
        let reason = "RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"other\" to s";
        let by_another = needed_by(|event| event["annotations"]["authorization.k8s.io/reason"] = json!(reason));
        assert_eq!(by_another, none);
        assert_eq!(needed_by(|event| event["verb"] = json!("watch")), none);
        let refused = json!({"authorization.k8s.io/decision": "forbid"});
        assert_eq!(needed_by(|event| event["annotations"] = refused), none);
    }

    #[test]
    fn the_rights_of_both_accounts_are_found_in_the_manifests() {
        let rights = installed().unwrap();
        for account in ["mounter", "flex-provisioner"] {
            let user = format!("system:serviceaccount:mooring:{account}");
            assert!(
                rights.iter().filter(|right| right.user == user).count() > 10,
                "{rights:?}"
            );
        }
    }
}
