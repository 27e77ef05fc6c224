//! The demo's manifests: those of `configmaps/examples/`, completed as an administrator would.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::keys::Keys;
use crate::layout::repository;

/// The file server.
pub struct Server {
    /// Its address, as nodes reach it.
    pub address: String,
    pub keys: Keys,
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.address)
    }
}

pub fn documents(text: &str) -> Result<Vec<Value>> {
    mooring_yaml::documents(text).context("failed to read a manifest")
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// A manifest with all its objects in a namespace.
pub fn in_namespace(text: &str, namespace: &str) -> Result<String> {
    let mut documents = documents(text)?;
    for document in &mut documents {
        document["metadata"]["namespace"] = namespace.into();
    }
    Ok(list(&documents))
}

/// The Secret that the server reads its keys from.
pub fn server_secret(keys: &Keys) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "file-server-keys"},
        "stringData": {
            "ssh_host_ed25519_key": keys.host_private,
            "authorized_keys": format!("{}\n", keys.user_public),
        },
    })
}

/// The examples `sshfs.yaml` and `local.yaml`, completed and with names of the demo's own.
pub fn registrations(server: &Server) -> Result<[String; 2]> {
    let sshfs = fill_sshfs(example("sshfs.yaml")?, server);
    let mut local = example("local.yaml")?;
    for document in &mut local {
        rename(document, "demo-local");
    }
    Ok([list(&sshfs), list(&local)])
}

/// The documents of an example in `configmaps/examples`.
pub fn example(file: &str) -> Result<Vec<Value>> {
    let path = repository().join("configmaps/examples").join(file);
    let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    documents(&text).with_context(|| format!("failed to read {}", path.display()))
}

fn rename(config_map: &mut Value, class: &str) {
    config_map["metadata"]["name"] = class.into();
    config_map["metadata"]["labels"]["storage-class"] = class.into();
}

fn fill_sshfs(mut documents: Vec<Value>, server: &Server) -> Vec<Value> {
    for document in &mut documents {
        if document["kind"] == "Secret" {
            document["metadata"]["name"] = "demo-sshfs-key".into();
            document["stringData"]["ssh-privatekey"] = server.keys.user_private.as_str().into();
            document["stringData"]["known_hosts"] = format!("{} {}\n", server.address, server.keys.host_public).into();
        } else {
            rename(document, "demo-sshfs");
            let namespace = document["metadata"]["namespace"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            document["data"]["server"] = server.address.as_str().into();
            document["data"]["secret-name"] = "demo-sshfs-key".into();
            document["data"]["mount-secret"] = format!("demo-sshfs-key/{namespace}").into();
        }
    }
    documents
}

#[cfg(test)]
mod tests {
    use super::{Keys, Server, example, fill_sshfs, in_namespace};

    #[test]
    fn the_example_is_filled_in_wherever_it_has_to_be() {
        let server = Server {
            address: "10.0.0.9".into(),
            keys: Keys {
                host_private: "hp".into(),
                host_public: "ssh-ed25519 AAAA host".into(),
                user_private: "up".into(),
                user_public: "u".into(),
            },
        };
        let filled = fill_sshfs(example("sshfs.yaml").unwrap(), &server);
        let text = serde_json::to_string(&filled).unwrap();
        assert!(!text.contains("fill in") && !text.contains("example.com"), "{text}");
        assert!(text.contains("10.0.0.9 ssh-ed25519 AAAA host"), "{text}");
    }

    #[test]
    fn every_document_lands_in_the_namespace() {
        let list = in_namespace(include_str!("../demo/disk.yaml"), "x").unwrap();
        assert_eq!(list.matches("\"namespace\":\"x\"").count(), 2);
    }
}
