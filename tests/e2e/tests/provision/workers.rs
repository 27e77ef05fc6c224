//! Runs that workers carry out: Pods of the image that stay. Alone: the controllers are killed, and their metrics read.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{ListParams, ResourceExt};
use mooring_contract::names::{NAMESPACE, annotations, labels};
use mooring_harness::nodes::{on_own_nodes, on_two_nodes};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner, claim, user_of};
use mooring_harness::{Scope, in_namespace, skipped_without_all, wait_until};
use mooring_testbed::progress::{note, spoken};
use serde_json::json;

/// Longest wait for a worker to start, to go, or to be made anew.
const LIMIT: Duration = Duration::from_mins(2);

/// The workers of a ConfigMap.
async fn workers(scope: &Scope, provisioner: &Provisioner) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
    let of_it = format!("{}=true,{}={}", labels::WORKER, labels::CONFIG_NAME, provisioner.name);
    Ok(pods.list(&ListParams::default().labels(&of_it)).await?.items)
}

/// Has the first run of a ConfigMap start its worker, and waits until that waits for the next; returns its name.
async fn warm(scope: &Scope, provisioner: &Provisioner) -> Result<String> {
    ensure!(workers(scope, provisioner).await?.is_empty(), "a worker without a run");
    scope.claim("first", &provisioner.class, "1Gi").await?;
    scope.claim_bound("first").await?;
    let worker = free_worker(scope, provisioner).await?;
    scope.claim_gone("first").await?;
    Ok(worker)
}

/// The same, and waits until the only worker has done the deletion as well.
async fn warm_and_free(scope: &Scope, provisioner: &Provisioner) -> Result<String> {
    warm(scope, provisioner).await?;
    scope.volumes_gone().await?;
    free_worker(scope, provisioner).await
}

/// Waits until the only worker there is waits for a run, and the controller is in touch with it; returns its name.
pub(crate) async fn free_worker(scope: &Scope, provisioner: &Provisioner) -> Result<String> {
    Ok(free_workers(scope, provisioner, 1).await?.remove(0).name_any())
}

/// The same for so many.
async fn free_workers(scope: &Scope, provisioner: &Provisioner, count: usize) -> Result<Vec<Pod>> {
    wait_until(&format!("{count} workers that wait for a run"), LIMIT, async || {
        let all = workers(scope, provisioner).await?;
        let metrics = scope.metrics()?;
        let are_free = all.len() == count
            && metrics.contains(&format!("mooring_provisioner_workers{{state=\"free\"}} {count}\n"))
            && all.iter().all(|worker| {
                !worker.labels().contains_key(labels::OPERATION) && worker.metadata.deletion_timestamp.is_none()
            });
        Ok(are_free.then_some(all))
    })
    .await
}

/// Waits until a ConfigMap has no workers any more.
pub(crate) async fn workers_gone(scope: &Scope, provisioner: &Provisioner) -> Result<()> {
    wait_until("the workers to be gone", LIMIT, async || {
        Ok(workers(scope, provisioner).await?.is_empty().then_some(()))
    })
    .await
}

/// Waits for the Event that says which Pod makes a claim's volume, or has made it.
async fn made_by(scope: &Scope, claim: &str, pod: &str) -> Result<()> {
    let text = format!("Pod {CONFIG_NAMESPACE}/{pod} ma");
    scope.event(claim, &text).await.map(drop)
}

/// Whether there is or was a Pod of the run's own.
async fn has_own_pod(scope: &Scope, uid: &str) -> Result<bool> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
    Ok(pods.get_opt(&format!("provision-{uid}")).await?.is_some())
}

fn printed(scope: &Scope, worker: &str) -> Result<String> {
    scope.kubectl(["-n", CONFIG_NAMESPACE, "logs", worker])
}

/// Waits until runs of a worker have printed a text, which is once.
async fn printed_once(scope: &Scope, worker: &str, text: &str) -> Result<()> {
    let all = wait_until(&format!("worker {worker} to print {text:?}"), LIMIT, async || {
        let all = printed(scope, worker)?;
        Ok(all.contains(text).then_some(all))
    })
    .await?;
    ensure!(all.matches(text).count() == 1, "{all}");
    Ok(())
}

