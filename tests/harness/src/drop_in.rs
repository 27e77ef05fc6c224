//! The drop-in of `configmaps/drop-in`, active only for the objects of one test.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::provisioner::{CONFIG_NAMESPACE, TEST_LABEL};
use super::scope::Scope;
use mooring_testbed::layout::repository;
use mooring_testbed::manifests::documents;

/// Its manifest.
const FILE: &str = "configmaps/drop-in/drop-in.yaml";

impl Scope {
    /// Applies the drop-in under names of the test's own, for objects that carry [`Scope::own_label`]: Pods as the
    /// namespace's annotations allow, and `PersistentVolumes` of these kinds. It is deleted with the test.
    pub fn drop_in(&self, volume_kinds: &str) -> Result<()> {
        self.drop_in_with(volume_kinds, &[])
    }

    /// [`Self::drop_in`] with further keys in its `ConfigMap`.
    pub fn drop_in_with(&self, volume_kinds: &str, keys: &[(&str, &str)]) -> Result<()> {
        let path = repository().join(FILE);
        let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        let mut items = documents(&text).with_context(|| format!("failed to read {}", path.display()))?;
        for item in &mut items {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            item["metadata"]["name"] = format!("{}-{name}", self.namespace).into();
            item["metadata"]["labels"] = self.own_label();
            match item["kind"].as_str() {
                Some("ConfigMap") => {
                    item["metadata"]["namespace"] = CONFIG_NAMESPACE.into();
                    item["data"]["persistent-volumes"] = volume_kinds.into();
                    for (key, value) in keys {
                        item["data"][*key] = (*value).into();
                    }
                }
                Some("MutatingAdmissionPolicyBinding") => {
                    for place in ["/spec/policyName", "/spec/paramRef/name"] {
                        let name = item.pointer_mut(place).with_context(|| format!("{FILE}: no {place}"))?;
                        *name = format!("{}-{}", self.namespace, name.as_str().unwrap_or_default()).into();
                    }
                    item["spec"]["paramRef"]["namespace"] = CONFIG_NAMESPACE.into();
                    item["spec"]["matchResources"] = json!({"objectSelector": {"matchLabels": self.own_label()}});
                }
                _ => {}
            }
        }
        self.apply_anywhere(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())
    }

    /// The label of the test's objects.
    pub fn own_label(&self) -> Value {
        json!({TEST_LABEL: self.namespace})
    }

    /// Allows the drop-in to rewrite Pods' volumes of these kinds in the namespace, and these sources.
    pub fn allow_drop_in(&self, kinds: &str, clients: &str, sources: &str) -> Result<()> {
        self.kubectl([
            "annotate",
            "namespace",
            &self.namespace,
            &format!("mooring.dev/drop-in={kinds}"),
            &format!("mooring.dev/inline-clients={clients}"),
            &format!("mooring.dev/inline-sources={sources}"),
        ])?;
        Ok(())
    }
}
