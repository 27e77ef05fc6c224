//! Secrets with recognizable values go every way that secrets go. Then the test searches for them everywhere they must
//! not be.

mod client_logs;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, ResourceExt};
use mooring_contract::names::{FLEX_DRIVER, NAMESPACE};
use mooring_harness::ceph::WRONG_KEY;
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::provisioner::CONFIG_NAMESPACE;
use mooring_harness::{Scope, wait_until};
use mooring_testbed::layout::Layout;
use serde_json::{Value, json};

use client_logs::ClientLogs;

/// Longest until the log of a container can be read, or its Pod is gone: the container may just be restarting.
const LOG_LIMIT: Duration = Duration::from_mins(2);

/// Values that appear nowhere else, as they are and as Secrets and the kubelet's arguments encode them.
struct Canaries(Vec<(&'static str, String)>);

impl Canaries {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, what: &'static str, value: &str) {
        // Long texts are broken into lines, and complete only in base64.
        let line = value.lines().find(|line| line.len() > 40 && !line.starts_with('-'));
        self.0.push((what, line.unwrap_or(value).trim().to_owned()));
        let encoded = STANDARD.encode(value);
        self.0.push((
            what,
            encoded.trim_end_matches('=')[..encoded.len().min(64) - 4].to_owned(),
        ));
    }

    fn found_in(&self, text: &str) -> Vec<&'static str> {
        let found = self.0.iter().filter(|(_, value)| text.contains(value.as_str()));
        found.map(|(what, _)| *what).collect()
    }

    fn check(&self, place: &str, text: &str) -> Result<()> {
        let found = self.found_in(text);
        ensure!(found.is_empty(), "{} in {place}", found.join(", "));
        Ok(())
    }
}

/// Watches arguments and environments of all processes of the machine until it is dropped.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<(BTreeSet<String>, usize)>>,
}

impl Watch {
    fn start(canaries: Arc<Canaries>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut seen, mut rounds) = (BTreeSet::new(), 0);
            while !stopped.load(Ordering::Relaxed) {
                rounds += 1;
                look(&canaries, &mut seen);
                std::thread::sleep(Duration::from_millis(20));
            }
            (seen, rounds)
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("ended before")?;
        let (seen, rounds) = thread
            .join()
            .map_err(|_| anyhow::anyhow!("the watch of processes failed"))?;
        ensure!(rounds > 10, "processes were looked at {rounds} times only");
        ensure!(seen.is_empty(), "in processes: {seen:#?}");
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A file of a process from a single read. Between two reads, the process may start another program or end, and the
/// result would mix the two.
fn at_once(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 18];
    let read = File::open(path).and_then(|mut file| file.read(&mut bytes));
    bytes.truncate(read.unwrap_or_default());
    bytes
}

fn look(canaries: &Canaries, seen: &mut BTreeSet<String>) {
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let read = |file: &str| String::from_utf8_lossy(&at_once(&process.path().join(file))).into_owned();
        let arguments = read("cmdline");
        // The kubelet passes a volume's Secret to the driver in its arguments, which the driver wipes as soon as it
        // can: see `waiting_shims`.
        let shim = arguments
            .split('\0')
            .next()
            .is_some_and(|program| program.ends_with("~vcs/vcs"));
        if !shim && !canaries.found_in(&arguments).is_empty() {
            seen.insert(arguments.replace('\0', " "));
        }
        let environment = read("environ");
        // An image's properties are in its environment: that is the contract.
        let image = environment.split('\0').any(|variable| variable.starts_with("PV_NAME="));
        if !image && !canaries.found_in(&environment).is_empty() {
            seen.insert(format!("environment of {}", arguments.replace('\0', " ")));
        }
    }
}

/// Arguments of the shims that sleep until their mount is answered.
fn waiting_shims() -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    // The state comes first: a shim that runs may be about to wipe its arguments.
    let read = |process: std::fs::DirEntry| {
        let file = |name: &str| String::from_utf8_lossy(&at_once(&process.path().join(name))).into_owned();
        file("status").contains("\nState:\tS").then(|| file("cmdline"))
    };
    processes
        .filter_map(read)
        .filter(|arguments| arguments.contains("~vcs/vcs\0mount\0"))
        .collect()
}

