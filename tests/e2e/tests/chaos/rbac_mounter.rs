//! The mounter needs all of its rights: each is removed in turn, and the mounter is refused a request and says so.
//! Alone, since all mounters of the cluster share the rights.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, ResourceExt};
use mooring_contract::attachment::CONNECTION;
use mooring_contract::names::{FLEX_DRIVER, NAMESPACE, annotations};
use mooring_harness::clients::{SSH_CLIENT_IMAGE, client_pods_of};
use mooring_harness::nodes::on_own_nodes_within;
use mooring_harness::processes::kill_all;
use mooring_harness::rights::{Right, rights_in, without};
use mooring_harness::{Scope, wait_until};
use mooring_program::reasons;
use mooring_testbed::progress::note;
use serde_json::{Value, json};

/// The mounter's rights in Mooring's namespace.
const ROLE: &str = "mounter";

/// Its rights in the whole cluster.
const CLUSTER_ROLE: &str = "mooring-mounter";

/// Longest wait for one refusal: the kubelet may wait before it tries again.
const LIMIT: Duration = Duration::from_mins(4);

/// Time limit of the test: it starts a program again for each right.
const WHOLE_LIMIT: Duration = Duration::from_mins(30);

/// The API server's message when a right is missing.
fn refusal(right: &Right) -> String {
    format!("cannot {} resource \"{}\"", right.verb, right.resource)
}

/// Whether a log has a refusal for lack of a right.
fn is_missed_in(right: &Right, log: &str) -> bool {
    let named = |line: &str| {
        let name = right.name.as_ref();
        name.is_none_or(|name| line.contains(&format!("{} \"{name}\" is forbidden", right.resource)))
    };
    log.lines().any(|line| line.contains(&refusal(right)) && named(line))
}

/// The mounters' rights as they are installed, to be restored.
struct Rights {
    role: Api<Role>,
    own: Vec<PolicyRule>,
    cluster_role: Api<ClusterRole>,
    everywhere: Vec<PolicyRule>,
}

impl Rights {
    async fn installed(scope: &Scope) -> Result<Self> {
        let role: Api<Role> = Api::namespaced(scope.client.clone(), NAMESPACE);
        let cluster_role: Api<ClusterRole> = Api::all(scope.client.clone());
        Ok(Self {
            own: role.get(ROLE).await?.rules.unwrap_or_default(),
            role,
            everywhere: cluster_role.get(CLUSTER_ROLE).await?.rules.unwrap_or_default(),
            cluster_role,
        })
    }

    fn all(&self) -> Vec<Right> {
        [rights_in(ROLE, &self.own), rights_in(CLUSTER_ROLE, &self.everywhere)].concat()
    }

    async fn write(&self, own: &[PolicyRule], everywhere: &[PolicyRule]) -> Result<()> {
        let rules = |rules: &[PolicyRule]| Patch::Merge(json!({"rules": rules}));
        let params = PatchParams::default();
        self.role.patch(ROLE, &params, &rules(own)).await?;
        let patch = rules(everywhere);
        self.cluster_role.patch(CLUSTER_ROLE, &params, &patch).await?;
        Ok(())
    }

    async fn put_back(&self) -> Result<()> {
        self.write(&self.own, &self.everywhere)
            .await
            .context("failed to give the mounters their rights back: install Mooring again")
    }

    /// Removes a right, and waits until the API server applies that.
    async fn take_away(&self, scope: &Scope, right: &Right) -> Result<()> {
        if right.role == CLUSTER_ROLE {
            self.write(&self.own, &without(&self.everywhere, &[right])).await?;
        } else {
            self.write(&without(&self.own, &[right]), &self.everywhere).await?;
        }
        let review: SubjectAccessReview = serde_json::from_value(json!({"spec": {
            "user": format!("system:serviceaccount:{NAMESPACE}:mounter"),
            "resourceAttributes": {
                "namespace": NAMESPACE, "group": right.group, "resource": right.resource, "name": right.name,
                "verb": right.verb,
            },
        }}))?;
        let reviews: Api<SubjectAccessReview> = Api::all(scope.client.clone());
        wait_until(&format!("{right} to be gone"), LIMIT, async || {
            let answer = reviews.create(&PostParams::default(), &review).await?;
            let allowed = answer.status.is_some_and(|status| status.allowed);
            Ok((!allowed).then_some(()))
        })
        .await
    }
}

