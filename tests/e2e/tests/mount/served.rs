//! How a type of volume is served: the ConfigMap `mounter-config`, read while the mounter runs; and a mounter's status
//! of its node.

use std::time::Duration;

use anyhow::{Result, ensure};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::{Scope, in_namespace, wait_until};
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Sets how a type of this test's own is served, and waits until the mounter has read it; returns the type's name.
async fn serve(scope: &Scope, serving: &str) -> Result<String> {
    let client = scope.namespace.clone();
    scope.mounter_config(&client, serving)?;
    wait_until(
        "the mounter to have read its ConfigMap",
        Duration::from_mins(2),
        async || {
            let status = scope.mounter_status(NODE).await?;
            Ok((status["clients"][&client] == serving).then_some(()))
        },
    )
    .await?;
    Ok(client)
}

#[test]
fn a_type_served_by_host_is_mounted_by_the_host_s_own_program() {
    on_own_nodes("mount-host", async |scope| {
        let client = serve(&scope, "host").await?;
        // The kernel's tmpfs knows users only by number: the program mount looks up names in the host's list.
        let options = json!({
            "client": client, "fs-type": "tmpfs", "source": "scratch", "mount-options": "uid=nobody,size=1m",
        });
        scope.volume("data", &options)?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod_ready("user").await?;
        assert_eq!(scope.exec("user", ["stat", "-c", "%u", "/data"])?, "65534\n");
        assert!(
            scope
                .exec("user", ["grep", "scratch /data tmpfs ", "/proc/mounts"])?
                .contains("nosuid,nodev")
        );
        assert_eq!(scope.mounts_on(1)?.len(), 1);
        // No temporary mount is left.
        assert_eq!(
            scope.on_node(
                1,
                &format!(
                    "grep -c 'run/mooring/host.*{}' /proc/self/mountinfo || true",
                    scope.namespace
                )
            )?,
            "0\n"
        );
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        assert_eq!(
            scope.on_node(
                1,
                &format!("ls /run/mooring/host | grep -c {} || true", scope.namespace)
            )?,
            "0\n"
        );
        Ok(())
    });
}

#[test]
fn what_the_host_s_program_says_reaches_the_pod_s_events() {
    on_own_nodes("mount-host-bad", async |scope| {
        let client = serve(&scope, "host").await?;
        let plain = json!({"client": client, "source": "somewhere:/x"});
        let fuse = json!({"client": client, "source": "x", "fs-type": "fuse.sh"});
        let bind = json!({"client": client, "source": "/etc", "fs-type": "none", "mount-options": "bind"});
        let cases = [
            ("unknown", plain, "somewhere:/x"),
            ("fuse", fuse, "plain file system type"),
            ("bind", bind, "mount option"),
        ];
        for (name, options, _) in &cases {
            scope.volume(name, options)?;
            scope.pod(name, NODE, name, Value::Null)?;
        }
        for (name, _, words) in &cases {
            scope.event(name, words).await?;
        }
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        Ok(())
    });
}

#[test]
fn a_type_served_by_self_is_mounted_by_the_kernel_with_its_options() {
    on_own_nodes("mount-self", async |scope| {
        let client = serve(&scope, "self").await?;
        let tmpfs = |options: &str| json!({"client": client, "fs-type": "tmpfs", "mount-options": options});
        scope.volume("data", &tmpfs("size=1m,noexec"))?;
        scope.volume("bad", &tmpfs("size=lots"))?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod("bad", NODE, "bad", Value::Null)?;
        scope.pod_ready("user").await?;
        assert!(
            scope
                .exec("user", ["grep", " /data tmpfs ", "/proc/mounts"])?
                .contains("nosuid,nodev,noexec")
        );
        let error = scope
            .exec("user", ["dd", "if=/dev/zero", "of=/data/a", "bs=1M", "count=2"])
            .unwrap_err();
        assert!(error.to_string().contains("No space left on device"), "{error:#}");
        scope.event("bad", "size").await?;
        Ok(())
    });
}

#[test]
fn a_mounter_s_status_lists_everything_that_its_node_needs() {
    on_own_nodes("mount-status", async |scope| {
        let status = scope.mounter_status(NODE).await?;
        assert_eq!(status["ready"], true, "{status:#}");
        let checks = status["checks"].as_array().cloned().unwrap_or_default();
        for name in [
            "propagation",
            "plugin-directory",
            "loop-devices",
            "local-file-systems",
            "pool",
            "fuse",
            "host-namespace",
        ] {
            let check = checks.iter().find(|check| check["name"] == name);
            assert!(check.is_some_and(|check| check["ok"] == true), "{name}: {status:#}");
        }
        assert!(
            status["clients"]["sshfs"].is_string() && status["clients"]["local"].is_string(),
            "{status:#}"
        );
        Ok(())
    });
}

/// A mounter that lacks things: propagation, a writable plugin directory, a pool, the node's processes.
const POOR: &str = "
apiVersion: v1
kind: Pod
metadata: {name: poor}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
    - name: mounter
      image: mooring.dev/mounter:0.1.0
      args: [serve, --plugin-dir=/plugins, --kubelet-root=/kubelet, --pool-dir=/pool/pool]
      securityContext: {privileged: true, runAsUser: 0}
      volumeMounts:
        - {name: kubelet, mountPath: /kubelet}
        - {name: plugins, mountPath: /plugins, readOnly: true}
        - {name: plugins, mountPath: /pool, readOnly: true}
  volumes:
    - {name: kubelet, emptyDir: {}}
    - {name: plugins, emptyDir: {}}
";

/// Longest until the poor mounter runs and has tried everything once.
const POOR_LIMIT: Duration = Duration::from_mins(4);

/// Fails unless the status of the poor mounter has each check with its cure.
fn says_what_to_do(status: &Value) -> Result<()> {
    ensure!(status["ready"] == false, "{status:#}");
    let checks = status["checks"].as_array().cloned().unwrap_or_default();
    for (name, required, cure) in [
        ("propagation", true, "mountPropagation: Bidirectional"),
        ("plugin-directory", false, "volumePluginDir"),
        ("pool", false, "--pool-dir"),
        ("host-namespace", false, "hostPID"),
    ] {
        let is_it = |check: &Value| {
            let message = check["message"].as_str().unwrap_or_default();
            check["name"] == name && check["ok"] == false && check["required"] == required && message.contains(cure)
        };
        ensure!(checks.iter().any(is_it), "{name}: {status:#}");
    }
    Ok(())
}

#[test]
fn a_mounter_that_lacks_something_says_what_to_do_and_is_not_ready() {
    in_namespace("mount-poor", async |scope| {
        scope.apply(POOR)?;
        // It answers before it has tried everything once.
        wait_until("the poor mounter's cures", POOR_LIMIT, async || {
            says_what_to_do(&scope.status_of(&scope.namespace, "poor")?)?;
            Ok(Some(()))
        })
        .await?;
        let path = format!("/api/v1/namespaces/{}/pods/poor:9810/proxy/readyz", scope.namespace);
        let is_ready = wait_until("the poor mounter to say that it is not ready", POOR_LIMIT, async || {
            let Err(error) = scope.kubectl(["get", "--raw", &path]) else {
                return Ok(Some(true));
            };
            // Its port may not listen yet.
            let is_told = error.to_string().contains("currently unable to handle the request");
            ensure!(is_told, "{error:#}");
            Ok(Some(false))
        });
        ensure!(!is_ready.await?, "the poor mounter is ready");
        Ok(())
    });
}
