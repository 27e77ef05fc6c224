//! Disks that a node has already, as a cloud attaches them: client `node-disk` finds them by their serials. The node is
//! a virtual machine with disks of virtio-blk, which has room for the first 20 bytes of a serial. Its kernel has SELinux
//! on, so a mount can give a volume's files the label of the Pod.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mooring_contract::names::{CSI_DRIVER, annotations};
use mooring_harness::guest_node::{MACHINE_NODE, with_machine_node_and};
use mooring_harness::nodes::POOL;
use mooring_harness::provisioner::user_of;
use mooring_harness::smb::{PASSWORD, USER};
use mooring_harness::{Scope, wait_until};
use mooring_testbed::cluster::Cluster;
use mooring_testbed::layout::make_folder;
use mooring_testbed::node::guest::{ROOT_SERIAL, Selinux};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

/// The id of a volume, of which the disk has what it has room for.
const VOLUME: &str = "0b1c2d3e-0000-4a5b-8c7d-0123456789ab";

/// Another one's.
const RAW: &str = "1b1c2d3e-0000-4a5b-8c7d-0123456789ab";

/// That of two disks.
const TWIN: &str = "mooring-twin";

/// The size of a disk in bytes.
const SIZE: u64 = 64 << 20;

/// The size that a claim is enlarged to.
const LARGER: u64 = 96 << 20;

/// Longest for what a container does when it starts there: starting a process takes thirty times as long.
const START_LIMIT: Duration = Duration::from_mins(3);

/// Files that are disks of the machine.
struct Disks<'a> {
    cluster: &'a Cluster,
    files: Vec<PathBuf>,
}

impl<'a> Disks<'a> {
    fn of(scope: &'a Scope) -> Result<Self> {
        Ok(Self {
            cluster: scope.own_cluster()?,
            files: Vec::new(),
        })
    }

    /// Plugs in an empty disk.
    fn plug(&mut self, name: &str, serial: &str) -> Result<()> {
        let folder = self.cluster.layout.machine(MACHINE_NODE);
        make_folder(&folder)?;
        let path = folder.join(format!("test-{name}"));
        let made = File::create(&path).and_then(|file| file.set_len(SIZE));
        made.with_context(|| format!("failed to make {}", path.display()))?;
        self.files.push(path.clone());
        self.cluster.machine_monitor()?.plug_with(name, serial, &path)
    }
}

impl Drop for Disks<'_> {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn by(serial: &str) -> Value {
    json!({"client": "node-disk", "source": format!("serial://{serial}")})
}

/// An image has its volume attached as a disk, and the PersistentVolume names another client. The disk comes late.
async fn attached(scope: &Scope, disks: &mut Disks<'_>) -> Result<()> {
    let attach = format!("pv options client=node-disk source=serial://{VOLUME}");
    let provisioner = scope
        .provisioner()
        .key("volume-source", "csi")
        .key("operations", "provision, delete, expand, attach, detach")
        .key("allow-volume-expansion", "true")
        .on_provision("pv options client=block source=iscsi://by-attach/volume/0 fs-type=ext4")
        .key("attach-script", attach)
        // The image that attaches is on that node.
        .key("node-selector", "kubernetes.io/hostname=node-1");
    provisioner.apply().await?;
    let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
    scope.claim_bound("data").await?;
    let mut user = user_of("user", "data", "sleep 1000000");
    user["spec"]["nodeName"] = MACHINE_NODE.into();
    user["spec"]["terminationGracePeriodSeconds"] = 1.into();
    scope.apply(&user.to_string())?;
    scope.event("user", "no disk with serial").await?;
    disks.plug(VOLUME, VOLUME)?;
    scope.pod_ready("user").await?;
    scope.exec("user", ["sh", "-c", "echo hello >/data/file; sync"])?;
    let mounts = scope.on_machine("grep ' /run/mooring-devices/vd' /proc/1/mountinfo")?;
    ensure!(
        mounts
            .lines()
            .all(|line| line.contains(" - ext4 /run/mooring-devices/vdb ") && line.contains("nosuid")),
        "{mounts}"
    );
    grows(scope, disks).await?;
    // A second Pod has the same file system.
    scope.pod("beside", MACHINE_NODE, "data", Value::Null)?;
    scope.pod_ready("beside").await?;
    ensure!(scope.exec("beside", ["cat", "/data/file"])? == "hello\n");
    for pod in ["beside", "user"] {
        scope.delete(&format!("pod/{pod}"))?;
        scope.pod_gone(pod).await?;
    }
    wait_until("the volume to be detached", START_LIMIT, async || {
        let volume = scope.provisioned(&uid).await?;
        let notes = volume.and_then(|volume| volume.metadata.annotations);
        let is_attached = notes.is_some_and(|notes| notes.contains_key(annotations::ATTACHED_TO));
        Ok((!is_attached).then_some(()))
    })
    .await?;
    // It was formatted once.
    scope.pod("again", MACHINE_NODE, "data", Value::Null)?;
    scope.pod_ready("again").await?;
    ensure!(scope.exec("again", ["cat", "/data/file"])? == "hello\n");
    scope.delete("pod/again")?;
    scope.pod_gone("again").await?;
    scope.claim_gone("data").await?;
    scope.nothing_left(&uid).await
}

