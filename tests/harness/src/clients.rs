//! Client Pods, and client images that only one test uses.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::Api;
use kube::api::ListParams;
use mooring_contract::names::{NAMESPACE, labels};

pub use mooring_mounter::agent::protocol::MAX_MESSAGE;

use super::scope::Scope;
use mooring_testbed::base_images::Archive;
use mooring_testbed::command::output;
use mooring_testbed::earlier::Earlier;
use mooring_testbed::oci::{Runs, write_archive};

pub const MOUNTER_IMAGE: &str = "mooring.dev/mounter";

/// Where each program is in its image, relative to the root.
const CONTROLLER_IN_IMAGE: &str = "flex-provisioner";
const MOUNTER_IN_IMAGE: &str = "mounter";
const SHIM_IN_IMAGE: &str = "usr/libexec/mooring/vcs";

pub const CONTROLLER_IMAGE: &str = "mooring.dev/flex-provisioner";
pub const SSH_CLIENT_IMAGE: &str = "mooring.dev/client-sshfs";

pub const BLOCK_CLIENT_IMAGE: &str = "mooring.dev/client-block";

/// The sshfs client image under a name that no other test uses, on all nodes.
pub fn image_of_its_own(scope: &Scope, tag: &str) -> Result<String> {
    own_image(scope, SSH_CLIENT_IMAGE, tag)
}

/// A client image under a name that no other test uses, on all nodes.
pub fn own_image(scope: &Scope, usual: &str, tag: &str) -> Result<String> {
    let image = format!("{usual}:{}-{tag}", scope.namespace);
    tag_image(scope, &format!("{usual}:0.1.0"), &image)?;
    Ok(image)
}

/// Gives an image another name besides, on all nodes.
pub fn tag_image(scope: &Scope, usual: &str, name: &str) -> Result<()> {
    for node in 1..=scope.own_cluster()?.description.nodes {
        let args = ["-n", "k8s.io", "images", "tag", "--force", usual, name];
        output(&mut scope.own_cluster()?.in_node(node, "ctr", args)?)?;
    }
    Ok(())
}

/// The mounter's image under another name, on all nodes. Its shim behaves the same, and is another file.
pub fn next_mounter(scope: &Scope, tag: &str) -> Result<String> {
    image_with(scope, MOUNTER, tag, |root| {
        let shim = root.join(SHIM_IN_IMAGE);
        let mut program = std::fs::read(&shim).with_context(|| format!("failed to read {}", shim.display()))?;
        program.extend_from_slice(tag.as_bytes());
        std::fs::write(&shim, program).with_context(|| format!("failed to change {}", shim.display()))
    })
}

/// The mounter's image of an earlier commit, from that commit's programs, on all nodes.
pub fn earlier_mounter(scope: &Scope, earlier: &Earlier, tag: &str) -> Result<String> {
    image_with(scope, MOUNTER, tag, |root| {
        put(&earlier.mounter(), &root.join(MOUNTER_IN_IMAGE))?;
        put(&earlier.shim(), &root.join(SHIM_IN_IMAGE))
    })
}

/// The controller's image of an earlier commit, from that commit's program, on all nodes.
pub fn earlier_controller(scope: &Scope, earlier: &Earlier, tag: &str) -> Result<String> {
    image_with(scope, CONTROLLER, tag, |root| {
        put(&earlier.controller(), &root.join(CONTROLLER_IN_IMAGE))
    })
}

fn put(program: &Path, place: &Path) -> Result<()> {
    std::fs::copy(program, place)
        .map(drop)
        .with_context(|| format!("failed to copy {} to {}", program.display(), place.display()))
}

/// An image, and its entry point.
type Image = (&'static str, &'static str);

const MOUNTER: Image = (MOUNTER_IMAGE, "/mounter");
const CONTROLLER: Image = (CONTROLLER_IMAGE, "/flex-provisioner");

/// An image of Mooring's under another name, on all nodes, with a changed file system.
fn image_with(
    scope: &Scope,
    (name, entrypoint): Image,
    tag: &str,
    change: impl FnOnce(&Path) -> Result<()>,
) -> Result<String> {
    let image = format!("{name}:{}-{tag}", scope.namespace);
    let cluster = scope.own_cluster()?;
    let folder = format!("var/lib/mooring/{}-{tag}", scope.namespace);
    let at = format!("/{folder}/at");
    let original = format!("{name}:0.1.0");
    let ctr = |args: &[&str]| {
        let args = ["-n", "k8s.io", "images"].iter().chain(args);
        anyhow::Ok(output(&mut cluster.in_node(1, "ctr", args)?)?)
    };
    scope.on_node(1, &format!("mkdir -p {at}"))?;
    ctr(&["mount", &original, &at])?;
    let copied = scope.on_node(1, &format!("cp -a {at} /{folder}/root"));
    ctr(&["unmount", "--rm", &at])?;
    copied?;
    // The folder as the machine sees it; the nodes see it too.
    let outside = cluster.layout.node("node-1").join(&folder);
    change(&outside.join("root"))?;
    scope.on_node(1, &format!("cd /{folder} && tar -C root -cf layer.tar ."))?;
    let archive = Archive {
        name: image.clone(),
        path: outside.join("image.tar"),
    };
    let runs = Runs {
        entrypoint: &[entrypoint],
        ..Runs::default()
    };
    write_archive(&archive.path, &outside.join("layer.tar"), &runs)?;
    for node in 1..=cluster.description.nodes {
        cluster.import(node, &archive)?;
    }
    Ok(image)
}

/// Removes an image with such a name.
pub fn remove_image(scope: &Scope, image: &str) -> Result<()> {
    for node in 1..=scope.own_cluster()?.description.nodes {
        let args = ["-n", "k8s.io", "images", "remove", image];
        output(&mut scope.own_cluster()?.in_node(node, "ctr", args)?)?;
    }
    Ok(())
}

/// All client Pods of an image.
pub async fn client_pods_of(scope: &Scope, image: &str) -> Result<Vec<Pod>> {
    client_pods_with(scope, |spec| {
        spec.containers.iter().any(|one| one.image.as_deref() == Some(image))
    })
    .await
}

/// All client Pods whose agent is of a mounter's image.
pub async fn client_pods_with_agent_of(scope: &Scope, mounter: &str) -> Result<Vec<Pod>> {
    client_pods_with(scope, |spec| {
        let mut agents = spec.init_containers.iter().flatten();
        agents.any(|one| one.image.as_deref() == Some(mounter))
    })
    .await
}

async fn client_pods_with(scope: &Scope, wanted: impl Fn(&PodSpec) -> bool) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(scope.client.clone(), NAMESPACE);
    let selector = format!("{}={}", labels::COMPONENT, labels::COMPONENT_CLIENT);
    let mut pods = pods.list(&ListParams::default().labels(&selector)).await?.items;
    pods.retain(|pod| pod.spec.as_ref().is_some_and(&wanted));
    Ok(pods)
}
