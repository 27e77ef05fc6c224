//! Takes a picture of the testbed's own cluster: a small collector for each kind.
//!
//! Things of a Pod that still exists are no leak, nor are things that Kubernetes keeps for itself. Each omission has
//! its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;
use mooring_contract::names::{NAMESPACE, labels};
use mooring_testbed::cgroup::{Hierarchies, hierarchies};
use mooring_testbed::cluster::{Cluster, LoopDevice, loop_devices};
use mooring_testbed::node;
use mooring_testbed::node_folders::folder_of_its_own;
use serde_json::Value;

use super::super::census::{Census, pod_in};
use super::objects::{self, text};
use super::picture::{Kind, Picture};

/// The place of loop devices: all nodes share the machine's.
const MACHINE: &str = "the machine";

/// The node's init process restarts these; a picture may be taken before it has.
const STARTED_AGAIN: [&str; 3] = ["containerd", "kubelet", "kube-proxy"];

/// The runtime has one for each sandbox. If a shim is left without a Pod, the Pod's processes below it are found.
const RUNTIME_SHIM: &str = "containerd-shim";

/// Mounts here are the runtime's: a few for each container. It unmounts them when it notices that the container ended.
const RUNTIME_FOLDERS: [&str; 2] = ["/run/containerd/", "/var/lib/containerd/"];

/// Network namespaces, which have a collector of their own.
const NETWORKS: &str = "run/netns";

/// How to recognize the owner of a loop device whose file is gone.
#[derive(Debug, Default)]
pub(super) struct Ours {
    /// What paths of tests' volumes contain.
    pub(super) words: Vec<String>,
    /// The numbers of loop devices that were mounted on the cluster's nodes, or over files that only it sees.
    pub(super) devices: BTreeSet<u32>,
}

impl Ours {
    fn is(&self, device: &LoopDevice) -> bool {
        let deleted = device.file.ends_with(" (deleted)");
        let lost = deleted || ["", "/"].contains(&device.file.as_str());
        let named = self.words.iter().any(|word| device.file.contains(word.as_str()));
        (deleted && named) || (lost && self.devices.contains(&device.number))
    }
}

/// Takes a picture.
pub(super) fn picture(cluster: &Cluster, ours: &Ours) -> Result<Picture> {
    let mut picture = Picture::default();
    let objects = objects::list(cluster)?;
    let living = uids_of_pods(&objects);
    objects::add(&objects, &mut picture);
    let census = Census::of(cluster)?;
    processes(&census, &living, &mut picture);
    for index in 1..=cluster.description.nodes {
        let name = node::name(index);
        // A node without power holds nothing. When it returns, it is not compared.
        if let Some(&init) = census.inits.get(&name) {
            networks(&name, init, &census, &living, &mut picture);
            let table = std::fs::read_to_string(format!("/proc/{init}/mountinfo"))?;
            picture.look_at(Kind::Mount, &name);
            // In other folders, a node sees the machine's mounts from the time when the node was started, which are not
            // its own.
            let points = mount_points(&table, &living).into_iter();
            for point in points.filter(|point| folder_of_its_own(Path::new(point)).is_some()) {
                picture.add(Kind::Mount, &name, point);
            }
        }
        control_groups(&name, &node::cgroup_of(&cluster.layout, index), &living, &mut picture)?;
    }
    container_mounts(&census, &objects, &living, &mut picture);
    devices(cluster, &census, ours, &mut picture)?;
    Ok(picture)
}

fn uids_of_pods(objects: &[Value]) -> BTreeSet<String> {
    let pods = objects.iter().filter(|object| object["kind"] == "Pod");
    pods.map(|pod| text(pod, "/metadata/uid").to_owned()).collect()
}

