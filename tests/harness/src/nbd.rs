//! An NBD server for one test: the one that is part of qemu, which the image of client `block` has as well.

use anyhow::{Context, Result};
use serde_json::json;

use super::scope::Scope;

impl Scope {
    /// Starts the server as Pod `nbd` on a node, with a device of 64 MiB as its export `disk`; returns its address. A
    /// shell command prepares the device's file, `/disk`.
    pub async fn nbd_server(&self, node: &str, prepare: &str) -> Result<String> {
        let image = concat!("mooring.dev/client-block:", env!("CARGO_PKG_VERSION"));
        // A server that is ended starts again, with the size that the file has by then.
        let serve = format!(
            "truncate -s 64M /disk
             {prepare}
             while :; do
                 qemu-nbd --pid-file /run/nbd.pid -f raw -x disk -e 8 -t /disk
             done"
        );
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nbd"},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main", "image": image, "command": ["sh", "-c", serve],
                    "readinessProbe": {"tcpSocket": {"port": 10809}, "periodSeconds": 1},
                }],
            },
        });
        self.apply(&pod.to_string())?;
        let server = self.pod_ready("nbd").await?;
        server
            .status
            .and_then(|status| status.pod_ip)
            .context("the NBD server has no address")
    }
}
