//! A web server behind a Service.

use anyhow::Result;
use serde_json::json;

use super::scope::Scope;

impl Scope {
    /// Starts Pod `server` on a node, which answers "served" on its Service of the same name; returns that Service's
    /// address.
    pub async fn web_server(&self, node: &str) -> Result<String> {
        let script = "mkdir /www && echo served >/www/index.html && httpd -f -p 8080 -h /www";
        let served = json!({"apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "server", "labels": {"app": "server"}},
                "spec": {
                    "nodeName": node,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "main", "image": "busybox:1", "command": ["sh", "-c", script],
                        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
                    }],
                },
            },
            {
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"},
                "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
            },
        ]});
        self.apply(&served.to_string())?;
        self.pod_ready("server").await?;
        self.kubectl(["get", "service", "server", "-o", "jsonpath={.spec.clusterIP}"])
    }
}
