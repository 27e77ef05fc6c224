//! A Ceph of a test's own.

use anyhow::Result;
use mooring_contract::names::FLEX_DRIVER;
use serde_json::json;

use super::provisioner::{CONFIG_NAMESPACE, Provisioner, TEST_LABEL};
use super::scope::Scope;
use super::server::Server;

/// Keys of the clients of tests/images/ceph/serve, which all end in the same way.
const KEYS: [(&str, &str); 4] = [
    ("cephfs-provisioner", "AQBnIHlnAAAAABAAbm90LXRvLWJlLXNlZW4tMQ=="),
    ("cephfs-nodes", "AQBnIHlnAAAAABAAbm90LXRvLWJlLXNlZW4tMg=="),
    ("rbd-provisioner", "AQBnIHlnAAAAABAAbm90LXRvLWJlLXNlZW4tMw=="),
    ("rbd-nodes", "AQBnIHlnAAAAABAAbm90LXRvLWJlLXNlZW4tNA=="),
];

/// A key that the cluster does not know.
pub const WRONG_KEY: &str = "AQBnIHlnAAAAABAAbm90LXRvLWJlLXNlZW4tNQ==";

/// What all keys have in common. Tests search for it where no key may be.
pub const IN_EVERY_KEY: &str = "bm90LXRvLWJlLXNlZW4t";

/// The key of a client.
pub fn key_of(user: &str) -> &'static str {
    KEYS.iter().find(|(name, _)| *name == user).map_or("", |(_, key)| key)
}

impl Scope {
    /// Starts Ceph as Pod `ceph` on a node, for clients of one kind (`cephfs` or `rbd`). The server's Secret is the
    /// provisioner's.
    pub async fn ceph(&self, node: &str, kind: &str) -> Result<Server> {
        let user = format!("{kind}-provisioner");
        let login = json!({"ceph-user": user, "ceph-key": key_of(&user)});
        self.storage_server("ceph", node, &login).await
    }

    /// The example of one kind with this server, and a Secret for mounts.
    pub fn ceph_example(&self, kind: &str, server: &Server) -> Result<Provisioner> {
        let secret = format!("{}-nodes", self.namespace);
        let user = format!("{kind}-nodes");
        self.ceph_secret(CONFIG_NAMESPACE, &secret, &user, key_of(&user))?;
        let example = self.provisioner().example(&format!("{kind}.yaml"))?;
        Ok(example
            .key("secret-name", &server.secret)
            .key("monitors", &server.address)
            .key("mount-secret", format!("{secret}/{CONFIG_NAMESPACE}")))
    }

    /// Makes a Secret for mounts. It is deleted with the test.
    pub fn ceph_secret(&self, namespace: &str, name: &str, user: &str, key: &str) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": FLEX_DRIVER,
            "metadata": {"name": name, "namespace": namespace, "labels": {TEST_LABEL: self.namespace}},
            "stringData": {"user": user, "key": key},
        });
        self.apply_anywhere(&secret.to_string())
    }

    /// Runs a script on the server; returns what it printed.
    pub fn on_ceph(&self, script: &str) -> Result<String> {
        self.exec("ceph", ["sh", "-euc", script])
    }
}
