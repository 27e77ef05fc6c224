//! What all scenes stand on: the services' addresses, their lists, and a namespace for Secrets of shares.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cloud::Cloud;
use super::proxy::{Proxy, Servers};
use crate::{NAMESPACE, login};
use mooring_testbed::command::output;
use mooring_testbed::images::program_folder;
use mooring_testbed::install::apply;
use mooring_testbed::layout::repository;
use mooring_testbed::target::Target;

/// Where the Secrets with the keys of shares are.
const SECRETS: &str = "openstack-faults";

/// The services by the names and ports in Keystone's catalogue.
const SERVERS: [(&str, u16); 3] = [("keystone", 5000), ("cinder-api", 8776), ("manila-api", 8786)];

/// A key of the form that secrets are sealed with. Nobody opens what the trial's runs seal.
const ANSWER_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// Lists what Ceph has, a line each. Cinder's driver keeps the image of a volume that was copied, under another name,
/// also when both volumes are gone.
const CEPH: &str = r#"
ceph() { /usr/bin/ceph --conf /run/ceph/ceph.conf "$@"; }
for pool in volumes backups; do
    rbd --conf /run/ceph/ceph.conf ls $pool | grep -v '[.]deleted$' | sed "s|^|image $pool/|"
    rbd --conf /run/ceph/ceph.conf trash ls $pool | sed "s|^|removed image of $pool: |"
done
ceph fs subvolume ls cephfs | grep name
ceph auth ls 2>/dev/null | grep ^client
"#;

pub(super) struct Ground<'a> {
    target: &'a Target,
    pub(super) program: PathBuf,
    pub(super) servers: Servers,
    pub(super) cloud: Cloud,
    pub(super) kube_api: String,
    /// Begins the names of all that this process makes.
    pub(super) name: String,
    clouds: String,
    ceph_key: String,
    kube_ca: String,
    kube_token: String,
}

impl<'a> Ground<'a> {
    /// The cluster has to be the testbed's own: this machine reaches its Pods.
    pub(super) fn prepare(target: &'a Target) -> Result<Self> {
        let cluster = target
            .own_cluster()
            .context("--faults takes the testbed's own cluster: leave out --existing")?;
        let servers = servers(target)?;
        let login = login(target)?;
        let text = |key: &str| login[key].as_str().unwrap_or_default().to_owned();
        let clouds = text("clouds.yaml");
        let read: Value = mooring_yaml::from_str(&clouds).context("failed to read clouds.yaml")?;
        let ca = cluster.layout.pki().join("ca.crt");
        Ok(Self {
            target,
            program: repository().join(program_folder()?).join("provisioner-openstack"),
            cloud: Cloud::open(servers.clone(), &read)?,
            servers,
            kube_api: cluster.description.block.api_server(),
            name: format!("faults-{}", std::process::id()),
            clouds,
            ceph_key: text("ceph-key"),
            kube_ca: std::fs::read_to_string(&ca).with_context(|| format!("failed to read {}", ca.display()))?,
            kube_token: namespace(target)?,
        })
    }

    /// The properties of each run.
    pub(super) fn properties(&self, service: &str, proxy: &Proxy) -> Vec<(&'static str, String)> {
        let clouds = self.clouds.replace("http://", &proxy.prefix());
        let mut properties = vec![("clouds.yaml", clouds), ("service", service.to_owned())];
        properties.push(("answer-key", ANSWER_KEY.to_owned()));
        let own = match service {
            "cinder" => vec![("client", "rbd".to_owned()), ("ceph-key", self.ceph_key.clone())],
            _ => vec![
                ("protocols", "CEPHFS".to_owned()),
                ("share-type", super::SHARE_TYPE.to_owned()),
                ("keys-namespace", SECRETS.to_owned()),
                ("kube-ca", self.kube_ca.clone()),
                ("service-token", self.kube_token.clone()),
            ],
        };
        properties.extend(own);
        properties
    }

    /// What a service has, and Kubernetes for it, sorted.
    pub(super) fn there(&self, service: &str) -> Result<Vec<String>> {
        let mut all = match service {
            "cinder" => self.cloud.volumes()?,
            _ => [self.cloud.shares()?, self.secrets()?].concat(),
        };
        all.sort();
        Ok(all)
    }

    /// All that could be left, sorted, also in Ceph.
    pub(super) fn everything(&self) -> Result<Vec<String>> {
        let mut all = [self.cloud.everything()?, self.secrets()?, self.ceph()?].concat();
        all.sort();
        Ok(all)
    }

    fn secrets(&self) -> Result<Vec<String>> {
        let mut get = self.target.kubectl(["-n", SECRETS, "get", "secrets", "-o", "name"]);
        Ok(output(&mut get)?.lines().map(str::to_owned).collect())
    }

    /// Images of RBD, subvolumes of CephFS, and clients that shares have.
    fn ceph(&self) -> Result<Vec<String>> {
        let exec = ["-n", NAMESPACE, "exec", "ceph-mon-0", "--", "sh", "-c", CEPH];
        let lines = output(&mut self.target.kubectl(exec))?;
        Ok(lines.lines().map(|line| line.trim().to_owned()).collect())
    }

    pub(super) fn remove(&self) -> Result<()> {
        let mut delete = self
            .target
            .kubectl(["delete", "namespace", SECRETS, "--ignore-not-found"]);
        output(&mut delete)?;
        Ok(())
    }
}

/// The addresses of the services' Pods.
fn servers(target: &Target) -> Result<Servers> {
    let mut all = Servers::new();
    for (name, port) in SERVERS {
        let service = format!("kubernetes.io/service-name={name}");
        let path = "jsonpath={.items[0].endpoints[0].addresses[0]}";
        let slices = ["-n", NAMESPACE, "get", "endpointslices", "-l", &service, "-o", path];
        let address = output(&mut target.kubectl(slices))?;
        let address = address.parse().with_context(|| format!("{name} has no Pod"))?;
        all.insert(format!("{name}.{NAMESPACE}.svc:{port}"), SocketAddr::new(address, port));
    }
    Ok(all)
}

/// Makes the namespace; returns the token of an account that has the image's rights there.
fn namespace(target: &Target) -> Result<String> {
    let of = |kind: &str, api: &str, more: Value| {
        let mut object = json!({
            "apiVersion": api, "kind": kind, "metadata": {"name": SECRETS, "namespace": SECRETS},
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        object
    };
    let rbac = "rbac.authorization.k8s.io/v1";
    let verbs =
        json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch", "delete"]}]});
    let bound = json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": SECRETS},
        "subjects": [{"kind": "ServiceAccount", "name": SECRETS, "namespace": SECRETS}],
    });
    let items = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SECRETS}}),
        of("ServiceAccount", "v1", Value::Null),
        of("Role", rbac, verbs),
        of("RoleBinding", rbac, bound),
    ];
    apply(
        target,
        &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string(),
    )?;
    let mut create = target.kubectl(["-n", SECRETS, "create", "token", SECRETS, "--duration=2h"]);
    let token = output(&mut create)?.trim().to_owned();
    ensure!(!token.is_empty(), "the account has no token");
    Ok(token)
}
