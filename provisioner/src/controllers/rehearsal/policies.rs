//! The admission policies that an installation ships, asked about the controller's writes as the API server asks them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::addresses::Addressed;
use super::cel::{Expr, Scope, parse};

/// Who the controller is to the API server.
pub(super) const CONTROLLER: &str = "system:serviceaccount:mooring:flex-provisioner";

/// Kubernetes' own priority classes, each of which is a parameter of a policy.
const PRIORITY_CLASSES: [&str; 2] = ["system-cluster-critical", "system-node-critical"];

/// A write, before it is carried out.
pub(super) struct Write<'a> {
    pub(super) method: &'a Method,
    pub(super) addressed: &'a Addressed<'a>,
    /// `None` for an object that is created.
    pub(super) old: Option<&'a Value>,
    /// `None` for an object that is deleted.
    pub(super) new: Option<&'a Value>,
}

impl Write<'_> {
    fn operation(&self) -> &'static str {
        match *self.method {
            Method::POST => "CREATE",
            Method::DELETE => "DELETE",
            _ => "UPDATE",
        }
    }

    fn resource(&self) -> String {
        let resource = self.addressed.resource;
        if self.addressed.by_status {
            format!("{resource}/status")
        } else {
            resource.to_owned()
        }
    }

    fn request(&self) -> Value {
        let Addressed {
            group,
            version,
            resource,
            namespace,
            name,
            by_status,
            ..
        } = self.addressed;
        json!({
            "operation": self.operation(),
            "userInfo": {"username": CONTROLLER, "groups": ["system:serviceaccounts", "system:authenticated"]},
            "resource": {"group": group, "version": version, "resource": resource},
            "subResource": if *by_status { "status" } else { "" },
            "namespace": namespace,
            "name": name,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    api_versions: Vec<String>,
    resources: Vec<String>,
    operations: Vec<String>,
}

impl Rule {
    fn covers(&self, write: &Write<'_>) -> bool {
        let has = |all: &[String], one: &str| all.iter().any(|any| any == "*" || any == one);
        has(&self.api_groups, write.addressed.group)
            && has(&self.api_versions, write.addressed.version)
            && has(&self.resources, &write.resource())
            && has(&self.operations, write.operation())
    }
}

#[derive(Debug)]
struct Policy {
    name: String,
    rules: Vec<Rule>,
    /// The labels of the objects that it is about.
    labels: BTreeMap<String, String>,
    /// Each priority class is its parameter in turn.
    has_params: bool,
    conditions: Vec<Expr>,
    variables: BTreeMap<String, Expr>,
    validations: Vec<(Expr, String)>,
}

impl Policy {
    fn read(policy: &Value) -> Result<Self, String> {
        let (name, spec) = (&policy["metadata"]["name"], &policy["spec"]);
        let each = |field: &str| spec[field].as_array().cloned().unwrap_or_default();
        let expr = |of: &Value| {
            let text = of["expression"].as_str().ok_or("it has no expression")?;
            parse(text).map_err(|error| format!("{name}: {error}"))
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let constraints = &spec["matchConstraints"];
        let labels = &constraints["objectSelector"]["matchLabels"];
        Ok(Self {
            name: text(name),
            rules: Vec::deserialize(&constraints["resourceRules"]).map_err(|error| error.to_string())?,
            labels: Option::deserialize(labels)
                .map_err(|error| error.to_string())?
                .unwrap_or_default(),
            has_params: !spec["paramKind"].is_null(),
            conditions: each("matchConditions").iter().map(expr).collect::<Result<_, _>>()?,
            variables: each("variables")
                .iter()
                .map(|variable| Ok((text(&variable["name"]), expr(variable)?)))
                .collect::<Result<_, String>>()?,
            validations: each("validations")
                .iter()
                .map(|validation| {
                    let message = &validation["message"];
                    let computed = &validation["messageExpression"];
                    Ok((
                        expr(validation)?,
                        text(if message.is_null() { computed } else { message }),
                    ))
                })
                .collect::<Result<_, String>>()?,
        })
    }

    fn is_about(&self, write: &Write<'_>) -> bool {
        let has_labels = |object: &Value| {
            let labels = &object["metadata"]["labels"];
            self.labels.iter().all(|(key, value)| labels[key] == **value)
        };
        self.rules.iter().any(|rule| rule.covers(write)) && [write.old, write.new].into_iter().flatten().any(has_labels)
    }

    /// Why it refuses a write, if it does.
    fn refusal(&self, names: &BTreeMap<&'static str, &Value>) -> Option<String> {
        let scope = Scope::new(names.clone(), &self.variables, may_access);
        let conditions: Vec<_> = self.conditions.iter().map(|expr| scope.holds(expr)).collect();
        if conditions.contains(&Ok(false)) {
            return None;
        }
        let wrong = conditions.into_iter().find_map(Result::err);
        wrong.or_else(|| {
            let mut validations = self.validations.iter();
            validations.find_map(|(expr, message)| match scope.holds(expr) {
                Ok(true) => None,
                Ok(false) => Some(message.clone()),
                Err(error) => Some(format!("{error}, where {message}")),
            })
        })
    }
}

/// What the controller may do by its roles, as far as policies ask.
fn may_access(asked: &BTreeMap<&str, String>) -> bool {
    let is = |key: &str, value: &str| asked.get(key).is_some_and(|of| of == value);
    is("group", "") && is("resource", "secrets") && is("namespace", "admin") && is("check", "get")
}

/// The objects of the file with the policies.
pub(super) fn shipped() -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configmaps/install/admission.yaml");
    mooring_yaml::documents(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn read() -> Vec<Policy> {
    let all = shipped();
    let validating = all
        .iter()
        .filter(|object| object["kind"] == "ValidatingAdmissionPolicy");
    validating.map(|policy| Policy::read(policy).unwrap()).collect()
}

fn policies() -> &'static [Policy] {
    static POLICIES: OnceLock<Vec<Policy>> = OnceLock::new();
    POLICIES.get_or_init(read)
}

/// Why a policy refuses a write of the controller, if one does.
pub(super) fn refusal(write: &Write<'_>) -> Option<String> {
    let none = Value::Null;
    let (old, new) = (write.old.unwrap_or(&none), write.new.unwrap_or(&none));
    let request = write.request();
    let classes = PRIORITY_CLASSES.map(|name| json!({"metadata": {"name": name}}));
    let about = policies().iter().filter(|policy| policy.is_about(write));
    about.into_iter().find_map(|policy| {
        let params = if policy.has_params {
            &classes[..]
        } else {
            std::slice::from_ref(&none)
        };
        let why = params.iter().find_map(|params| {
            let names = [
                ("object", new),
                ("oldObject", old),
                ("request", &request),
                ("params", params),
            ];
            policy.refusal(&names.into())
        })?;
        let name = &policy.name;
        Some(format!("ValidatingAdmissionPolicy '{name}' denied request: {why}"))
    })
}

mod tests {
    use std::collections::BTreeSet;

    use http::Method;
    use serde_json::{Value, json};

    use super::super::addresses::addressed;
    use super::{Write, policies, refusal};

    fn refused(method: &Method, path: &str, old: &Value, new: &Value) -> Option<String> {
        let is_there = |object: &&Value| !object.is_null();
        refusal(&Write {
            method,
            addressed: &addressed(path).unwrap(),
            old: Some(old).filter(is_there),
            new: Some(new).filter(is_there),
        })
    }

    /// For each policy of the controller, a write that it has to refuse.
    fn refusals() -> Vec<(&'static str, Method, &'static str, Value, Value)> {
        let none = Value::Null;
        let pod = |more: Value| {
            let mut pod = json!({
                "metadata": {"name": "p", "labels": {"mooring.dev/component": "provisioning"}},
                "spec": {"containers": [{"securityContext": {"allowPrivilegeEscalation": false,
                                                             "capabilities": {"drop": ["ALL"]}}}]},
            });
            for (key, value) in more.as_object().unwrap() {
                pod["spec"][key] = value.clone();
            }
            pod
        };
        let owned = json!({"metadata": {"ownerReferences": [{"kind": "Node"}]}});
        let volume = json!({"metadata": {"name": "pvc-1"}, "spec": {}});
        vec![
            (
                "mooring-controller",
                Method::POST,
                "/api/v1/namespaces/admin/pods",
                none.clone(),
                pod(json!({"hostNetwork": true})),
            ),
            (
                "mooring-controller-priority",
                Method::POST,
                "/api/v1/namespaces/admin/pods",
                none.clone(),
                pod(json!({"priorityClassName": "system-node-critical"})),
            ),
            (
                "mooring-controller-metadata",
                Method::PATCH,
                "/apis/storage.k8s.io/v1/namespaces/mooring/csistoragecapacities/c",
                json!({"metadata": {}}),
                owned,
            ),
            (
                "mooring-controller-volumes",
                Method::DELETE,
                "/api/v1/persistentvolumes/pvc-1",
                volume,
                none.clone(),
            ),
            (
                "mooring-controller-claims",
                Method::PATCH,
                "/api/v1/namespaces/default/persistentvolumeclaims/c",
                json!({"metadata": {}, "spec": {}}),
                json!({"metadata": {}, "spec": {"volumeName": "pvc-1"}}),
            ),
            (
                "mooring-controller-snapshots",
                Method::DELETE,
                "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c",
                json!({"spec": {"driver": "vcs.mooring.dev"}}),
                none.clone(),
            ),
            (
                "mooring-controller-secrets",
                Method::DELETE,
                "/api/v1/namespaces/admin/secrets/s",
                json!({"metadata": {"name": "s"}}),
                none.clone(),
            ),
            (
                "mooring-controller-configmaps",
                Method::PATCH,
                "/api/v1/namespaces/admin/configmaps/c",
                json!({"metadata": {}}),
                json!({"metadata": {}, "data": {"a": "b"}}),
            ),
            (
                "mooring-controller-classes",
                Method::DELETE,
                "/apis/storage.k8s.io/v1/storageclasses/c",
                json!({"provisioner": "other"}),
                none,
            ),
        ]
    }

    #[test]
    fn each_policy_of_the_controller_refuses_what_it_is_there_for() {
        for (name, method, path, old, new) in refusals() {
            let said = refused(&method, path, &old, &new).unwrap_or_default();
            assert!(
                said.starts_with(&format!("ValidatingAdmissionPolicy '{name}'")),
                "{name}: {said}"
            );
            assert!(!said.contains(", where "), "{said}");
        }
    }

    /// Events and tokens don't reach the fake API.
    #[test]
    fn only_the_policies_on_events_and_tokens_are_never_asked() {
        let own = policies().iter().map(|policy| &policy.name[..]);
        let own: BTreeSet<_> = own.filter(|name| name.starts_with("mooring-controller")).collect();
        let tried: BTreeSet<_> = refusals().iter().map(|(name, ..)| *name).collect();
        let left: Vec<_> = own.difference(&tried).copied().collect();
        assert_eq!(left, ["mooring-controller-events", "mooring-controller-tokens"]);
        assert_eq!(own.len(), 11);
    }

    #[test]
    fn a_worker_may_lose_its_owner_and_no_other_pod_may() {
        let pod = |labels: Value, owners: Value| {
            json!({
                "metadata": {"name": "p", "labels": labels, "ownerReferences": owners},
                "spec": {"containers": [{"securityContext": {"allowPrivilegeEscalation": false,
                                                             "capabilities": {"drop": ["ALL"]}}}]},
            })
        };
        let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1", "controller": true}]);
        let run = json!({"mooring.dev/component": "provisioning"});
        let worker = json!({"mooring.dev/component": "provisioning", "mooring.dev/worker": "true"});
        let freed = |labels: &Value| {
            let (old, new) = (pod(labels.clone(), owner.clone()), pod(labels.clone(), json!([])));
            refused(&Method::PATCH, "/api/v1/namespaces/admin/pods/p", &old, &new)
        };
        assert_eq!(freed(&worker), None);
        assert!(freed(&run).unwrap().contains("mooring-controller-metadata"));
    }
}
