//! The example of iSCSI, with a server of tgt for one test.

use anyhow::Result;
use mooring_contract::names::FLEX_DRIVER;
use serde_json::json;

use super::provisioner::{CONFIG_NAMESPACE, Provisioner, TEST_LABEL};
use super::scope::Scope;
use super::server::Server;

/// How the names of targets begin that [`Scope::iscsi_targets`] makes.
pub const IQN: &str = "iqn.2025-01.test";

/// The password of CHAP, for the server and for mounts.
pub const PASSWORD: &str = "not-to-be-seen-12";

impl Scope {
    /// Starts the server as Pod `tgt` on a node; returns the example for it.
    pub async fn iscsi_example(&self, node: &str) -> Result<(Server, Provisioner)> {
        let chap = json!({"chap-username": "mooring", "chap-password": PASSWORD});
        let server = self.storage_server("tgt", node, &chap).await?;
        let mount_secret = format!("{}-chap", self.namespace);
        self.apply_anywhere(
            &json!({
                "apiVersion": "v1", "kind": "Secret", "type": FLEX_DRIVER,
                "metadata": {"name": mount_secret, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: self.namespace}},
                "stringData": chap,
            })
            .to_string(),
        )?;
        let provisioner = self
            .provisioner_named("-iscsi")
            .example("iscsi.yaml")?
            .key("secret-name", &server.secret)
            .key("server", &server.address)
            .key("mount-secret", format!("{mount_secret}/{CONFIG_NAMESPACE}"));
        Ok((server, provisioner))
    }

    /// The same, with volumes that the server lets one node have at a time, by `attach`.
    pub async fn attached_iscsi(&self, node: &str) -> Result<(Server, Provisioner)> {
        let (server, provisioner) = self.iscsi_example(node).await?;
        let provisioner = provisioner
            .key("volume-source", "csi")
            .key("operations", "provision, delete, expand, attach, detach")
            .key("attached-only", "true")
            .key("mount-secret", "")
            .key("io-timeout", "20");
        Ok((server, provisioner))
    }

    /// Makes targets of 64 MiB on the server of Pod `tgt`, each with file `/srv/volumes/NAME`; returns the source of
    /// each.
    pub fn iscsi_targets<const N: usize>(&self, server: &str, names: [&str; N]) -> Result<[String; N]> {
        for name in names {
            let script = format!(
                "truncate -s 64M /srv/volumes/{name}
                 printf '<target {IQN}:{name}>\nbacking-store /srv/volumes/{name}\n</target>\n' >/etc/tgt/conf.d/{name}.conf
                 tgt-admin --update {IQN}:{name}"
            );
            self.exec("tgt", ["sh", "-euc", &script])?;
        }
        Ok(names.map(|name| format!("iscsi://{server}:3260/{IQN}:{name}/1")))
    }
}
