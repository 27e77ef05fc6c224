//! All settings of an installation, each changed: in the chart's values, in a kustomization, and in the objects.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::{CSI_DRIVER, MOUNTER_CONFIG, NAMESPACE, SETTINGS_CONFIG};
use mooring_program::settings::keys;
use mooring_testbed::images::HOST;
use mooring_testbed::install::TESTS_NAMESPACES;
use serde_json::{Map, Value, json};

/// A registry that nobody has: its images are on the nodes.
pub const REGISTRY: &str = "settings.invalid";

/// The tag of the controller's and the mounter's image.
pub const NEXT_TAG: &str = "next";

/// Of another registry that nobody has.
pub const IMAGE: &str = "elsewhere.invalid/x:1";

/// As in the lines of `configmaps/registry` that wait for their `#` to be removed.
pub const SECRET: &str = "registry";

/// Who serves which type of volume.
pub const CLIENTS: [(&str, &str); 1] = [("settings-example", "self")];

/// What runs Mooring: its name in the chart's values, and its object.
pub struct Workload {
    value: &'static str,
    kind: &'static str,
    name: &'static str,
}

pub const WORKLOADS: [Workload; 2] = [
    Workload {
        value: "controller",
        kind: "Deployment",
        name: "flex-provisioner",
    },
    Workload {
        value: "mounter",
        kind: "DaemonSet",
        name: "mounter",
    },
];

impl Workload {
    fn with(&self, spec: &Value) -> Value {
        let metadata = json!({"name": self.name, "namespace": NAMESPACE});
        json!({"apiVersion": "apps/v1", "kind": self.kind, "metadata": metadata, "spec": spec})
    }

    /// The object with these fields in its Pods.
    pub fn pod(&self, fields: &Value) -> Value {
        self.with(&json!({"template": {"spec": fields}}))
    }

    fn container(&self, field: &str, value: &Value) -> Value {
        self.pod(&json!({"containers": [{"name": self.name, field: value}]}))
    }
}

/// A setting with another value than it has by default.
pub struct Setting {
    /// Its path in the chart's values.
    value: String,
    changed: Value,
    /// Parts of the objects that show it.
    pub shown: Vec<Value>,
}

fn setting(value: impl Into<String>, changed: Value, shown: impl Into<Vec<Value>>) -> Setting {
    Setting {
        value: value.into(),
        changed,
        shown: shown.into(),
    }
}

fn config(name: &str, data: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
}

/// A key of the settings that has its text in the chart's values.
fn key(value: &str, key: &str, text: &str) -> Setting {
    setting(value, text.into(), [config(SETTINGS_CONFIG, &json!({key: text}))])
}

pub fn settings() -> Vec<Setting> {
    let images = format!("{REGISTRY}/**,elsewhere.invalid/*");
    // The mounter's among them, whose name a folder without a kustomization does not change.
    let client_images = format!("{REGISTRY}/*,{HOST}/*,elsewhere.invalid/*");
    let clients: Value = CLIENTS
        .iter()
        .map(|&(client, by)| (client.to_owned(), by.into()))
        .collect::<Map<_, _>>()
        .into();
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": CSI_DRIVER},
        "spec": {"seLinuxMount": true},
    });
    let tagged = WORKLOADS.map(|workload| {
        let image = format!("{REGISTRY}/{}:{NEXT_TAG}", workload.name);
        workload.container("image", &image.into())
    });
    let replicas = WORKLOADS[0].with(&json!({"replicas": 3}));
    let mut settings = vec![
        key("registry", keys::REGISTRY, REGISTRY),
        setting(
            "pullSecrets",
            json!([SECRET]),
            [config(SETTINGS_CONFIG, &json!({keys::PULL_SECRETS: SECRET}))],
        ),
        key("settings.config-namespaces", keys::CONFIG_NAMESPACES, TESTS_NAMESPACES),
        key("settings.allowed-images", keys::ALLOWED_IMAGES, &images),
        key(
            "settings.allowed-client-images",
            keys::ALLOWED_CLIENT_IMAGES,
            &client_images,
        ),
        setting("clients", clients.clone(), [config(MOUNTER_CONFIG, &clients)]),
        setting("tag", NEXT_TAG.into(), tagged),
        setting("controller.replicas", 3.into(), [replicas]),
        setting("seLinuxMount", true.into(), [driver]),
    ];
    let architecture = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    for workload in &WORKLOADS {
        let mut of = |field: &str, changed: Value, shown: Value| {
            settings.push(setting(format!("{}.{field}", workload.value), changed, [shown]));
        };
        for (field, changed) in [
            ("env", json!([{"name": "MOORING_LOG_FORMAT", "value": "json"}])),
            ("resources", json!({"requests": {"memory": "48Mi"}})),
        ] {
            of(field, changed.clone(), workload.container(field, &changed));
        }
        for (field, changed) in [
            ("nodeSelector", json!({"kubernetes.io/arch": architecture})),
            (
                "tolerations",
                json!([{"key": "testbed.mooring.dev/none", "operator": "Exists"}]),
            ),
        ] {
            of(field, changed.clone(), workload.pod(&json!({field: changed})));
        }
    }
    settings
}

