//! Kernel clients that need a daemon, which runs in a container: iscsid for iSCSI, rpc.statd for the locks of NFS
//! version 3. The node is a virtual machine with Debian's stock kernel and without their programs; the servers are real
//! ones.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use mooring_contract::names::{CSI_VOLUMES_DIR, FLEX_DRIVER, NAMESPACE, labels};
use mooring_harness::guest_node::{MACHINE_NODE, with_machine_node};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, TEST_LABEL, options_of, user_of};
use mooring_harness::{Scope, wait_until};
use mooring_testbed::command::output;
use mooring_testbed::layout::repository;
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

const PASSWORD: &str = "not-to-be-seen-12";

/// The password of the target.
const PASSWORD_IN: &str = "not-to-be-seen-34";

/// The beginning of both passwords.
const SEEN: &str = "not-to-be-seen";

/// Longest for what a container does when it starts there: starting a process takes thirty times as long.
const START_LIMIT: Duration = Duration::from_mins(3);

/// How long the kernel waits for a server that hangs, in seconds, as the client's image sets it.
const PATIENCE: u32 = 120;

/// How long it waits here.
const SHORT_PATIENCE: u32 = 20;

/// Longest until a Pod whose server hangs is gone: the kernel waits [`SHORT_PATIENCE`] for the server, and the kubelet
/// may have to try again.
const HANG_LIMIT: Duration = Duration::from_mins(3);

/// Ends the client container, by its agent, and its iscsid.
const KILL: &str = "kill -9 $(pidof iscsid)
    for process in /proc/[0-9]*; do
        case $(tr '\\0' ' ' <$process/cmdline 2>/dev/null) in
        '/run/mooring/mounter agent'*) kill -9 ${process#/proc/} ;;
        esac
    done";

/// An iscsid as hosts run it.
fn iscsid_of_the_host() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host-iscsid"},
        "spec": {
            "nodeName": MACHINE_NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": concat!("mooring.dev/client-iscsi:", env!("CARGO_PKG_VERSION")),
                "command": ["sh", "-c", "echo InitiatorName=iqn.2025-01.test:host >/etc/iscsi/initiatorname.iscsi; \
                                         exec iscsid -f"],
                "startupProbe": {
                    "exec": {"command": ["grep", "-q", "@ISCSIADM_ABSTRACT_NAMESPACE", "/proc/net/unix"]},
                    "periodSeconds": 2, "failureThreshold": 150,
                },
                "securityContext": {"privileged": true},
            }],
        },
    })
}

/// The client Pod of the machine's iSCSI volumes.
fn client_pod(scope: &Scope) -> Result<String> {
    let selector = format!("--selector={}=iscsi", labels::CLIENT);
    let mut get = scope
        .target
        .kubectl(["-n", NAMESPACE, "get", "pods", &selector, "-o", "name"]);
    let found = output(&mut get)?;
    let names: Vec<_> = found.lines().collect();
    ensure!(names.len() == 1, "{names:?}");
    Ok(names[0].trim_start_matches("pod/").to_owned())
}

fn in_client_pod(scope: &Scope, script: &str) -> Result<String> {
    scope
        .elsewhere(NAMESPACE)
        .exec(&client_pod(scope)?, ["sh", "-c", script])
}

/// Waits until the machine's Node says that it can't mount iSCSI volumes, and why.
async fn is_said_to_be_in_the_way(scope: &Scope) -> Result<()> {
    let nodes: Api<Node> = Api::all(scope.client.clone());
    let key = format!("{}iscsi", labels::NODE_CLIENT_PREFIX);
    wait_until("the machine to say what is in the way", START_LIMIT, async || {
        let node = nodes.get(MACHINE_NODE).await?;
        let cure = node.annotations().get(&key).cloned().unwrap_or_default();
        Ok(cure.contains("systemctl disable --now iscsid.socket").then_some(()))
    })
    .await
}

