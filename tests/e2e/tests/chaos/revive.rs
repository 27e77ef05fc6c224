//! What happens to a volume in use when the FUSE program that serves it is killed, alone or with its container. One at
//! a time: other volumes of the node use the same client container.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use mooring_contract::names::{NAMESPACE, labels};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::processes::kill_all;
use mooring_harness::ssh::SshServer;
use mooring_harness::{Scope, wait_until};
use mooring_testbed::command::output;
use serde_json::json;

const NODE: &str = "node-1";

/// Longest wait for a volume to be usable again: the kubelet may wait before it restarts a container that ended twice.
const LIMIT: Duration = Duration::from_mins(2);

/// Containers of the user's Pod, and how each mounts the volume.
const CONTAINERS: [(&str, &str); 4] = [
    ("main", r#"{"mountPath": "/data"}"#),
    ("part", r#"{"mountPath": "/data", "subPath": "deep/part"}"#),
    ("reader", r#"{"mountPath": "/data", "readOnly": true}"#),
    (
        "slave",
        r#"{"mountPath": "/data", "mountPropagation": "HostToContainer"}"#,
    ),
];

/// Counts up as fast as it can, with one line and one fsync per number, and repeats each number until it succeeds.
const COUNT: &str = r"
i=1
while :; do
    if echo $i 2>/dev/null | dd of=/data/log oflag=append conv=notrunc,fsync 2>/dev/null; then
        echo $i >/tmp/next; mv /tmp/next /tmp/count; i=$((i + 1))
    fi
    sleep 0.05
done";

fn exec(scope: &Scope, container: &str, script: &str) -> Result<String> {
    scope.exec_in("user", Some(container), ["sh", "-c", script])
}

fn count(scope: &Scope) -> Result<u64> {
    let text = exec(scope, "main", "cat /tmp/count")?;
    text.trim().parse().with_context(|| format!("the count is {text:?}"))
}

/// The sshfs process of a volume on the node, and process 1 of its container.
fn daemon_of(scope: &Scope, source: &str) -> Result<(String, String)> {
    let script = format!(
        "for process in /proc/[0-9]*; do \
           [ \"$(cat $process/comm 2>/dev/null)\" = sshfs ] || continue; \
           tr '\\0' ' ' <$process/cmdline | grep -qF ' {source} ' || continue; \
           echo ${{process#/proc/}} $(awk '$1 == \"PPid:\" {{ print $2 }}' $process/status); \
         done"
    );
    let found = scope.on_node(1, &script)?;
    let lines: Vec<_> = found.lines().collect();
    let [line] = lines[..] else {
        bail!("not one sshfs process for {source}: {found:?}")
    };
    let (daemon, parent) = line.split_once(' ').context("a process without a parent")?;
    let parent_name = scope.on_node(1, &format!("cat /proc/{parent}/comm"))?;
    ensure!(parent_name.trim() == "mounter", "sshfs is a child of {parent_name}");
    Ok((daemon.to_owned(), parent.to_owned()))
}

/// [`daemon_of`] the test's first volume.
fn daemon(scope: &Scope, server: &SshServer) -> Result<(String, String)> {
    daemon_of(scope, &server.source("data"))
}

/// The client Pods for sshfs on the node, name by uid.
async fn client_pods(scope: &Scope) -> Result<BTreeMap<String, String>> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let ours = format!("{}=sshfs,{}={NODE}", labels::CLIENT, labels::NODE);
    let found = pods.list(&ListParams::default().labels(&ours)).await?.items;
    let named = found
        .into_iter()
        .map(|pod| pod.metadata.uid.zip(pod.metadata.name).context("a Pod without a name"));
    named.collect()
}

/// A Pod's processes on the node, by the name of its control group: the API may no longer have the Pod.
fn processes_of_uid(scope: &Scope, uid: &str) -> Result<BTreeSet<String>> {
    let underscored = uid.replace('-', "_");
    let script = format!("grep -lE '{uid}|{underscored}' /proc/[0-9]*/cgroup 2>/dev/null || true");
    let files = scope.on_node(1, &script)?;
    let pid = |file: &str| file.split('/').nth(2).unwrap_or_default().to_owned();
    Ok(files.lines().map(pid).collect())
}

/// Waits until every container of the Pod has the volume again as before.
async fn all_well(scope: &Scope, round: &str) -> Result<()> {
    let started = wait_until("the count to begin", LIMIT, async || count(scope).map(Some)).await?;
    for (container, script) in [
        ("main", "cat /data/deep/part/word"),
        (
            "part",
            &format!("echo {round} >/data/{round} && cat /data/{round} >/dev/null && cat /data/word"),
        ),
        ("reader", "cat /data/deep/part/word"),
        ("slave", "cat /data/deep/part/word"),
    ] {
        let what = format!("container {container} to have its volume again after {round}");
        wait_until(&what, LIMIT, async || {
            let word = exec(scope, container, script)?;
            ensure!(word == "hello\n", "{word:?}");
            Ok(Some(()))
        })
        .await?;
    }
    ensure!(
        exec(scope, "reader", "touch /data/x").is_err(),
        "a read-only mount can be written after {round}"
    );
    wait_until("the count to continue", LIMIT, async || {
        Ok((count(scope)? > started + 3).then_some(()))
    })
    .await
}

/// Lines of the mount tables of the node and of each container.
fn mounts(scope: &Scope) -> Result<Vec<usize>> {
    let mut all = vec![scope.on_node(1, "cat /proc/self/mountinfo")?];
    for (container, _) in CONTAINERS {
        all.push(exec(scope, container, "cat /proc/self/mountinfo")?);
    }
    Ok(all.iter().map(|table| table.lines().count()).collect())
}

/// Waits until the containers have as many mounts as before, and the node no more: a Pod of an earlier test may have
/// been there still.
async fn same_mounts(scope: &Scope, before: &[usize]) -> Result<()> {
    wait_until("as many mounts as before", Duration::from_mins(3), async || {
        let now = mounts(scope)?;
        ensure!(
            now[0] <= before[0] && now[1..] == before[1..],
            "{now:?} instead of {before:?}"
        );
        Ok(Some(()))
    })
    .await
}

async fn user(scope: &Scope) -> Result<(Option<String>, Vec<i32>)> {
    let pods: Api<Pod> = scope.api();
    let pod = pods.get("user").await?;
    let statuses = pod
        .status
        .and_then(|status| status.container_statuses)
        .unwrap_or_default();
    Ok((pod.metadata.uid, statuses.iter().map(|one| one.restart_count).collect()))
}

async fn start_user(scope: &Scope) -> Result<()> {
    let containers: Vec<_> = CONTAINERS
        .iter()
        .map(|(name, mount)| {
            let mut mount: serde_json::Value = serde_json::from_str(mount)?;
            mount["name"] = json!("data");
            let script = if *name == "main" { COUNT } else { "sleep 1000000" };
            Ok(json!({
                "name": name, "image": "busybox:1", "command": ["sh", "-c", script], "volumeMounts": [mount],
            }))
        })
        .collect::<Result<_>>()?;
    scope.pod("user", NODE, "data", json!({"containers": containers}))?;
    scope.pod_ready("user").await?;
    exec(scope, "part", "echo hello >/data/word")?;
    Ok(())
}

/// Lets the mounter read the Secrets of the test's namespace that its node's Pods use.
fn let_the_mounter_read_secrets(scope: &Scope) -> Result<()> {
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "mounter-secrets"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mooring-mounter-secrets",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "mounter", "namespace": NAMESPACE}],
    });
    scope.apply(&binding.to_string())
}