/// A server that accepts connections and is silent, so that a mount from it waits until ssh gives up.
const SILENT: &str = "
apiVersion: v1
kind: Pod
metadata: {name: silent}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox:1
      command: [nc, -ll, -p, '2222', -e, sleep, '1000']
";

/// A client, its source, the secret key, the other keys, and the expected message.
type OtherClient = (
    &'static str,
    &'static str,
    &'static str,
    (&'static [(&'static str, &'static str)], &'static str),
);

/// Clients besides sshfs that get a Secret on these nodes: the source at an address where nothing answers, the secret
/// key, the other keys, and the message once the client has read them.
const OTHER_CLIENTS: [OtherClient; 4] = [
    (
        "s3",
        "https://ADDRESS:7070/bucket",
        "secret-access-key",
        (&[("access-key-id", "nobody")], "see whether it is up"),
    ),
    (
        "cephfs",
        "ADDRESS:/",
        "key",
        (&[("user", "nobody")], "see whether the monitors"),
    ),
    (
        "block",
        "iscsi://ADDRESS/iqn.2025-01.test:none/1",
        "chap-password",
        (&[("chap-username", "nobody")], "failed to open the device"),
    ),
    // If the kernel has no SMB, the mounter itself says so, and it has the Secret then.
    (
        "smb",
        "//ADDRESS/share",
        "password",
        (&[("username", "nobody")], "MountVolume.SetUp failed"),
    ),
];

/// Longest until each of them was seen: a failed mount is tried again after two minutes at most.
const CLIENTS_LIMIT: Duration = Duration::from_mins(3);

/// The clients that client Pods serve.
const IN_PODS: [&str; 4] = ["block", "cephfs", "s3", "sshfs"];

/// The secret of such a client. Ceph's keys have a format, so this is one that no cluster knows.
fn other_secret(scope: &Scope, client: &str, key: &str) -> String {
    if client == "cephfs" {
        return WRONG_KEY.to_owned();
    }
    format!("canary-{key}-{}-canary-canary-canary-canary", scope.namespace)
}

/// Mounts by the other clients, which fail after they got their Secrets.
async fn mounts_of_other_clients(scope: &Scope, address: &str) -> Result<()> {
    for (client, source, key, (more, _)) in OTHER_CLIENTS {
        let mut secret = json!({key: other_secret(scope, client, key)});
        for (name, value) in more {
            secret[*name] = json!(value);
        }
        scope.mount_secret(&format!("{client}-keys"), &secret)?;
        let source = source.replace("ADDRESS", address);
        scope.volume(
            client,
            &json!({"client": client, "source": source, "secret": format!("{client}-keys")}),
        )?;
        scope.pod(client, "node-1", client, Value::Null)?;
    }
    for (client, _, _, (_, words)) in OTHER_CLIENTS {
        scope.event(client, words).await?;
    }
    Ok(())
}

