//! `cargo testbed openstack --back-ends`: volumes of Cinder that come by iSCSI, on nodes whose kernel has none and on one
//! whose kernel has, and by NFS, and shares of Manila that come by NFS and by CIFS. Afterwards nothing of them is left.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Claim, MOORING, SECRET, Trial, login, pod, share_type, use_services, wait_until};
use crate::kustomization::Kustomization;
use mooring_testbed::progress::step;
use mooring_testbed::target::Target;

/// The back ends: a component for the services.
const COMPONENT: &str = "tests/openstack/back-ends";

/// The names of Cinder's other back ends, and of the volume types for them.
const TYPES: [&str; 2] = ["iscsi", "nfs"];

/// Whom Samba knows (`tests/openstack/back-ends`).
const USER: &str = "mooring";
const PASSWORD: &str = "not-to-be-seen, 12";

/// What the trial needs besides the usual images.
pub(crate) const IMAGES: [&str; 3] = ["testbed-cinder-servers", "testbed-manila-servers", KERNEL_CLIENT];

/// The node in a virtual machine, whose kernel has iSCSI, NFS and SMB, and the image that it needs for the first.
const MACHINE: &str = "machine-1";
const KERNEL_CLIENT: &str = "client-iscsi";

/// The label by which nodes are in a zone, and the zone that Cinder and Manila have if nobody says another.
const ZONE_LABEL: &str = "openstack.mooring.dev/zone";
const ZONE: &str = "nova";

/// On any node.
const BY_FUSE: Claim = Claim {
    config: "cinder",
    class: "cinder-iscsi",
    mode: "ReadWriteOnce",
};

/// On a node whose kernel has iSCSI, by FlexVolume.
const BY_KERNEL: Claim = Claim {
    config: "cinder-kernel",
    class: "cinder-kernel-iscsi.nova",
    mode: "ReadWriteOnce",
};

/// On any node, as a file of an export, which Cinder neither enlarges nor copies while a node has it.
const BY_FILE: Claim = Claim {
    config: "cinder",
    class: "cinder-nfs",
    mode: "ReadWriteOnce",
};

/// A share of another back end of Manila's.
pub(crate) struct Share {
    /// The share type for it.
    kind: &'static str,
    back_end: &'static str,
    /// As Manila calls it, and as the kernel does.
    protocol: &'static str,
    file_system: &'static str,
    claim: Claim,
    /// Whom it lets in, if not the node by its address.
    user: Option<&'static str>,
}

pub(crate) const SHARES: [Share; 2] = [
    Share {
        kind: "nfs",
        back_end: "cephfsnfs",
        protocol: "NFS",
        file_system: "nfs4",
        claim: Claim {
            config: "manila",
            class: "manila-nfs-nfs.nova",
            mode: "ReadWriteMany",
        },
        user: None,
    },
    Share {
        kind: "cifs",
        back_end: "samba",
        protocol: "CIFS",
        file_system: "cifs",
        claim: Claim {
            config: "manila",
            class: "manila-cifs-smb.nova",
            mode: "ReadWriteMany",
        },
        user: Some(USER),
    },
];

/// The services with the back ends.
pub(crate) fn settings() -> Kustomization {
    Kustomization::new(&[]).with_component(COMPONENT)
}

pub(crate) fn run(target: &Target) -> Result<()> {
    let machine = target
        .own_cluster()
        .context("the back ends are tried with a virtual machine, which only the testbed's own cluster has")?;
    machine.start_machine(&[KERNEL_CLIENT])?;
    let trial = Trial { target };
    trial.kubectl(&["label", "node", MACHINE, &format!("{ZONE_LABEL}={ZONE}")])?;
    let before = trial.left()?;
    make_types(&trial)?;
    let ran = step("register Cinder by iSCSI and NFS, and Manila by NFS and CIFS", |_| {
        register(&trial)
    })
    .and_then(|()| trial.try_out(&BY_FUSE))
    .and_then(|()| by_file(&trial))
    .and_then(|()| by_the_kernel(&trial))
    .and_then(|()| SHARES.iter().try_for_each(|share| share.try_out(&trial)));
    let ran = ran.inspect_err(|_| trial.explain());
    step("remove claims, Pods and classes", |_| {
        trial.remove()?;
        let kernel = [
            "-n",
            MOORING,
            "delete",
            "configmap",
            BY_KERNEL.config,
            "--ignore-not-found",
        ];
        trial.kubectl(&kernel).map(drop)
    })?;
    remove_types(&trial)?;
    machine.remove_machine()?;
    ran?;
    trial.nothing_is_left(&before)
}