/// Proves: P1
#[test]
fn a_worker_carries_out_one_run_after_another_and_no_pod_starts_for_them() {
    in_namespace("workers", async |scope| {
        let provisioner = scope
            .provisioner()
            .printing()
            .key("workers", "1")
            .key("greeting", "hello")
            .on_provision(
                "[ -z \"$(ls /tmp)\" ] || { echo \"left: $(ls /tmp)\"; exit 78; }
                 echo \"$GREETING $(pv get greeting) $(cat /run/mooring/properties/pvc-name)\" | tee /tmp/secret
                 pv options client=sshfs source=nobody@192.0.2.1:/x",
            )
            .on_delete("echo \"removes $PVC_NAME\"");
        provisioner.apply().await?;
        let worker = warm_and_free(&scope, &provisioner).await?;
        let mut uids = Vec::new();
        for name in ["one", "two", "three"] {
            let started = Instant::now();
            uids.push(scope.claim(name, &provisioner.class, "1Gi").await?);
            scope.claim_bound(name).await?;
            note(format!("claim {name} is bound after {}", spoken(started.elapsed())));
            made_by(&scope, name, &worker).await?;
            let hello = format!("hello hello {name}");
            printed_once(&scope, &worker, &hello).await?;
            assert_eq!(free_worker(&scope, &provisioner).await?, worker);
        }
        scope.claim_gone("one").await?;
        scope.nothing_left(&uids[0]).await?;
        printed_once(&scope, &worker, "removes one").await?;
        // A run that fails says why, and what it left in /tmp is gone at the next.
        let failing = provisioner
            .clone()
            .key("workers", "1")
            .on_provision("echo 'no room' >&2; exit 75");
        failing.apply().await?;
        scope.claim("four", &provisioner.class, "1Gi").await?;
        wait_until("the changed ConfigMap to have another worker", LIMIT, async || {
            let free = free_worker(&scope, &failing).await?;
            Ok((free != worker).then_some(()))
        })
        .await?;
        let event = scope.event("four", "no room").await?;
        let text = event.message.unwrap_or_default();
        ensure!(text.contains("exit code 75: no room"), "{text}");
        for name in ["two", "three", "four"] {
            scope.claim_gone(name).await?;
        }
        // Volumes are deleted by their ConfigMap.
        for uid in &uids {
            scope.nothing_left(uid).await?;
        }
        provisioner.delete()?;
        workers_gone(&scope, &provisioner).await
    });
}

#[test]
fn a_worker_that_nobody_needs_for_long_goes() {
    if skipped_without_all() {
        return;
    }
    in_namespace("workers-idle", async |scope| {
        let provisioner = scope
            .provisioner()
            .printing()
            .key("workers", "2")
            .key("workers-idle", "10s");
        provisioner.apply().await?;
        let worker = warm(&scope, &provisioner).await?;
        wait_until("the idle worker to go", LIMIT, async || {
            let left = workers(&scope, &provisioner).await?;
            Ok(left.iter().all(|left| left.name_any() != worker).then_some(()))
        })
        .await
    });
}

/// Has all controllers begin anew.
fn kill_controllers(scope: &Scope) -> Result<()> {
    let controllers = "app.kubernetes.io/name=flex-provisioner";
    let kill = [
        "-n",
        NAMESPACE,
        "delete",
        "pod",
        "-l",
        controllers,
        "--grace-period=0",
        "--force",
    ];
    scope.kubectl(kill).map(drop)
}

