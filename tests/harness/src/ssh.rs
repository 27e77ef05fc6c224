//! An ssh server for one test.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use mooring_contract::names::FLEX_DRIVER;
use serde_json::{Value, json};

use super::provisioner::{CONFIG_NAMESPACE, TEST_LABEL};
use super::scope::Scope;
use mooring_testbed::keys::{self, Keys};

#[derive(Debug)]
pub struct SshServer {
    /// Its address, the same for Pods and nodes.
    pub address: String,
    /// The Secret for mounts of its volumes.
    secret: String,
    keys: Keys,
}

impl Scope {
    /// Starts an ssh server on a node, with a directory `/srv/volumes/NAME` for each of `volumes`, and creates the
    /// Secret `ssh` for mounts of them.
    pub async fn ssh_server(&self, node: &str, volumes: &[&str]) -> Result<SshServer> {
        self.ssh_server_called("ssh", node, volumes).await
    }

    /// [`Self::ssh_server`] under another name, which its Pod, its Service and the Secret have.
    pub async fn ssh_server_called(&self, name: &str, node: &str, volumes: &[&str]) -> Result<SshServer> {
        let keys = keys::make()?;
        let own_secret = format!("{name}-server");
        let server = json!({"apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": own_secret},
                "stringData": {"ssh_host_ed25519_key": keys.host_private, "authorized_keys": keys.user_public},
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"selector": {"app": name}, "ports": [{"port": 22}]},
            },
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": {"app": name}},
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "sshd",
                        "image": "mooring.dev/testbed-sshd:0.1.0",
                        "imagePullPolicy": "IfNotPresent",
                        "readinessProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 1},
                        "volumeMounts": [{"name": "keys", "mountPath": "/etc/mooring-sshd"}],
                    }],
                    "volumes": [{"name": "keys", "secret": {"secretName": own_secret}}],
                },
            },
        ]});
        self.apply(&server.to_string())?;
        self.pod_ready(name).await?;
        for volume in volumes {
            let path = format!("/srv/volumes/{volume}");
            self.exec(name, ["install", "-d", "-o", "mooring", "-m", "0770", &path])?;
        }
        let services: Api<Service> = self.api();
        let address = services.get(name).await?.spec.and_then(|spec| spec.cluster_ip);
        let server = SshServer {
            address: address.context("the ssh server's Service has no address")?,
            secret: name.to_owned(),
            keys,
        };
        self.mount_secret(name, &server.secret())?;
        Ok(server)
    }

    /// Has a server take a new key alone, and puts that into the Secret for mounts, without the newline at its end.
    pub fn change_ssh_key(&self, server: &mut SshServer) -> Result<()> {
        let new = keys::make()?;
        let accept = format!("echo '{}' >/etc/ssh/authorized_keys", new.user_public);
        self.exec(&server.secret, ["sh", "-c", &accept])?;
        (server.keys.user_private, server.keys.user_public) = (new.user_private.trim_end().to_owned(), new.user_public);
        self.mount_secret(&server.secret, &server.secret())
    }

    /// Makes a Secret for mounts.
    pub fn mount_secret(&self, name: &str, data: &Value) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "type": FLEX_DRIVER,
            "stringData": data,
        });
        self.apply(&secret.to_string())
    }
}

impl Scope {
    /// Makes the Secret by which provisioning Pods mount a server's volumes; returns its name.
    pub fn ssh_secret_for_runs(&self, server: &SshServer) -> Result<String> {
        let secret = format!("{}-ssh", self.namespace);
        self.apply_anywhere(
            &json!({
                "apiVersion": "v1", "kind": "Secret", "type": FLEX_DRIVER,
                "metadata": {"name": secret, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: self.namespace}},
                "stringData": server.secret(),
            })
            .to_string(),
        )?;
        Ok(secret)
    }
}

impl SshServer {
    pub fn secret(&self) -> Value {
        json!({
            "ssh-privatekey": self.keys.user_private,
            "known_hosts": format!("{} {}\n", self.address, self.keys.host_public),
        })
    }

    /// The source of one of its volumes.
    pub fn source(&self, volume: &str) -> String {
        format!("mooring@{}:/srv/volumes/{volume}", self.address)
    }

    /// Options of one of its volumes, with the Secret for mounts.
    pub fn volume(&self, volume: &str) -> Value {
        json!({"client": "sshfs", "source": self.source(volume), "secret": self.secret})
    }
}

/// A private key that no server knows.
pub fn private_key() -> Result<String> {
    Ok(keys::make()?.user_private)
}
