//! Volumes of an S3 server: directories that the image `directory` creates in a bucket, which s3fs mounts in a client
//! container.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use mooring_contract::names::{NAMESPACE, labels};
use mooring_harness::nodes::{on_own_nodes, on_two_nodes};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim, user_of};
use mooring_harness::s3::{KEY, KEY_ID, S3Server};
use mooring_harness::{Scope, in_namespace, wait_until};
use serde_json::{Value, json};

/// Longest wait until a server that was silent is used again: s3fs gives up its current call first.
const BACK_LIMIT: Duration = Duration::from_mins(3);

/// The example with a running server.
fn example(scope: &Scope, server: &S3Server) -> Result<Provisioner> {
    scope.on_s3_server("mkdir /srv/volumes/all")?;
    let source = format!("{}/all", server.url);
    let example = scope.provisioner().example("s3.yaml")?;
    Ok(example
        .key("secret-name", &server.secret)
        .key("backend-volume", format!("client=s3,source={source}"))
        .key("source", source)
        // A worker would have the bucket mounted still when the server goes with the namespace.
        .key("workers", "0")
        .key("mount-secret", format!("{}/{CONFIG_NAMESPACE}", server.secret)))
}

async fn shared_claim(scope: &Scope, provisioner: &Provisioner) -> Result<String> {
    let mut wanted = claim("data", &provisioner.class, "1Gi");
    wanted["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    let uid = scope.claim_with(None, &wanted).await?;
    scope.claim_bound("data").await?;
    Ok(uid)
}

fn user_on(node: &str, name: &str, command: &str, more: &[(&str, Value)]) -> Value {
    let mut user = user_of(name, "data", command);
    user["spec"]["nodeName"] = node.into();
    for (key, value) in more {
        user["spec"][*key] = value.clone();
    }
    user
}

async fn pod_ended(scope: &Scope, name: &str) -> Result<()> {
    scope.delete(&format!("pod/{name}"))?;
    scope.pod_gone(name).await
}

/// Fails if the key is visible to anyone but root of the node, or stored anywhere.
async fn key_is_not_seen(scope: &Scope, node: &str) -> Result<()> {
    if scope.target.own_cluster().is_some() {
        key_is_not_seen_on_node(scope)?;
    }
    let told = scope.kubectl(["get", "events", "-o", "json"])?;
    assert!(!told.contains(KEY), "the key is in an Event");
    let client = format!("{}={}", labels::COMPONENT, labels::COMPONENT_CLIENT);
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let mut names = vec![scope.mounter(node).await?];
    let clients = pods.list(&ListParams::default().labels(&client)).await?.items;
    // A Pod that another test has only just created has no log yet.
    let begun = |pod: &Pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) != Some("Pending")
    };
    names.extend(clients.into_iter().filter(begun).filter_map(|pod| pod.metadata.name));
    for name in names {
        let log = wait_until(&format!("the log of {name}"), BACK_LIMIT, async || {
            match scope.kubectl(["-n", NAMESPACE, "logs", &name]) {
                // It was another test's, whose last volume is unmounted.
                Err(_) if pods.get_opt(&name).await?.is_none() => Ok(Some(String::new())),
                log => log.map(Some),
            }
        })
        .await?;
        assert!(!log.contains(KEY), "the key is in the log of {name}");
    }
    Ok(())
}

/// Fails if the key is visible to anyone but root of node-2.
fn key_is_not_seen_on_node(scope: &Scope) -> Result<()> {
    for place in ["/proc/mounts", "/proc/*/cmdline"] {
        let seen = scope.on_node(2, &format!("cat {place} 2>/dev/null | tr '\\0' ' '; true"))?;
        assert!(!seen.contains(KEY), "the key is in {place}");
    }
    // Files of other tests go away meanwhile.
    let open = "for file in /var/lib/kubelet/pods/*/volumes/kubernetes.io~empty-dir/*/*/.passwd-s3fs; do \
                stat -c '%a %n' \"$file\" 2>/dev/null || true; done";
    for line in scope.on_node(2, open)?.lines() {
        assert!(line.starts_with("600 "), "{line}");
    }
    Ok(())
}