/// Proves: P6
#[test]
fn secrets_stand_in_no_spec_event_log_metric_process_or_mount_table() {
    on_own_nodes("sec-canary", async |scope| {
        let mut canaries = Canaries::new();
        let plain = |kind: &str| format!("canary-{kind}-{}-canary-canary-canary-canary", scope.namespace);
        let server = scope.ssh_server("node-1", &[]).await?;
        let mut keys = server.secret();
        keys["extra"] = json!(plain("key"));
        canaries.add("the server's key", keys["ssh-privatekey"].as_str().unwrap_or_default());
        canaries.add("a key of secret-name", &plain("key"));
        canaries.add("service-token", &plain("token"));
        canaries.add("a mount's secret", &plain("mount"));
        for (client, _, key, _) in OTHER_CLIENTS {
            canaries.add(client, &other_secret(&scope, client, key));
        }
        let canaries = Arc::new(canaries);
        assert_eq!(
            canaries.found_in(&keys.to_string()).len(),
            2,
            "the search finds what is there"
        );

        let watch = Watch::start(Arc::clone(&canaries));
        let client_logs = ClientLogs::follow(&scope);
        let secret = format!("{}-keys", scope.namespace);
        scope.apply_anywhere(
            &json!({"apiVersion": "v1", "kind": "Secret", "type": FLEX_DRIVER,
                    "metadata": {"name": secret, "namespace": CONFIG_NAMESPACE}, "stringData": keys})
            .to_string(),
        )?;
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/provisioner-sshfs:0.1.0")
            .key("volume-source", "flexVolume")
            .key("secret-name", &*secret)
            .key("service-token", plain("token"))
            .key("server", &*server.address)
            .key("directory", "/srv/volumes")
            .key("mount-secret", format!("{secret}/{CONFIG_NAMESPACE}"));
        provisioner.apply().await?;
        scope.claim("data", &provisioner.class, "1Mi").await?;
        scope.claim_bound("data").await?;
        scope.pod("user", "node-1", "data", Value::Null)?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["touch", "/data/it-is-there"])?;

        // And a mount that fails after a while, which is when most is logged.
        scope.apply(SILENT)?;
        let silent = scope.pod_ready("silent").await?;
        let address = silent.status.and_then(|status| status.pod_ip).context("no address")?;
        let known = json!({"ssh-privatekey": plain("mount"), "known_hosts": "x"});
        scope.mount_secret("bad", &known)?;
        let options = json!({
            "client": "sshfs", "source": format!("u@{address}:/x"), "port": "2222", "host-key-check": "accept-new", "secret": "bad",
        });
        scope.volume("bad", &options)?;
        scope.pod("bad", "node-1", "bad", Value::Null)?;
        let waiting = wait_until("a shim that waits", Duration::from_mins(1), async || {
            // Another test's mount might wait as well: the server has a connection only while ours waits.
            scope.exec("silent", ["pidof", "sleep"])?;
            Ok(Some(waiting_shims()).filter(|shims| !shims.is_empty()))
        })
        .await?;
        for arguments in waiting {
            canaries.check("the arguments of a shim that waits", &arguments)?;
        }
        mounts_of_other_clients(&scope, &address).await?;
        scope.event("bad", "MountVolume.SetUp failed").await?;
        watch.end()?;

        objects(&scope, &canaries, &provisioner.name)?;
        logs(&scope, &canaries).await?;
        logs_of_clients(&client_logs, &canaries).await?;
        metrics_and_mounts(&scope, &canaries).await?;
        for pod in ["user", "bad"]
            .into_iter()
            .chain(OTHER_CLIENTS.map(|(client, ..)| client))
        {
            scope.delete(&format!("pod/{pod}"))?;
        }
        scope.pod_gone("user").await?;
        scope.claim_gone("data").await?;
        // The image needs the Secret to delete the volume.
        scope.volumes_gone().await?;
        scope.kubectl(["-n", CONFIG_NAMESPACE, "delete", "secret", &secret])?;
        Ok(())
    });
}

/// All objects in the API except Secrets, and except the ConfigMap that got a token of its own.
fn objects(scope: &Scope, canaries: &Canaries, config: &str) -> Result<()> {
    let kinds = "pods,events,events.events.k8s.io,configmaps,persistentvolumes,persistentvolumeclaims,storageclasses,leases,nodes,\
                 daemonsets,deployments,replicasets,serviceaccounts";
    let all: Value = serde_json::from_str(&scope.kubectl(["get", kinds, "-A", "-o", "json"])?)?;
    let items = all["items"].as_array().context("no list")?;
    ensure!(items.len() > 20, "only {} objects were found", items.len());
    for object in items.iter().filter(|object| object["metadata"]["name"] != config) {
        canaries.check(
            &format!("{} {}", object["kind"], object["metadata"]["name"]),
            &object.to_string(),
        )?;
    }
    let config = scope.kubectl(["-n", CONFIG_NAMESPACE, "get", "configmap", config, "-o", "json"])?;
    ensure!(
        canaries.found_in(&config).iter().all(|what| *what == "service-token"),
        "the ConfigMap has more than was written into it"
    );
    Ok(())
}

