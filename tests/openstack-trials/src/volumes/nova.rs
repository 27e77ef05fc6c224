//! `cargo testbed openstack --nova`: a node that is a server of Nova gets volumes of Cinder by Nova's attach, and finds
//! them by their serial; others get the same class without Nova. Nova is real, with its fake driver, which attaches
//! nothing: what Nova says is attached, this plugs into the node, a virtual machine, as a hypervisor would.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{CLAIMS, Claim, MOORING, SECRET, TRIAL, TYPE, Trial, login, pod, use_services, wait_until};
use crate::kustomization::Kustomization;
use mooring_testbed::cluster::Cluster;
use mooring_testbed::layout::make_folder;
use mooring_testbed::progress::step;
use mooring_testbed::target::Target;

/// Nova: a component for the services.
const COMPONENT: &str = "tests/openstack/nova";

/// What the trial needs besides the usual images.
pub(crate) const IMAGES: [&str; 1] = ["testbed-nova"];

/// The node that is a server of Nova's, with the server's name, and the image that it mounts volumes with.
const MACHINE: &str = "machine-1";
const CLIENT: &str = "client-block";

/// One that Nova does not know.
const OTHER: &str = "node-1";

const GIB: u64 = 1 << 30;

/// The services with Nova.
pub(crate) fn settings() -> Kustomization {
    Kustomization::new(&[]).with_component(COMPONENT)
}

pub(crate) fn run(target: &Target) -> Result<()> {
    let cluster = target
        .own_cluster()
        .context("Nova's server is a virtual machine, which only the testbed's own cluster has")?;
    let trial = Trial { target };
    let before = trial.left()?;
    trial.types(TYPE)?;
    let mut nova = step(&format!("a server of Nova, {MACHINE}"), |_| {
        Nova::begin(&trial, cluster)
    })?;
    let ran = nova.try_out().inspect_err(|_| trial.explain());
    step("remove claims, Pods, classes and the server", |_| {
        trial.remove()?;
        use_services(target, "server", &[&json!(format!("-{MACHINE}"))]).map(drop)
    })?;
    trial.types(&format!("-{TYPE}"))?;
    cluster.remove_machine()?;
    ran?;
    trial.nothing_is_left(&before)
}

struct Nova<'a> {
    trial: &'a Trial<'a>,
    cluster: &'a Cluster,
    server: String,
    /// The disks of volumes, which are files here.
    disks: BTreeMap<String, PathBuf>,
}

impl<'a> Nova<'a> {
    fn begin(trial: &'a Trial<'a>, cluster: &'a Cluster) -> Result<Self> {
        let made = use_services(trial.target, "server", &[&json!(MACHINE)])?;
        let server = made.as_str().context("use.py server answered no id")?.to_owned();
        cluster.start_machine(&[CLIENT])?;
        let is = json!({"spec": {"providerID": format!("openstack:///{server}")}}).to_string();
        trial.kubectl(&["patch", "node", MACHINE, "-p", &is])?;
        Ok(Self {
            trial,
            cluster,
            server,
            disks: BTreeMap::new(),
        })
    }