/// Proves: P1
#[test]
fn a_stock_image_has_workers_that_the_next_controller_uses_unless_its_configmap_wants_none() {
    in_namespace("workers-stock", async |scope| {
        let server = scope.ssh_server(&scope.node(1).await?, &[]).await?;
        scope.exec("ssh", ["install", "-d", "-o", "mooring", "/srv/volumes"])?;
        let secret = scope.ssh_secret_for_runs(&server)?;
        let provisioner = scope
            .provisioner()
            .example("sshfs.yaml")?
            .key("secret-name", &secret)
            .key("server", &server.address)
            .key("mount-secret", format!("{secret}/{CONFIG_NAMESPACE}"));
        provisioner.apply().await?;
        let mut uids = Vec::new();
        for name in ["one", "two", "three"] {
            uids.push(scope.claim(name, &provisioner.class, "1Mi").await?);
            scope.claim_bound(name).await?;
            let worker = free_worker(&scope, &provisioner).await?;
            match name {
                "one" => made_by(&scope, name, &format!("provision-{}", uids[0])).await?,
                "two" => {
                    made_by(&scope, name, &worker).await?;
                    kill_controllers(&scope)?;
                    assert_eq!(
                        free_worker(&scope, &provisioner).await?,
                        worker,
                        "another after a restart"
                    );
                }
                _ => made_by(&scope, name, &worker).await?,
            }
        }

        provisioner.clone().key("workers", "0").apply().await?;
        workers_gone(&scope, &provisioner).await?;
        for name in ["four", "five"] {
            let uid = scope.claim(name, &provisioner.class, "1Mi").await?;
            scope.claim_bound(name).await?;
            made_by(&scope, name, &format!("provision-{uid}")).await?;
            uids.push(uid);
        }
        for name in ["one", "two", "three", "four", "five"] {
            scope.claim_gone(name).await?;
        }
        for uid in &uids {
            scope.nothing_left(uid).await?;
        }
        ensure!(workers(&scope, &provisioner).await?.is_empty(), "a worker was made");
        Ok(())
    });
}

/// A claim whose volume is to be on this node, as the scheduler says so.
async fn claim_for(scope: &Scope, provisioner: &Provisioner, name: &str, node: &str) -> Result<String> {
    let mut claim = claim(name, &provisioner.class, "16Mi");
    claim["metadata"]["annotations"] = json!({annotations::SELECTED_NODE: node});
    let uid = scope.claim_with(None, &claim).await?;
    scope.claim_bound(name).await?;
    Ok(uid)
}

/// Proves: P1
#[test]
fn a_volume_on_a_node_s_disk_is_made_and_removed_by_a_worker_there_of_which_the_node_can_be_drained() {
    on_two_nodes("workers-local", async |scope, [here, there]| {
        let provisioner = scope.provisioner().example("local.yaml")?;
        provisioner.apply().await?;
        let one = claim_for(&scope, &provisioner, "one", &here).await?;
        made_by(&scope, "one", &format!("provision-{one}")).await?;
        let worker = free_workers(&scope, &provisioner, 1).await?.remove(0);
        let node_of = |worker: &Pod| worker.spec.as_ref().and_then(|spec| spec.node_name.clone());
        assert_eq!(node_of(&worker).as_ref(), Some(&here));
        let worker = worker.name_any();

        let two = claim_for(&scope, &provisioner, "two", &here).await?;
        made_by(&scope, "two", &worker).await?;
        let other = claim_for(&scope, &provisioner, "other", &there).await?;
        made_by(&scope, "other", &format!("provision-{other}")).await?;
        let both = free_workers(&scope, &provisioner, 2).await?;
        let nodes: BTreeSet<_> = both.iter().filter_map(node_of).collect();
        assert_eq!(nodes, [here.clone(), there].into());

        scope.claim_gone("one").await?;
        scope.nothing_left(&one).await?;
        let both = free_workers(&scope, &provisioner, 2).await?;
        let given = both.iter().find(|free| free.name_any() == worker);
        let given = given.and_then(|worker| worker.annotations().get(annotations::RUNS));
        assert_eq!(given.map(String::as_str), Some("2"), "it was not deleted by the worker");

        let drain = ["drain", &here, "--ignore-daemonsets", "--delete-emptydir-data"];
        let drained = scope.kubectl([&drain[..], &["--pod-selector", labels::WORKER, "--timeout=5m"]].concat());
        // What is on the node is removed although it is cordoned.
        let gone = scope.claim_gone("two").await;
        scope.kubectl(["uncordon", &here])?;
        ensure!(
            drained?.contains(&format!("pod/{worker} evicted")),
            "the worker is still there"
        );
        gone?;
        scope.claim_gone("other").await?;
        for uid in [&two, &other] {
            scope.nothing_left(uid).await?;
        }
        Ok(())
    });
}

