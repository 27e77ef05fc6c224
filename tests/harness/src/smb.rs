//! The example of SMB, with a Samba server for one test.

use anyhow::Result;
use mooring_contract::names::FLEX_DRIVER;
use serde_json::json;

use super::provisioner::{CONFIG_NAMESPACE, Provisioner, TEST_LABEL};
use super::scope::Scope;
use super::server::Server;

/// The server's user, as in tests/images/samba/serve.
pub const USER: &str = "tom";

/// The user's password, as in the same file.
pub const PASSWORD: &str = "not-to-be-seen-smb,vers=1.0,uid=7 \"ö";

impl Scope {
    /// Starts the server as Pod `samba`, whose share is its `/srv/volumes`; returns the example for it.
    pub async fn smb_example(&self) -> Result<(Server, Provisioner)> {
        let login = json!({"smb-username": USER, "smb-password": PASSWORD});
        let server = self.storage_server("samba", &self.node(1).await?, &login).await?;
        let mount_secret = format!("{}-login", self.namespace);
        self.apply_anywhere(
            &json!({
                "apiVersion": "v1", "kind": "Secret", "type": FLEX_DRIVER,
                "metadata": {"name": mount_secret, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: self.namespace}},
                "stringData": {"username": USER, "password": PASSWORD},
            })
            .to_string(),
        )?;
        let example = self.provisioner_named("-smb").example("smb.yaml")?;
        let provisioner = example
            .key("secret-name", &server.secret)
            .key("source", format!("//{}/volumes", server.address))
            .key("mount-secret", format!("{mount_secret}/{CONFIG_NAMESPACE}"));
        Ok((server, provisioner))
    }
}