    fn try_out(&mut self) -> Result<()> {
        let trial = self.trial;
        let Claim { config, class, .. } = CLAIMS[0];
        step("register Cinder", |_| {
            self.register()?;
            trial.discovered(class)
        })?;
        let here = format!("{config}-{MACHINE}");
        let there = format!("{config}-{OTHER}");
        let volume = step(
            &format!("Nova attaches a volume for a Pod on {MACHINE}, which writes to it"),
            |_| {
                trial.put(&CLAIMS[0].to_claim(1))?;
                trial.put(&pod(config, MACHINE, "echo written >/data/letter; sync; sleep 100000"))?;
                let volume = self.attached()?;
                self.plug(&volume)?;
                trial.ready(&here)?;
                let mounts = trial.exec(&here, "grep ' /data ' /proc/mounts")?;
                ensure!(
                    mounts.starts_with("/run/mooring-devices/vd"),
                    "it is not the disk that was plugged in: {mounts}"
                );
                Ok(volume)
            },
        )?;
        step("it grows to 2 GiB while it is used", |_| {
            trial.put(&CLAIMS[0].to_claim(2))?;
            let name = trial.field("persistentvolumeclaim", config, "{.spec.volumeName}")?;
            wait_until("2Gi of storage", || {
                let has = trial.field("persistentvolume", &name, "{.spec.capacity.storage}")?;
                ensure!(has == "2Gi", "the volume has {has}");
                Ok(())
            })?;
            self.cluster.machine_monitor()?.resize(&volume, 2 * GIB)?;
            wait_until("2Gi in the claim's status", || {
                let has = trial.field("persistentvolumeclaim", config, "{.status.capacity.storage}")?;
                ensure!(has == "2Gi", "the claim has {has}");
                Ok(())
            })?;
            let size = trial.exec(&here, "df -m /data | tail -n 1")?;
            let mib = size.split_whitespace().find_map(|word| word.parse::<u64>().ok());
            ensure!(
                mib.is_some_and(|mib| mib > 1500),
                "it does not have 2 GiB there: {size}"
            );
            Ok(())
        })?;
        step(
            &format!("a Pod on {OTHER}, which Nova does not know, has it after that"),
            |_| {
                trial.delete_pod(&here)?;
                self.detached()?;
                self.cluster.machine_monitor()?.unplug(&volume)?;
                // What the machine wrote is in the disk's file.
                trial.put(&pod(config, OTHER, "echo other >/data/letter; sync; sleep 100000"))?;
                trial.ready(&there)?;
                ensure!(self.nova_has()?.is_empty(), "Nova has attached it too");
                trial.delete_pod(&there)
            },
        )?;
        step(&format!("{MACHINE} has it again, with what was written there"), |_| {
            trial.put(&pod(config, MACHINE, "grep written /data/letter && sleep 100000"))?;
            ensure!(self.attached()? == volume, "another volume is attached");
            self.plug(&volume)?;
            trial.ready(&here)
        })?;
        step(
            &format!("{MACHINE} and its server are gone: a Pod on {OTHER} has the volume"),
            |_| {
                self.cluster.remove_machine()?;
                trial.kubectl(&[
                    "-n",
                    TRIAL,
                    "delete",
                    "pod",
                    &here,
                    "--ignore-not-found",
                    "--force",
                    "--timeout=120s",
                ])?;
                use_services(trial.target, "server", &[&json!(format!("-{MACHINE}"))])?;
                trial.put(&pod(config, OTHER, "grep other /data/letter && sleep 100000"))?;
                trial.ready(&there)
            },
        )
    }

    fn register(&self) -> Result<()> {
        let mut items = self.trial.documents()?;
        items.retain(|one| one["metadata"]["name"] != CLAIMS[1].config);
        for config in items
            .iter_mut()
            .filter(|one| one["metadata"]["name"] == CLAIMS[0].config)
        {
            config["data"]["file-system"] = "xfs".into();
        }
        items.push(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": MOORING},
            "stringData": login(self.trial.target)?,
        }));
        self.trial
            .put(&json!({"apiVersion": "v1", "kind": "List", "items": items}))
    }

    fn nova_has(&self) -> Result<Vec<Value>> {
        let there = use_services(self.trial.target, "disks", &[&json!(self.server)])?;
        there.as_array().cloned().context("use.py disks answered no list")
    }

    /// Waits until Nova has a volume attached; returns its id.
    fn attached(&self) -> Result<String> {
        let mut found = None;
        wait_until("Nova to attach the volume", || {
            found = self.nova_has()?.first().and_then(Value::as_str).map(str::to_owned);
            ensure!(found.is_some(), "Nova has none");
            Ok(())
        })?;
        found.context("no volume")
    }

    fn detached(&self) -> Result<()> {
        wait_until("Nova to detach the volume", || {
            let there = self.nova_has()?;
            ensure!(there.is_empty(), "Nova still has {there:?}");
            Ok(())
        })
    }

    /// Does what the hypervisor would: the first time, with an empty disk.
    fn plug(&mut self, volume: &str) -> Result<()> {
        if !self.disks.contains_key(volume) {
            let folder = self.cluster.layout.machine(MACHINE);
            make_folder(&folder)?;
            let path = folder.join(format!("volume-{volume}"));
            let file = File::create(&path).with_context(|| format!("failed to make {}", path.display()))?;
            file.set_len(GIB)
                .with_context(|| format!("failed to size {}", path.display()))?;
            self.disks.insert(volume.to_owned(), path);
        }
        self.cluster.machine_monitor()?.plug(volume, &self.disks[volume])
    }
}

impl Drop for Nova<'_> {
    fn drop(&mut self) {
        for file in self.disks.values() {
            let _ = std::fs::remove_file(file);
        }
    }
}