/// Proves: P1
#[test]
fn while_a_worker_is_at_a_run_others_have_pods_of_their_own_and_its_end_is_seen_by_the_next_controller() {
    in_namespace("workers-busy", async |scope| {
        let provisioner = scope.provisioner().printing().key("workers", "1").on_provision(
            "echo \"begins $PVC_NAME\"
             case $PVC_NAME in
             slow) while [ ! -e /tmp/go ]; do sleep 0.1; done ;;
             esac
             pv options client=sshfs source=nobody@192.0.2.1:/x",
        );
        provisioner.apply().await?;
        let worker = warm_and_free(&scope, &provisioner).await?;
        let slow = scope.claim("slow", &provisioner.class, "1Gi").await?;
        made_by(&scope, "slow", &worker).await?;
        let other = scope.claim("other", &provisioner.class, "1Gi").await?;
        scope.claim_bound("other").await?;
        scope
            .event("other", &format!("Pod {CONFIG_NAMESPACE}/provision-{other}"))
            .await?;

        kill_controllers(&scope)?;
        scope.let_pod_go_on(CONFIG_NAMESPACE, &worker)?;
        scope.claim_bound("slow").await?;
        ensure!(!has_own_pod(&scope, &slow).await?, "it was begun again");
        printed_once(&scope, &worker, "begins slow").await?;
        assert_eq!(free_worker(&scope, &provisioner).await?, worker);
        for name in ["slow", "other"] {
            scope.claim_gone(name).await?;
        }
        scope.nothing_left(&slow).await
    });
}

#[test]
fn more_claims_than_workers_at_once_all_get_their_volumes() {
    in_namespace("workers-burst", async |scope| {
        let provisioner = scope.provisioner().printing().key("workers", "2");
        provisioner.apply().await?;
        warm_and_free(&scope, &provisioner).await?;
        let names: Vec<_> = (0..12).map(|index| format!("data-{index}")).collect();
        let claims: Vec<_> = names
            .iter()
            .map(|name| claim(name, &provisioner.class, "1Gi").to_string())
            .collect();
        let started = Instant::now();
        scope.apply(&claims.join("\n---\n"))?;
        let mut by_workers = 0;
        for name in &names {
            scope.claim_bound(name).await?;
            let made = scope.event(name, " made it").await?.message.unwrap_or_default();
            by_workers += usize::from(made.contains("/worker-"));
        }
        note(format!(
            "{by_workers} of 12 by workers, after {}",
            spoken(started.elapsed())
        ));
        // One was free. How many more depends on how busy the machine is: no run waits for workers that stand still for
        // half a second. `Demand`'s unit tests have that.
        ensure!(by_workers > 0, "no worker made a volume");
        for name in &names {
            scope.delete(&format!("persistentvolumeclaim/{name}"))?;
        }
        scope.volumes_gone().await
    });
}

