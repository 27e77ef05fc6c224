//! DNS for Services within the cluster: `CoreDNS` beside the control plane, behind the usual Service `kube-dns`.

use anyhow::Result;
use serde_json::{Value, json};

use crate::binaries::Binaries;
use crate::layout::{CONTROL_PLANE, Layout, write_file};
use crate::network::Block;
use crate::pki::Authority;
use crate::spec::ProcessSpec;

/// Domain of the cluster's names.
pub const DOMAIN: &str = "cluster.local";

/// Port on the bridge: the machine's own server may use 53.
const PORT: u16 = 10053;

/// The server's user in the API.
const USER: &str = "testbed:coredns";

/// Writes the server's files, and returns its process.
pub(crate) fn process(
    layout: &Layout,
    binaries: &Binaries,
    authority: &Authority,
    block: Block,
) -> Result<ProcessSpec> {
    let identity = authority.client("coredns", USER, None)?;
    let kubeconfig = layout.pki().join("coredns.kubeconfig");
    authority.kubeconfig(&kubeconfig, &block.api_server(), &identity)?;
    let corefile = layout.state.join(CONTROL_PLANE).join("Corefile");
    let upstream = std::fs::read_to_string("/etc/resolv.conf").is_ok_and(|text| has_server(&text));
    write_file(&corefile, config(block, &kubeconfig.to_string_lossy(), upstream))?;
    Ok(ProcessSpec {
        name: "coredns".to_owned(),
        program: binaries.path("coredns"),
        args: vec!["-conf".to_owned(), corefile.to_string_lossy().into_owned()],
        needs: None,
    })
}

fn has_server(resolv_conf: &str) -> bool {
    resolv_conf
        .lines()
        .any(|line| line.trim_start().starts_with("nameserver "))
}

fn config(block: Block, kubeconfig: &str, upstream: bool) -> String {
    let address = block.control_plane();
    let forward = if upstream {
        "    forward . /etc/resolv.conf\n"
    } else {
        ""
    };
    format!(
        ".:{PORT} {{\n    bind {address}\n    errors\n    cache 5\n    kubernetes {DOMAIN} in-addr.arpa {{\n        \
         kubeconfig {kubeconfig}\n        ttl 5\n        fallthrough in-addr.arpa\n    }}\n{forward}}}\n"
    )
}

/// The Service, its endpoint, and the server's rights.
pub fn manifest(block: Block) -> Value {
    let ports = |port: u16| {
        json!([
            {"name": "dns", "protocol": "UDP", "port": port},
            {"name": "dns-tcp", "protocol": "TCP", "port": port},
        ])
    };
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {"clusterIP": block.dns_service(), "ports": ports(53)},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [block.control_plane()]}],
            "ports": ports(PORT),
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": USER},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "namespaces", "pods"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        },
    ]})
}

#[cfg(test)]
mod tests {
    use super::has_server;

    #[test]
    fn outside_names_are_resolved_only_where_the_machine_has_a_server() {
        assert!(has_server("# made by hand\nnameserver 127.0.0.53\n"));
        assert!(!has_server("search example.com\n#nameserver 1.2.3.4\n"));
    }
}
