//! The admission policies and the code agree about volumes, even about combinations that no author of a test thought
//! of: some hundred volumes are generated, and the API server gets each as a dry run. Nothing that would do harm is let
//! in: what does is written down here once more, by hand.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt as _, TryStreamExt as _, iter};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::Api;
use mooring_contract::names::{CSI_DRIVER, FLEX_DRIVER, NAMESPACE, labels};
use mooring_contract::volume::clients::RECORDS;
use mooring_contract::volume::{Speaker, Volume};
use mooring_harness::credentials::dry_run;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, MAKER};
use mooring_harness::random::Random;
use mooring_harness::{Scope, in_namespace, wait_until};
use mooring_testbed::progress::note;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use std::time::Duration;

/// Volumes of each kind.
const VOLUMES: usize = 200;

/// How many requests run at a time.
const AT_ONCE: usize = 16;

/// The uid of the claim that generated `PersistentVolumes` are for.
const UID: &str = "5ec0c001-0000-4000-8000-000000000001";

/// Sources, each valid for one client or another, or for none.
const SOURCES: &[&str] = &[
    "",
    "10.10.2.4:/exports/a",
    "[fe80::1%eth0]:/x",
    "tom@files.example:/srv/a",
    "tom@[fe80::1]:/srv/a",
    "files:relative",
    "[-oProxyCommand=sh]:/x",
    "-oProxyCommand=sh:/x",
    "u@-h:/x",
    "//nas/share/a",
    "//nas",
    "//dev/loop1",
    "///dev/loop1",
    "/dev/loop1",
    "./x",
    "..",
    "UUID=1-2",
    "pArtLabel=x",
    "id=x",
    "a:/b/../c",
    "a\\..\\b",
    "disk.img",
    "pvc-5ec0c001-0000-4000-8000-000000000001.img",
    "rbd://10.0.0.4:6789,10.0.0.5/pool/image",
    "rbd://m/pool/space/image",
    "rbd://m/pool/a/b/c",
    "10.0.0.4:6789,10.0.0.5:/volumes/a",
    "[v2:10.0.0.4:3300,v1:10.0.0.4:6789]:/volumes/a",
    "iscsi://10.0.0.4:3261/iqn.2026-01.com.example:disk/3",
    "iscsi://[fe80::1]:3260/iqn.x/0",
    "iscsi://h,x/iqn.x/0",
    "serial://0b1c2d3e-0000-4a5b-8",
    "Serial://x",
    "nbd://10.0.0.4/disk",
    "nfs://10.0.0.4/exports/disk",
    "nfs://10.0.0.4:2049/disk",
    "nfs://10.0.0.4//exports/disk",
    "nfs://10.0.0.4/exports/../disk",
    "iscsi://10.0.0.4/iqn.x:t/010",
    "https://s3.example:9000/bucket/prefix",
    "http://s3.example/bucket",
    "https://tom@s3.example/bucket",
    "server:/volume/directory",
    "server:volume",
];

/// Names of options, and values that some may have.
const OPTIONS: &[&str] = &[
    "port",
    "host-key-check",
    "backup-servers",
    "initiator",
    "bytes-per-inode",
    "io-timeout",
    "user",
    "driver",
    "fs-name",
    "region",
    "path-style",
    "size-gi",
    "server",
    "Port",
    "storage.pool",
    "-x",
    "a b",
];
const VALUES: &[&str] = &[
    "",
    "22",
    "123456",
    "8192",
    "yes",
    "accept-new",
    "no",
    "a:b",
    "10.0.0.4",
    "-x",
    "a,b",
    "kernel",
    "fuse",
    "tom",
    "iqn.2026-01.com.example:node",
    "eu-1",
    "/etc",
];
const MOUNT_OPTIONS: &[&str] = &[
    "ro",
    " noatime ",
    "vers=4.1",
    "suid",
    "dev",
    "suid=1",
    "source=/dev/sda",
    "credentials=x",
    "log=/var/log/x",
    "a=b=/c",
    "trans=unix",
    "trans=tcp",
    "fd=3",
    "fdx=3",
    "",
];
const FS_TYPES: &[&str] = &[
    "ext4",
    "xfs",
    "raw",
    "nfs4",
    "cifs",
    "glusterfs",
    "overlay",
    "proc",
    "btrfs",
];