/// Proves: P1
#[test]
fn a_run_whose_worker_is_killed_is_begun_again_and_leaves_one_volume() {
    in_namespace("workers-killed", async |scope| {
        let provisioner = scope.provisioner().printing().key("workers", "1").on_provision(
            "case $(hostname) in
             worker-*) while :; do sleep 0.1; done ;;
             esac
             pv options client=sshfs source=nobody@192.0.2.1:/x",
        );
        provisioner.apply().await?;
        let worker = warm_and_free(&scope, &provisioner).await?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        made_by(&scope, "data", &worker).await?;
        // From now on the image ends its runs.
        provisioner.clone().printing().key("workers", "0").apply().await?;
        scope.kubectl(["-n", CONFIG_NAMESPACE, "delete", "pod", &worker, "--wait=false"])?;
        scope.claim_bound("data").await?;
        scope.event("data", "exists after").await?;
        workers_gone(&scope, &provisioner).await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P1, P3
#[test]
fn a_worker_ends_its_run_although_its_configmap_is_deleted_meanwhile() {
    in_namespace("workers-left", async |scope| {
        let provisioner = scope.provisioner().printing().key("workers", "1").on_provision(
            "echo \"begins $PVC_NAME\"
             case $PVC_NAME in
             slow) while [ ! -e /tmp/go ]; do sleep 0.1; done ;;
             esac
             pv options client=sshfs source=nobody@192.0.2.1:/x",
        );
        provisioner.apply().await?;
        let worker = warm_and_free(&scope, &provisioner).await?;
        let uid = scope.claim("slow", &provisioner.class, "1Gi").await?;
        made_by(&scope, "slow", &worker).await?;
        // Kubernetes removes this with the ConfigMap, as it would the worker.
        let admin = scope.elsewhere(CONFIG_NAMESPACE);
        let config = format!("configmap/{}", provisioner.name);
        let config_uid = admin.kubectl(["get", &config, "-o", "jsonpath={.metadata.uid}"])?;
        let dependent = format!("{}-dependent", provisioner.name);
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": provisioner.name, "uid": config_uid});
        let bait = json!({"apiVersion": "v1", "kind": "ConfigMap",
                          "metadata": {"name": dependent, "ownerReferences": [owner]}});
        admin.apply(&bait.to_string())?;
        provisioner.delete()?;
        let maps: Api<ConfigMap> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        wait_until("what belongs to the ConfigMap to go", LIMIT, async || {
            Ok(maps.get_opt(&dependent).await?.is_none().then_some(()))
        })
        .await?;
        let left = workers(&scope, &provisioner).await?;
        ensure!(
            left.iter()
                .any(|left| left.name_any() == worker && left.metadata.deletion_timestamp.is_none()),
            "the worker went in the middle of its run"
        );
        provisioner.apply().await?;
        scope.let_pod_go_on(CONFIG_NAMESPACE, &worker)?;
        scope.claim_bound("slow").await?;
        ensure!(!has_own_pod(&scope, &uid).await?, "it was begun again");
        scope.claim_gone("slow").await?;
        scope.nothing_left(&uid).await
    });
}

/// Proves: P1
#[test]
fn a_worker_that_somebody_has_labelled_is_replaced_and_its_run_has_a_pod_of_its_own() {
    if skipped_without_all() {
        return;
    }
    in_namespace("workers-labelled", async |scope| {
        let provisioner = scope.provisioner().printing().key("workers", "1");
        provisioner.apply().await?;
        let worker = warm_and_free(&scope, &provisioner).await?;
        let admin = scope.elsewhere(CONFIG_NAMESPACE);
        admin.kubectl(["label", "pod", &worker, "team=storage"])?;
        let uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.claim_bound("data").await?;
        scope
            .event("data", &format!("Pod {CONFIG_NAMESPACE}/provision-{uid}"))
            .await?;
        let failed = scope.events("data").await?;
        ensure!(
            failed.iter().all(|event| event.type_.as_deref() != Some("Warning")),
            "an attempt failed: {failed:#?}"
        );
        admin
            .event(&provisioner.name, &format!("{worker} can't be given a run"))
            .await?;
        wait_until("the worker to go", LIMIT, async || {
            let left = workers(&scope, &provisioner).await?;
            Ok(left.iter().all(|left| left.name_any() != worker).then_some(()))
        })
        .await?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await
    });
}

#[test]
fn an_image_that_can_be_no_worker_is_told_of_on_its_configmap() {
    in_namespace("workers-none", async |scope| {
        let image = format!("mooring.dev/provisioner-base:{}", env!("CARGO_PKG_VERSION"));
        let provisioner = scope.provisioner().printing().key("workers", "1").key("image", image);
        provisioner.apply().await?;
        let _uid = scope.claim("data", &provisioner.class, "1Gi").await?;
        let admin = scope.elsewhere(CONFIG_NAMESPACE);
        let event = admin
            .event(&provisioner.name, "a worker ended at its start: exit code 0")
            .await?;
        assert_eq!(event.reason.as_deref(), Some("WorkerFailed"));
        let text = event.message.unwrap_or_default();
        ensure!(text.contains("pv serve"), "{text}");
        scope.claim_gone("data").await?;
        provisioner.delete()?;
        workers_gone(&scope, &provisioner).await
    });
}

/// Proves: P1
#[test]
fn a_volume_is_attached_by_a_worker_with_a_password_that_its_node_alone_gets() {
    on_own_nodes("workers-attach", async |scope| {
        let (_, provisioner) = scope.attached_iscsi("node-1").await?;
        let provisioner = provisioner.key("workers", "1");
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "48Mi").await?;
        scope.claim_bound("data").await?;
        let worker = free_worker(&scope, &provisioner).await?;
        let started = Instant::now();
        scope.apply(&user_of("user", "data", "sleep 1000000").to_string())?;
        scope.pod_ready("user").await?;
        note(format!(
            "a Pod has its volume attached after {}",
            spoken(started.elapsed())
        ));
        scope.event("data", "has the volume").await?;
        scope.exec("user", ["sh", "-c", "echo kept >/data/file && sync"])?;
        assert_eq!(free_worker(&scope, &provisioner).await?, worker);
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        scope.claim_gone("data").await?;
        scope
            .nothing_left(&uid)
            .await
            .context("after it was detached by the worker")
    });
}
