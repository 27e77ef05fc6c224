//! A GlusterFS server of a test's own, with one volume, `volumes`.

use anyhow::{Context, Result};
use kube::api::ResourceExt;
use serde_json::json;

use super::Scope;
use super::provisioner::{CONFIG_NAMESPACE, TEST_LABEL};
use crate::demo::keys;

/// A running GlusterFS server.
#[derive(Debug)]
pub struct GlusterServer {
    /// Its address, the same for Pods and nodes.
    pub address: String,
    /// The Secret, in the namespace of the tests' ConfigMaps, of the key that limits directories.
    pub limit_secret: String,
}

impl Scope {
    /// Starts the server, as Pod `gluster`.
    pub async fn gluster_server(&self, node: &str) -> Result<GlusterServer> {
        let keys = keys::make()?;
        let limit_secret = format!("{}-limits", self.namespace);
        let server = json!({"apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "gluster-server"},
                "stringData": {"ssh_host_ed25519_key": keys.host_private, "authorized_keys": keys.user_public},
            },
            {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gluster"},
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "glusterd",
                        "image": "mooring.dev/testbed-glusterfs:0.1.0",
                        "imagePullPolicy": "IfNotPresent",
                        "env": [{"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                        // Bricks keep what they know in extended attributes of root's.
                        "securityContext": {"privileged": true},
                        "readinessProbe": {"exec": {"command": ["test", "-e", "/run/ready"]}, "periodSeconds": 1},
                        "volumeMounts": [
                            {"name": "keys", "mountPath": "/etc/mooring-sshd"},
                            {"name": "bricks", "mountPath": "/bricks"},
                        ],
                    }],
                    "volumes": [
                        {"name": "keys", "secret": {"secretName": "gluster-server"}},
                        {"name": "bricks", "emptyDir": {}},
                    ],
                },
            },
        ]});
        self.apply(&server.to_string())?;
        let pod = self.pod_ready("gluster").await?;
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let address = address.with_context(|| format!("Pod {} has no address", pod.name_any()))?;
        self.apply_anywhere(
            &json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {
                    "name": limit_secret, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: self.namespace},
                },
                "stringData": {
                    "ssh-privatekey": keys.user_private,
                    "known_hosts": format!("{address} {}\n", keys.host_public),
                },
            })
            .to_string(),
        )?;
        Ok(GlusterServer { address, limit_secret })
    }
}