/// A mounter's log, followed until it ends.
struct Followed(Child);

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn log_of(scope: &Scope, pod: &str) -> Result<String> {
    scope.kubectl(["-n", NAMESPACE, "logs", pod])
}

/// Waits until the node's mounter logs that it was refused a right.
async fn says(scope: &Scope, node: &str, right: &Right) -> Result<()> {
    wait_until(&format!("the mounter to miss {right}"), LIMIT, async || {
        let log = log_of(scope, &scope.mounter(node).await?)?;
        Ok(is_missed_in(right, &log).then_some(()))
    })
    .await
}

/// Replaces the mounter of a node; returns what the old one logged until its end.
async fn restart(scope: &Scope, node: &str) -> Result<String> {
    let old = scope.mounter(node).await?;
    let limit = format!("--request-timeout={}s", LIMIT.as_secs());
    let mut follow = scope
        .target
        .kubectl(["-n", NAMESPACE, "logs", "--follow", &limit, &old]);
    let follow = follow.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut follow = Followed(follow.spawn().context("failed to follow the mounter's log")?);
    let mut lines = BufReader::new(follow.0.stdout.take().context("kubectl has no output")?);
    let mut log = String::new();
    // The log is followed once it has a line.
    lines.read_line(&mut log).context("failed to read the mounter's log")?;
    scope.kubectl(["-n", NAMESPACE, "delete", "pod", &old, "--timeout=90s"])?;
    // The log ends with the container.
    lines
        .read_to_string(&mut log)
        .context("failed to read the mounter's log")?;
    wait_until(&format!("another mounter on {node}"), LIMIT, async || {
        Ok((scope.mounter_status(node).await?["ready"] == true).then_some(()))
    })
    .await?;
    Ok(log)
}

/// The client Pods for sshfs.
async fn client_pods(scope: &Scope) -> Result<Vec<Pod>> {
    client_pods_of(scope, &format!("{SSH_CLIENT_IMAGE}:{}", env!("CARGO_PKG_VERSION"))).await
}

async fn no_client_pods(scope: &Scope) -> Result<()> {
    wait_until("client Pods to be deleted", LIMIT, async || {
        let left = client_pods(scope).await?;
        ensure!(left.is_empty(), "{} are there", left.len());
        Ok(Some(()))
    })
    .await
}

/// Creates a Pod with a volume that needs a client Pod. Without a key, the volume is never mounted.
fn use_volume(scope: &Scope, node: &str, name: &str) -> Result<()> {
    scope.volume(name, &json!({"client": "sshfs", "source": "nobody@192.0.2.1:/x"}))?;
    scope.pod(name, node, name, Value::Null)
}

async fn give_up(scope: &Scope, name: &str) -> Result<()> {
    scope.delete(&format!("pod/{name}"))?;
    scope.pod_gone(name).await
}

/// Without a right to create or find a client Pod: the Pod gets an Event that says why it has no volume.
async fn mount_is_refused(scope: &Scope, node: &str, right: &Right) -> Result<()> {
    let name = format!("{}-{}", right.verb, right.resource);
    use_volume(scope, node, &name)?;
    let told = scope.event(&name, &refusal(right)).await;
    give_up(scope, &name).await?;
    told.map(|_| ())
}

/// Without the right to delete Pods: an idle client Pod stays.
async fn letting_go_is_refused(scope: &Scope, node: &str, rights: &Rights, right: &Right) -> Result<()> {
    use_volume(scope, node, "idle")?;
    wait_until("a client Pod", LIMIT, async || {
        Ok((!client_pods(scope).await?.is_empty()).then_some(()))
    })
    .await?;
    rights.take_away(scope, right).await?;
    give_up(scope, "idle").await?;
    says(scope, node, right).await
}

/// Without the right to create Events: a bad ConfigMap `mounter-config` causes none.
async fn telling_is_refused(scope: &Scope, node: &str, right: &Right) -> Result<()> {
    // All mounters agree that it is bad.
    scope.mounter_config("local", "host")?;
    let refused = says(scope, node, right).await;
    scope.mounter_config(&scope.namespace, "self")?;
    wait_until("the mounter to take the mended ConfigMap over", LIMIT, async || {
        let status = scope.mounter_status(node).await?;
        Ok((status["clients"][&scope.namespace] == "self" && status["configError"].is_null()).then_some(()))
    })
    .await?;
    refused
}

