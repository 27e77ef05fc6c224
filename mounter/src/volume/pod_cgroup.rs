//! Which Pod a process belongs to, by its control group, as `/proc/<pid>/cgroup` shows it: the kubelet makes one for
//! each Pod, and only root on the node can leave it.
//!
//! | cgroup driver | path |
//! | --- | --- |
//! | `cgroupfs` | `/kubepods/burstable/pod<uid>/<container>` |
//! | `systemd` | `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/<container>`, with `_` for `-` |
//!
//! A Pod of the class Guaranteed has no part `burstable` or `besteffort`, and a kubelet with a `cgroupRoot` puts that
//! first. A path is relative to the cgroup namespace of the process that reads it. A privileged Pod, such as the
//! mounter's, is in that of the node; to one that is in a namespace of its own, the path of another Pod begins with
//! `/..`.

use std::collections::BTreeSet;

/// The kubelet's directory of all Pods.
const PODS: &str = "kubepods";

/// Its directories for the Pods of a class.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// Reads the control groups of other processes.
#[derive(Debug, Clone, Default)]
pub struct PodCgroups {
    /// The uids of the Pods that the node itself runs in, where it is a container of another cluster.
    outer: BTreeSet<String>,
}

impl PodCgroups {
    /// For a process with this `/proc/self/cgroup`.
    pub fn seen_by(own: &[u8]) -> Self {
        let outer = paths(own).flat_map(|path| {
            let pods: Vec<_> = pods(path).collect();
            // The last one is the reader's own.
            pods.split_last().map(|(_, outer)| outer.to_vec()).unwrap_or_default()
        });
        Self { outer: outer.collect() }
    }

    /// The uid of the Pod that a process with this `/proc/<pid>/cgroup` belongs to. `None` if it belongs to none, or if
    /// its hierarchies (cgroup v1) name several.
    pub fn pod(&self, cgroup: &[u8]) -> Option<String> {
        // The outermost Pod: what is below its directory a container may have made.
        let of = |path| pods(path).find(|uid| !self.outer.contains(uid));
        let mut found = paths(cgroup).filter_map(of);
        let first = found.next()?;
        found.all(|other| other == first).then_some(first)
    }
}

/// The path in each hierarchy: the third field of a line such as `4:memory:/a/b` or `0::/a/b`.
fn paths(cgroup: &[u8]) -> impl Iterator<Item = &str> {
    // What is not UTF-8 is no path of the kubelet's, and what it names is not known.
    let text = std::str::from_utf8(cgroup).unwrap_or_default();
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2))
}

/// The uids of the Pods whose directories are on a path, the outermost first.
fn pods(path: &str) -> impl Iterator<Item = String> {
    let mut before = "";
    path.split('/').filter_map(move |name| {
        let uid = of_cgroupfs(before, name).or_else(|| of_systemd(name));
        before = name;
        uid
    })
}

fn of_cgroupfs(before: &str, name: &str) -> Option<String> {
    let is_among_pods = before == PODS || before == ".." || CLASSES.contains(&before);
    let uid = name.strip_prefix("pod").filter(|_| is_among_pods)?;
    is_uid(uid).then(|| uid.to_owned())
}

/// A slice has the names of those around it in its own. A runtime that does not know of slices adds its own names to
/// that of the Pod's slice, after a colon.
fn of_systemd(name: &str) -> Option<String> {
    let slice = name.split(':').next()?.strip_suffix(".slice")?;
    let mut parts = slice.rsplit('-');
    let uid = parts.next()?.strip_prefix("pod")?.replace('_', "-");
    let around = parts.next()?;
    let is_among_pods = around == PODS || CLASSES.contains(&around) && parts.next() == Some(PODS);
    (is_among_pods && is_uid(&uid)).then_some(uid)
}