#[test]
fn an_s3_claim_is_written_on_one_node_read_on_another_and_gone_from_the_bucket() {
    on_two_nodes("mount-s3", async |scope, [first, second]| {
        scope.nodes_lack("s3fs rclone")?;
        let server = scope.s3_server(&first).await?;
        let provisioner = example(&scope, &server)?;
        provisioner.apply().await?;
        let uid = shared_claim(&scope, &provisioner).await?;
        let volume = format!("/srv/volumes/all/pvc-{uid}");

        // Files that were closed before the Pod ended are on the server, in one or in many parts, although nothing
        // waited for them.
        let write = "mkdir -p /data/deep/er; head -c 26m /dev/urandom >/data/deep/er/big; echo hello >/data/letter; \
                     echo more >>/data/letter; mv /data/deep/er /data/moved; chmod 640 /data/letter; \
                     sha256sum </data/moved/big >/data/sum";
        let user = [("securityContext", json!({"runAsUser": 1000, "runAsNonRoot": true}))];
        scope.apply(&user_on(&second, "writer", write, &user).to_string())?;
        scope.pod_succeeded("writer").await?;
        pod_ended(&scope, "writer").await?;
        let sum = scope.on_s3_server(&format!("sha256sum <{volume}/moved/big"))?;
        assert_eq!(
            scope.on_s3_server(&format!("cat {volume}/sum {volume}/letter"))?,
            format!("{sum}hello\nmore\n")
        );

        for (node, name) in [(&first, "one"), (&second, "two")] {
            scope.apply(&user_on(node, name, "sleep 1000000", &user).to_string())?;
        }
        for name in ["one", "two"] {
            scope.pod_ready(name).await?;
            assert_eq!(scope.exec(name, ["sh", "-c", "sha256sum </data/moved/big"])?, sum);
            assert_eq!(scope.exec(name, ["stat", "-c", "%a %u", "/data/letter"])?, "640 1000\n");
            let mounted = scope.exec(name, ["grep", " /data ", "/proc/mounts"])?;
            for word in ["mooring:", "fuse.s3fs", "nosuid", "nodev"] {
                assert!(mounted.contains(word), "{word} is not in {mounted}");
            }
        }
        // Synced data is on the server although the file is still open; other nodes' changes appear soon.
        scope.exec(
            "one",
            [
                "sh",
                "-c",
                "echo synced | dd of=/data/letter conv=fsync 2>/dev/null; rm /data/sum",
            ],
        )?;
        wait_until("the other node to see it", Duration::from_mins(1), async || {
            let seen = scope.exec("two", ["sh", "-c", "cat /data/letter; ls /data"])?;
            ensure!(seen == "synced\ndeep\nletter\nmoved\n", "{seen:?}");
            Ok(Some(()))
        })
        .await?;
        key_is_not_seen(&scope, &second).await?;

        pod_ended(&scope, "one").await?;
        pod_ended(&scope, "two").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        let left = scope.on_s3_server("ls -A /srv/volumes/all")?;
        assert!(!left.contains(&uid), "{left}");
        Ok(())
    });
}

#[test]
fn an_s3_volume_is_writable_by_a_group_and_read_only_on_request() {
    in_namespace("mount-s3-group", async |scope| {
        let node = scope.node(1).await?;
        let server = scope.s3_server(&node).await?;
        let provisioner = example(&scope, &server)?.key("volume-source", "csi");
        provisioner.apply().await?;
        let uid = shared_claim(&scope, &provisioner).await?;

        // A group of the Pod, in which no user of the server is; and a reader.
        let group = |user: u32| ("securityContext", json!({"runAsUser": user, "fsGroup": 2000}));
        scope.apply(&user_on(&node, "one", "echo one >/data/letter; sleep 1000000", &[group(1000)]).to_string())?;
        scope.pod_ready("one").await?;
        scope.file_is("one", "/data/letter", "one\n").await?;
        scope.apply(&user_on(&node, "two", "echo two >>/data/letter; sleep 1000000", &[group(1001)]).to_string())?;
        scope.pod_ready("two").await?;
        scope.file_is("two", "/data/letter", "one\ntwo\n").await?;
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}]);
        scope.apply(&user_on(&node, "reader", "sleep 1000000", &[("volumes", volumes)]).to_string())?;
        scope.pod_ready("reader").await?;
        assert_eq!(scope.exec("reader", ["cat", "/data/letter"])?, "one\ntwo\n");
        let refused = scope.exec("reader", ["touch", "/data/letter"]).unwrap_err();
        assert!(refused.to_string().contains("Read-only file system"), "{refused:#}");
        let letter = format!("cat /srv/volumes/all/pvc-{uid}/letter");
        assert_eq!(scope.on_s3_server(&letter)?, "one\ntwo\n");

        for name in ["one", "two", "reader"] {
            pod_ended(&scope, name).await?;
        }
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        let left = scope.on_s3_server("ls -A /srv/volumes/all")?;
        assert!(!left.contains(&uid), "{left}");
        Ok(())
    });
}

