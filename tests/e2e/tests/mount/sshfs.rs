//! Volumes of an ssh server, mounted by sshfs in a client container: the nodes have no sshfs.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use mooring_contract::names::NAMESPACE;
use mooring_harness::clients::{SSH_CLIENT_IMAGE, client_pods_of, image_of_its_own, remove_image};
use mooring_harness::nodes::{on_own_nodes, on_two_nodes};
use mooring_harness::{Scope, in_namespace, skipped_without_all, wait_until};
use serde_json::{Value, json};

/// Longest wait until a client Pod is deleted: its idle time in the tests, and a check every half minute.
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// Longest until a Pod is gone whose volume the kubelet does not unmount: the mounter looks every half minute, waits
/// for half a minute after the grace period, and the kubelet's own pauses grow to two minutes.
const MISSING_LIMIT: Duration = Duration::from_mins(6);

/// Client Pods of an image: their nodes, and whether they are still wanted.
async fn client_pods(scope: &Scope, image: &str) -> Result<Vec<(String, bool)>> {
    let mut found: Vec<_> = client_pods_of(scope, image)
        .await?
        .into_iter()
        .filter_map(|pod| Some((pod.spec?.node_name?, pod.metadata.deletion_timestamp.is_some())))
        .collect();
    found.sort();
    Ok(found)
}

fn on(nodes: &[&str]) -> Vec<(String, bool)> {
    nodes.iter().map(|&node| (node.to_owned(), false)).collect()
}

#[test]
fn what_a_pod_writes_on_one_node_is_read_on_another_by_client_pods_that_come_and_go() {
    on_two_nodes("mount-sshfs", async |scope, [one, two]| {
        scope.nodes_lack("sshfs")?;
        let server = scope.ssh_server(&two, &["letters"]).await?;
        // On other clusters the test's client Pods can't be told from those of others.
        let own = scope.target.own_cluster().is_some();
        let image = own.then(|| image_of_its_own(&scope, "idle")).transpose()?;
        let expect = async |nodes: &[&str]| -> Result<()> {
            if let Some(image) = &image {
                assert_eq!(client_pods(&scope, image).await?, on(nodes));
            }
            Ok(())
        };
        let mut options = server.volume("letters");
        if let Some(image) = &image {
            options["client-image"] = image.clone().into();
        }
        scope.volume("letters", &options)?;
        // The same directory by the other driver.
        scope.csi_volume("back", &options, &Value::Null)?;
        expect(&[]).await?;

        scope.pod("writer", &one, "letters", Value::Null)?;
        scope.pod_ready("writer").await?;
        scope.exec("writer", ["sh", "-c", "echo hello >/data/letter"])?;
        expect(&[&one]).await?;

        let group = json!({"securityContext": {"runAsUser": 1000, "fsGroup": 2000}});
        scope.pod("reader", &two, "back", group)?;
        scope.pod_ready("reader").await?;
        assert_eq!(scope.exec("reader", ["cat", "/data/letter"])?, "hello\n");
        scope.exec("reader", ["sh", "-c", "echo and back >/data/answer"])?;
        expect(&[&one, &two]).await?;
        wait_until(
            "the answer to be seen on the other node",
            Duration::from_mins(1),
            async || {
                let text = scope.exec("writer", ["cat", "/data/answer"])?;
                ensure!(text == "and back\n", "the answer is {text:?}");
                Ok(Some(()))
            },
        )
        .await?;
        assert_eq!(scope.exec("ssh", ["cat", "/srv/volumes/letters/answer"])?, "and back\n");
        // A group of a Pod is nothing to the server: no setgid bit.
        assert_eq!(
            scope.exec("ssh", ["stat", "-c", "%a", "/srv/volumes/letters"])?,
            "770\n"
        );

        scope.delete("pod/writer")?;
        scope.delete("pod/reader")?;
        let Some(image) = &image else {
            return Ok(());
        };
        wait_until("idle client Pods to be deleted", IDLE_LIMIT, async || {
            Ok(client_pods(&scope, image).await?.is_empty().then_some(()))
        })
        .await?;
        remove_image(&scope, image)
    });
}

