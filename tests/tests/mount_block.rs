//! iSCSI volumes without iSCSI on the nodes, neither program nor kernel driver: client `block`, and the image `tgt` that makes
//! the targets on a server.

use anyhow::Result;
use mooring_contract::names::FLEX_DRIVER;
use mooring_testbed::harness::Scope;
use mooring_testbed::harness::nodes::on_own_nodes;
use mooring_testbed::harness::provisioner::{CONFIG_NAMESPACE, Provisioner, TEST_LABEL, user_of};
use mooring_testbed::harness::server::Server;
use serde_json::{Value, json};

const PASSWORD: &str = "not-to-be-seen-12";

/// The example, with a server that is there.
fn example(scope: &Scope, server: &Server) -> Result<Provisioner> {
    let chap = format!("{}-chap", scope.namespace);
    scope.apply_anywhere(
        &json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": chap, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: scope.namespace}},
            "type": FLEX_DRIVER,
            "stringData": {"chap-username": "mooring", "chap-password": PASSWORD},
        })
        .to_string(),
    )?;
    let example = scope.provisioner().example("iscsi.yaml")?;
    Ok(example
        .key("secret-name", &server.secret)
        .key("server", &server.address)
        .key("mount-secret", format!("{chap}/{CONFIG_NAMESPACE}")))
}

fn user_on(node: &str, name: &str) -> Value {
    let mut user = user_of(name, "data", "sleep 1000000");
    user["spec"]["nodeName"] = node.into();
    user
}

#[test]
fn an_iscsi_volume_is_mounted_by_a_client_container_one_node_at_a_time_and_gone_with_its_claim() {
    on_own_nodes("mount-block", async |scope| {
        for node in [1, 2] {
            assert_eq!(
                scope.on_node(node, "command -v iscsiadm qemu-storage-daemon || echo none")?,
                "none\n"
            );
        }
        let chap = json!({"chap-username": "mooring", "chap-password": PASSWORD});
        let server = scope.storage_server("tgt", "node-1", &chap).await?;
        let provisioner = example(&scope, &server)?;
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
        scope.claim_bound("data").await?;

        scope.apply(&user_on("node-1", "first").to_string())?;
        scope.pod_ready("first").await?;
        scope.exec("first", ["sh", "-c", "head -c 8m /dev/urandom >/data/file"])?;
        let sum = scope.exec("first", ["sha256sum", "/data/file"])?;
        let full = scope.exec(
            "first",
            ["sh", "-c", "dd if=/dev/zero of=/data/big bs=1M 2>&1; rm /data/big"],
        )?;
        assert!(full.contains("No space left on device"), "{full}");
        for place in ["/proc/mounts", "/proc/*/cmdline"] {
            let seen = scope.on_node(1, &format!("cat {place} 2>/dev/null | tr '\\0' ' '; true"))?;
            assert!(!seen.contains(PASSWORD), "the password is in {place}");
        }

        // Kubernetes does not keep a second node from a volume that needs no attaching: the file system does.
        scope.apply(&user_on("node-2", "second").to_string())?;
        scope.event("second", "another node has this volume mounted").await?;
        scope.delete("pod/first")?;
        scope.pod_gone("first").await?;
        scope.pod_ready("second").await?;
        assert_eq!(scope.exec("second", ["sha256sum", "/data/file"])?, sum);

        scope.delete("pod/second")?;
        scope.pod_gone("second").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        let left = scope.exec("tgt", ["sh", "-c", "ls /srv/volumes /etc/tgt/conf.d; tgt-admin --show"])?;
        assert!(!left.contains(&uid), "{left}");
        Ok(())
    });
}