/// What a user might write: options, and the volume's own field for the file system.
type Written = (BTreeMap<String, String>, String);

fn written() -> impl Strategy<Value = Written> {
    let known = RECORDS.iter().flat_map(|record| record.names.iter().copied());
    let clients: Vec<&str> = known.chain(["ext4", "acme", "davfs", "proc", "host"]).collect();
    let source = prop_oneof![
        6 => select(SOURCES).prop_map(str::to_owned),
        // A valid one with one letter changed.
        2 => (select(SOURCES), any::<usize>(), "[ -~]").prop_map(|(source, at, letter)| {
            let mut source = source.to_owned();
            let at = at % (source.len() + 1);
            source.insert_str(at, &letter);
            source
        }),
        1 => "[ -~]{0,24}",
    ];
    let value = prop_oneof![4 => select(VALUES).prop_map(str::to_owned), 1 => "[ -~]{0,8}"];
    let options = vec((select(OPTIONS), value), 0..3);
    let mount_options = vec(select(MOUNT_OPTIONS), 0..3);
    let fs_type = prop_oneof![2 => Just(""), 1 => select(FS_TYPES)];
    let image = prop_oneof![5 => Just(""), 1 => Just("mooring.dev/client-sshfs:0.1.0")];
    (
        select(clients),
        source,
        options,
        mount_options,
        (fs_type.clone(), fs_type),
        image,
    )
        .prop_map(|(client, source, more, mount_options, (option, field), image)| {
            let mut options: BTreeMap<String, String> =
                more.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            options.insert("client".to_owned(), client.to_owned());
            for (name, value) in [
                ("source", source),
                ("mount-options", mount_options.join(",")),
                ("fs-type", option.to_owned()),
                ("client-image", image.to_owned()),
            ] {
                if !value.is_empty() {
                    options.insert(name.to_owned(), value);
                }
            }
            // The API server would check both, and the kubelet passes on only one.
            let field = if option.is_empty() { field } else { "" };
            (options, field.to_owned())
        })
}

/// The same volumes for the same seed.
fn made_up() -> Result<Vec<Written>> {
    let seed = Random::seed();
    note(format!("seed {seed}"));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let mut one = |_| match written().new_tree(&mut runner) {
        Ok(tree) => Ok(tree.current()),
        Err(error) => anyhow::bail!("no volume can be made up: {error}"),
    };
    (0..VOLUMES).map(&mut one).collect()
}

/// As the mounter reads it: the field counts if the options have no `fs-type`.
fn read((options, field): &Written) -> Option<Volume> {
    let mut options = options.clone();
    let stated = options.entry("fs-type".to_owned()).or_default();
    if stated.is_empty() {
        field.clone_into(stated);
    }
    Volume::from_options(&options).ok()
}

/// Clients and types with which an SMB share is named as `//server/share`.
const BY_SHARE: &[&str] = &["smb", "smb3", "cifs"];

/// Clients that Mooring does not know: their image reads the source as it likes, and the agent hands it none that
/// begins with a dash.
const NOT_KNOWN: &[&str] = &["ext4", "acme", "davfs"];

/// Mount options that give a volume rights or data of the node, by their names. So does one with a path as its value.
const HARMFUL_OPTIONS: &[&str] = &[
    "suid",
    "dev",
    "bind",
    "rbind",
    "move",
    "remount",
    "source",
    "credentials",
    "fd",
];

/// File systems that show something of the node.
const VIEWS: &[&str] = &["overlay", "proc", "sysfs", "tmpfs", "devtmpfs", "cgroup2", "bind"];

