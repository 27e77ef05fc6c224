//! The controller and the mounters do nothing while no admission policy restricts them: their rights alone would let
//! them take over nodes. Alone, since all of the cluster's controllers and mounters are restricted by the same policies.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, ResourceExt};
use mooring_contract::names::{NAMESPACE, SETTINGS_CONFIG};
use mooring_harness::credentials::dry_run;
use mooring_harness::nodes::on_own_nodes_within;
use mooring_harness::{Scope, wait_until};
use mooring_testbed::audit::each_line;
use mooring_testbed::layout::CONTROL_PLANE;
use serde_json::{Value, json};

/// Longest wait for one step.
const LIMIT: Duration = Duration::from_mins(4);

/// Time limit of a test.
const WHOLE_LIMIT: Duration = Duration::from_mins(15);

const CONTROLLER: &str = "flex-provisioner";

/// What a policy must refuse, asked for with a part's own token.
enum Forbidden {
    /// To delete the mounter's own Pod.
    Delete,
    /// To make a privileged Pod.
    Create,
}

/// Takes a part's policy out of force until its Pods have noticed it, has these start again, and puts the policy back in
/// force after the test, also if that fails.
async fn unrestricted(
    scope: &Scope,
    binding: &str,
    account: &str,
    forbidden: Forbidden,
    test: impl AsyncFnOnce(&[String]) -> Result<()>,
) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(scope.client.clone());
    let mut installed = bindings.get(binding).await?;
    (installed.metadata.resource_version, installed.metadata.uid) = (None, None);
    let before = pods_of(scope, account).await?;
    ensure!(!before.is_empty(), "there is no {account}");
    let token = scope
        .token_of(NAMESPACE, account, before.first().map(String::as_str))
        .await?;
    let theirs: Api<Pod> = Api::namespaced(scope.with_token(&token).await?, NAMESPACE);
    bindings.delete(binding, &DeleteParams::default()).await?;
    let told = async {
        wait_until(&format!("{binding} to be out of force"), LIMIT, async || {
            let answer = match forbidden {
                Forbidden::Delete => theirs
                    .delete(&before[0], &DeleteParams::default().dry_run())
                    .await
                    .map(drop),
                Forbidden::Create => theirs.create(&dry_run(), &privileged()?).await.map(drop),
            };
            Ok(answer.is_ok().then_some(()))
        })
        .await?;
        each_says_so(scope, account, before.len()).await?;
        ensure!(
            pods_of(scope, account).await? == before,
            "they noticed it only after a restart"
        );
        let there = scope.elsewhere(NAMESPACE);
        for pod in &before {
            there.delete(&format!("pod/{pod}"))?;
        }
        for pod in &before {
            there.pod_gone(pod).await?;
        }
        each_says_so(scope, account, before.len()).await?;
        test(&pods_of(scope, account).await?).await
    }
    .await;
    bindings.create(&PostParams::default(), &installed).await?;
    told
}

/// Waits until each of an account's Pods has said that nothing restricts it.
async fn each_says_so(scope: &Scope, account: &str, count: usize) -> Result<()> {
    let log = format!("-l=app.kubernetes.io/name={account}");
    let what = format!("each {account} to say that nothing restricts it");
    wait_until(&what, LIMIT, async || {
        let said = scope.kubectl(["-n", NAMESPACE, "logs", &log, "--tail=-1", "--prefix"])?;
        let say_so = |pod: &String| {
            said.lines()
                .any(|line| line.contains(pod) && line.contains("no admission policy restricts this"))
        };
        let now = pods_of(scope, account).await?;
        Ok((now.len() == count && now.iter().all(say_so)).then_some(()))
    })
    .await
}

async fn pods_of(scope: &Scope, account: &str) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let of_it = ListParams::default().labels(&format!("app.kubernetes.io/name={account}"));
    Ok(pods.list(&of_it).await?.iter().map(ResourceExt::name_any).collect())
}

fn privileged() -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": "privileged"},
        "spec": {"containers": [{"name": "a", "image": "busybox:1", "securityContext": {"privileged": true}}]},
    }))?)
}

/// What these Pods asked the API server for, by its audit log.
fn requests_of(scope: &Scope, pods: &[String]) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    each_line(&scope.own_cluster()?.layout.logs(CONTROL_PLANE), |line| {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            return;
        };
        let pod = &event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0];
        if pods.iter().any(|name| pod == name) {
            found.push(event);
        }
    })?;
    Ok(found)
}

#[test]
fn a_controller_that_no_admission_policy_holds_does_nothing_until_one_does() {
    on_own_nodes_within(WHOLE_LIMIT, "unrestricted-controller", async |scope| {
        scope.require_mooring().await?;
        unrestricted(
            &scope,
            "mooring-controller",
            CONTROLLER,
            Forbidden::Create,
            async |pods| {
                for pod in pods {
                    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/readyz");
                    // With kubectl: the client library would try again when the answer is that the controller is not ready.
                    match scope.kubectl(["get", "--raw", &path]) {
                        Ok(said) => bail!("{pod} says that it is ready: {said}"),
                        Err(error) => ensure!(format!("{error:#}").contains("unable to handle"), "{error:#}"),
                    }
                }
                let asked = requests_of(&scope, pods)?;
                ensure!(!asked.is_empty(), "they asked for nothing");
                for request in asked {
                    let only_asks = request["requestURI"]
                        .as_str()
                        .is_some_and(|uri| uri.contains("?dryRun=All"));
                    let reads_settings = request["objectRef"]["name"] == SETTINGS_CONFIG
                        && ["list", "watch"].iter().any(|verb| request["verb"] == *verb);
                    ensure!(
                        only_asks || reads_settings,
                        "it did more than read its settings and ask, by dry run: {request}"
                    );
                }
                Ok(())
            },
        )
        .await?;
        let deployment = format!("deployment/{CONTROLLER}");
        scope
            .kubectl_wait(["-n", NAMESPACE, "rollout", "status", &deployment])
            .await?;
        let provisioner = scope
            .provisioner()
            .key("volume-source", "flexVolume")
            .on_provision("pv options client=sshfs source=nobody@192.0.2.1:/x");
        provisioner.apply().await?;
        scope.claim("data", &provisioner.class, "1Gi").await?;
        scope.claim_bound("data").await?;
        Ok(())
    });
}

/// Proves: M6
#[test]
fn a_mounter_that_no_admission_policy_holds_is_not_ready_until_one_does() {
    on_own_nodes_within(WHOLE_LIMIT, "unrestricted-mounter", async |scope| {
        let node = "node-1";
        unrestricted(&scope, "mooring-mounter", "mounter", Forbidden::Delete, async |_| {
            scope.volume("none", &json!({"client": "sshfs", "source": "nobody@192.0.2.1:/x"}))?;
            scope.pod("none", node, "none", Value::Null)?;
            scope
                .event("none", "no admission policy restricts this mounter")
                .await?;
            // Users without a volume there see an Event on the Node.
            scope
                .event_in("default", node, "no admission policy restricts this mounter")
                .await?;
            Ok(())
        })
        .await?;
        wait_until("the mounter to be ready", LIMIT, async || {
            Ok((scope.mounter_status(node).await?["ready"] == true).then_some(()))
        })
        .await?;
        scope.event("none", "ssh-privatekey").await?;
        scope.delete("pod/none")?;
        scope.pod_gone("none").await
    });
}
