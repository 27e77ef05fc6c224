//! etcd, kube-apiserver, kube-controller-manager and kube-scheduler: their flags.

use anyhow::Result;
use nix::sched::CloneFlags;

use crate::audit::AUDIT_LOG;
use crate::binaries::{Binaries, Release};
use crate::dns;
use crate::layout::{CONTROL_PLANE, Layout, make_folder, write_file};
use crate::namespaces::{Waiting, start_init};
use crate::network::Block;
use crate::pki::{Authority, Identity};
use crate::spec::{InitSpec, ProcessSpec, environment};

/// Each request has one line. A watch's is written when it begins, since it may outlive the cluster; any other's when
/// the request is over.
const AUDIT_POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "None", "nonResourceURLs": ["*"]},
    {"level": "Metadata", "verbs": ["watch"], "omitStages": ["ResponseComplete"]},
    {"level": "Metadata", "omitStages": ["ResponseStarted"]}
  ]
}
"#;

/// Kubernetes' gate by which Pods and `CSINodes` show what drivers report of volumes and their storage.
pub const VOLUME_HEALTH: &str = "CSIVolumeHealth";

/// The feature gate that lets a claim name a source in another namespace.
const OTHER_NAMESPACES: &str = "CrossNamespaceVolumeDataSource";

pub(crate) const CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// Most requests a second of one of Kubernetes' own clients, and at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiLimits {
    pub qps: u32,
    pub burst: u32,
}

impl ApiLimits {
    /// As Kubernetes is shipped: each controller of kube-controller-manager has its own.
    pub const SHIPPED: Self = Self { qps: 20, burst: 30 };

    /// The testbed's: more than the machine can do.
    pub const RAISED: Self = Self { qps: 200, burst: 400 };

    /// Replaces the limits among a program's arguments.
    pub(crate) fn apply(self, args: &mut Vec<String>) {
        args.retain(|arg| !arg.starts_with("--kube-api-qps=") && !arg.starts_with("--kube-api-burst="));
        args.extend(self.flags());
    }

    /// The flags of Kubernetes' programs for them, and of its CSI sidecars.
    pub fn flags(self) -> [String; 2] {
        [
            format!("--kube-api-qps={}", self.qps),
            format!("--kube-api-burst={}", self.burst),
        ]
    }
}

/// Makes the control plane's certificates and starts its init process, which waits.
pub fn start(layout: &Layout, binaries: &Binaries, authority: &Authority, block: Block) -> Result<Waiting> {
    let folder = layout.state.join(CONTROL_PLANE);
    make_folder(&folder)?;
    let admin = authority.client("admin", "mooring-testbed-admin", Some("system:masters"))?;
    authority.kubeconfig(&layout.kubeconfig(), &block.api_server(), &admin)?;
    let spec = InitSpec {
        logs: layout.logs(CONTROL_PLANE),
        environment: environment(&binaries.search_path()),
        node: None,
        before_others: false,
        processes: vec![
            etcd(layout, binaries),
            api_server(layout, binaries, authority, block)?,
            controller_manager(layout, binaries, authority, block)?,
            scheduler(layout, binaries, authority, block)?,
            dns::process(layout, binaries, authority, block)?,
        ],
    };
    spec.save(layout, CONTROL_PLANE)?;
    start_init(
        layout,
        CONTROL_PLANE,
        CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS,
    )
}

fn feature_gates(release: Release) -> String {
    let health = release.has_volume_health().then_some(VOLUME_HEALTH);
    let gates = [OTHER_NAMESPACES].into_iter().chain(health);
    gates.map(|gate| format!("{gate}=true")).collect::<Vec<_>>().join(",")
}

fn process(binaries: &Binaries, name: &str, flags: &[(&str, String)]) -> ProcessSpec {
    ProcessSpec {
        name: name.to_owned(),
        program: binaries.path(name),
        args: flags.iter().map(|(flag, value)| format!("--{flag}={value}")).collect(),
        needs: None,
    }
}

/// etcd listens on a socket in root's folder: no port, no certificate, and nobody else has access.
fn etcd_socket(layout: &Layout, name: &str) -> String {
    format!("unix://{}/{CONTROL_PLANE}/etcd-{name}.sock", layout.state.display())
}