/// What harm a volume would do that a tenant or an image wrote, if somebody let it in; `clients` give out the node.
/// Written by hand: it knows neither the rules of the policies nor those of the code, which may be wrong in the same
/// way.
fn harm((options, field): &Written, clients: &[&str]) -> Option<&'static str> {
    let said = |key: &str| options.get(key).map_or("", String::as_str);
    let (client, source) = (said("client"), said("source"));
    let kinds = [client, said("fs-type"), field];
    let is_share = kinds.iter().any(|kind| BY_SHARE.contains(kind));
    let share = source.strip_prefix("//").filter(|_| is_share);
    if clients.contains(&client) {
        return Some("its client gives out the node");
    }
    if source.starts_with('/') && share.is_none_or(|share| share.starts_with('/')) {
        return Some("its source is a path of the node");
    }
    let is_flag = source.starts_with('-') || source.contains("@-") || source.contains("[-");
    if is_flag && !NOT_KNOWN.contains(&client) {
        return Some("its source is read as a flag");
    }
    if source.split(['/', '\\']).any(|part| part == "..") {
        return Some("its source leads out of its directory");
    }
    let tag = source.split_once('=').map(|(tag, _)| tag.to_ascii_uppercase());
    if tag.is_some_and(|tag| ["ID", "UUID", "LABEL", "PARTUUID", "PARTLABEL"].contains(&tag.as_str())) {
        return Some("its source is a device of the node, by its tag");
    }
    for option in said("mount-options").split(',').map(str::trim) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if HARMFUL_OPTIONS.contains(&name) || value.starts_with('/') || (name, value) == ("trans", "unix") {
            return Some("a mount option gives it something of the node");
        }
    }
    if kinds.iter().any(|kind| VIEWS.contains(kind)) {
        return Some("its file system shows something of the node");
    }
    None
}

/// Whether an object with these options is accepted. If not, a policy of this name must refuse it.
async fn is_let_in<K>(api: &Api<K>, object: Value, policy: &str) -> Result<bool>
where
    K: Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object)?;
    match api.create(&dry_run(), &object).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.message.contains(&format!("'{policy}'")) => Ok(false),
        Err(error) => Err(error).context("it was refused by something else"),
    }
}

/// Sends all of them, and compares each answer with the code's. What is let in must do no harm; `clients` give out the
/// node.
async fn compare<K>(
    api: &Api<K>,
    (policy, clients): (&str, &[&str]),
    volumes: &[Written],
    object: impl Fn(&Written) -> Value,
    code: impl Fn(&Volume) -> Result<(), String>,
) -> Result<()>
where
    K: Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let answers: Vec<(usize, bool)> = iter(
        volumes
            .iter()
            .enumerate()
            .map(|(index, written)| (index, object(written))),
    )
    .map(async |(index, object)| anyhow::Ok((index, is_let_in(api, object, policy).await?)))
    .buffer_unordered(AT_ONCE)
    .try_collect()
    .await?;
    let mut differ = Vec::new();
    for (index, let_in) in &answers {
        let written = &volumes[*index];
        let said = read(written).map_or_else(|| Err("not read".to_owned()), |volume| code(&volume));
        if said.is_ok() != *let_in {
            differ.push(format!("{written:?}: the policy says {let_in}, the code {said:?}"));
        }
    }
    ensure!(
        differ.is_empty(),
        "{policy} and the code differ about {} of {}:\n{}",
        differ.len(),
        answers.len(),
        differ.join("\n")
    );
    let harmful = answers.iter().filter_map(|(index, let_in)| {
        let written = &volumes[*index];
        Some((written, harm(written, clients)?, *let_in))
    });
    let harmful: Vec<_> = harmful.collect();
    ensure!(!harmful.is_empty(), "no volume was made up that would do harm");
    let missed: Vec<_> = harmful.iter().filter(|(_, _, let_in)| *let_in).collect();
    ensure!(missed.is_empty(), "{policy} lets in what does harm: {missed:#?}");
    let let_in = answers.iter().filter(|(_, let_in)| *let_in).count();
    note(format!("{policy}: {let_in} of {} are let in", answers.len()));
    ensure!(
        let_in > 0 && let_in < answers.len(),
        "{policy}: all have the same answer"
    );
    Ok(())
}

