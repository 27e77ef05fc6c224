//! The example of GlusterFS, with a server for one test.

use anyhow::Result;
use serde_json::Value;

use super::provisioner::Provisioner;
use super::scope::Scope;
use super::server::Server;

impl Scope {
    /// Starts the server as Pod `glusterfs` on a node; returns the example for it.
    pub async fn glusterfs_example(&self, node: &str) -> Result<(Server, Provisioner)> {
        let server = self.storage_server("glusterfs", node, &Value::Null).await?;
        let source = format!("{}:/volumes", server.address);
        let provisioner = self
            .provisioner_named("-glusterfs")
            .example("glusterfs.yaml")?
            .key("secret-name", &server.secret)
            .key("backend-volume", format!("client=glusterfs,source={source}"))
            .key("source", source)
            .key("limit-host", format!("root@{}", server.address));
        Ok((server, provisioner))
    }
}