/// The data of a ConfigMap of theirs.
pub fn data_of(settings: &[Setting], name: &str) -> Map<String, Value> {
    let shown = settings.iter().flat_map(|setting| &setting.shown);
    let maps = shown.filter(|object| object["kind"] == "ConfigMap" && object["metadata"]["name"] == name);
    let data = maps.filter_map(|object| object["data"].as_object());
    data.flatten()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The chart's values.
pub fn values(settings: &[Setting]) -> Value {
    let mut values = Value::Null;
    for setting in settings {
        let place = setting
            .value
            .split('.')
            .fold(&mut values, |values, part| &mut values[part]);
        *place = setting.changed.clone();
    }
    values
}

/// A copy of `configmaps/registry/kustomization.yaml` with all settings.
pub fn kustomization(text: &str, settings: &[Setting]) -> Result<Value> {
    let mut text = text.to_owned();
    for comment in ["- ", "patches:", "  - target", "    patch"] {
        text = text.replace(&format!("# {comment}"), comment);
    }
    let mut own = mooring_yaml::document(&text).context("failed to read the kustomization")?;
    let data = data_of(settings, SETTINGS_CONFIG);
    let literals = own["configMapGenerator"][0]["literals"]
        .as_array()
        .context("no literals")?;
    let offered: BTreeSet<_> = literals
        .iter()
        .filter_map(|one| one.as_str()?.split('=').next())
        .collect();
    ensure!(offered == keys::ALL.into(), "configmaps/registry has {offered:?}");
    own["configMapGenerator"][0]["literals"] = data
        .iter()
        .map(|(key, value)| Value::from(format!("{key}={}", value.as_str().unwrap_or_default())))
        .collect();
    let shown = settings.iter().flat_map(|setting| &setting.shown);
    let patches = shown.filter(|object| object["kind"] != "ConfigMap");
    let patches = patches.map(|object| json!({"patch": object.to_string()}));
    own["patches"].as_array_mut().context("no patches")?.extend(patches);
    Ok(own)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mooring_contract::names::SETTINGS_CONFIG;
    use mooring_program::settings::keys;
    use mooring_testbed::layout::repository;
    use serde_json::Value;

    use super::{data_of, settings};

    /// The paths of the values that a schema describes.
    fn leaves(path: &str, schema: &Value, found: &mut BTreeSet<String>) {
        let Some(parts) = schema["properties"].as_object() else {
            found.insert(path.to_owned());
            return;
        };
        for (name, schema) in parts {
            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            leaves(&path, schema, found);
        }
    }

    #[test]
    fn the_table_has_every_setting_of_the_chart_and_of_the_programs() {
        let path = repository().join("configmaps/install/values.schema.json");
        let schema = std::fs::read_to_string(path).unwrap();
        let mut there = BTreeSet::new();
        leaves("", &serde_json::from_str(&schema).unwrap(), &mut there);
        // Helm's own.
        there.remove("global");
        let settings = settings();
        let here: BTreeSet<_> = settings.iter().map(|setting| setting.value.clone()).collect();
        assert_eq!(here, there);
        let data = data_of(&settings, SETTINGS_CONFIG);
        let here: BTreeSet<_> = data.keys().map(String::as_str).collect();
        assert_eq!(here, keys::ALL.into());
    }
}