#[test]
fn a_volume_whose_secret_was_changed_is_mounted_again_with_the_new_one() {
    on_own_nodes("chaos-new-secret", async |scope| {
        let mut server = scope.ssh_server(NODE, &["data"]).await?;
        scope.volume("data", &server.volume("data"))?;
        let_the_mounter_read_secrets(&scope)?;
        scope.pod("user", NODE, "data", serde_json::Value::Null)?;
        scope.pod_ready("user").await?;
        exec(&scope, "main", "echo hello >/data/word")?;
        scope.change_ssh_key(&mut server)?;
        scope.on_node(1, &format!("kill -9 {}", daemon(&scope, &server)?.0))?;
        let has_volume = async || {
            let word = exec(&scope, "main", "cat /data/word")?;
            ensure!(word == "hello\n", "{word:?}");
            Ok(Some(()))
        };
        wait_until("the volume to be mounted with the new key", LIMIT, has_volume).await?;

        // Keys without a newline at their end are copied with one. Another Pod's mount brings the newer.
        scope.change_ssh_key(&mut server)?;
        scope.pod("second", NODE, "data", serde_json::Value::Null)?;
        scope.pod_ready("second").await?;
        let script = format!(
            "for process in /proc/[0-9]*; do \
               [ \"$(cat $process/comm 2>/dev/null)\" = ssh ] || continue; \
               tr '\\0' ' ' <$process/cmdline | grep -qF '@{} ' || continue; \
               kill -9 ${{process#/proc/}}; echo $process; \
             done",
            server.address
        );
        let killed = scope.on_node(1, &script)?;
        ensure!(killed.lines().count() == 2, "the connections of two Pods: {killed:?}");
        wait_until("sshfs to connect again with the newest key", LIMIT, has_volume).await
    });
}