/// Without the right to read `PersistentVolumes`: nothing that belongs to the node is mounted, since the mounter can't
/// see who created the volume.
async fn device_is_refused(scope: &Scope, node: &str, right: &Right) -> Result<()> {
    scope.volume(
        "device",
        &json!({"client": "disk", "source": "/dev/loop0", "fs-type": "ext4"}),
    )?;
    scope.pod("device", node, "device", Value::Null)?;
    let told = scope.event("device", &refusal(right)).await;
    give_up(scope, "device").await?;
    told.map(|_| ())
}

/// Without the right to read the controllers' public keys: no volume that has to be attached is mounted.
async fn connection_is_refused(scope: &Scope, node: &str, right: &Right) -> Result<()> {
    // As the controller's: the mounter needs the keys to see that it is not.
    let key = json!({"proof": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="});
    scope.apply(
        &json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "type": FLEX_DRIVER,
            "stringData": {CONNECTION: key.to_string()},
        })
        .to_string(),
    )?;
    let options = json!({"client": "iscsi", "source": "iscsi://192.0.2.1/iqn.2000-01.example:x/1", "secret": "key"});
    scope.volume("attached", &options)?;
    let attached = json!({"node": node, "initiator": "i", "connection": "x.x.x"});
    let attached_to = format!("{}={attached}", annotations::ATTACHED_TO);
    scope.kubectl(["annotate", "pv", &scope.volume_name("attached"), &attached_to])?;
    scope.pod("attached", node, "attached", Value::Null)?;
    let told = scope.event("attached", &refusal(right)).await;
    give_up(scope, "attached").await?;
    told.map(|_| ())
}

/// Kills the program that serves the only sshfs volume.
async fn kill_server(scope: &Scope) -> Result<()> {
    for pod in client_pods(scope).await? {
        let pids = scope.processes_of(NAMESPACE, &pod.name_any()).await?;
        let serves =
            |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sshfs\n");
        let serving: Vec<_> = pids.into_iter().filter(serves).collect();
        ensure!(serving.len() == 1, "{} sshfs processes", serving.len());
        kill_all(&serving);
    }
    Ok(())
}

/// Without the right to change Events: a repeated Event on a volume is not counted.
async fn counting_is_refused(scope: &Scope, node: &str, rights: &Rights, right: &Right) -> Result<()> {
    let server = scope.ssh_server(node, &["data"]).await?;
    scope.volume("data", &server.volume("data"))?;
    scope.pod("user", node, "data", Value::Null)?;
    scope.pod_ready("user").await?;
    kill_server(scope).await?;
    let event = scope.event("user", "the volume was mounted again").await?;
    ensure!(event.reason.as_deref() == Some(reasons::VOLUME_REVIVED), "{event:?}");
    rights.take_away(scope, right).await?;
    kill_server(scope).await?;
    let refused = says(scope, node, right).await;
    give_up(scope, "user").await?;
    refused
}

/// Without a right to impersonate its node: it does not know which Pods are being deleted. It asks when it starts.
async fn asking_is_refused(scope: &Scope, node: &str, right: &Right) -> Result<()> {
    // The API server caches for some seconds that it was allowed.
    wait_until(&format!("the mounter to miss {right}"), LIMIT, async || {
        let log = restart(scope, node).await?;
        Ok(is_missed_in(right, &log).then_some(()))
    })
    .await
}

/// Without the right to read its DaemonSet, a mounter that ends takes it for deleted, and removes its shim.
async fn end_is_misread(scope: &Scope, node: &str) -> Result<()> {
    let log = restart(scope, node).await?;
    ensure!(takes_shim_along(&log), "{log}");
    Ok(())
}

fn takes_shim_along(log: &str) -> bool {
    log.contains("DaemonSet mounter is deleted")
}