/// To the kubelet such a directory does not exist, and it unmounts neither a subPath nor a FlexVolume then.
#[test]
fn pods_end_although_their_directories_were_deleted_on_the_server() {
    const NODE: &str = "node-1";
    if skipped_without_all() {
        return;
    }
    on_own_nodes("mount-ssh-missing", async |scope| {
        let server = scope.ssh_server(NODE, &["part", "whole"]).await?;
        let whole = json!({"name": "data", "mountPath": "/data"});
        let part = json!({"name": "data", "mountPath": "/data", "subPath": "deep"});
        for (name, mount) in [("part", part), ("whole", whole)] {
            scope.volume(name, &server.volume(name))?;
            let main = json!([{
                "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"], "volumeMounts": [mount],
            }]);
            scope.pod(name, NODE, name, json!({"containers": main}))?;
            scope.pod_ready(name).await?;
        }
        scope.exec("ssh", ["rmdir", "/srv/volumes/part/deep", "/srv/volumes/whole"])?;
        let ours = format!("awk '$2 ~ \"/{}-\" {{ print $2 }}' /proc/mounts", scope.namespace);
        let seen = format!("for place in $({ours}); do ls -d $place 2>&1 || true; done");
        // sshfs remembers for a while what it has seen.
        wait_until("the directories to be missing on the node", MISSING_LIMIT, async || {
            let missing = scope.on_node(1, &seen)?.matches("No such file").count();
            Ok((missing == 2).then_some(()))
        })
        .await?;
        scope.deleted_within(&["part", "whole"], MISSING_LIMIT).await?;
        assert_eq!(scope.on_node(1, &ours)?, "");
        Ok(())
    });
}

#[test]
fn an_unreachable_or_refusing_server_is_named_with_a_cure() {
    in_namespace("mount-ssh-refused", async |scope| {
        let node = scope.node(1).await?;
        let server = scope.ssh_server(&node, &["letters"]).await?;
        let mut stranger = server.secret();
        let keys = mooring_harness::ssh::private_key()?;
        stranger["ssh-privatekey"] = keys.into();
        scope.mount_secret("wrong-key", &stranger)?;
        let mut unknown = server.secret();
        unknown["known_hosts"] = Value::Null;
        scope.mount_secret("no-known-hosts", &unknown)?;
        let mut another = server.secret();
        another["known_hosts"] = "files.example ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKnc\n".into();
        scope.mount_secret("other-known-hosts", &another)?;

        let with = |secret: &str| json!({"client": "sshfs", "source": server.source("letters"), "secret": secret});
        let source = |source: String| json!({"client": "sshfs", "source": source, "secret": "ssh"});
        let mut no_secret = with("ssh");
        no_secret.as_object_mut().map(|options| options.remove("secret"));
        // An address for documentation, where nothing answers.
        let nobody = "192.0.2.1";
        let address = server.address.as_str();
        let cases = [
            ("wrong-key", with("wrong-key"), &[address, "authorized_keys"][..]),
            (
                "no-known-hosts",
                with("no-known-hosts"),
                &["ssh-keyscan", "host-key-check"],
            ),
            (
                "other-known-hosts",
                with("other-known-hosts"),
                &[address, "ssh-keyscan"],
            ),
            ("no-secret", no_secret, &["has no ssh-privatekey"]),
            (
                "no-folder",
                source(server.source("nowhere")),
                &[address, "/srv/volumes/nowhere", "No such file"],
            ),
            (
                "no-server",
                source(format!("mooring@{nobody}:/x")),
                &[nobody, "see whether it is up"],
            ),
            ("no-source", source("letters".to_owned()), &["user@host:/path"]),
        ];
        for (name, options, _) in &cases {
            scope.volume(name, options)?;
            scope.pod(name, &node, name, Value::Null)?;
        }
        for (name, _, words) in cases {
            // The last word is the most specific one.
            let event = scope.event(name, words[words.len() - 1]).await?;
            let message = event.message.unwrap_or_default();
            for word in words {
                assert!(message.contains(word), "{name}: no {word:?} in: {message}");
            }
        }
        if scope.target.own_cluster().is_some() {
            assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        }
        Ok(())
    });
}

#[test]
fn a_client_image_that_is_not_allowed_is_refused_and_so_is_a_type_that_nobody_serves() {
    in_namespace("mount-image", async |scope| {
        let node = scope.node(1).await?;
        let image = "docker.io/somebody/else:1";
        scope.volume(
            "image",
            &json!({"client": "sshfs", "source": "a@b:/c", "client-image": image}),
        )?;
        scope.volume("type", &json!({"client": "unheard-of", "source": "a:/b"}))?;
        for name in ["image", "type"] {
            scope.pod(name, &node, name, Value::Null)?;
        }
        let message = scope.event("image", image).await?.message.unwrap_or_default();
        assert!(message.contains("allowed-client-images"), "{message}");
        let message = scope.event("type", "unheard-of").await?.message.unwrap_or_default();
        assert!(message.contains("mounter-config"), "{message}");
        assert_eq!(client_pods(&scope, image).await?, []);
        Ok(())
    });
}