fn make_types(trial: &Trial<'_>) -> Result<()> {
    use_services(trial.target, "types", &[&json!(TYPES)])?;
    for name in TYPES {
        let specs = json!({"volume_backend_name": name});
        use_services(trial.target, "specs", &[&json!(name), &specs])?;
    }
    let make = |share: &Share| share.make_type(trial.target, share.kind);
    SHARES.iter().try_for_each(make)
}

fn remove_types(trial: &Trial<'_>) -> Result<()> {
    use_services(trial.target, "types", &[&json!(TYPES.map(|name| format!("-{name}")))])?;
    let remove = |share: &Share| share_type(trial.target, &format!("-{}", share.kind));
    SHARES.iter().try_for_each(remove)
}

/// The usual ConfigMaps, each for the types of these back ends, and one more for the node whose kernel has iSCSI.
fn register(trial: &Trial<'_>) -> Result<()> {
    let mut login = login(trial.target)?;
    // There is no Ceph that nodes would have to log in to.
    login.as_object_mut().context("no login")?.remove("ceph-key");
    login["cifs-username"] = USER.into();
    login["cifs-password"] = PASSWORD.into();
    let mut items = trial.documents()?;
    for config in &mut items {
        match config["metadata"]["name"].as_str() {
            Some("cinder") => {
                let image = config["data"]["image"].as_str().unwrap_or_default();
                config["data"]["image"] = image.replace("-openstack-ceph", "-openstack").into();
                config["data"]["client"] = "block".into();
                config["data"]["volume-types"] = TYPES.join(", ").into();
                config["data"]["file-system"] = "xfs".into();
            }
            Some("manila") => {
                config["data"]["share-types"] = SHARES.map(|share| share.kind).join(", ").into();
                config["data"]["zone-label"] = ZONE_LABEL.into();
            }
            _ => {}
        }
    }
    let cinder = items.iter().find(|one| one["metadata"]["name"] == "cinder");
    let mut kernel = cinder.context("the kustomization has no ConfigMap for Cinder")?.clone();
    kernel["metadata"]["name"] = BY_KERNEL.config.into();
    kernel["metadata"]["labels"] = json!({"type": "provisioner-config", "storage-class": BY_KERNEL.config});
    kernel["data"]["client"] = "iscsi".into();
    kernel["data"]["volume-types"] = TYPES[0].into();
    kernel["data"]["volume-source"] = "flexVolume".into();
    kernel["data"]["zone-label"] = ZONE_LABEL.into();
    items.push(kernel);
    items.push(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": MOORING},
        "stringData": login,
    }));
    trial.put(&json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

/// A volume that is a file of an export: for a Pod on one node, enlarged, for one on another node, and copied.
fn by_file(trial: &Trial<'_>) -> Result<()> {
    let (name, copy) = ("cinder-file", "cinder-file-copy");
    let [writes, reads] = ["node-1", "node-2"].map(|node| format!("{name}-{node}"));
    let reader = |claim: &str, node| pod(claim, node, "grep written /data/letter && sleep 100000");
    step(
        &format!("a Pod on node-1 that writes to {name}, a file of an export"),
        |_| {
            trial.discovered(BY_FILE.class)?;
            trial.put(&BY_FILE.named(name, 1))?;
            trial.put(&pod(name, "node-1", "echo written >/data/letter; sync; sleep 100000"))?;
            trial.ready(&writes)
        },
    )?;
    step(
        "it grows to 2 GiB when no node has it, and a Pod on node-2 finds it so",
        |_| {
            trial.put(&BY_FILE.named(name, 2))?;
            trial.is_told(name, "grows when no Pod uses it")?;
            trial.delete_pod(&writes)?;
            trial.volume_has_2_gib(name)?;
            trial.put(&reader(name, "node-2"))?;
            trial.ready(&reads)?;
            trial.finds_2_gib(&reads)?;
            trial.claim_has_2_gib(name)
        },
    )?;
    step(
        "a Pod on node-1 reads from a copy of it, which is made when no node has it",
        |_| {
            trial.delete_pod(&reads)?;
            let mut asked = BY_FILE.named(copy, 2);
            asked["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": name});
            trial.put(&asked)?;
            trial.put(&reader(copy, "node-1"))?;
            trial.ready(&format!("{copy}-node-1"))
        },
    )?;
    step("a claim whose first runs are killed has one volume in the end", |_| {
        trial.survive(&BY_FILE)
    })
}

