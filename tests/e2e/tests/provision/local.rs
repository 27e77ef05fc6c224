//! The example `local` from configmaps/examples: volumes on the nodes' own disks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::{ListParams, PostParams, ResourceExt};
use mooring_contract::names::labels::HOSTNAME;
use mooring_contract::names::{CSI_DRIVER, NAMESPACE, annotations, labels};
use mooring_harness::provisioner::{Provisioner, claim, until, user_of};
use mooring_harness::{Scope, in_namespace, wait_until};
use serde_json::json;

/// Longest until a claim that lacked space is tried again and succeeds.
const ROOM_LIMIT: Duration = Duration::from_mins(2);

/// Longest until the scheduler has said why a Pod waits.
const WAITS_LIMIT: Duration = Duration::from_mins(1);

/// Applies the example's ConfigMap under the test's own name; returns its class.
async fn local(scope: &Scope) -> Result<String> {
    let provisioner = scope.provisioner().example("local.yaml")?;
    provisioner.apply().await?;
    Ok(provisioner.class)
}

/// Files in the nodes' pools with a claim's uid in their names, listed by a Pod on each node.
async fn files_of(scope: &Scope, uid: &str) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(scope.client.clone());
    let mut found = Vec::new();
    for node in nodes.list_metadata(&ListParams::default()).await?.items {
        let node = node.name_any();
        let looker = format!("looker-{node}");
        scope.apply(
            &json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": looker},
                "spec": {
                    "nodeName": node, "terminationGracePeriodSeconds": 1,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
                        "volumeMounts": [{"name": "pool", "mountPath": "/pool"}],
                    }],
                    "volumes": [{"name": "pool", "hostPath": {"path": "/var/lib/mooring", "type": "DirectoryOrCreate"}}],
                },
            })
            .to_string(),
        )?;
        scope.pod_ready(&looker).await?;
        // Other tests' files go away meanwhile.
        let find = format!("find /pool -name '*{uid}*' 2>/tmp/said || ! grep -v 'No such file' /tmp/said >&2");
        let all = scope.exec(&looker, ["sh", "-c", &find])?;
        found.extend(all.lines().map(|line| format!("{node}:{line}")));
    }
    Ok(found)
}

fn node_of(volume: &PersistentVolume) -> Option<String> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let expression = affinity
        .node_selector_terms
        .first()?
        .match_expressions
        .as_ref()?
        .first()?
        .clone();
    (expression.key == "kubernetes.io/hostname").then_some(expression.values?.into_iter().next()?)
}

#[test]
fn a_local_volume_is_written_found_again_and_gone_with_its_claim() {
    in_namespace("local-life", async |scope| {
        let class = local(&scope).await?;
        let uid = scope.claim("data", &class, "64Mi").await?;
        scope.apply(&user_of("writer", "data", "echo kept >/data/file; sleep 1000000").to_string())?;
        let writer = scope.pod_ready("writer").await?;
        scope.claim_bound("data").await?;
        let volume = scope.provisioned(&uid).await?.context("no volume")?;
        let node = writer.spec.and_then(|spec| spec.node_name).context("no node")?;
        assert_eq!(
            node_of(&volume).as_deref(),
            Some(node.as_str()),
            "it is tied to its node"
        );
        scope.delete("pod/writer")?;
        scope.pod_gone("writer").await?;

        // No node is given: the volume's own node decides.
        scope.apply(&user_of("reader", "data", "cat /data/file; sleep 1000000").to_string())?;
        let reader = scope.pod_ready("reader").await?;
        assert_eq!(reader.spec.and_then(|spec| spec.node_name), Some(node));
        scope.log_is("reader", "kept\n").await?;
        let files = files_of(&scope, &uid).await?;
        assert_eq!(files.len(), 1, "one image file on one node: {files:?}");
        scope.delete("pod/reader")?;
        scope.pod_gone("reader").await?;

        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        assert_eq!(files_of(&scope, &uid).await?, Vec::<String>::new());
        Ok(())
    });
}

#[test]
fn a_volume_has_exactly_the_size_asked_for_with_csi_too() {
    in_namespace("local-size", async |scope| {
        let provisioner = like_local(scope.provisioner()).key("volume-source", "csi");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
        let fill = "dd if=/dev/zero of=/data/file bs=64k 2>/tmp/said && exit 1; cat /tmp/said; stat -c %s /data/file";
        scope.apply(&user_of("hoarder", "data", fill).to_string())?;
        scope.pod_succeeded("hoarder").await?;
        let said = scope.kubectl(["logs", "hoarder"])?;
        assert!(said.contains("No space left on device"), "{said}");
        let written: u64 = said.lines().last().unwrap_or_default().parse().context(said.clone())?;
        let asked = 48 << 20;
        assert!(written <= asked && written > asked / 2, "{written} of {asked} bytes");
        let volume = scope.provisioned(&uid).await?.context("no volume")?;
        let driver = volume.spec.and_then(|spec| Some(spec.csi?.driver));
        assert_eq!(driver.as_deref(), Some(CSI_DRIVER));
        Ok(())
    });
}