async fn iscsi(scope: &Scope) -> Result<()> {
    let secret = json!({
        "chap-username": "mooring", "chap-password": PASSWORD,
        "chap-username-in": "target", "chap-password-in": PASSWORD_IN,
    });
    let server = scope.storage_server("tgt", "node-1", &secret).await?;
    let chap = format!("{}-chap", scope.namespace);
    scope.apply_anywhere(
        &json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": chap, "namespace": CONFIG_NAMESPACE, "labels": {TEST_LABEL: scope.namespace}},
            "type": FLEX_DRIVER,
            "stringData": secret,
        })
        .to_string(),
    )?;
    let provisioner = scope
        .provisioner()
        .example("iscsi.yaml")?
        .key("client", "iscsi")
        .key("secret-name", &server.secret)
        .key("server", &server.address)
        .key("mount-secret", format!("{chap}/{CONFIG_NAMESPACE}"))
        // The image that talks to the server is on that node.
        .key("node-selector", "kubernetes.io/hostname=node-1");
    provisioner.apply().await?;
    let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
    scope.claim_bound("data").await?;

    // Two iscsids can't manage one node's sessions.
    scope.apply(&iscsid_of_the_host().to_string())?;
    scope.pod_ready("host-iscsid").await?;
    is_said_to_be_in_the_way(scope).await?;
    // A Pod that ignores the label still gets there, and its volume is refused.
    let source = format!("iscsi://{}/iqn.2025-01.test:none/1", server.address);
    scope.volume("beside", &json!({"client": "iscsi", "source": source}))?;
    scope.pod("beside", MACHINE_NODE, "beside", Value::Null)?;
    scope.event("beside", "runs an iscsid of its own").await?;
    scope.delete("pod/beside")?;
    scope.pod_gone("beside").await?;
    // No node is given: only the machine has the driver.
    let mut user = user_of("user", "data", "sleep 1000000");
    user["spec"]["terminationGracePeriodSeconds"] = 1.into();
    scope.apply(&user.to_string())?;
    scope
        .event("user", "didn't match PersistentVolume's node affinity")
        .await?;
    scope.delete("pod/host-iscsid")?;
    scope.pod_gone("host-iscsid").await?;
    let freed = Instant::now();
    second_processor(scope, false)?;
    let pod = scope.pod_ready("user").await?;
    second_processor(scope, true)?;
    note(format!("an iSCSI volume was mounted after {}", spoken(freed.elapsed())));
    let node = pod.spec.and_then(|spec| spec.node_name);
    ensure!(node.as_deref() == Some(MACHINE_NODE), "the Pod is on {node:?}");
    scope.exec("user", ["sh", "-c", "head -c 8m /dev/urandom >/data/file; sync"])?;
    let sum = scope.exec("user", ["sha256sum", "/data/file"])?;
    let mounts = scope.on_machine(&format!("grep /{CSI_VOLUMES_DIR}/ /proc/1/mountinfo"))?;
    ensure!(
        mounts.lines().count() == 1 && mounts.contains("nosuid") && mounts.contains(" - ext4 "),
        "{mounts}"
    );
    for place in ["/proc/1/mounts", "/proc/*/cmdline"] {
        let seen = scope.on_machine(&format!("cat {place} 2>/dev/null | tr '\\0' ' '; true"))?;
        ensure!(!seen.contains(SEEN), "the password is in {place}");
    }

    // The kernel continues without the container, which restarts with its iscsid and the sessions that it knew.
    let restarts = "cat /proc/1/comm; ls /sys/class/iscsi_session; iscsiadm -m session";
    let before = in_client_pod(scope, restarts)?;
    scope.on_machine(KILL)?;
    ensure!(
        scope.exec("user", ["sha256sum", "/data/file"])? == sum,
        "what was written is not there"
    );
    wait_until("the client container to be back", START_LIMIT, async || {
        // Not in between, while the old one is ending and the new one has not started.
        let after = in_client_pod(scope, restarts)?;
        ensure!(after == before, "{after:?} restarts instead of {before:?}");
        Ok(Some(()))
    })
    .await?;
    scope.exec("user", ["sh", "-c", "echo still >/data/other; sync"])?;

    scope.delete("pod/user")?;
    scope.pod_gone("user").await?;
    sessions_end(scope).await?;
    a_target_that_is_another_is_refused(scope, &uid, &secret).await?;
    the_kernel_s_device_itself(scope, &uid, &secret).await?;
    scope.claim_gone("data").await?;
    scope.nothing_left(&uid).await?;
    a_device_without_a_file_system(scope, &provisioner).await?;
    xfs_on_a_server_that_hangs(scope, &provisioner).await?;
    let left = scope.exec("tgt", ["sh", "-c", "ls /srv/volumes /etc/tgt/conf.d; tgt-admin --show"])?;
    ensure!(!left.contains(&uid), "{left}");
    Ok(())
}