/// A volume of this driver in an object.
fn flex((options, field): &Written) -> Value {
    json!({"driver": FLEX_DRIVER, "options": options, "fsType": field})
}

fn persistent_volume(written: &Written) -> Value {
    persistent_volume_with("flexVolume", &flex(written))
}

fn persistent_volume_by_csi((options, field): &Written) -> Value {
    let csi = json!({"driver": CSI_DRIVER, "volumeHandle": "x", "volumeAttributes": options, "fsType": field});
    persistent_volume_with("csi", &csi)
}

fn persistent_volume_with(source: &str, value: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pvc-{UID}")},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "x",
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": UID},
            source: value,
        },
    })
}

/// Clients that give out the node, and that no volume of an image may have.
const NOT_AN_IMAGE_S: &[&str] = &["pool", "host"];

fn image_s(volume: &Volume) -> Result<(), String> {
    if NOT_AN_IMAGE_S.contains(&volume.client.as_str()) {
        return Err("gives out the node".to_owned());
    }
    volume.check(Speaker::Image, &[]).map_err(|error| error.to_string())
}

/// Proves: M5
#[test]
fn a_pod_s_own_volume_is_judged_as_a_tenant_s() {
    in_namespace("generated-inline", async |scope: Scope| {
        let volumes = made_up()?;
        let clients: Vec<_> = volumes.iter().map(|(options, _)| options["client"].as_str()).collect();
        let clients = format!("mooring.dev/inline-clients={}", clients.join(","));
        scope.kubectl([
            "annotate",
            "namespace",
            &scope.namespace,
            &clients,
            // What is read by NFS version 3 has to be named in full.
            "mooring.dev/inline-sources=**,nfs://10.0.0.4/exports/disk,nfs://10.0.0.4:2049/disk",
        ])?;
        let pods: Api<Pod> = scope.api();
        let policy = "mooring-inline-volumes";
        let pod = |written: &Written| {
            json!({"metadata": {"name": "user"}, "spec": {
                "schedulingGates": [{"name": "testbed.mooring.dev/never"}],
                "containers": [{"name": "main", "image": "busybox:1"}],
                "volumes": [{"name": "v", "flexVolume": flex(written)}],
            }})
        };
        let plain = [("client", "nfs"), ("source", "a:/b")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        // A policy sees a namespace a moment after it changed.
        wait_until("nfs to be allowed", Duration::from_mins(2), async || {
            let plain = (plain.clone().into(), String::new());
            Ok(is_let_in(&pods, pod(&plain), policy).await?.then_some(()))
        })
        .await?;
        // A tenant sets it by the field alone.
        let volumes: Vec<_> = volumes
            .into_iter()
            .map(|(mut options, field)| {
                let option = options.remove("fs-type");
                (options, option.unwrap_or(field))
            })
            .collect();
        let clients = &["pool", "local", "host"][..];
        compare(&pods, (policy, clients), &volumes, pod, |volume| {
            if clients.contains(&volume.client.as_str()) {
                return Err("gives out the node".to_owned());
            }
            volume.check(Speaker::Tenant, &[]).map_err(|error| error.to_string())
        })
        .await
    });
}

/// Proves: P2
#[test]
fn a_volume_that_an_image_makes_is_judged_as_the_controller_will() {
    in_namespace("generated-maker", async |scope: Scope| {
        let token = scope.token_of(CONFIG_NAMESPACE, MAKER, None).await?;
        let api: Api<PersistentVolume> = Api::all(scope.with_token(&token).await?);
        let policy = "mooring-volume-makers";
        compare(
            &api,
            (policy, NOT_AN_IMAGE_S),
            &made_up()?,
            persistent_volume,
            |volume| {
                if volume.client_image.is_some() {
                    return Err("names an image".to_owned());
                }
                if volume.client.as_str() == "local" && !volume.source.contains(&format!("pvc-{UID}")) {
                    return Err("another claim's file".to_owned());
                }
                image_s(volume)
            },
        )
        .await
    });
}

/// The list is that of the test of the controller's acceptance.
///
/// Proves: P2
#[test]
fn a_volume_that_the_kubelet_mounts_past_mooring_gives_an_image_nothing_of_the_node() {
    in_namespace("generated-in-tree", async |scope: Scope| {
        let token = scope.token_of(CONFIG_NAMESPACE, MAKER, None).await?;
        let api: Api<PersistentVolume> = Api::all(scope.with_token(&token).await?);
        let policy = "mooring-volume-makers";
        let sources: Vec<(Value, bool)> =
            serde_json::from_str(include_str!("../../../../provisioner/tests/in_tree.json"))?;
        let mut wrong = Vec::new();
        for (source, may) in &sources {
            let (kind, value) = source
                .as_object()
                .and_then(|source| source.iter().next())
                .context("a source")?;
            let volume = persistent_volume_with(kind, value);
            let mut cases = vec![(volume.clone(), *may)];
            for (option, is_good) in [
                ("noatime", true),
                ("bind", false),
                ("suid", false),
                ("x-mount.mkdir", false),
            ] {
                let mut with_option = volume.clone();
                with_option["spec"]["mountOptions"] = json!(["ro", option]);
                cases.push((with_option, *may && is_good));
            }
            let mut of_another = volume;
            of_another["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": "example.com/other"});
            cases.push((of_another, false));
            for (volume, may) in cases {
                let let_in = match is_let_in(&api, volume.clone(), policy).await {
                    // By Kubernetes' own rules.
                    Err(error) if format!("{error:#}").contains("is invalid") => false,
                    answer => answer?,
                };
                if let_in != may {
                    wrong.push(format!("{} ({may})", volume["spec"]));
                }
            }
        }
        ensure!(wrong.is_empty(), "{policy} is wrong about {}", wrong.join("\n"));
        Ok(())
    });
}