#[test]
fn an_ephemeral_volume_comes_and_goes_with_its_pod_with_either_driver() {
    in_namespace("local-ephemeral", async |scope| {
        for source in ["flexVolume", "csi"] {
            let name = source.to_lowercase();
            let provisioner = like_local(scope.provisioner_named(&name)).key("volume-source", source);
            provisioner.apply().await?;
            let mut user = user_of(&name, "", "echo kept >/data/file; cat /data/file; sleep 1000000");
            user["spec"]["volumes"][0] = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": provisioner.class,
                "resources": {"requests": {"storage": "64Mi"}},
            }}}});
            scope.apply(&user.to_string())?;
            scope.pod_ready(&name).await?;
            scope.log_is(&name, "kept\n").await?;
            let claims: Api<PersistentVolumeClaim> = scope.api();
            let uid = claims.get(&format!("{name}-data")).await?.uid().context("no uid")?;
            assert!(scope.provisioned(&uid).await?.is_some());
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(&name).await?;
            scope.nothing_left(&uid).await?;
            assert_eq!(files_of(&scope, &uid).await?, Vec::<String>::new());
        }
        Ok(())
    });
}

/// The stock image, to which a test adds keys.
fn like_local(provisioner: Provisioner) -> Provisioner {
    provisioner
        .key("image", "mooring.dev/provisioner-local:0.1.0")
        .key("backend-volume", "client=pool")
        .key("volume-source", "flexVolume")
        .key("volume-binding-mode", "WaitForFirstConsumer")
}

#[test]
fn a_file_system_or_a_property_that_there_is_not_is_given_up_on_the_claim_with_the_cure() {
    in_namespace("local-misspelt", async |scope| {
        let provisioner = like_local(scope.provisioner()).key("volume-binding-mode", "Immediate");
        provisioner.apply().await?;
        let zfs = scope.claim("zfs", &provisioner.class_of("zfs")?, "16Mi").await?;
        let event = scope.event("zfs", "use ext4 or xfs").await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningGivenUp"));
        let misspelt = provisioner.key("tihn", "true");
        misspelt.apply().await?;
        let tihn = scope.claim("tihn", &misspelt.class, "16Mi").await?;
        let event = scope.event("tihn", "write thin").await?;
        assert_eq!(event.reason.as_deref(), Some("ProvisioningGivenUp"));
        for (claim, uid) in [("zfs", zfs), ("tihn", tihn)] {
            scope.claim_gone(claim).await?;
            scope.nothing_left(&uid).await?;
        }
        Ok(())
    });
}

/// A claim, and a Pod that places it on a node.
async fn claim_on(scope: &Scope, node: &str, name: &str, class: &str, size: u64) -> Result<String> {
    let uid = scope.claim(name, class, &size.to_string()).await?;
    let mut user = user_of(name, name, "sleep 1000000");
    user["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    scope.apply(&user.to_string())?;
    Ok(uid)
}

/// Which of these claims have a volume.
async fn served<'a>(scope: &Scope, claims: &'a [(String, String)]) -> Result<Vec<&'a str>> {
    let mut served = Vec::new();
    for (name, uid) in claims {
        if scope.provisioned(uid).await?.is_some() {
            served.push(name.as_str());
        }
    }
    Ok(served)
}

