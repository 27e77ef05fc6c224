//! The testbed itself: what every other test relies on.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::{Scope, in_namespace, open_target, skip};
use mooring_testbed::cluster::Cluster;
use mooring_testbed::namespaces::find_in_namespace;
use mooring_testbed::node::{Flavour, programs_of_an_immutable};

/// A privileged Pod that mounts a file system below the kubelet's folder, and a Pod on the same node that sees it.
const MOUNTER_AND_OBSERVER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: mounter}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox:1
      command: [sh, -c, "mkdir -p /share/NAME && mount -t tmpfs smoke /share/NAME && echo hello >/share/NAME/file && sleep 1000000"]
      securityContext: {privileged: true}
      volumeMounts: [{name: share, mountPath: /share, mountPropagation: Bidirectional}]
  volumes: [{name: share, hostPath: {path: /var/lib/kubelet/smoke, type: DirectoryOrCreate}}]
---
apiVersion: v1
kind: Pod
metadata: {name: observer}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox:1
      command: [sh, -c, "until cat /share/NAME/file; do sleep 0.2; done; sleep 1000000"]
      readinessProbe: {exec: {command: [test, -s, /share/NAME/file]}, periodSeconds: 1}
      volumeMounts: [{name: share, mountPath: /share, mountPropagation: HostToContainer}]
  volumes: [{name: share, hostPath: {path: /var/lib/kubelet/smoke, type: DirectoryOrCreate}}]
"#;

/// A Pod that asks the web server until it gets an answer.
const CLIENT: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: LAST
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
    - name: main
      image: busybox:1
      command: [sh, -c, "until wget -q -O - http://ADDRESS/; do sleep 0.5; done"]
"#;

async fn nodes(scope: &Scope) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(scope.client.clone());
    let nodes = nodes.list(&ListParams::default()).await?.items;
    Ok(nodes.into_iter().filter_map(|node| node.metadata.name).collect())
}

#[test]
fn a_mount_made_in_a_pod_reaches_another_pod_of_its_node() {
    in_namespace("smoke-mount", async |scope| {
        let node = nodes(&scope).await?.remove(0);
        scope.apply(
            &MOUNTER_AND_OBSERVER
                .replace("NODE", &node)
                .replace("NAME", &scope.namespace),
        )?;
        scope.pod_ready("observer").await?;
        let folder = format!("/share/{}", scope.namespace);
        let file = format!("{folder}/file");
        assert_eq!(scope.exec("observer", ["cat", &file])?, "hello\n");
        scope.exec("mounter", ["umount", &folder])?;
        scope.exec("observer", ["test", "!", "-e", &file])?;
        scope.exec("mounter", ["rmdir", &folder])?;
        Ok(())
    });
}

#[test]
fn a_service_is_reached_from_every_node() {
    in_namespace("smoke-service", async |scope| {
        let nodes = nodes(&scope).await?;
        let last = nodes.last().cloned().unwrap_or_default();
        let address = scope.web_server(&nodes[0]).await?;
        scope.apply(&CLIENT.replace("LAST", &last).replace("ADDRESS", &address))?;
        scope.pod_succeeded("client").await?;
        // It may have been refused before: a Service's rules reach the nodes a moment after its Pod is ready.
        let said = scope.kubectl(["logs", "client"])?;
        assert_eq!(said.lines().last(), Some("served"), "{said}");
        Ok(())
    });
}

/// The names of all files below a folder, without the kernel's modules.
fn files_below(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "modules" {
                files_below(&entry.path(), found)?;
            }
        } else {
            found.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(())
}

#[test]
fn an_immutable_node_has_nothing_that_mooring_could_rely_on() {
    let target = open_target().unwrap();
    let plain = |cluster: &Cluster| cluster.description.flavour != Flavour::Immutable;
    if target.own_cluster().is_some_and(plain) {
        return skip("the nodes are plain ones");
    }
    on_own_nodes("smoke-immutable", async |scope| {
        let cluster = scope.own_cluster()?;
        for index in 1..=cluster.description.nodes {
            let init = cluster.init_of(index)?;
            // The root that the kubelet sees, and the one from which the runtime starts containers.
            for program in ["kubelet", "containerd"] {
                let mut seen = 0;
                for pid in find_in_namespace(init, program)? {
                    let root = Path::new("/proc").join(pid.to_string()).join("root");
                    // A process that containerd forks has its name until it starts a program.
                    let Ok(listed) = std::fs::read_dir(root.join("usr/bin")) else {
                        continue;
                    };
                    seen += 1;
                    let names = listed.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
                    let names: BTreeSet<String> = names.collect::<Result<_>>()?;
                    let expected = programs_of_an_immutable().into_iter().map(str::to_owned).collect();
                    ensure!(names == expected, "{names:?}");
                    for (folder, link) in [("bin", "usr/bin"), ("sbin", "usr/bin"), ("usr/sbin", "bin")] {
                        ensure!(std::fs::read_link(root.join(folder))? == Path::new(link), "{folder}");
                    }
                    let mut libraries = BTreeSet::new();
                    files_below(&root.join("usr/lib"), &mut libraries)?;
                    let others: Vec<_> = libraries.iter().filter(|name| !name.contains(".so")).collect();
                    ensure!(others == ["host-local", "loopback", "ptp"], "{others:?}");
                    for folder in ["", "usr", "usr/bin", "usr/lib", "etc"] {
                        let refused = std::fs::write(root.join(folder).join(&scope.namespace), "");
                        let kind = refused.map_err(|error| error.kind());
                        ensure!(
                            kind == Err(std::io::ErrorKind::ReadOnlyFilesystem),
                            "{folder}: {kind:?}"
                        );
                    }
                }
                ensure!(seen > 0, "{program} does not run");
            }
            let shell = cluster.on_host(index, "sh", ["-c", "true"])?.output()?;
            ensure!(!shell.status.success(), "there is a shell");
        }
        Ok(())
    });
}