/// Removes a right, does what needs it, and waits until that is refused.
async fn is_refused(scope: &Scope, node: &str, rights: &Rights, right: &Right) -> Result<()> {
    match (right.resource.as_str(), right.verb.as_str()) {
        // These have to exist beforehand.
        ("pods", "delete") => return letting_go_is_refused(scope, node, rights, right).await,
        ("events", "patch") => return counting_is_refused(scope, node, rights, right).await,
        _ => {}
    }
    no_client_pods(scope).await?;
    rights.take_away(scope, right).await?;
    match (right.resource.as_str(), right.verb.as_str()) {
        // The mounter marks its node when it starts.
        ("pods" | "configmaps", "list" | "watch") | ("nodes", "patch") => {
            restart(scope, node).await?;
            says(scope, node, right).await
        }
        // The mounter asks these only once.
        ("pods" | "serviceaccounts", "get") => {
            restart(scope, node).await?;
            mount_is_refused(scope, node, right).await
        }
        (_, verb) if verb.starts_with("impersonate") => asking_is_refused(scope, node, right).await,
        ("pods", "create") => mount_is_refused(scope, node, right).await,
        ("events", "create") => telling_is_refused(scope, node, right).await,
        ("daemonsets", "get") => end_is_misread(scope, node).await,
        ("configmaps", "get") => connection_is_refused(scope, node, right).await,
        ("persistentvolumes", "get") => device_is_refused(scope, node, right).await,
        _ => bail!("no test knows what it is needed for: remove it from the mounters' rights, or test it here"),
    }
}

#[test]
fn without_any_one_of_its_rights_the_mounter_is_refused_something() {
    on_own_nodes_within(WHOLE_LIMIT, "rbac-mounter", async |scope| {
        scope.require_mooring().await?;
        let node = format!("node-{}", scope.own_cluster()?.description.nodes);
        let rights = Rights::installed(&scope).await?;
        let all = rights.all();
        ensure!(all.len() > 10, "only {} rights were found", all.len());
        for right in &all {
            let refused = is_refused(&scope, &node, &rights, right).await;
            rights.put_back().await?;
            refused.with_context(|| format!("without {right}"))?;
        }
        // With all rights, it is refused nothing.
        no_client_pods(&scope).await?;
        restart(&scope, &node).await?;
        use_volume(&scope, &node, "last")?;
        scope.event("last", "ssh-privatekey").await?;
        give_up(&scope, "last").await?;
        no_client_pods(&scope).await?;
        let log = restart(&scope, &node).await?;
        ensure!(!log.contains("forbidden") && !takes_shim_along(&log), "{log}");
        note(format!("{} rights were removed in turn", all.len()));
        Ok(())
    });
}

/// If no admission policy applies to a mounter, it has rights on all nodes. Then it mounts nothing, and says so.
///
/// Proves: M6
#[test]
fn a_mounter_that_no_admission_policy_holds_is_not_ready_until_one_does() {
    on_own_nodes_within(WHOLE_LIMIT, "not-held", async |scope| {
        const BINDING: &str = "mooring-mounter";
        let node = "node-1";
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(scope.client.clone());
        let mut installed = bindings.get(BINDING).await?;
        let mounter = scope.mounter(node).await?;
        let token = scope.token_of(NAMESPACE, "mounter", Some(&mounter)).await?;
        let theirs: Api<Pod> = Api::namespaced(scope.with_token(&token).await?, NAMESPACE);
        bindings.delete(BINDING, &DeleteParams::default()).await?;
        let told = async {
            wait_until("the policy to be out of force", LIMIT, async || {
                let deleted = theirs.delete(&mounter, &DeleteParams::default().dry_run()).await;
                Ok(deleted.is_ok().then_some(()))
            })
            .await?;
            scope.kubectl(["-n", NAMESPACE, "delete", "pod", &mounter, "--timeout=90s"])?;
            wait_until("the mounter to say that nothing holds it", LIMIT, async || {
                let said = scope.kubectl([
                    "-n",
                    NAMESPACE,
                    "logs",
                    "-l",
                    "app.kubernetes.io/name=mounter",
                    "--tail=-1",
                ])?;
                Ok(said
                    .contains("no admission policy restricts this mounter")
                    .then_some(()))
            })
            .await?;
            scope.volume("none", &json!({"client": "sshfs", "source": "nobody@192.0.2.1:/x"}))?;
            scope.pod("none", node, "none", Value::Null)?;
            scope
                .event("none", "no admission policy restricts this mounter")
                .await?;
            // Users without a volume there see an Event on the Node.
            scope
                .event_in("default", node, "no admission policy restricts this mounter")
                .await?;
            anyhow::Ok(())
        }
        .await;
        installed.metadata.resource_version = None;
        installed.metadata.uid = None;
        bindings.create(&PostParams::default(), &installed).await?;
        told?;
        wait_until("the mounter to be ready", LIMIT, async || {
            Ok((scope.mounter_status(node).await?["ready"] == true).then_some(()))
        })
        .await?;
        scope.event("none", "ssh-privatekey").await?;
        give_up(&scope, "none").await
    });
}