/// Logs of all Pods that are involved, and of all programs of the testbed.
async fn logs(scope: &Scope, canaries: &Canaries) -> Result<()> {
    for namespace in [NAMESPACE, CONFIG_NAMESPACE, &scope.namespace] {
        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), namespace);
        for pod in pods.list(&ListParams::default()).await?.items {
            let text = logs_of(scope, &pods, namespace, &pod).await?;
            canaries.check(&format!("a log of Pod {}", pod.name_any()), &text)?;
        }
    }
    let mut found = 0;
    for role in std::fs::read_dir(Layout::from_env()?.logs(""))?.flatten() {
        for log in std::fs::read_dir(role.path()).into_iter().flatten().flatten() {
            let text = String::from_utf8_lossy(&std::fs::read(log.path())?).into_owned();
            found += usize::from(text.contains("MountVolume.SetUp failed") && text.contains(&scope.namespace));
            canaries.check(&format!("{}", log.path().display()), &text)?;
        }
    }
    ensure!(
        found > 0,
        "the kubelet's log has nothing about the mount that failed: is this the right log?"
    );
    Ok(())
}

/// Whatever client Pods have logged, also those that are gone.
async fn logs_of_clients(logs: &ClientLogs, canaries: &Canaries) -> Result<()> {
    let logs = wait_until("a log of a client Pod of each client", CLIENTS_LIMIT, async || {
        let logs = logs.so_far();
        let read = logs.iter().filter(|(_, log)| !log.text.is_empty());
        let read_of: BTreeSet<_> = read.map(|(_, log)| log.client.as_str()).collect();
        let unread: Vec<_> = IN_PODS.iter().filter(|client| !read_of.contains(**client)).collect();
        ensure!(unread.is_empty(), "no client Pod for {unread:?} has a log: {read_of:?}");
        for (pod, log) in &logs {
            ensure!(
                log.broken.is_none(),
                "the log of Pod {pod} was not read to its end: {:?}",
                log.broken
            );
        }
        Ok(Some(logs))
    })
    .await?;
    for (pod, log) in logs {
        canaries.check(&format!("a log of Pod {pod}"), &log.text)?;
    }
    Ok(())
}

/// The logs of a Pod's containers, including earlier runs. A log that can't be read is an error, unless the Pod is gone
/// by now.
async fn logs_of(scope: &Scope, pods: &Api<Pod>, namespace: &str, pod: &Pod) -> Result<String> {
    let name = pod.name_any();
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.init_container_statuses.into_iter().flatten();
    let mut all = String::new();
    for container in containers.chain(status.container_statuses.into_iter().flatten()) {
        let state = container.state.unwrap_or_default();
        // A container that never ran has no log.
        let runs = [
            (state.running.is_some() || state.terminated.is_some()).then_some("--previous=false"),
            (container.restart_count > 0).then_some("--previous=true"),
        ];
        for run in runs.into_iter().flatten() {
            let what = format!("the log ({run}) of container {} of Pod {name}", container.name);
            let log = wait_until(&what, LOG_LIMIT, async || {
                let read = scope.kubectl(["-n", namespace, "logs", "-c", &container.name, run, &name]);
                let Err(error) = read else { return read.map(Some) };
                // The kubelet may have removed the log of a container before this one.
                let removed =
                    run == "--previous=true" && format!("{error:#}").contains("previous terminated container");
                let is_gone = pods.get_opt(&name).await?.is_none_or(|now| now.uid() != pod.uid());
                if removed || is_gone {
                    Ok(Some(String::new()))
                } else {
                    Err(error)
                }
            });
            all.push_str(&log.await?);
        }
    }
    Ok(all)
}

async fn metrics_and_mounts(scope: &Scope, canaries: &Canaries) -> Result<()> {
    canaries.check("the controller's metrics", &scope.metrics()?)?;
    for (index, node) in [(1, "node-1"), (2, "node-2")] {
        let mounter = scope.mounter(node).await?;
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{mounter}:9810/proxy/metrics");
        canaries.check(
            &format!("metrics of {mounter}"),
            &scope.kubectl(["get", "--raw", &path])?,
        )?;
        for form in [&["status"][..], &["status", "--json"]] {
            let ask = ["-n", NAMESPACE, "exec", &mounter, "--", "/mounter"];
            let said = scope.kubectl(ask.into_iter().chain(form.iter().copied()))?;
            canaries.check(&format!("{form:?} of {mounter}"), &said)?;
        }
        let tables = scope.on_node(index, "cat /proc/[0-9]*/mountinfo 2>/dev/null | sort -u || true")?;
        ensure!(
            index == 2 || tables.contains("fuse.sshfs"),
            "the volume is not in the mount tables: {tables}"
        );
        canaries.check(&format!("a mount table on {node}"), &tables)?;
    }
    Ok(())
}