fn etcd(layout: &Layout, binaries: &Binaries) -> ProcessSpec {
    // etcd insists on addresses with ports to announce to its peers; there are no peers.
    let (advertised_client, advertised_peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    process(
        binaries,
        "etcd",
        &[
            ("name", "testbed".into()),
            ("data-dir", format!("{}/{CONTROL_PLANE}/etcd", layout.state.display())),
            ("listen-client-urls", etcd_socket(layout, "client")),
            ("advertise-client-urls", advertised_client.into()),
            ("listen-peer-urls", etcd_socket(layout, "peer")),
            ("initial-advertise-peer-urls", advertised_peer.into()),
            ("initial-cluster", format!("testbed={advertised_peer}")),
            // The cluster need not survive a restart of the machine.
            ("unsafe-no-fsync", "true".into()),
            ("log-level", "warn".into()),
        ],
    )
}

fn api_server(layout: &Layout, binaries: &Binaries, authority: &Authority, block: Block) -> Result<ProcessSpec> {
    let serving = authority.server(
        "kube-apiserver",
        &[
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ],
        &[block.control_plane(), block.api_service()],
    )?;
    let kubelet = authority.client("kube-apiserver-kubelet", "kube-apiserver", Some("system:masters"))?;
    let (signing, verifying) = authority.service_account_keys()?;
    let path = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let audit_policy = layout.state.join(CONTROL_PLANE).join("audit-policy.json");
    write_file(&audit_policy, AUDIT_POLICY)?;
    Ok(process(
        binaries,
        "kube-apiserver",
        &[
            ("advertise-address", block.control_plane().to_string()),
            ("bind-address", block.control_plane().to_string()),
            ("secure-port", "6443".into()),
            ("etcd-servers", etcd_socket(layout, "client")),
            ("client-ca-file", path(authority.certificate())),
            ("tls-cert-file", path(serving.certificate)),
            ("tls-private-key-file", path(serving.key)),
            ("kubelet-certificate-authority", path(authority.certificate())),
            ("kubelet-client-certificate", path(kubelet.certificate)),
            ("kubelet-client-key", path(kubelet.key)),
            // Nothing resolves the nodes' names.
            ("kubelet-preferred-address-types", "InternalIP".into()),
            ("service-cluster-ip-range", block.services()),
            (
                "service-account-issuer",
                "https://kubernetes.default.svc.cluster.local".into(),
            ),
            ("service-account-signing-key-file", path(signing)),
            ("service-account-key-file", path(verifying)),
            ("authorization-mode", "Node,RBAC".into()),
            ("enable-admission-plugins", "NodeRestriction".into()),
            ("allow-privileged", "true".into()),
            ("feature-gates", feature_gates(binaries.releases.control_plane)),
            ("audit-policy-file", path(audit_policy)),
            (
                "audit-log-path",
                path(layout.logs(CONTROL_PLANE).join(format!("{AUDIT_LOG}.log"))),
            ),
            // MiB per file, and the number of older ones: what `cargo testbed bench` needs to look back.
            ("audit-log-maxsize", "100".into()),
            ("audit-log-maxbackup", "3".into()),
            ("v", "1".into()),
        ],
    ))
}

/// A client's kubeconfig beside the certificates.
fn kubeconfig(layout: &Layout, authority: &Authority, block: Block, file: &str, identity: &Identity) -> Result<String> {
    let path = layout.pki().join(format!("{file}.kubeconfig"));
    authority.kubeconfig(&path, &block.api_server(), identity)?;
    Ok(path.to_string_lossy().into_owned())
}

fn controller_manager(
    layout: &Layout,
    binaries: &Binaries,
    authority: &Authority,
    block: Block,
) -> Result<ProcessSpec> {
    let name = CONTROLLER_MANAGER;
    let identity = authority.client(name, "system:kube-controller-manager", None)?;
    let (signing, _) = authority.service_account_keys()?;
    let mut process = process(
        binaries,
        name,
        &[
            ("kubeconfig", kubeconfig(layout, authority, block, name, &identity)?),
            ("bind-address", block.control_plane().to_string()),
            ("root-ca-file", authority.certificate().to_string_lossy().into_owned()),
            (
                "cluster-signing-cert-file",
                authority.certificate().to_string_lossy().into_owned(),
            ),
            (
                "cluster-signing-key-file",
                authority.key().to_string_lossy().into_owned(),
            ),
            (
                "service-account-private-key-file",
                signing.to_string_lossy().into_owned(),
            ),
            ("use-service-account-credentials", "true".into()),
            // The controller manager creates this folder, by default on the machine itself; there are no drivers in it.
            (
                "flex-volume-plugin-dir",
                format!("{}/{CONTROL_PLANE}/flex-volume-plugins", layout.state.display()),
            ),
            // There is only one: an election would only take time.
            ("leader-elect", "false".into()),
            ("v", "1".into()),
        ],
    );
    ApiLimits::RAISED.apply(&mut process.args);
    Ok(process)
}

fn scheduler(layout: &Layout, binaries: &Binaries, authority: &Authority, block: Block) -> Result<ProcessSpec> {
    let name = "kube-scheduler";
    let identity = authority.client(name, "system:kube-scheduler", None)?;
    let mut process = process(
        binaries,
        name,
        &[
            ("kubeconfig", kubeconfig(layout, authority, block, name, &identity)?),
            ("bind-address", block.control_plane().to_string()),
            ("leader-elect", "false".into()),
            ("v", "1".into()),
        ],
    );
    ApiLimits::RAISED.apply(&mut process.args);
    Ok(process)
}