#[test]
fn objects_that_another_tool_uploaded_under_a_prefix_are_read_by_the_user_that_the_mount_options_name() {
    in_namespace("mount-s3-prefix", async |scope| {
        let node = scope.node(1).await?;
        let server = scope.s3_server(&node).await?;
        // The server makes directories on the way to an object in the same manner, and no object for them.
        scope.on_s3_server(
            "mkdir -p /srv/volumes/there/photos/2026/may; cd /srv/volumes/there/photos/2026; \
             echo hello >letter; echo deep >may/letter",
        )?;
        scope.mount_secret("right", &server.data)?;
        scope.volume(
            "data",
            &json!({"client": "s3", "source": format!("{}/there/photos/2026", server.url), "secret": "right",
                    "mount-options": "uid=1000,gid=1000,umask=0027"}),
        )?;
        let user = |user: u32| ("securityContext", json!({"runAsUser": user, "runAsGroup": user}));
        scope.apply(&user_on(&node, "owner", "sleep 1000000", &[user(1000)]).to_string())?;
        scope.apply(&user_on(&node, "other", "sleep 1000000", &[user(1001)]).to_string())?;
        for name in ["owner", "other"] {
            scope.pod_ready(name).await?;
        }
        let read = [
            "sh",
            "-c",
            "cat /data/letter /data/may/letter; stat -c '%u %g %a' /data/letter /data/may",
        ];
        assert_eq!(
            scope.exec("owner", read)?,
            "hello\ndeep\n1000 1000 750\n1000 1000 750\n"
        );
        let refused = scope.exec("other", ["cat", "/data/letter"]).unwrap_err();
        assert!(refused.to_string().contains("Permission denied"), "{refused:#}");
        scope.exec("owner", ["sh", "-c", "echo more >/data/answer"])?;
        assert_eq!(
            scope.on_s3_server("cat /srv/volumes/there/photos/2026/answer")?,
            "more\n"
        );
        // Before the server, which may go first with the namespace: s3fs waits for one that is gone.
        for name in ["owner", "other"] {
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
        }
        Ok(())
    });
}

#[test]
fn an_unreachable_or_refusing_s3_server_is_named_with_a_cure_and_without_the_key() {
    in_namespace("mount-s3-refused", async |scope| {
        let node = scope.node(2).await?;
        let server = scope.s3_server(&scope.node(1).await?).await?;
        scope.on_s3_server("mkdir /srv/volumes/there")?;
        let secret = |name: &str, key: &str, value: Value| {
            let mut data = server.data.clone();
            data[key] = value;
            scope.mount_secret(name, &data)
        };
        secret("right", "access-key-id", KEY_ID.into())?;
        secret("wrong", "secret-access-key", format!("{KEY}-wrong").into())?;
        secret("stranger", "access-key-id", "nobody".into())?;
        secret("no-key", "secret-access-key", Value::Null)?;
        secret("no-ca", "ca.crt", Value::Null)?;
        let url = server.url.as_str();
        let host = url.trim_start_matches("https://");
        let cases = [
            (
                "wrong",
                format!("{url}/there"),
                "wrong",
                &[host, "secret-access-key of a user"][..],
            ),
            (
                "stranger",
                format!("{url}/there"),
                "stranger",
                &[host, "access-key-id and"],
            ),
            (
                "no-key",
                format!("{url}/there"),
                "no-key",
                &["has no secret-access-key"],
            ),
            ("no-ca", format!("{url}/there"), "no-ca", &[host, "as ca.crt"]),
            (
                "no-bucket",
                format!("{url}/nowhere"),
                "right",
                &[host, "has no bucket nowhere"],
            ),
            (
                "no-prefix",
                format!("{url}/there/nothing"),
                "right",
                &[host, "has no object under /nothing"],
            ),
            // An address for documentation, where nothing answers.
            (
                "no-server",
                "https://192.0.2.1/x".to_owned(),
                "right",
                &["192.0.2.1", "see whether it is up"],
            ),
            ("no-source", "there".to_owned(), "right", &["https://server/bucket"]),
        ];
        for (name, source, secret, _) in &cases {
            scope.volume(name, &json!({"client": "s3", "source": source, "secret": secret}))?;
            scope.pod(name, &node, name, Value::Null)?;
        }
        for (name, _, _, words) in &cases {
            // The last word is the most specific one.
            let event = scope.event(name, words[words.len() - 1]).await?;
            let message = event.message.unwrap_or_default();
            for word in *words {
                assert!(message.contains(word), "{name}: no {word:?} in: {message}");
            }
        }
        key_is_not_seen(&scope, &node).await?;
        if scope.target.own_cluster().is_some() {
            assert_eq!(scope.mounts_on(2)?, Vec::<String>::new());
        }
        Ok(())
    });
}