fn is_uid(uid: &str) -> bool {
    !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::PodCgroups;

    const UID: &str = "1858680e-b044-4fd5-9dd4-f137e30e2180";

    fn pod(cgroup: &str) -> Option<String> {
        PodCgroups::default().pod(cgroup.as_bytes())
    }

    #[test]
    fn a_pod_is_known_by_the_control_group_that_the_kubelet_made_for_it() {
        for cgroup in [
            // cgroupfs, version 2: the three classes; k3s and CRI-O alike.
            "0::/kubepods/burstable/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n",
            "0::/kubepods/besteffort/pod1858680e-b044-4fd5-9dd4-f137e30e2180/crio-3e74d3fd",
            "0::/kubepods/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n",
            // The Pod's own group, and one that systemd in a container made.
            "0::/kubepods/pod1858680e-b044-4fd5-9dd4-f137e30e2180\n",
            "0::/kubepods/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd/init.scope\n",
            // systemd: containerd, CRI-O with crun, Docker.
            "0::/kubepods.slice/kubepods-burstable.slice/\
             kubepods-burstable-pod1858680e_b044_4fd5_9dd4_f137e30e2180.slice/cri-containerd-3e74d3fd.scope\n",
            "0::/kubepods.slice/kubepods-besteffort.slice/\
             kubepods-besteffort-pod1858680e_b044_4fd5_9dd4_f137e30e2180.slice/crio-3e74d3fd.scope/container\n",
            "0::/kubepods.slice/kubepods-pod1858680e_b044_4fd5_9dd4_f137e30e2180.slice/docker-3e74d3fd.scope\n",
            // A kubelet with slices and a runtime without.
            "0::/system.slice/containerd.service/\
             kubepods-burstable-pod1858680e_b044_4fd5_9dd4_f137e30e2180.slice:cri-containerd:3e74d3fd\n",
            // A kubelet with a root of its own: kind, and Mooring's testbed.
            "0::/kubelet/kubepods/burstable/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n",
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-pod1858680e_b044_4fd5_9dd4_f137e30e2180.slice/cri-containerd-3e74d3fd.scope\n",
            "5:devices:/mooring-testbed/node-1/kubepods/burstable/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n",
            // Version 1, and both versions: not all hierarchies are the kubelet's.
            "12:memory:/kubepods/burstable/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n\
             4:cpu,cpuacct:/kubepods/burstable/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n\
             2:misc:/\n\
             1:name=systemd:/kubepods/burstable/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n\
             0::/system.slice/containerd.service\n",
            // Read in a cgroup namespace of the reader's own, from a Pod of the same class and of another one.
            "0::/../../pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n",
            "0::/../../../besteffort/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n",
            "0::/../../kubepods-besteffort-pod1858680e_b044_4fd5_9dd4_f137e30e2180.slice/cri-containerd-3e74d3fd.scope\n",
            "0::/../../../kubepods-pod1858680e_b044_4fd5_9dd4_f137e30e2180.slice/cri-containerd-3e74d3fd.scope\n",
        ] {
            assert_eq!(pod(cgroup).as_deref(), Some(UID), "{cgroup}");
        }
        // Of a static Pod.
        let fixed = "0::/kubepods.slice/kubepods-burstable.slice/\
                     kubepods-burstable-pod99dcb84d2a34f7e338778606703258c4.slice/cri-containerd-3e74d3fd.scope";
        assert_eq!(pod(fixed).as_deref(), Some("99dcb84d2a34f7e338778606703258c4"));
    }

    #[test]
    fn what_is_in_no_pod_s_control_group_is_nobody_s() {
        for cgroup in [
            "",
            "0::/\n",
            "0::/system.slice/kubelet.service\n",
            "0::/init.scope\n",
            "0::/kubepods.slice/kubepods-burstable.slice\n",
            // The reader's own Pod, in a namespace of its own.
            "0::/../cri-containerd-3e74d3fd.scope\n",
            // Not the kubelet's.
            "0::/machine.slice/podman-1234.scope\n",
            "0::/user/pod1858680e-b044-4fd5-9dd4-f137e30e2180/3e74d3fd\n",
            "0::/user-pod1858680e_b044_4fd5_9dd4_f137e30e2180.slice/x\n",
            "0::/kubepods/burstable/pod/3e74d3fd\n",
            "0::/kubepods/burstable/pod../3e74d3fd\n",
            "4:memory:/kubepods/podone/x\n0::/kubepods/podother/x\n",
        ] {
            assert_eq!(pod(cgroup), None, "{cgroup}");
        }
        assert_eq!(PodCgroups::default().pod(b"0::/kubepods/podone/\xff\n"), None);
    }

    #[test]
    fn the_directories_that_a_container_makes_in_its_own_name_no_pod() {
        for (cgroup, uid) in [
            ("0::/kubepods/burstable/podone/c/kubepods/burstable/podother/c\n", "one"),
            (
                "0::/../../kubepods-burstable-podone.slice/c.scope/kubepods-podother.slice/c\n",
                "one",
            ),
        ] {
            assert_eq!(pod(cgroup).as_deref(), Some(uid));
        }
    }

    #[test]
    fn a_node_in_a_pod_of_another_cluster_has_pods_of_its_own() {
        let groups = PodCgroups::seen_by(b"0::/kubepods/podouter/node/kubelet/kubepods/burstable/podmounter/c\n");
        let of = |cgroup: &str| groups.pod(cgroup.as_bytes());
        let one = "0::/kubepods/podouter/node/kubelet/kubepods/podone/c/kubepods/podother/c\n";
        assert_eq!(of(one).as_deref(), Some("one"));
        assert_eq!(of("0::/kubepods/podouter/node/kubelet/kubelet.service\n"), None);
        assert_eq!(
            of("0::/kubepods/podone/c/kubepods/podouter/c\n").as_deref(),
            Some("one")
        );
    }
}
