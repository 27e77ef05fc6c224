//! An S3 server for one test.

use anyhow::Result;
use mooring_contract::names::FLEX_DRIVER;
use serde_json::{Value, json};

use super::provisioner::{CONFIG_NAMESPACE, TEST_LABEL};
use super::scope::Scope;

/// Both as in tests/images/versitygw/serve.
pub const KEY_ID: &str = "testbed";
pub const KEY: &str = "not-to-be-seen-s3";

/// The server as Pod `versitygw`, whose buckets are directories in its `/srv/volumes`.
pub struct S3Server {
    pub url: String,
    /// Its key and certificate, in the namespace of the tests' ConfigMaps.
    pub secret: String,
    /// The same, as a Secret's texts.
    pub data: Value,
}

impl Scope {
    /// Starts the server on a node.
    pub async fn s3_server(&self, node: &str) -> Result<S3Server> {
        let server = self.storage_server("versitygw", node, &Value::Null).await?;
        let secret = format!("{}-key", self.namespace);
        let ca = self.exec("versitygw", ["cat", "/run/ca.crt"])?;
        let data = json!({"access-key-id": KEY_ID, "secret-access-key": KEY, "ca.crt": ca});
        self.apply_anywhere(
            &json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": secret, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: self.namespace}},
                "type": FLEX_DRIVER,
                "stringData": data,
            })
            .to_string(),
        )?;
        let url = format!("https://{}:7070", server.address);
        Ok(S3Server { url, secret, data })
    }

    /// Runs a script on the S3 server, for what the server itself has.
    pub fn on_s3_server(&self, script: &str) -> Result<String> {
        self.exec("versitygw", ["sh", "-euc", script])
    }

    /// Kills the processes of s3fs on a node of the testbed that mount from the server; returns how many there were.
    pub fn kill_s3fs(&self, node: u8, server: &S3Server) -> Result<usize> {
        let kill = format!(
            "pids=; for process in /proc/[0-9]*; do \
               [ \"$(cat $process/comm 2>/dev/null)\" = s3fs ] || continue; \
               tr '\\0' ' ' <$process/cmdline | grep -q 'url={} ' || continue; \
               pids=\"$pids ${{process#/proc/}}\"; \
             done; \
             [ -z \"$pids\" ] || kill -KILL $pids; set -- $pids; echo $#",
            server.url
        );
        Ok(self.on_node(node, &kill)?.trim().parse()?)
    }
}