#[test]
fn what_the_controller_makes_is_judged_by_the_api_server_once_more() {
    in_namespace("generated-own", async |scope: Scope| {
        let leader = scope.leader()?;
        let token = scope.token_of(NAMESPACE, "flex-provisioner", Some(&leader)).await?;
        let client = scope.with_token(&token).await?;
        // A StorageClass may have mount options.
        let api: Api<PersistentVolume> = Api::all(client.clone());
        let policy = "mooring-controller-volumes";
        let mut volumes = made_up()?;
        for (options, _) in &mut volumes {
            options.remove("mount-options");
        }
        let policy = (policy, NOT_AN_IMAGE_S);
        compare(&api, policy, &volumes, persistent_volume, image_s).await?;
        compare(&api, policy, &volumes, persistent_volume_by_csi, image_s).await?;

        // A backend-volume has its file system in both places or in neither.
        let pods: Api<Pod> = Api::namespaced(client, CONFIG_NAMESPACE);
        let volumes: Vec<Written> = made_up()?
            .into_iter()
            .map(|(options, _)| {
                let field = options.get("fs-type").cloned().unwrap_or_default();
                (options, field)
            })
            .collect();
        let pod = |written: &Written| {
            json!({
                "metadata": {"name": "provision-x", "labels": {labels::COMPONENT: labels::COMPONENT_PROVISIONING}},
                "spec": {
                    "containers": [{
                        "name": "provision", "image": "mooring.dev/provisioner-base:0.1.0",
                        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                    }],
                    "volumes": [{"name": "backend", "csi": {
                        "driver": CSI_DRIVER, "volumeAttributes": written.0, "fsType": written.1}}],
                },
            })
        };
        let not_a_run_s = ["host", "local"];
        compare(&pods, ("mooring-controller", &not_a_run_s), &volumes, pod, |volume| {
            if not_a_run_s.contains(&volume.client.as_str()) {
                return Err("gives out the node".to_owned());
            }
            volume.check(Speaker::Image, &[]).map_err(|error| error.to_string())
        })
        .await
    });
}