/// Processes on nodes that belong to no Pod, or to a Pod that is gone.
fn processes(census: &Census, living: &BTreeSet<String>, picture: &mut Picture) {
    for role in census.inits.keys().filter(|role| role.starts_with("node-")) {
        picture.look_at(Kind::Process, role);
    }
    let inits: BTreeSet<i32> = census.inits.values().copied().collect();
    for process in &census.processes {
        if !process.role.starts_with("node-") || inits.contains(&process.pid) {
            continue;
        }
        match &process.pod {
            Some(pod) if living.contains(pod) => {}
            Some(pod) => picture.add(
                Kind::Process,
                &process.role,
                format!("{} of Pod {pod}, which is gone", process.name),
            ),
            None if STARTED_AGAIN.contains(&process.name.as_str()) => {}
            None if process.name.starts_with(RUNTIME_SHIM) => {}
            None => picture.add(Kind::Process, &process.role, &process.name),
        }
    }
}

/// Network namespaces without a process of an existing Pod.
fn networks(name: &str, init: i32, census: &Census, living: &BTreeSet<String>, picture: &mut Picture) {
    let folder = Path::new("/proc").join(init.to_string()).join("root").join(NETWORKS);
    let Ok(entries) = std::fs::read_dir(folder) else {
        return; // no Pod has run there yet
    };
    picture.look_at(Kind::Network, name);
    let of_pods: BTreeSet<u64> = census
        .processes
        .iter()
        .filter(|process| process.pod.as_ref().is_some_and(|pod| living.contains(pod)))
        .map(|process| process.network)
        .collect();
    for entry in entries.flatten() {
        // By the path: an open file would be the one below the mount.
        let number = std::fs::metadata(entry.path()).map(|file| file.ino());
        if number.is_ok_and(|number| !of_pods.contains(&number)) {
            picture.add(Kind::Network, name, entry.file_name().to_string_lossy());
        }
    }
}

/// Mount points in a mount table that belong to no existing Pod.
fn mount_points(table: &str, living: &BTreeSet<String>) -> Vec<String> {
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| !RUNTIME_FOLDERS.iter().any(|folder| point.starts_with(folder)))
        .filter(|point| !point.contains(&format!("/{NETWORKS}/")))
        .filter(|point| !point.split('/').any(|part| living.contains(part)))
        .map(str::to_owned)
        .collect()
}

/// Mounts inside the containers of Mooring's Pods: mounters and clients.
fn container_mounts(census: &Census, objects: &[Value], living: &BTreeSet<String>, picture: &mut Picture) {
    let ours: BTreeMap<&str, &Value> = objects
        .iter()
        .filter(|object| object["kind"] == "Pod" && text(object, "/metadata/namespace") == NAMESPACE)
        .map(|pod| (text(pod, "/metadata/uid"), pod))
        .collect();
    let mut tables: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for process in &census.processes {
        let pod = process.pod.as_deref().and_then(|pod| ours.get(pod));
        let Some(pod) = pod.filter(|_| seen.insert(process.mounts)) else {
            continue;
        };
        // It may have ended.
        let Ok(table) = std::fs::read_to_string(format!("/proc/{}/mountinfo", process.pid)) else {
            continue;
        };
        // The mount namespaces of a Pod's containers and of the mounter's workers count as one.
        let points = tables.entry(place_of(pod)).or_default();
        points.extend(mount_points(&table, living));
    }
    for (place, points) in tables {
        picture.look_at(Kind::ContainerMount, &place);
        for point in points {
            picture.add(Kind::ContainerMount, &place, point);
        }
    }
}

/// A restarted mounter is compared with the one before it; a client Pod only with itself, by its name.
fn place_of(pod: &Value) -> String {
    let node = text(pod, "/spec/nodeName");
    let own = &pod["metadata"]["labels"];
    if own[labels::COMPONENT] == labels::COMPONENT_CLIENT {
        return format!("{node} client {}", text(pod, "/metadata/name"));
    }
    format!("{node} {}", own["app.kubernetes.io/name"].as_str().unwrap_or_default())
}

