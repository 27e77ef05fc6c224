//! A storage server for one test, administered over ssh.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::provisioner::{CONFIG_NAMESPACE, TEST_LABEL};
use super::scope::Scope;
use mooring_testbed::keys;

#[derive(Debug)]
pub struct Server {
    /// Its address, the same for Pods and nodes.
    pub address: String,
    /// Name of the Secret, in the namespace of the tests' ConfigMaps, whose key a provisioner logs in with.
    pub secret: String,
}

impl Scope {
    /// Starts `mooring.dev/testbed-<name>` as Pod `<name>` on a node. It keeps its volumes in `/srv/volumes`, is
    /// privileged, gets its own address in `ADDRESS`, and is ready once `/run/ready` exists. `more` is added to the
    /// Secret's keys.
    pub async fn storage_server(&self, name: &str, node: &str, more: &Value) -> Result<Server> {
        self.storage_server_called(name, name, node, more).await
    }

    /// The same with another name than the image's, so that there may be two of one kind.
    pub async fn storage_server_called(&self, name: &str, image: &str, node: &str, more: &Value) -> Result<Server> {
        let keys = keys::make()?;
        let server = json!({"apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-server")},
                "stringData": {"ssh_host_ed25519_key": keys.host_private, "authorized_keys": keys.user_public},
            },
            {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "server",
                        "image": format!("mooring.dev/testbed-{image}:{}", env!("CARGO_PKG_VERSION")),
                        "imagePullPolicy": "IfNotPresent",
                        "env": [{"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                        "securityContext": {"privileged": true},
                        // No readiness probe: it would start a program every second.
                        "startupProbe": {
                            "exec": {"command": ["test", "-e", "/run/ready"]}, "periodSeconds": 1, "failureThreshold": 300,
                        },
                        "volumeMounts": [
                            {"name": "keys", "mountPath": "/etc/mooring-sshd"},
                            {"name": "volumes", "mountPath": "/srv/volumes"},
                        ],
                    }],
                    "volumes": [
                        {"name": "keys", "secret": {"secretName": format!("{name}-server")}},
                        {"name": "volumes", "emptyDir": {}},
                    ],
                },
            },
        ]});
        self.apply(&server.to_string())?;
        let pod = self.pod_ready(name).await?;
        let address = pod.status.and_then(|status| status.pod_ip);
        let address = address.with_context(|| format!("Pod {name} has no address"))?;
        let secret = format!("{}-{name}", self.namespace);
        let mut data = json!({
            "ssh-privatekey": keys.user_private,
            "known_hosts": format!("{address} {}\n", keys.host_public),
        });
        if let (Some(data), Some(more)) = (data.as_object_mut(), more.as_object()) {
            data.extend(more.clone());
        }
        self.apply_anywhere(
            &json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": secret, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: self.namespace}},
                "stringData": data,
            })
            .to_string(),
        )?;
        Ok(Server { address, secret })
    }
}