/// Writes numbered files as fast as it can, and notes which of them `fsync` reported as written (a shell ignores the
/// result of `close`). It also keeps a file open while the client is killed, and notes whether that reports an error.
const WRITE: &str = "
(
    exec 3>/data/open; echo lost >&3; touch /tmp/opened
    while echo more >&3; do sleep 0.2; done
    touch /tmp/heard
) 2>/dev/null &
i=1
while :; do
    if echo $i | dd of=/data/$i conv=fsync 2>/dev/null; then echo $i >>/tmp/told; fi
    i=$((i + 1))
done";

async fn told(scope: &Scope, more_than: usize) -> Result<usize> {
    wait_until("more to be written", BACK_LIMIT, async || {
        let told = scope.exec("writer", ["cat", "/tmp/told"])?.lines().count();
        Ok((told > more_than).then_some(told))
    })
    .await
}

#[test]
fn acknowledged_writes_are_on_the_server_whatever_becomes_of_client_and_server() {
    on_own_nodes("mount-s3-lost", async |scope| {
        let server = scope.s3_server("node-1").await?;
        scope.on_s3_server("mkdir /srv/volumes/there")?;
        scope.mount_secret("right", &server.data)?;
        let source = format!("{}/there", server.url);
        scope.volume(
            "data",
            &json!({"client": "s3", "source": source, "secret": "right", "size-gi": "1"}),
        )?;
        scope.apply(&user_on("node-2", "writer", WRITE, &[]).to_string())?;
        scope.pod_ready("writer").await?;
        let begun = told(&scope, 5).await?;
        wait_until("a file to be open", BACK_LIMIT, async || {
            scope.exec("writer", ["ls", "/tmp/opened"]).map(Some)
        })
        .await?;
        let size = scope.exec("writer", ["sh", "-c", "df -mP /data | awk 'NR == 2 { print $2 }'"])?;
        assert_eq!(size, "1024\n");

        assert_eq!(scope.kill_s3fs(2, &server)?, 1);
        let revived = told(&scope, begun + 5).await?;
        scope.event("writer", "can be used again").await?;
        wait_until("an error on the open file", BACK_LIMIT, async || {
            scope.exec("writer", ["ls", "/tmp/heard"]).map(Some)
        })
        .await?;

        let silent = scope.stop("versitygw").await?;
        // The same write waits as long as the server is silent.
        let mut writes = String::new();
        wait_until("a write to wait for the server", BACK_LIMIT, async || {
            let now = scope.exec("writer", ["pidof", "dd"])?;
            let before = std::mem::replace(&mut writes, now);
            Ok((before == writes).then_some(()))
        })
        .await?;
        drop(silent);
        told(&scope, revived + 5).await?;

        let all = scope.exec("writer", ["cat", "/tmp/told"])?;
        pod_ended(&scope, "writer").await?;
        let script = "cd /srv/volumes/there; for file in *; do echo \"$file=$(cat $file)\"; done";
        let there = scope.on_s3_server(script)?;
        for number in all.lines() {
            let whole = format!("{number}={number}");
            ensure!(
                there.lines().any(|line| line == whole),
                "{whole} is not on the server: {there}"
            );
        }
        Ok(())
    });
}
