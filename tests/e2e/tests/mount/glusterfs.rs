//! Volumes of a GlusterFS server: directories that the image `directory` creates in GlusterFS itself, which a client
//! container mounts.

use mooring_harness::in_namespace;
use mooring_harness::nodes::on_two_nodes;
use mooring_harness::provisioner::{claim, user_of};
use serde_json::{Value, json};

#[test]
fn a_glusterfs_claim_is_written_on_one_node_read_on_another_held_to_its_size_and_gone() {
    on_two_nodes("mount-glusterfs", async |scope, [one, two]| {
        scope.nodes_lack("glusterfs mount.glusterfs")?;
        let (_, provisioner) = scope.glusterfs_example(&one).await?;
        // A worker would have the server's volume mounted still when the server goes with the namespace.
        let provisioner = provisioner.key("workers", "0");
        provisioner.apply().await?;
        let mut wanted = claim("data", &provisioner.class, "16Mi");
        wanted["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        let uid = scope.claim_with(None, &wanted).await?;
        scope.claim_bound("data").await?;

        let mut writer = user_of("writer", "data", "echo hello >/data/letter; sleep 1000000");
        writer["spec"]["nodeName"] = one.into();
        writer["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsNonRoot": true});
        scope.apply(&writer.to_string())?;
        scope.pod_ready("writer").await?;
        let mut reader = user_of("reader", "data", "sleep 1000000");
        reader["spec"]["nodeName"] = two.into();
        scope.apply(&reader.to_string())?;
        scope.pod_ready("reader").await?;
        scope.file_is("reader", "/data/letter", "hello\n").await?;
        let mounted = scope.exec("reader", ["grep", " /data ", "/proc/mounts"])?;
        for word in ["mooring:", "fuse.glusterfs", "nosuid", "nodev"] {
            assert!(mounted.contains(word), "{word} is not in {mounted}");
        }

        let full = scope.exec(
            "writer",
            [
                "sh",
                "-c",
                "dd if=/dev/zero of=/data/big bs=1M count=64 conv=fsync 2>&1; true",
            ],
        )?;
        assert!(full.contains("quota exceeded"), "{full}");

        scope.delete("pod/writer")?;
        scope.delete("pod/reader")?;
        scope.pod_gone("writer").await?;
        scope.pod_gone("reader").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        let left = scope.exec("glusterfs", ["ls", "/srv/volumes/brick"])?;
        assert!(!left.contains(&uid), "{left}");
        Ok(())
    });
}

#[test]
fn a_glusterfs_server_without_the_volume_or_directory_is_named() {
    in_namespace("mount-gluster-no", async |scope| {
        let server = scope
            .storage_server("glusterfs", &scope.node(1).await?, &Value::Null)
            .await?;
        let node = scope.node(2).await?;
        for (name, source, word) in [
            ("no-volume", "nothing", "has no started volume nothing"),
            ("no-directory", "volumes/nowhere", "has no directory /nowhere"),
        ] {
            let source = format!("{}:/{source}", server.address);
            scope.volume(name, &json!({"client": "glusterfs", "source": source}))?;
            scope.pod(name, &node, name, Value::Null)?;
            scope.event(name, word).await?;
        }
        scope.volume("gone", &json!({"client": "glusterfs", "source": "192.0.2.1:/volumes"}))?;
        scope.pod("gone", &node, "gone", Value::Null)?;
        scope.event("gone", "192.0.2.1").await?;
        Ok(())
    });
}
