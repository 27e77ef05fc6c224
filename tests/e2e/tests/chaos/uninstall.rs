//! A mounter's life on a node, from the shim's installation to its removal. The test uses a second mounter with a
//! plugin directory of its own (for which it has no host path), so that the first one is not disturbed.

use std::time::Duration;

use mooring_contract::names::FLEX_DRIVER_DIR;
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::wait_until;

const MOUNTER: &str = r"
apiVersion: v1
kind: ServiceAccount
metadata: {name: mounter}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: mounter}
rules:
  - {apiGroups: [apps], resources: [daemonsets], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mounter}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: mounter}
subjects: [{kind: ServiceAccount, name: mounter}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: second}
spec:
  selector: {matchLabels: {app: second}}
  template:
    metadata: {labels: {app: second}}
    spec:
      serviceAccountName: mounter
      nodeSelector: {kubernetes.io/hostname: node-1}
      hostPID: true
      containers:
        - name: mounter
          image: mooring.dev/mounter:0.1.0
          args: [serve, --plugin-dir=ROOT/plugins, --daemonset=second]
          env: [{name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]
          readinessProbe: {httpGet: {path: /readyz, port: 9810}, periodSeconds: 1}
          securityContext: {privileged: true, runAsUser: 0}
          volumeMounts:
            - {name: kubelet, mountPath: /var/lib/kubelet, mountPropagation: Bidirectional}
            - {name: mooring, mountPath: /var/lib/mooring}
      volumes:
        - {name: kubelet, hostPath: {path: /var/lib/kubelet, type: Directory}}
        - {name: mooring, hostPath: {path: /var/lib/mooring, type: DirectoryOrCreate}}
";

const LIMIT: Duration = Duration::from_mins(1);

#[test]
fn the_shim_outlives_its_mounter_and_goes_with_the_daemon_set_once_nothing_is_mounted() {
    on_own_nodes("chaos-uninstall", async |scope| {
        // Outside the directories that the installed mounter mounts.
        let root = format!("/run/{}", scope.namespace);
        let shim = format!("{root}/plugins/{FLEX_DRIVER_DIR}/vcs");
        let volume = format!("{}/v", scope.pod_directory(1)?);
        let call = |args: &[&str]| scope.call_out_of(1, &shim, args);
        let mounted = || scope.on_node(1, &format!("grep -c ' {volume} ' /proc/self/mountinfo || true"));
        let pods = async |count: usize| {
            wait_until(&format!("{count} mounters"), LIMIT, async || {
                let path = "jsonpath={.items[?(@.status.containerStatuses[0].ready==true)].metadata.name}";
                let ready = scope.kubectl(["get", "pods", "-l", "app=second", "-o", path])?;
                let all = scope.kubectl(["get", "pods", "-l", "app=second", "-o", "name"])?;
                Ok((ready.split_whitespace().count() == count && all.lines().count() == count).then_some(()))
            })
            .await
        };
        scope.apply(&MOUNTER.replace("ROOT", &root))?;
        pods(1).await?;
        scope.on_node(1, &format!("mkdir -p {volume}"))?;
        // As a mounter would have: this one has no right to see who wrote a volume.
        scope.on_node(1, &format!("mount -t tmpfs tmpfs {volume}"))?;
        assert_eq!(mounted()?, "1\n");

        // Away for a while, but wanted: the DaemonSet still exists.
        let elsewhere = r#"{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"nowhere"}}}}}"#;
        scope.kubectl(["patch", "daemonset", "second", "-p", elsewhere])?;
        pods(0).await?;
        let down = call(&["unmount", &volume])?;
        assert_eq!(down.status(), "Failure", "{down:?}");
        assert!(down.message().contains("not running on this node"), "{down:?}");
        // The kubelet asks only once what a driver can do, so the shim answers that itself.
        assert_eq!(call(&["init"])?.status(), "Success");
        assert_eq!(mounted()?, "1\n");
        scope.kubectl([
            "patch",
            "daemonset",
            "second",
            "-p",
            &elsewhere.replace("nowhere", "node-1"),
        ])?;
        pods(1).await?;

        // No longer wanted, but with a mount that only the shim can unmount.
        scope.delete("daemonset/second")?;
        pods(0).await?;
        scope.on_node(1, &format!("test -x {shim}"))?;
        assert_eq!(mounted()?, "1\n");

        scope.apply(&MOUNTER.replace("ROOT", &root))?;
        pods(1).await?;
        assert_eq!(mounted()?, "1\n");
        assert_eq!(call(&["unmount", &volume])?.status(), "Success");
        assert_eq!(mounted()?, "0\n");
        scope.on_node(1, &format!("rmdir {volume}"))?;
        scope.delete("daemonset/second")?;
        pods(0).await?;
        assert_eq!(scope.on_node(1, &format!("ls -A {root}/plugins"))?, "");
        Ok(())
    });
}