/// The file system, as the kernel sees the disk larger.
async fn grows(scope: &Scope, disks: &Disks<'_>) -> Result<()> {
    let larger = json!({"spec": {"resources": {"requests": {"storage": "96Mi"}}}}).to_string();
    scope.kubectl(["patch", "pvc", "data", "-p", &larger])?;
    disks.cluster.machine_monitor()?.resize(VOLUME, LARGER)?;
    wait_until("the file system to grow", START_LIMIT, async || {
        let blocks = scope.exec("user", ["sh", "-c", "df -Pk /data | tail -n 1 | awk '{ print $2 }'"])?;
        Ok((blocks.trim().parse::<u64>()? > SIZE / 1024).then_some(()))
    })
    .await
}

/// The disk itself, of an administrator's PersistentVolume: two Pods have one, and one that reads can't write.
async fn as_a_device(scope: &Scope) -> Result<()> {
    scope.csi_volume("raw", &by(RAW), &json!({"volumeMode": "Block"}))?;
    let main = json!({
        "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
        "volumeDevices": [{"name": "data", "devicePath": "/dev/disk"}],
    });
    for pod in ["one", "two"] {
        scope.pod(pod, MACHINE_NODE, "raw", json!({"containers": [main]}))?;
        scope.pod_ready(pod).await?;
    }
    let write = "echo hello | dd of=/dev/disk bs=512 seek=9 conv=notrunc,fsync 2>&1";
    let read = "dd if=/dev/disk bs=512 skip=9 count=1 2>/dev/null | head -n 1";
    scope.exec("one", ["sh", "-c", write])?;
    ensure!(scope.exec("two", ["sh", "-c", read])? == "hello\n");
    for pod in ["one", "two"] {
        scope.delete(&format!("pod/{pod}"))?;
        scope.pod_gone(pod).await?;
    }
    let readers = json!({"volumeMode": "Block", "accessModes": ["ReadOnlyMany"]});
    scope.csi_volume("read", &by(RAW), &readers)?;
    scope.pod("reader", MACHINE_NODE, "read", json!({"containers": [main]}))?;
    scope.pod_ready("reader").await?;
    ensure!(scope.exec("reader", ["sh", "-c", read])? == "hello\n");
    let said = scope.exec("reader", ["sh", "-c", &format!("{write} || true")])?;
    ensure!(said.contains("Operation not permitted"), "{said}");
    scope.delete("pod/reader")?;
    scope.pod_gone("reader").await
}

/// What is not there, is there twice, or is the node's own.
async fn refused(scope: &Scope) -> Result<()> {
    for (name, serial, says) in [
        ("none", "not-there", "no disk with serial not-there"),
        ("twin", TWIN, "several disks of this node have serial"),
        ("root", ROOT_SERIAL, "is in use on this node by something else"),
    ] {
        scope.volume(name, &by(serial))?;
        scope.pod(name, MACHINE_NODE, name, Value::Null)?;
        scope.event(name, says).await?;
        scope.delete(&format!("pod/{name}"))?;
        scope.pod_gone(name).await?;
    }
    Ok(())
}