/// A volume that the kernel of one node mounts, for one Pod and then for another.
fn by_the_kernel(trial: &Trial<'_>) -> Result<()> {
    let name = "cinder-kernel";
    step(
        &format!("a Pod on {MACHINE} that writes to {name}, by FlexVolume and the kernel"),
        |_| {
            trial.discovered(BY_KERNEL.class)?;
            trial.put(&BY_KERNEL.named(name, 1))?;
            trial.put(&pod(name, MACHINE, "echo written >/data/letter; sync; sleep 100000"))?;
            trial.ready(&format!("{name}-{MACHINE}"))?;
            let mounts = trial.exec(&format!("{name}-{MACHINE}"), "grep ' /data ' /proc/mounts")?;
            ensure!(
                mounts.contains("/sd"),
                "it is not mounted by the kernel's iSCSI: {mounts}"
            );
            trial.delete_pod(&format!("{name}-{MACHINE}"))
        },
    )?;
    step(&format!("{name} has another Pod after that one"), |_| {
        trial.put(&pod(name, MACHINE, "grep written /data/letter && sleep 100000"))?;
        trial.ready(&format!("{name}-{MACHINE}"))
    })
}

impl Share {
    /// Makes a share type for its back end.
    pub(crate) fn make_type(&self, target: &Target, name: &str) -> Result<()> {
        let specs = json!({"share_backend_name": self.back_end, "storage_protocol": self.protocol});
        use_services(target, "share_type", &[&json!(name), &specs]).map(drop)
    }

    fn try_out(&self, trial: &Trial<'_>) -> Result<()> {
        let Self {
            kind,
            claim,
            file_system,
            ..
        } = self;
        let name = &format!("manila-{kind}");
        let [first, second] = ["first", "second"].map(|which| format!("{name}-{which}"));
        let path = "{.status.addresses[?(@.type==\"InternalIP\")].address}";
        let whom = match self.user {
            Some(user) => user.to_owned(),
            None => trial.field("node", MACHINE, path)?,
        };
        let (writes, reads) = (format!("{whom} rw"), format!("{whom} ro"));
        let what = format!("a share of {} lets {whom} in when a Pod mounts it", self.protocol);
        step(&what, |_| {
            trial.discovered(claim.class)?;
            trial.put(&claim.named(name, 1))?;
            bound(trial, name)?;
            lets_in(trial, &[])?;
            trial.put(&user(&first, name, "echo written >/data/letter; sync; sleep 100000"))?;
            trial.ready(&first)?;
            lets_in(trial, &[&writes])?;
            let mounts = trial.exec(&first, "grep ' /data ' /proc/mounts")?;
            ensure!(
                mounts.contains(&format!(" {file_system} ")),
                "it is mounted otherwise: {mounts}"
            );
            Ok(())
        })?;
        step(
            "it grows to 2 GiB while it is used, and a second Pod reads from it",
            |_| {
                trial.put(&claim.named(name, 2))?;
                trial.claim_has_2_gib(name)?;
                trial.put(&user(&second, name, "grep written /data/letter && sleep 100000"))?;
                trial.ready(&second)?;
                trial.finds_2_gib(&second)?;
                lets_in(trial, &[&writes])
            },
        )?;
        step("a copy of it for reading alone lets nobody write", |_| {
            let copy = format!("{name}-copy");
            let mut asked = claim.named(&copy, 2);
            asked["spec"]["accessModes"] = json!(["ReadOnlyMany"]);
            asked["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": name});
            trial.put(&asked)?;
            trial.put(&user(&copy, &copy, "grep written /data/letter && sleep 100000"))?;
            trial.ready(&copy)?;
            lets_in(trial, &[&reads, &writes])?;
            let wrote = trial.exec(&copy, "touch /data/other");
            ensure!(wrote.is_err(), "the Pod could write to it");
            trial.delete_pod(&copy)?;
            lets_in(trial, &[&writes])
        })?;
        let what = "a claim whose first runs are killed has one share in the end";
        step(what, |_| trial.survive(claim))?;
        step("the share lets the node in until its last Pod is gone", |_| {
            trial.delete_pod(&first)?;
            trial.exec(&second, "echo more >>/data/letter && sync")?;
            lets_in(trial, &[&writes])?;
            trial.delete_pod(&second)?;
            lets_in(trial, &[])
        })
    }
}

fn user(name: &str, claim: &str, command: &str) -> Value {
    let mut user = pod(claim, MACHINE, command);
    user["metadata"]["name"] = name.into();
    user
}

fn bound(trial: &Trial<'_>, claim: &str) -> Result<()> {
    wait_until("the claim to be bound", || {
        let phase = trial.field("persistentvolumeclaim", claim, "{.status.phase}")?;
        ensure!(phase == "Bound", "the claim is {phase}");
        Ok(())
    })
}

/// Waits until Manila's rules are these.
fn lets_in(trial: &Trial<'_>, wanted: &[&str]) -> Result<()> {
    wait_until(&format!("rules for {wanted:?}"), || {
        let there = use_services(trial.target, "let_in", &[])?;
        ensure!(there == json!(wanted), "there are {there}");
        Ok(())
    })
}
