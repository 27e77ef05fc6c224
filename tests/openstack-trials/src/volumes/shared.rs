//! Volumes that two nodes have at once: a share of Manila, which lets in the nodes that mount it, and a raw block
//! volume of Cinder.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{CLAIMS, Claim, TRIAL, Trial, pod, use_services, wait_until};
use mooring_testbed::progress::step;

/// A volume type that lets several nodes have a volume, and its class.
const TYPE: &str = "trial-shared";
const CLASS: &str = "cinder-trial-shared";

const NODES: [&str; 2] = ["node-1", "node-2"];

/// What a Pod has for its device.
const DEVICE: &str = "/dev/data";

pub(super) fn make_type(trial: &Trial<'_>) -> Result<()> {
    use_services(trial.target, "types", &[&json!([TYPE])])?;
    let specs = json!({"multiattach": "<is> True"});
    use_services(trial.target, "specs", &[&json!(TYPE), &specs]).map(drop)
}

pub(super) fn remove_type(trial: &Trial<'_>) -> Result<()> {
    use_services(trial.target, "types", &[&json!([format!("-{TYPE}")])]).map(drop)
}

pub(super) fn run(trial: &Trial<'_>) -> Result<()> {
    share(trial)?;
    device(trial)?;
    refused(trial)
}

/// How many things there are of one kind.
fn count(trial: &Trial<'_>, kind: &str) -> Result<usize> {
    let all = trial.everything()?;
    let of_kind = |one: &&Value| one.as_str().is_some_and(|one| one.starts_with(kind));
    Ok(all.iter().filter(of_kind).count())
}

fn wait_for_count(trial: &Trial<'_>, kind: &str, wanted: usize) -> Result<()> {
    wait_until(&format!("{wanted} of {kind:?}"), || {
        let there = count(trial, kind)?;
        ensure!(there == wanted, "there are {there}");
        Ok(())
    })
}

fn share(trial: &Trial<'_>) -> Result<()> {
    let name = "manila-rules";
    let before = count(trial, "rule ")?;
    step(
        "a share that no node mounts lets none in, and two that mount it",
        |_| {
            trial.put(&CLAIMS[1].named(name, 1))?;
            wait_until("the claim to be bound", || {
                let phase = trial.field("persistentvolumeclaim", name, "{.status.phase}")?;
                ensure!(phase == "Bound", "the claim is {phase}");
                Ok(())
            })?;
            ensure!(count(trial, "rule ")? == before, "there is a rule before any Pod");
            trial.put(&pod(name, NODES[0], "echo written >/data/letter; sync; sleep 100000"))?;
            trial.ready(&format!("{name}-node-1"))?;
            trial.put(&pod(name, NODES[1], "grep written /data/letter && sleep 100000"))?;
            trial.ready(&format!("{name}-node-2"))?;
            let there = count(trial, "rule ")?;
            ensure!(there == before + 2, "there are {there} rules");
            Ok(())
        },
    )?;
    step(
        "the share lets a node in no more when its Pod is gone, and the other still",
        |_| {
            trial.delete_pod(&format!("{name}-node-1"))?;
            wait_for_count(trial, "rule ", before + 1)?;
            trial.exec(
                &format!("{name}-node-2"),
                "echo more >>/data/letter && sync && grep more /data/letter",
            )?;
            trial.delete_pod(&format!("{name}-node-2"))?;
            wait_for_count(trial, "rule ", before)
        },
    )
}

fn device(trial: &Trial<'_>) -> Result<()> {
    let name = "cinder-shared";
    let before = count(trial, "attachment ")?;
    step(
        "two nodes have a device of Cinder at once, and read what the other writes",
        |_| {
            trial.put(&to_block(name, CLASS))?;
            for node in NODES {
                trial.put(&with_device(name, node))?;
            }
            for node in NODES {
                trial.ready(&format!("{name}-{node}"))?;
            }
            let there = count(trial, "attachment ")?;
            ensure!(there == before + 2, "there are {there} attachments");
            // The same block again and again: neither keeps what it has read.
            for (turn, word) in ["first", "second", "third"].iter().enumerate() {
                let [writer, reader] = [turn % 2, (turn + 1) % 2].map(|at| format!("{name}-{}", NODES[at]));
                let write = format!(
                    "printf %-4096s {word} >/tmp/block && dd if=/tmp/block of={DEVICE} bs=4096 count=1 oflag=direct \
                 conv=notrunc,fsync"
                );
                trial.exec(&writer, &write)?;
                let read = format!("dd if={DEVICE} bs=4096 count=1 iflag=direct 2>/dev/null");
                let found = trial.exec(&reader, &read)?;
                ensure!(found.trim() == *word, "{reader} reads {:?}, not {word:?}", found.trim());
            }
            Ok(())
        },
    )?;
    step("one of them goes, and the other keeps the device", |_| {
        trial.delete_pod(&format!("{name}-node-1"))?;
        wait_for_count(trial, "attachment ", before + 1)?;
        let write = format!("dd if=/dev/zero of={DEVICE} bs=4096 count=1 oflag=direct conv=notrunc,fsync");
        trial.exec(&format!("{name}-node-2"), &write)?;
        trial.delete_pod(&format!("{name}-node-2"))?;
        wait_for_count(trial, "attachment ", before)
    })
}

/// What a class can't give to several nodes is told, and leaves nothing.
fn refused(trial: &Trial<'_>) -> Result<()> {
    step(
        "a type without multiattach, and a file system for two nodes, are refused",
        |_| {
            let before = trial.everything()?;
            let file_system = Claim {
                config: CLAIMS[0].config,
                class: CLASS,
                mode: "ReadWriteMany",
            };
            for (name, claim, says) in [
                ("cinder-alone", to_block("cinder-alone", CLAIMS[0].class), "multiattach"),
                ("cinder-files", file_system.named("cinder-files", 1), "volumeMode Block"),
            ] {
                trial.put(&claim)?;
                wait_until("the image's words in an Event", || {
                    let about = format!("--field-selector=involvedObject.name={name},type=Warning");
                    let path = "jsonpath={.items[*].message}";
                    let said = trial.kubectl(&["-n", TRIAL, "get", "events", &about, "-o", path])?;
                    ensure!(said.contains(says), "{said:?}");
                    Ok(())
                })?;
                trial.kubectl(&["-n", TRIAL, "delete", "persistentvolumeclaim", name])?;
            }
            wait_until("nothing of them to be left", || {
                let there = trial.everything()?;
                ensure!(there == before, "OpenStack has {} things", there.len());
                Ok(())
            })
        },
    )
}

fn to_block(name: &str, class: &'static str) -> Value {
    let claim = Claim {
        config: CLAIMS[0].config,
        class,
        mode: "ReadWriteMany",
    };
    let mut claim = claim.named(name, 1);
    claim["spec"]["volumeMode"] = json!("Block");
    claim
}

fn with_device(claim: &str, node: &str) -> Value {
    let mut pod = pod(claim, node, "sleep 100000");
    let container = &mut pod["spec"]["containers"][0];
    container["startupProbe"]["exec"]["command"] = json!(["test", "-b", DEVICE]);
    container["volumeMounts"] = json!([]);
    container["volumeDevices"] = json!([{"name": "data", "devicePath": DEVICE}]);
    pod
}