/// Sets whether the kubelet has the driver label files at the mount.
fn labels_at_the_mount(scope: &Scope, on: bool) -> Result<()> {
    let change = json!({"spec": {"seLinuxMount": on}}).to_string();
    scope.kubectl(["patch", "csidriver", CSI_DRIVER, "-p", &change])?;
    Ok(())
}

/// Leaves the driver as the installation has it.
struct Unlabelled<'a>(&'a Scope);

impl Drop for Unlabelled<'_> {
    fn drop(&mut self) {
        if let Err(error) = labels_at_the_mount(self.0, false) {
            note(format!("the CSIDriver is not as it was: {error:#}"));
        }
    }
}

/// The mounts give all files the Pod's label: of file systems that the mounter mounts, of one that a client container
/// mounts from a device, and of a program of libfuse.
async fn labelled(scope: &Scope, disks: &mut Disks<'_>) -> Result<()> {
    labels_at_the_mount(scope, true)?;
    let _restored = Unlabelled(scope);
    let nfs = scope.storage_server("nfs", "node-1", &Value::Null).await?;
    let samba = scope.storage_server("samba", "node-1", &Value::Null).await?;
    scope.mount_secret("login", &json!({"username": USER, "password": PASSWORD}))?;
    let ssh = scope.ssh_server("node-1", &["letters"]).await?;
    disks.plug("labelled", "labelled")?;
    let image = scope.volume_name("local");
    scope.on_machine(&format!("mkdir -p {POOL} && truncate -s 64M {POOL}/{image}"))?;
    let volumes = [
        (
            "nfs",
            json!({"client": "nfs", "source": format!("{}:/open", nfs.address)}),
        ),
        (
            "smb",
            json!({"client": "smb", "source": format!("//{}/volumes", samba.address), "secret": "login"}),
        ),
        ("local", json!({"client": "local", "source": image})),
        ("disk", by("labelled")),
        ("fuse", ssh.volume("letters")),
    ];
    let for_one = json!({"accessModes": ["ReadWriteOncePod"]});
    for (name, options) in &volumes {
        scope.csi_volume(name, options, &for_one)?;
    }
    let names = volumes.each_ref().map(|(name, _)| *name);
    let write = names.map(|name| format!("echo hello >/{name}/file")).join(" && ");
    let claims = names.map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
    let mounts = names.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "labelled"},
        "spec": {
            "nodeName": MACHINE_NODE, "terminationGracePeriodSeconds": 1, "volumes": claims,
            "securityContext": {"seLinuxOptions": {"level": "s0:c2,c1"}},
            "containers": [{
                "name": "main", "image": "busybox:1", "volumeMounts": mounts,
                "command": ["sh", "-c", format!("{write} && sleep 1000000")],
                "startupProbe": {"exec": {"command": ["test", "-s", "/fuse/file"]}, "failureThreshold": 100},
            }],
        },
    });
    scope.apply(&pod.to_string())?;
    scope.pod_ready("labelled").await?;
    let mounts = scope.on_machine("grep kubernetes.io~csi /proc/1/mountinfo")?;
    for name in names {
        let volume = format!("/{}/mount ", scope.volume_name(name));
        let mut lines = mounts.lines().filter(|line| line.contains(&volume));
        ensure!(
            lines.all(|line| line.contains("context=\"all_u:all_r:all_t:s0:c1,c2\"")) && mounts.contains(&volume),
            "{name}: {mounts}"
        );
    }
    scope.delete("pod/labelled")?;
    scope.pod_gone("labelled").await
}

async fn disks(scope: &Scope) -> Result<()> {
    let mut disks = Disks::of(scope)?;
    attached(scope, &mut disks).await?;
    disks.plug(RAW, RAW)?;
    as_a_device(scope).await?;
    for name in ["twin-1", "twin-2"] {
        disks.plug(name, TWIN)?;
    }
    refused(scope).await?;
    labelled(scope, &mut disks).await?;
    let mounts = scope.mounts_on_machine()?;
    ensure!(mounts.is_empty(), "{mounts:?}");
    Ok(())
}

#[test]
fn a_disk_of_the_node_is_found_by_its_serial() {
    with_machine_node_and(Selinux::On, "vm-disk", async |scope| {
        scope.require_mooring().await?;
        Box::pin(disks(&scope)).await
    });
}