/// Control groups of Pods that are gone.
fn control_groups(name: &str, group: &str, living: &BTreeSet<String>, picture: &mut Picture) -> Result<()> {
    let root = match hierarchies()? {
        Hierarchies::V2(root) => Some(root),
        // The kubelet makes and removes a Pod's group in the hierarchies that it sets limits in. In others, and in a
        // version 2 hierarchy beside them, runc makes a group that nothing removes.
        Hierarchies::V1(roots) => roots.into_iter().find(|root| root.ends_with("pids")),
    };
    let Some(folder) = root
        .map(|root| root.join(group).join("kubepods"))
        .filter(|folder| folder.exists())
    else {
        return Ok(());
    };
    picture.look_at(Kind::ControlGroup, name);
    // Guaranteed Pods have their groups beside the folders of the other classes.
    let classes = ["", "besteffort", "burstable"].map(|class| folder.join(class));
    for entry in classes.iter().flat_map(std::fs::read_dir).flatten().flatten() {
        let file = entry.file_name();
        if let Some(pod) = pod_in(&file.to_string_lossy()).filter(|pod| !living.contains(pod)) {
            picture.add(Kind::ControlGroup, name, format!("of Pod {pod}, which is gone"));
        }
    }
    Ok(())
}

/// Loop devices over files of the cluster, also over those that only its containers see, and loop devices whose file
/// disappeared with the client container that showed it.
fn devices(cluster: &Cluster, census: &Census, ours: &Ours, picture: &mut Picture) -> Result<()> {
    picture.look_at(Kind::LoopDevice, MACHINE);
    let devices = loop_devices(&cluster.layout.state)?;
    let all_below = devices.iter().all(|device| device.is_below);
    let shown = if all_below {
        BTreeSet::new()
    } else {
        census.file_systems()
    };
    for device in devices {
        if device.is_below || shown.contains(&device.file_system) || ours.is(&device) {
            picture.add(Kind::LoopDevice, MACHINE, device.file);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use mooring_testbed::cluster::LoopDevice;

    use super::{Ours, mount_points, place_of};

    #[test]
    fn a_loop_device_without_its_file_is_recognized_by_its_name_or_by_where_it_was_mounted() {
        let ours = Ours {
            words: vec!["mount-ext4-x2b".to_owned()],
            devices: [5].into(),
        };
        let is = |number, file: &str| {
            ours.is(&LoopDevice {
                number,
                file: file.to_owned(),
                file_system: String::new(),
                is_below: false,
            })
        };
        assert!(is(1, "/var/lib/mooring/pool/mount-ext4-x2b-data (deleted)"));
        assert!(!is(1, "/var/lib/mooring/pool/mount-ext4-abc-data (deleted)"));
        // The client container that showed it is gone.
        assert!(is(5, "/") && !is(6, "/"));
        // Another cluster uses it by now.
        assert!(!is(5, "/run/mooring-block/x/disk"));
    }

    #[test]
    fn mounts_of_existing_pods_and_of_the_runtime_are_left_out() {
        let line = |point: &str| format!("36 35 98:0 / {point} rw,noatime shared:1 - tmpfs tmpfs rw\n");
        let table = [
            "/",
            "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/1/shm",
            "/run/netns/cni-1",
            "/var/lib/kubelet/pods/there/volumes/x",
            "/var/lib/kubelet/pods/gone/volumes/x",
            "/run/mooring/backend/pvc-1",
        ]
        .map(line)
        .concat();
        let living = BTreeSet::from(["there".to_owned()]);
        assert_eq!(
            mount_points(&table, &living),
            [
                "/",
                "/var/lib/kubelet/pods/gone/volumes/x",
                "/run/mooring/backend/pvc-1"
            ]
        );
    }

    #[test]
    fn a_mounter_is_recognized_by_its_node_and_a_client_by_its_name() {
        let pod = |labels| json!({"metadata": {"name": "p-1", "labels": labels}, "spec": {"nodeName": "node-1"}});
        let mounter = pod(json!({"app.kubernetes.io/name": "mounter"}));
        assert_eq!(place_of(&mounter), "node-1 mounter");
        let client = pod(json!({"mooring.dev/component": "client", "app.kubernetes.io/name": "client"}));
        assert_eq!(place_of(&client), "node-1 client p-1");
    }
}