#[test]
fn a_pool_promises_no_more_than_its_disk_has_and_less_the_reserve_unless_it_is_thin() {
    in_namespace("local-promises", async |scope| {
        let node = scope.node(1).await?;
        let pool = &scope.mounter_status(&node).await?["pool"];
        let bytes = |name: &str| pool[name].as_u64().with_context(|| format!("no {name} in {pool}"));
        // One volume of that size fits, but not two, also if others fill or clear a quarter of the disk meanwhile.
        let room = bytes("free")? - (bytes("promised")? - bytes("written")?);
        let (reserve, size) = (room / 10, room / 10 * 6);
        let thick = like_local(scope.provisioner()).key("reserve", reserve.to_string());
        thick.apply().await?;
        let mut claims = Vec::new();
        for name in ["one", "two", "three"] {
            claims.push((
                name.to_owned(),
                claim_on(&scope, &node, name, &thick.class, size).await?,
            ));
        }
        let first = wait_until("one of the claims to have a volume", ROOM_LIMIT, async || {
            Ok(served(&scope, &claims).await?.first().map(|name| (*name).to_owned()))
        })
        .await?;
        for (name, _) in claims.iter().filter(|(name, _)| *name != first) {
            let event = scope.event(name, "the node's pool has room for").await?;
            ensure!(event.reason.as_deref() == Some("ProvisioningFailed"), "{event:?}");
        }
        assert_eq!(served(&scope, &claims).await?, [first.as_str()]);
        let metrics = scope.mounter_metrics(&node).await?;
        let promised = metrics
            .lines()
            .find_map(|line| line.strip_prefix("mooring_mounter_pool_promised_bytes "))
            .context("what is promised is not among the metrics")?;
        ensure!(promised.parse::<u64>()? >= size, "{promised} of at least {size}");

        // With thin provisioning, the same disk has space for another one of that size.
        let thin = scope.provisioner_named("thin");
        let thin = like_local(thin).key("reserve", reserve.to_string()).key("thin", "true");
        thin.apply().await?;
        let also = claim_on(&scope, &node, "thin", &thin.class, size).await?;
        scope.claim_bound("thin").await?;
        ensure!(scope.provisioned(&also).await?.is_some(), "a thin volume was refused");

        // With these two gone, there is space for one of those that wait.
        for name in [first.as_str(), "thin"] {
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
            scope.claim_gone(name).await?;
        }
        claims.retain(|(name, _)| *name != first);
        wait_until("a claim that waited to have a volume", ROOM_LIMIT, async || {
            Ok((!served(&scope, &claims).await?.is_empty()).then_some(()))
        })
        .await
    });
}

/// What the scheduler reads of a class: how many bytes are left, by host name.
async fn capacities(scope: &Scope, class: &str) -> Result<BTreeMap<String, u64>> {
    let objects: Api<CSIStorageCapacity> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let mut found = BTreeMap::new();
    for object in objects.list(&ListParams::default()).await? {
        if object.storage_class_name == class {
            let labels = object.node_topology.and_then(|topology| topology.match_labels);
            let host = labels
                .and_then(|mut labels| labels.remove(HOSTNAME))
                .context("for all nodes")?;
            let left = object.capacity.context("without a capacity")?.0;
            // A quantity with a binary suffix, as Mooring writes it and the API server gives it back.
            let unit = left.trim_start_matches(|c: char| c.is_ascii_digit());
            let power = ["", "Ki", "Mi", "Gi", "Ti", "Pi"]
                .iter()
                .position(|known| *known == unit);
            let power = power.with_context(|| format!("an odd capacity {left}"))?;
            let number: u64 = left[..left.len() - unit.len()].parse()?;
            found.insert(host, number << (10 * power));
        }
    }
    Ok(found)
}

/// What a node that is gone is said to have left is taken back. No class owns this object, so no garbage collector
/// removes it.
async fn gone_node_has_nothing(scope: &Scope, class: &str) -> Result<()> {
    let of_gone_node: CSIStorageCapacity = serde_json::from_value(json!({
        "metadata": {
            "generateName": "of-gone-node-",
            "labels": {labels::MANAGED_BY: labels::MANAGED_BY_MOORING},
        },
        "storageClassName": class,
        "nodeTopology": {"matchLabels": {HOSTNAME: "gone"}},
        "capacity": "1Gi",
    }))?;
    let objects: Api<CSIStorageCapacity> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let of_gone_node = objects.create(&PostParams::default(), &of_gone_node).await?.name_any();
    wait_until(
        "what a gone node is said to have to be taken back",
        WAITS_LIMIT,
        async || Ok(objects.get_opt(&of_gone_node).await?.is_none().then_some(())),
    )
    .await
}

