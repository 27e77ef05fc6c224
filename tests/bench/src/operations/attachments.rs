//! What an attachment adds to a Pod's way to running, at all points of the kubelet's rhythm.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use mooring_contract::names::annotations;
use serde_json::json;

use super::{SIDECARS, WORKER};
use crate::observer::{Mark, Subject};
use crate::report::Timing;
use crate::sidecars::Sidecars;
use crate::summary::number;
use crate::systems::{LIMIT, MOORING, World};
use mooring_harness::provisioner::{claim, user_of};
use mooring_harness::wait_until;
use mooring_testbed::progress::Step;

/// The node of the Pods, which is not the server's.
const NODE: &str = "node-2";

/// The kubelet's longest wait for something that it looks at from time to time: its next status of the node.
const RHYTHM: Duration = Duration::from_secs(10);

/// A claim that is bound, whose Pods are measured with and without an attachment.
struct Volume {
    side: &'static str,
    claim: &'static str,
    attached: bool,
}

/// A Pod's way to running on a node, with a bound claim that has to be attached (by a Pod of the run's own, and by a
/// worker) and with one that has not. Rounds begin at all points of the kubelet's rhythm.
pub(super) async fn measure(
    world: &World,
    sidecars: &Sidecars<'_>,
    [free, attached, by_worker]: [&str; 3],
    rounds: usize,
    step: &mut Step,
) -> Result<Vec<Timing>> {
    let scope = &world.scope;
    let volumes = [
        (MOORING, "ours-free", free, false),
        (MOORING, "ours-attached", attached, true),
        (WORKER, "ours-by-worker", by_worker, true),
        (SIDECARS, "theirs-free", sidecars.name.as_str(), false),
        (SIDECARS, "theirs-attached", sidecars.name.as_str(), true),
    ];
    scope.apply_anywhere(&sidecars.free_volume("theirs-free").to_string())?;
    for (side, name, class, attached) in volumes {
        let mut wanted = claim(name, class, "64Mi");
        if side == SIDECARS && !attached {
            wanted["spec"]["volumeName"] = sidecars.free_volume_name().into();
        }
        world.make_claim(wanted).await?;
        let bound = Subject::Claim(name.to_owned());
        world.observer.wait(&bound, Mark::Bound, LIMIT).await?;
    }
    let volumes = volumes.map(|(side, claim, _, attached)| Volume { side, claim, attached });
    let mut samples = [const { Vec::new() }; 5];
    for round in 0..=rounds {
        step.update(&format!("round {round} of {rounds}"));
        for turn in 0..volumes.len() {
            let at = (round + turn) % volumes.len();
            // Rounds fall on all phases, whatever one takes.
            let phase = number(round) / number(rounds) + number(turn) / number(volumes.len());
            tokio::time::sleep(RHYTHM.mul_f64(phase.fract())).await;
            let seconds = running(world, &volumes[at], &format!("{}-{round}", volumes[at].claim)).await?;
            // The first does not count.
            if round > 0 {
                samples[at].push(seconds);
            }
        }
    }
    for volume in &volumes {
        let claims: Api<PersistentVolumeClaim> = scope.api();
        claims.delete(volume.claim, &DeleteParams::default()).await?;
    }
    let free: Api<PersistentVolume> = Api::all(scope.client.clone());
    free.delete(&sidecars.free_volume_name(), &DeleteParams::default())
        .await?;
    let timing = |at: usize| {
        let what = if volumes[at].attached {
            "attached"
        } else {
            "not attached"
        };
        Timing::of("Pod → running", &format!("{}, {what}", volumes[at].side), &samples[at])
    };
    let [Some(free), Some(attached), Some(by_worker)] = [timing(0), timing(1), timing(2)] else {
        bail!("no Pod of Mooring's was measured");
    };
    let [Some(their_free), Some(their_attached)] = [timing(3), timing(4)] else {
        bail!("no Pod of the sidecars' was measured");
    };
    Ok(vec![
        attached.over(&free),
        by_worker.over(&free),
        free,
        their_attached.over(&their_free),
        their_free,
    ])
}

/// How long a Pod takes to run; afterwards it is gone, and its volume detached.
async fn running(world: &World, volume: &Volume, name: &str) -> Result<f64> {
    let mut user = user_of(name, volume.claim, "sleep 1000000");
    user["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": NODE});
    let began = Instant::now();
    world.make_pod(user).await?;
    let pod = Subject::pod(&world.scope.namespace, name);
    let running = world.observer.wait(&pod, Mark::Running, LIMIT).await?;
    world.remove_pod(name).await?;
    world.observer.wait(&pod, Mark::Gone, LIMIT).await?;
    let what = format!("the volume of {} to be detached", volume.claim);
    wait_until(&what, LIMIT, async || {
        Ok((!is_attached(world, volume).await?).then_some(()))
    })
    .await?;
    Ok(running.duration_since(began).as_secs_f64())
}

async fn is_attached(world: &World, volume: &Volume) -> Result<bool> {
    let claims: Api<PersistentVolumeClaim> = world.scope.api();
    let spec = claims.get(volume.claim).await?.spec;
    let name = spec
        .and_then(|spec| spec.volume_name)
        .context("a claim without a volume")?;
    let volumes: Api<PersistentVolume> = Api::all(world.scope.client.clone());
    let notes = volumes.get(&name).await?.metadata.annotations.unwrap_or_default();
    if [annotations::ATTACHED_TO, annotations::OPERATION]
        .iter()
        .any(|note| notes.contains_key(*note))
    {
        return Ok(true);
    }
    let attachments: Api<VolumeAttachment> = Api::all(world.scope.client.clone());
    let all = attachments.list(&ListParams::default()).await?;
    Ok(all
        .iter()
        .any(|one| one.spec.source.persistent_volume_name.as_deref() == Some(&name)))
}
