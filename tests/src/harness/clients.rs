//! Client Pods, and client images of a test's own.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use mooring_contract::names::{NAMESPACE, labels};

use super::Scope;
use crate::base_images::Archive;
use crate::command::output;
use crate::oci::{Runs, write_archive};

/// The mounter's image.
pub const MOUNTER_IMAGE: &str = "mooring.dev/mounter";

/// Where the shim is in it.
const SHIM_IN_IMAGE: &str = "/usr/libexec/mooring/vcs";

/// The client image for ssh servers.
pub const SSH_CLIENT_IMAGE: &str = "mooring.dev/client-sshfs";

/// The sshfs client image under another name, on all nodes, which no other test uses.
pub fn image_of_its_own(scope: &Scope, tag: &str) -> Result<String> {
    let image = format!("{SSH_CLIENT_IMAGE}:{}-{tag}", scope.namespace);
    for node in 1..=scope.own_cluster()?.description.nodes {
        let usual = format!("{SSH_CLIENT_IMAGE}:0.1.0");
        let args = ["-n", "k8s.io", "images", "tag", "--force", &usual, &image];
        output(&mut scope.own_cluster()?.in_node(node, "ctr", args)?)?;
    }
    Ok(image)
}

/// The mounter's image under another name, on all nodes, with another shim in it: it does the same, and is not the same file.
pub fn next_mounter(scope: &Scope, tag: &str) -> Result<String> {
    let image = format!("{MOUNTER_IMAGE}:{}-{tag}", scope.namespace);
    let cluster = scope.own_cluster()?;
    let folder = format!("var/lib/mooring/{}-{tag}", scope.namespace);
    let at = format!("/{folder}/at");
    let original = format!("{MOUNTER_IMAGE}:0.1.0");
    let ctr = |args: &[&str]| {
        let args = ["-n", "k8s.io", "images"].iter().chain(args);
        anyhow::Ok(output(&mut cluster.in_node(1, "ctr", args)?)?)
    };
    scope.on_node(1, &format!("mkdir -p {at}"))?;
    ctr(&["mount", &original, &at])?;
    let copied = scope.on_node(1, &format!("cp -a {at} /{folder}/root"));
    ctr(&["unmount", "--rm", &at])?;
    copied?;
    scope.on_node(
        1,
        &format!("cd /{folder} && echo {tag} >>root{SHIM_IN_IMAGE} && tar -C root -cf layer.tar ."),
    )?;
    // As the machine sees it, and the nodes as well.
    let folder = cluster.layout.node("node-1").join(folder);
    let archive = Archive {
        name: image.clone(),
        path: folder.join("image.tar"),
    };
    let runs = Runs {
        entrypoint: &["/mounter"],
        cmd: &[],
    };
    write_archive(&archive.path, &folder.join("layer.tar"), &runs)?;
    for node in 1..=cluster.description.nodes {
        cluster.import(node, &archive)?;
    }
    Ok(image)
}

/// Takes such a name away.
pub fn remove_image(scope: &Scope, image: &str) -> Result<()> {
    for node in 1..=scope.own_cluster()?.description.nodes {
        let args = ["-n", "k8s.io", "images", "remove", image];
        output(&mut scope.own_cluster()?.in_node(node, "ctr", args)?)?;
    }
    Ok(())
}

/// All client Pods of an image.
pub async fn client_pods_of(scope: &Scope, image: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let selector = format!("{}={}", labels::COMPONENT, labels::COMPONENT_CLIENT);
    let mut pods = pods.list(&ListParams::default().labels(&selector)).await?.items;
    pods.retain(|pod| {
        let spec = pod.spec.as_ref();
        spec.is_some_and(|spec| spec.containers.iter().any(|one| one.image.as_deref() == Some(image)))
    });
    Ok(pods)
}