#[test]
fn the_scheduler_knows_what_pools_have_left_where_the_class_has_the_csi_driver_s_name() {
    in_namespace("local-capacity", async |scope| {
        let provisioner = like_local(scope.provisioner())
            .key("plugin-name", CSI_DRIVER)
            .key("volume-source", "csi")
            // A machine whose disk is nearly full has nothing left beside the usual reserve.
            .key("reserve", "0");
        provisioner.apply().await?;
        let nodes: Api<Node> = Api::all(scope.client.clone());
        let told = wait_until("each node to have its capacity told", WAITS_LIMIT, async || {
            let nodes = nodes.list_metadata(&ListParams::default()).await?.items;
            let ready = nodes.iter().filter(|node| {
                let local = format!("{}local", labels::NODE_CLIENT_PREFIX);
                node.labels().get(&local).map(String::as_str) == Some(labels::READY)
            });
            let hosts: BTreeSet<_> = ready.filter_map(|node| node.labels().get(HOSTNAME).cloned()).collect();
            let told = capacities(&scope, &provisioner.class).await?;
            ensure!(
                told.keys().cloned().collect::<BTreeSet<_>>() == hosts,
                "{told:?} of {hosts:?}"
            );
            Ok(Some(told))
        })
        .await?;
        let node = scope.node(1).await?;
        ensure!(told.contains_key(&node), "{told:?}");
        // Others write to the same disk, and have as much promised as it has: what is told follows.
        let describe = "what is told of node 1 to be what its pool has left";
        wait_until(describe, ROOM_LIMIT, async || {
            let pool = &scope.mounter_status(&node).await?["pool"];
            let bytes = |name: &str| pool[name].as_u64().with_context(|| format!("no {name} in {pool}"));
            let room = bytes("free")?.saturating_sub(bytes("unwritten")?);
            let step = bytes("disk")? / 20;
            let said = capacities(&scope, &provisioner.class).await?;
            let said = said.get(&node).copied().context("nothing of node 1")?;
            ensure!(
                (room.saturating_sub(step)..=room).contains(&said),
                "{said} of {room}: {pool}"
            );
            Ok(Some(()))
        })
        .await?;

        // With more in reserve, less is left.
        let provisioner = provisioner.key("reserve", "95%");
        provisioner.apply().await?;
        wait_until("less to be told with more in reserve", WAITS_LIMIT, async || {
            let said = capacities(&scope, &provisioner.class).await?;
            let said = said.get(&node).copied().context("nothing of node 1")?;
            ensure!(said < told[&node], "{said}, and {} before", told[&node]);
            Ok(Some(()))
        })
        .await?;
        let provisioner = provisioner.key("reserve", "0");
        provisioner.apply().await?;

        gone_node_has_nothing(&scope, &provisioner.class).await?;

        // No pool is so large: no node is chosen, and no run begun.
        let large = scope.claim("large", &provisioner.class, "1Pi").await?;
        scope.apply(&user_of("large", "large", "true").to_string())?;
        let why = "did not have enough free storage";
        until(
            &scope.api(),
            "large",
            "to wait for storage",
            WAITS_LIMIT,
            |pod: Option<&Pod>| {
                let status = json!(pod.and_then(|pod| pod.status.as_ref()));
                let conditions = status["conditions"].as_array().into_iter().flatten();
                let mut said = conditions.filter_map(|condition| condition["message"].as_str());
                said.any(|said| said.contains(why))
            },
        )
        .await?;

        let uid = scope.claim("data", &provisioner.class, "16Mi").await?;
        scope.apply(&user_of("user", "data", "echo kept >/data/file; sleep 1000000").to_string())?;
        scope.pod_ready("user").await?;
        let volume = scope.provisioned(&uid).await?.context("no volume")?;
        assert_eq!(volume.annotations()[annotations::PROVISIONED_BY], CSI_DRIVER);
        let claims: Api<PersistentVolumeClaim> = scope.api();
        let waits = claims.get("large").await?;
        ensure!(
            !waits.annotations().contains_key(annotations::SELECTED_NODE),
            "{waits:?}"
        );
        let runs = scope.left_of(std::slice::from_ref(&large)).await?;
        ensure!(runs.is_empty(), "{runs:?}");

        for (name, uid) in [("user", &uid), ("large", &large)] {
            scope.delete(&format!("pod/{name}"))?;
            scope.pod_gone(name).await?;
            scope.claim_gone(if name == "user" { "data" } else { name }).await?;
            scope.nothing_left(uid).await?;
        }
        provisioner.delete()?;
        wait_until("what is told to go with the class", WAITS_LIMIT, async || {
            Ok(capacities(&scope, &provisioner.class).await?.is_empty().then_some(()))
        })
        .await
    });
}

#[test]
fn a_reserve_that_is_not_a_size_is_reported_with_what_to_write() {
    in_namespace("local-reserve", async |scope| {
        let wrong = like_local(scope.provisioner()).key("reserve", "ten percent");
        wrong.apply().await?;
        let node = scope.node(1).await?;
        claim_on(&scope, &node, "data", &wrong.class, 16 << 20).await?;
        let words = "reserve \"ten percent\" is not a size: write a share of the disk such as 5%";
        let event = scope.event("data", words).await?;
        ensure!(event.reason.as_deref() == Some("ProvisioningGivenUp"), "{event:?}");
        Ok(())
    });
}