/// Starts or stops the machine's second processor. The kernel rewrites its code for TCP at the first session, and a
/// second processor could hang in it: see the testbed's `node/guest/init`.
fn second_processor(scope: &Scope, there: bool) -> Result<()> {
    let online = u8::from(there);
    scope
        .on_machine(&format!("echo {online} >/sys/devices/system/cpu/cpu1/online"))
        .map(drop)
}

/// The source of a claim's volume.
async fn source_of(scope: &Scope, uid: &str) -> Result<String> {
    let volume = scope.provisioned(uid).await?.context("no volume")?;
    options_of(&volume)?.remove("source").context("no source")
}

/// The same target with CSI, as a raw block volume: two Pods have one device, which outlives the client container.
/// Nobody answers at the first of its portals.
async fn the_kernel_s_device_itself(scope: &Scope, uid: &str, secret: &Value) -> Result<()> {
    scope.mount_secret("right", secret)?;
    let source = source_of(scope, uid).await?;
    let (portal, _) = source.split_once(":3260").context("no portal")?;
    let source = source.replace("iscsi://", &format!("{portal}:1,"));
    let options = json!({"client": "iscsi", "source": source, "secret": "right"});
    scope.csi_volume("device", &options, &json!({"volumeMode": "Block"}))?;
    let users = ["one", "two"];
    let main = json!({
        "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
        "volumeDevices": [{"name": "data", "devicePath": "/dev/disk"}],
    });
    for user in users {
        scope.pod(user, MACHINE_NODE, "device", json!({"containers": [main]}))?;
        scope.pod_ready(user).await?;
    }
    let write = |text: &str| format!("echo {text} | dd of=/dev/disk bs=512 seek=9000 conv=notrunc,fsync 2>&1");
    let read = [
        "sh",
        "-c",
        "dd if=/dev/disk bs=512 skip=9000 count=1 2>/dev/null | head -n 1",
    ];
    scope.exec("one", ["sh", "-c", &write("hello")])?;
    ensure!(scope.exec("two", read)? == "hello\n");
    scope.on_machine(KILL)?;
    scope.exec("two", ["sh", "-c", &write("still")])?;
    ensure!(scope.exec("one", read)? == "still\n");
    wait_until("the client container to be back", START_LIMIT, async || {
        in_client_pod(scope, "iscsiadm -m session").map(Some)
    })
    .await?;
    scope.delete("pod/one")?;
    scope.pod_gone("one").await?;
    ensure!(scope.exec("two", read)? == "still\n");
    scope.delete("pod/two")?;
    scope.pod_gone("two").await?;
    sessions_end(scope).await?;

    // Nobody writes to it, by the access mode of its volume: the node's root neither.
    let readers = json!({"volumeMode": "Block", "accessModes": ["ReadOnlyMany"]});
    scope.csi_volume("read", &options, &readers)?;
    scope.pod("three", MACHINE_NODE, "read", json!({"containers": [main]}))?;
    scope.pod_ready("three").await?;
    ensure!(scope.exec("three", read)? == "still\n");
    let said = scope.exec("three", ["sh", "-c", &format!("{} || true", write("not"))])?;
    ensure!(said.contains("Operation not permitted"), "{said}");
    let said = in_client_pod(scope, "blockdev --getro /run/mooring-devices/sd*")?;
    ensure!(said.trim() == "1", "{said}");
    // Another volume gets it only after that.
    scope.pod("four", MACHINE_NODE, "device", json!({"containers": [main]}))?;
    let owner = format!("PersistentVolume {} has", scope.volume_name("read"));
    scope.event("four", &owner).await?;
    scope.delete("pod/three")?;
    scope.pod_gone("three").await?;
    scope.pod_ready("four").await?;
    scope.exec("four", ["sh", "-c", &write("again")])?;
    scope.delete("pod/four")?;
    scope.pod_gone("four").await?;
    sessions_end(scope).await
}

/// The target has to know its own password as well.
async fn a_target_that_is_another_is_refused(scope: &Scope, uid: &str, secret: &Value) -> Result<()> {
    let mut secret = secret.clone();
    secret["chap-password-in"] = format!("{SEEN}-56").into();
    scope.mount_secret("other", &secret)?;
    scope.volume(
        "other",
        &json!({"client": "iscsi", "source": source_of(scope, uid).await?, "secret": "other"}),
    )?;
    scope.pod("other", MACHINE_NODE, "other", Value::Null)?;
    scope.event("other", "does not prove that it knows it").await?;
    scope.delete("pod/other")?;
    scope.pod_gone("other").await?;
    sessions_end(scope).await
}

