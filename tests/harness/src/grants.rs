//! The API of `ReferenceGrant`s on a cluster, and a namespace that lets another one in.

use anyhow::Result;
use serde_json::{Value, json};

use super::scope::{Scope, blocking};

const GROUP: &str = "gateway.networking.k8s.io";

impl Scope {
    /// Has the cluster serve the API, as far as Mooring reads it: the API itself is a part of the Gateway API, of which
    /// the tests need nothing else. It stays: the test that is over may not be the only one that needs it.
    pub fn grants_api(&self) -> Result<()> {
        let text = json!({"type": "string"});
        let some = |properties: Value| {
            let one = json!({"type": "object", "required": ["group", "kind"], "properties": properties});
            json!({"type": "array", "items": one})
        };
        let from = some(json!({"group": text, "kind": text, "namespace": text}));
        let to = some(json!({"group": text, "kind": text, "name": text}));
        let spec = json!({"type": "object", "required": ["from", "to"], "properties": {"from": from, "to": to}});
        let schema = json!({"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {"spec": spec}}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {
                "name": format!("referencegrants.{GROUP}"),
                // The API server asks this of groups under k8s.io.
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": GROUP, "scope": "Namespaced",
                "names": {"kind": "ReferenceGrant", "plural": "referencegrants", "singular": "referencegrant"},
                // What clusters have had for years. Newer ones have v1 besides, with the same fields.
                "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": schema}],
            },
        });
        self.apply_anywhere(&definition.to_string())?;
        let name = format!("crd/referencegrants.{GROUP}");
        blocking(self.kubectl_wait(["wait", "--for=condition=Established", &name]))
    }
}