#[test]
fn a_running_pod_gets_its_volume_back_when_the_program_that_serves_it_is_killed() {
    on_own_nodes("chaos-revive", async |scope| {
        let server = scope.ssh_server(NODE, &["data"]).await?;
        scope.volume("data", &server.volume("data"))?;
        start_user(&scope).await?;
        let (before, pod) = (mounts(&scope)?, user(&scope).await?);
        let kill = |pid: &str| scope.on_node(1, &format!("kill -9 {pid}"));
        all_well(&scope, "nothing").await?;

        for round in ["daemon-1", "daemon-2"] {
            kill(&daemon(&scope, &server)?.0)?;
            all_well(&scope, round).await?;
        }
        scope.event("user", "can be used again").await?;

        kill(&daemon(&scope, &server)?.1)?;
        all_well(&scope, "container").await?;
        same_mounts(&scope, &before).await?;

        // No mounter repairs the containers now; the next one does.
        kill_all(&scope.processes_of(NAMESPACE, &scope.mounter(NODE).await?).await?);
        kill(&daemon(&scope, &server)?.0)?;
        all_well(&scope, "mounter").await?;
        same_mounts(&scope, &before).await?;

        // The server becomes unreachable, and later reachable again.
        let selector = |app: &str| {
            let patch = json!({"spec": {"selector": {"app": app}}}).to_string();
            scope.kubectl(["patch", "service", "ssh", "-p", &patch])
        };
        let (process, _) = daemon(&scope, &server)?;
        selector("nobody")?;
        let refused = format!(
            "! timeout 2 bash -c 'exec 3<>/dev/tcp/{}/22' 2>/dev/null",
            server.address
        );
        wait_until("kube-proxy to take the server away", LIMIT, async || {
            scope.on_node(1, &refused).map(Some)
        })
        .await?;
        kill(&process)?;
        scope.event("user", "mounting it again fails").await?;
        selector("ssh")?;
        all_well(&scope, "server").await?;

        same_mounts(&scope, &before).await?;
        assert_eq!(user(&scope).await?, pod, "the Pod is another, or was restarted");
        let metrics = format!(
            "/api/v1/namespaces/{NAMESPACE}/pods/{}:9810/proxy/metrics",
            scope.mounter(NODE).await?
        );
        let metrics = output(&mut scope.target.kubectl(["get", "--raw", &metrics]))?;
        assert!(
            metrics.contains(r#"revivals_total{client="sshfs",result="done"}"#)
                && metrics.contains("outage_seconds_sum"),
            "{metrics}"
        );

        // Everything that was written and synced is there.
        let last = count(&scope)?;
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        let missing =
            format!("sort -nu /srv/volumes/data/log >/tmp/got; seq {last} | grep -vxFf /tmp/got | head; rm /tmp/got");
        assert_eq!(
            scope.exec("ssh", ["sh", "-c", &missing])?,
            "",
            "not all of 1 to {last} is there"
        );
        Ok(())
    });
}

#[test]
fn another_client_pod_takes_over_the_volume_of_one_deleted_by_force() {
    on_own_nodes("chaos-lost", async |scope| {
        let server = scope.ssh_server(NODE, &["data", "more"]).await?;
        for name in ["data", "more"] {
            scope.volume(name, &server.volume(name))?;
        }
        scope.pod("user", NODE, "data", serde_json::Value::Null)?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["touch", "/data/before"])?;
        let first = daemon(&scope, &server)?;
        let mounts = scope.mounts_on(1)?;
        assert_eq!(mounts.len(), 1, "{mounts:?}");
        let before = client_pods(&scope).await?;
        let has_daemon = |pod: &str, daemon: &str| processes_of_uid(&scope, pod).map(|all| all.contains(daemon));
        let mut old = None;
        for uid in before.keys() {
            if has_daemon(uid, &first.0)? {
                old = Some(uid);
            }
        }
        let old = old.with_context(|| format!("sshfs is process {first:?}, in none of {before:?}"))?;

        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
        for name in before.values() {
            pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
        }
        let left = client_pods(&scope).await?;
        ensure!(
            before.keys().all(|uid| !left.contains_key(uid)),
            "not deleted: {left:?}"
        );

        // Another client Pod serves a new Pod's volume.
        scope.pod("other", NODE, "more", serde_json::Value::Null)?;
        scope.pod_ready("other").await?;
        scope.exec("other", ["touch", "/data/it-is-there"])?;
        let second = daemon_of(&scope, &server.source("more"))?;
        let after = client_pods(&scope).await?;
        let mut others = Vec::new();
        for (uid, name) in &after {
            if has_daemon(uid, &second.0)? {
                others.push(name);
            }
        }
        ensure!(
            others.len() == 1,
            "sshfs is process {second:?}, of {others:?} of {after:?}"
        );
        ensure!(
            !has_daemon(old, &second.0)?,
            "the Pod that was deleted serves a new volume"
        );

        // The kubelet ends the containers of a force-deleted Pod soon, whatever their grace period.
        scope.event("user", "can be used again").await?;
        wait_until("the volume to be in use again", LIMIT, async || {
            scope.exec("user", ["cat", "/data/before"]).map(Some)
        })
        .await?;

        // The volume's next user gets it from the successor.
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        wait_until("the processes of the Pod that was deleted to end", LIMIT, async || {
            let left = processes_of_uid(&scope, old)?;
            ensure!(left.is_empty(), "{left:?} are left");
            Ok(Some(()))
        })
        .await?;
        scope.pod("user", NODE, "data", serde_json::Value::Null)?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["cat", "/data/before"])?;
        let again = daemon(&scope, &server)?;
        assert_eq!(again.1, second.1, "two client Pods serve the node's volumes");
        scope.exec("other", ["cat", "/data/it-is-there"])?;
        Ok(())
    });
}
