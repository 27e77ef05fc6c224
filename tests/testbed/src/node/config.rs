//! The configuration files of a node's programs. Paths are those that the node sees.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::numbering::name;
use crate::binaries::Release;
use crate::control_plane::VOLUME_HEALTH;
use crate::dns;
use crate::network::Block;

pub(super) const CONTAINERD_FILE: &str = "/etc/kubernetes/containerd.toml";
pub(super) const CNI_FILE: &str = "/etc/cni/net.d/10-testbed.conflist";
pub(super) const KUBELET_FILE: &str = "/etc/kubernetes/kubelet.json";
pub(super) const KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubelet.kubeconfig";
pub(super) const KUBELET_CERTIFICATE: &str = "/etc/kubernetes/kubelet.crt";
pub(super) const KUBELET_KEY: &str = "/etc/kubernetes/kubelet.key";
pub(super) const PROXY_FILE: &str = "/etc/kubernetes/kube-proxy.json";
pub(super) const PROXY_KUBECONFIG: &str = "/etc/kubernetes/kube-proxy.kubeconfig";
pub(super) const CA_FILE: &str = "/etc/kubernetes/ca.crt";

/// A folder for each registry that the node's containerd has to be told how to reach. It reads them at each pull.
pub const REGISTRIES: &str = "/etc/kubernetes/registries";

pub const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// The image of a Pod's sandbox, see [`crate::base_images`].
pub const PAUSE_IMAGE: &str = "mooring.dev/testbed-pause:1";

pub(super) fn containerd(runc: &Path) -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.internal.v1.opt']
path = "/var/lib/containerd/opt"

[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "{REGISTRIES}"

[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
# Without CAP_SYS_RESOURCE, as in many a container and virtual machine, runc can't lower it.
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/etc/cni/net.d"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{}"
SystemdCgroup = false
"#,
        runc.display()
    )
}

/// How containerd reaches a registry whose certificate is of the cluster's own authority.
pub(super) fn registry(host: &str) -> String {
    format!("server = \"https://{host}\"\n\n[host.\"https://{host}\"]\nca = \"{CA_FILE}\"\n")
}

/// Each Pod has a link of its own to the node, not a port of a bridge. So answers from a Service on the same node pass
/// the node's packet filter without `br_netfilter`, which some kernels lack.
pub(super) fn cni(block: Block, index: u8) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "testbed",
        "plugins": [
            {
                "type": "ptp",
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": block.pods(index)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni-ipam",
                },
            },
        ],
    })
}

pub(super) fn kubelet(block: Block, cgroup: &str, plugins: Option<&str>, release: Release) -> Value {
    let mut configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": CA_FILE},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": KUBELET_CERTIFICATE,
        "tlsPrivateKeyFile": KUBELET_KEY,
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "resolvConf": "/etc/resolv.conf",
        "clusterDNS": [block.dns_service()],
        "clusterDomain": dns::DOMAIN,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        // The testbed does not watch the machine's disk and memory.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        // A lower value needs CAP_SYS_RESOURCE.
        "oomScoreAdj": 0,
        // Tests read volume statistics.
        "volumeStatsAggPeriod": "10s",
        "serializeImagePulls": false,
    });
    if release.has_volume_health() {
        configuration["featureGates"] = json!({(VOLUME_HEALTH): true});
    }
    // Without it, the kubelet uses its own default.
    if let Some(plugins) = plugins {
        configuration["volumePluginDir"] = plugins.into();
    }
    configuration
}

pub(super) fn proxy(block: Block, node: &str) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": block.all_pods(),
        "clientConnection": {"kubeconfig": PROXY_KUBECONFIG},
        "hostnameOverride": node,
        "oomScoreAdj": 0,
        // These settings belong to the machine, not to the node's network namespace.
        "conntrack": {"maxPerCore": 0, "min": 0},
    })
}

pub(super) fn hosts(block: Block, nodes: u8) -> String {
    let mut text = format!("127.0.0.1 localhost\n# {}\n", block.api_server());
    for index in 1..=nodes {
        let _ = writeln!(text, "{} {}", block.node(index), name(index));
    }
    text
}