#[test]
fn a_changed_client_image_serves_new_mounts_and_the_old_one_those_it_has() {
    on_own_nodes("mount-new-image", async |scope| {
        let server = scope.ssh_server("node-1", &["old", "new"]).await?;
        let images = [image_of_its_own(&scope, "old")?, image_of_its_own(&scope, "new")?];
        for (name, image) in ["old", "new"].into_iter().zip(&images) {
            scope.mounter_config("sshfs", image)?;
            wait_until(
                "the mounter to have read its ConfigMap",
                Duration::from_mins(2),
                async || {
                    let status = scope.mounter_status("node-1").await?;
                    Ok((status["clients"]["sshfs"] == image.as_str()).then_some(()))
                },
            )
            .await?;
            scope.volume(name, &server.volume(name))?;
            scope.pod(name, "node-1", name, Value::Null)?;
            scope.pod_ready(name).await?;
        }
        for (name, image) in ["old", "new"].into_iter().zip(&images) {
            assert_eq!(client_pods(&scope, image).await?, on(&["node-1"]), "{image}");
            scope.exec(name, ["sh", "-c", "echo x >/data/f"])?;
        }
        for name in ["old", "new"] {
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
        }
        for image in &images {
            wait_until("the client Pods to be deleted", IDLE_LIMIT, async || {
                Ok(client_pods(&scope, image).await?.is_empty().then_some(()))
            })
            .await?;
            remove_image(&scope, image)?;
        }
        Ok(())
    });
}

#[test]
fn a_pod_ends_though_its_server_is_gone() {
    on_own_nodes("mount-ssh-gone", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        let mut options = server.volume("data");
        // Another test changes the image that is used where a volume names none.
        options["client-image"] = format!("{SSH_CLIENT_IMAGE}:0.1.0").into();
        scope.volume("data", &options)?;
        scope.pod("user", "node-1", "data", Value::Null)?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["touch", "/data/a"])?;
        scope.delete("pod/ssh")?;
        scope.pod_gone("ssh").await?;
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        Ok(())
    });
}

#[test]
fn a_client_pod_that_is_deleted_serves_its_mounts_to_their_end_and_another_the_new_ones() {
    on_own_nodes("mount-drain", async |scope| {
        let server = scope.ssh_server("node-1", &["data"]).await?;
        let image = image_of_its_own(&scope, "drain")?;
        let mut options = server.volume("data");
        options["client-image"] = image.clone().into();
        scope.volume("data", &options)?;
        scope.pod("old", "node-1", "data", Value::Null)?;
        scope.pod_ready("old").await?;
        let first = delete_client_pods(&scope, &image, None).await?;
        assert_eq!(first, 1);
        scope.pod("new", "node-1", "data", Value::Null)?;
        scope.pod_ready("new").await?;
        scope.exec("old", ["sh", "-c", "echo still here >/data/old"])?;
        assert_eq!(scope.exec("new", ["cat", "/data/old"])?, "still here\n");
        let both = vec![("node-1".to_owned(), false), ("node-1".to_owned(), true)];
        assert_eq!(client_pods(&scope, &image).await?, both);
        scope.delete("pod/old")?;
        wait_until(
            "the deleted client Pod to end with its last mount",
            IDLE_LIMIT,
            async || Ok((client_pods(&scope, &image).await? == on(&["node-1"])).then_some(())),
        )
        .await?;
        scope.exec("new", ["touch", "/data/new"])?;

        // Now one without time to serve any longer: another serves its mounts as well as new ones.
        delete_client_pods(&scope, &image, Some(0)).await?;
        scope.pod("next", "node-1", "data", Value::Null)?;
        scope.pod_ready("next").await?;
        scope.exec("next", ["test", "-f", "/data/new"])?;
        scope.event("new", "can be used again").await?;
        wait_until(
            "the lost mount to be in use again",
            Duration::from_mins(2),
            async || scope.exec("new", ["touch", "/data/x"]).map(Some),
        )
        .await?;
        for name in ["new", "next"] {
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
        }
        wait_until("idle client Pods to be deleted", IDLE_LIMIT, async || {
            Ok(client_pods(&scope, &image).await?.is_empty().then_some(()))
        })
        .await?;
        remove_image(&scope, &image)
    });
}

/// Deletes the client Pods of an image, if given with another grace period than their own; returns how many there are.
async fn delete_client_pods(scope: &Scope, image: &str, grace: Option<u32>) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let found = client_pods_of(scope, image).await?;
    let names: Vec<_> = found.into_iter().filter_map(|pod| pod.metadata.name).collect();
    for name in &names {
        let how = DeleteParams {
            grace_period_seconds: grace,
            ..DeleteParams::default()
        };
        pods.delete(name, &how).await?;
    }
    Ok(names.len())
}