#[test]
fn a_retained_volume_outlives_its_claim() {
    in_namespace("local-retain", async |scope| {
        let provisioner = like_local(scope.provisioner()).key("reclaim-policy", "Retain");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "16Mi").await?;
        scope.apply(&user_of("writer", "data", "echo kept >/data/file").to_string())?;
        scope.pod_succeeded("writer").await?;
        scope.delete("pod/writer")?;
        scope.pod_gone("writer").await?;
        scope.claim_gone("data").await?;
        let released = |volume: Option<&PersistentVolume>| {
            let status = volume.and_then(|volume| volume.status.as_ref());
            status.and_then(|status| status.phase.as_deref()) == Some("Released")
        };
        scope.provisioned_until(&uid, "to be released", released).await?;
        let files = files_of(&scope, &uid).await?;
        assert_eq!(files.len(), 1, "the image file stays: {files:?}");

        // Its administrator deletes it as with any other storage, and decides what happens to the data.
        scope.delete(&format!("persistentvolume/pvc-{uid}"))?;
        scope.nothing_left(&uid).await?;
        assert_eq!(
            files_of(&scope, &uid).await?.len(),
            1,
            "deleting the PersistentVolume removes no data"
        );
        let (node, path) = files[0].split_once(':').context("no node")?;
        scope.exec(&format!("looker-{node}"), ["rm", path])?;
        Ok(())
    });
}

#[test]
fn a_local_volume_that_can_t_be_made_has_the_reason_on_its_claim() {
    in_namespace("local-no", async |scope| {
        let class = local(&scope).await?;
        let mut many = claim("many", &class, "16Mi");
        many["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        let uid = scope.claim_with(None, &many).await?;
        scope.apply(&user_of("user", "many", "true").to_string())?;
        let event = scope
            .event("many", "one node only: ask for access mode ReadWriteOnce")
            .await?;
        ensure!(event.reason.as_deref() == Some("ProvisioningGivenUp"), "{event:?}");
        scope.delete("pod/user")?;
        scope.claim_gone("many").await?;
        scope.nothing_left(&uid).await?;

        // Too small for a file system with a journal. As a device it could be used.
        let uid = scope.claim("small", &class, "1Mi").await?;
        scope.apply(&user_of("user", "small", "true").to_string())?;
        scope.event("small", "needs 8Mi at least").await?;
        scope.delete("pod/user")?;
        scope.claim_gone("small").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn a_claim_for_one_pod_is_served_and_a_second_pod_waits_until_the_first_is_gone() {
    in_namespace("local-once", async |scope| {
        let class = local(&scope).await?;
        let mut once = claim("data", &class, "16Mi");
        once["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
        let uid = scope.claim_with(None, &once).await?;
        scope.apply(&user_of("first", "data", "echo kept >/data/file; sleep 1000000").to_string())?;
        scope.pod_ready("first").await?;
        let volume = scope.provisioned(&uid).await?.context("no volume")?;
        // This access mode has to be the only one, or the API server accepts neither claim nor volume.
        let modes = volume.spec.and_then(|spec| spec.access_modes);
        assert_eq!(modes, Some(vec!["ReadWriteOncePod".to_owned()]));

        scope.apply(&user_of("second", "data", "cat /data/file; sleep 1000000").to_string())?;
        let why = "ReadWriteOncePod access mode already in-use by another pod";
        let waits = |pod: Option<&Pod>| {
            let status = pod.and_then(|pod| pod.status.as_ref());
            let mut conditions = status
                .and_then(|status| status.conditions.as_ref())
                .into_iter()
                .flatten();
            conditions.any(|condition| {
                condition.type_ == "PodScheduled" && condition.message.as_deref().is_some_and(|said| said.contains(why))
            })
        };
        until(&scope.api(), "second", "to wait for the first", WAITS_LIMIT, waits).await?;
        scope.delete("pod/first")?;
        scope.pod_ready("second").await?;
        scope.log_is("second", "kept\n").await?;
        scope.delete("pod/second")?;
        scope.pod_gone("second").await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn mount_options_of_the_class_reach_the_mount() {
    in_namespace("local-options", async |scope| {
        let provisioner = like_local(scope.provisioner()).key("mount-options", "noexec,noatime");
        provisioner.apply().await?;
        scope.claim("data", &provisioner.class, "16Mi").await?;
        scope.apply(&user_of("user", "data", "grep ' /data ' /proc/mounts").to_string())?;
        scope.pod_succeeded("user").await?;
        let said = scope.kubectl(["logs", "user"])?;
        for option in ["noexec", "noatime", "nosuid", "nodev"] {
            assert!(said.contains(option), "{option} is not among {said}");
        }
        Ok(())
    });
}