/// The device's bytes as a file, which is back after one of its daemons was killed.
async fn a_device_without_a_file_system(scope: &Scope, provisioner: &Provisioner) -> Result<()> {
    let class = provisioner.class_of("raw")?;
    let uid = scope.claim("raw", &class, "24Mi").await?;
    scope.claim_bound("raw").await?;
    let mut user = user_of("shown", "raw", "sleep 1000000");
    user["spec"]["terminationGracePeriodSeconds"] = 1.into();
    user["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 1000});
    scope.apply(&user.to_string())?;
    scope.pod_ready("shown").await?;
    let size = scope.exec("shown", ["stat", "-c", "%s", "/data/disk"])?;
    ensure!(size.trim() == (24 << 20).to_string(), "{size}");
    // Not a whole number of sectors.
    let write = "head -c 3000001 /dev/urandom | dd of=/data/disk bs=1000 seek=4001 conv=notrunc,fsync 2>&1";
    scope.exec("shown", ["sh", "-c", write])?;
    let sum = scope.exec("shown", ["sha256sum", "/data/disk"])?;
    for daemon in ["nbdfuse", "qemu-nbd"] {
        scope.on_machine(&format!("kill -9 $(pidof {daemon})"))?;
        let killed = Instant::now();
        let after = wait_until("the device to be shown again", START_LIMIT, async || {
            scope.exec("shown", ["sha256sum", "/data/disk"]).map(Some)
        })
        .await?;
        ensure!(after == sum, "other bytes once {daemon} was killed");
        note(format!(
            "shown again {} after {daemon} was killed",
            spoken(killed.elapsed())
        ));
    }
    scope.delete("pod/shown")?;
    scope.pod_gone("shown").await?;
    sessions_end(scope).await?;
    let left = scope.on_machine("pidof nbdfuse qemu-nbd || true")?;
    ensure!(left.trim().is_empty(), "still running: {left}");
    // What the Pod saw is what the server has, in the target's file.
    let file = format!("find /srv/volumes -name '*{uid}*' -type f | xargs sha256sum | cut -d' ' -f1");
    let on_server = scope.exec("tgt", ["sh", "-c", &file])?;
    ensure!(
        Some(on_server.trim()) == sum.split(' ').next(),
        "{on_server} is not {sum}"
    );
    scope.claim_gone("raw").await?;
    scope.nothing_left(&uid).await
}

/// The other file system, and a server that stops answering while a Pod writes: the Pod can be deleted.
async fn xfs_on_a_server_that_hangs(scope: &Scope, provisioner: &Provisioner) -> Result<()> {
    let class = provisioner.class_of("xfs")?;
    let uid = scope.claim("xfs", &class, "320Mi").await?;
    scope.claim_bound("xfs").await?;
    let script = "while :; do date >>/data/dates; sync; sleep 1; done";
    let mut writer = user_of("writer", "xfs", script);
    writer["spec"]["terminationGracePeriodSeconds"] = 1.into();
    writer["spec"]["containers"][0]["startupProbe"] =
        json!({"exec": {"command": ["test", "-s", "/data/dates"]}, "periodSeconds": 2, "failureThreshold": 150});
    scope.apply(&writer.to_string())?;
    scope.pod_ready("writer").await?;
    let mounts = scope.mounts_on_machine()?;
    ensure!(mounts.len() == 1 && mounts[0].contains(" - xfs "), "{mounts:?}");
    let patience = "/sys/class/iscsi_session/*/recovery_tmo";
    let before = scope.on_machine(&format!(
        "cat {patience}; echo {SHORT_PATIENCE} | tee {patience} >/dev/null"
    ))?;
    ensure!(before.trim() == PATIENCE.to_string(), "the kernel waits {before}");

    let stopped = scope.stop("tgt").await?;
    scope.deleted_within(&["writer"], HANG_LIMIT).await?;
    drop(stopped);
    sessions_end(scope).await?;
    scope.claim_gone("xfs").await?;
    scope.nothing_left(&uid).await
}

async fn sessions_end(scope: &Scope) -> Result<()> {
    wait_until("the session to end", START_LIMIT, async || {
        let left = scope.on_machine("ls /sys/class/iscsi_session")?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .await
}

/// Removes the DaemonSet, and what it stores on nodes that outlive the machine, whatever happened to the test.
struct Locks<'a>(&'a Scope);

impl Drop for Locks<'_> {
    fn drop(&mut self) {
        let folder = repository().join("configmaps/nfs-locks");
        let mut delete = self
            .0
            .target
            .kubectl(["delete", "--ignore-not-found", "--cascade=foreground", "-k"]);
        let deleted = output(delete.arg(folder)).map(drop).map_err(anyhow::Error::from);
        let swept = self.0.own_cluster().and_then(|cluster| {
            let mut nodes = 1..=cluster.description.nodes;
            nodes.try_for_each(|index| self.0.on_node(index, "rm -rf /var/lib/mooring/nfs").map(drop))
        });
        if let Err(error) = deleted.and(swept) {
            note(format!("nfs-locks is not gone: {error:#}"));
        }
    }
}

async fn locks(scope: &Scope) -> Result<()> {
    let server = scope.storage_server("nfs", "node-1", &Value::Null).await?;
    let source = format!("{}:/srv/open", server.address);
    scope.volume(
        "three",
        &json!({"client": "nfs", "source": source, "mount-options": "vers=3"}),
    )?;
    let flocks = json!({"containers": [{
        "name": "main",
        "image": concat!("mooring.dev/nfs-locks:", env!("CARGO_PKG_VERSION")),
        "command": ["sleep", "1000000"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }]});
    scope.pod("early", MACHINE_NODE, "three", Value::Null)?;
    scope.event("early", "configmaps/nfs-locks").await?;

    let _locks = Locks(scope);
    let folder = repository().join("configmaps/nfs-locks");
    let mut apply = scope.target.kubectl(["apply", "-k"]);
    output(apply.arg(folder))?;
    locks_are_ready(scope).await?;
    // The kubelet tries the other Pod's volume again after up to two minutes.
    scope.pod("locker", MACHINE_NODE, "three", flocks)?;
    scope.pod_ready("locker").await?;
    // The lock is held from here on.
    let hold = "flock -n /data/held sh -c 'touch /tmp/held; exec sleep 1000000' >/dev/null 2>&1 & \
                until [ -e /tmp/held ]; do kill -0 $! || exit 1; sleep 0.1; done; \
                kill -0 $! && ! flock -n /data/held true";
    scope.exec("locker", ["sh", "-c", hold])?;
    // Each notifies the other after a crash.
    let monitored = || scope.exec("nfs", ["sh", "-c", "ls /var/lib/nfs/sm"]);
    let before = monitored()?;
    ensure!(!before.trim().is_empty(), "the server has no lock of this node");
    let state = "ls /proc/1/root/var/lib/mooring/nfs/sm";
    let known = scope.on_machine(state)?;
    ensure!(known.contains(&server.address), "{known}");

    // The end of the container is not a crash of the node: the list of hosts with locks stays, and no notice is sent.
    scope.on_machine("kill -9 $(pidof rpc.statd)")?;
    wait_until("another lock after statd's restart", START_LIMIT, async || {
        scope
            .exec("locker", ["flock", "-n", "/data/other", "echo", "locked"])
            .map(Some)
    })
    .await?;
    ensure!(scope.on_machine(state)?.contains(&server.address), "forgotten");
    ensure!(monitored()? == before, "the server was told of a crash");
    scope.delete("pod/locker")?;
    scope.pod_gone("locker").await?;
    scope.pod_ready("early").await?;
    scope.delete("pod/early")?;
    scope.pod_gone("early").await
}

/// Waits until the machine has its daemon for locks.
async fn locks_are_ready(scope: &Scope) -> Result<()> {
    wait_until("the machine's rpc.statd", START_LIMIT, async || {
        let mut pods = scope.target.kubectl([
            "-n",
            NAMESPACE,
            "get",
            "pods",
            "--field-selector",
            &format!("spec.nodeName={MACHINE_NODE}"),
            "-l",
            "app.kubernetes.io/name=nfs-locks",
            "-o",
            "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}",
        ]);
        Ok((output(&mut pods)? == "True").then_some(()))
    })
    .await
}

#[test]
fn iscsi_and_the_locks_of_nfs_version_3_have_their_daemons_in_containers() {
    with_machine_node("vm-daemons", async |scope| {
        scope.require_mooring().await?;
        locks(&scope).await?;
        Box::pin(iscsi(&scope)).await
    });
}
