//! What a user waits for: a Pod with a new claim, from the creation of both until the Pod runs, compared with a Pod
//! without a claim.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::observer::{Mark, Subject};
use super::report::{Timing, compared};
use super::systems::{LIMIT, System, World};
use mooring_harness::provisioner::claim;
use mooring_testbed::progress::Step;

pub(super) const RUNNING: &str = "Pod with a fresh claim → running";
/// The name of its comparison.
const WITHOUT: &str = "Pod without a claim";

/// Measures both in turn. The scheduler chooses the nodes.
pub(super) async fn measure(world: &World, systems: &[System], rounds: usize, step: &mut Step) -> Result<Vec<Timing>> {
    let systems: Vec<_> = std::iter::once(None)
        .chain(systems.iter().filter(|system| system.mounts).map(Some))
        .collect();
    let mut samples = vec![Vec::new(); systems.len()];
    for round in 0..rounds {
        step.update(&format!("round {} of {rounds}", round + 1));
        for turn in 0..systems.len() {
            let at = (round + turn) % systems.len();
            let name = format!("user-{at}-{round}");
            let seconds = one(world, systems[at], &name).await?;
            samples[at].push(seconds);
        }
    }
    let timings = systems.iter().zip(&samples).filter_map(|(system, samples)| {
        let who = system.map_or(WITHOUT, |system| &system.name);
        Timing::of(RUNNING, who, samples)
    });
    Ok(compared(timings.collect(), WITHOUT))
}

async fn one(world: &World, system: Option<&System>, name: &str) -> Result<f64> {
    let class = system.and_then(|system| system.class.as_ref());
    let began = Instant::now();
    if let Some(class) = class {
        world.make_claim(claim(name, class, "64Mi")).await?;
    }
    world.make_pod(user(name, class.is_some())).await?;
    let pod = Subject::pod(&world.scope.namespace, name);
    let running = world.observer.wait(&pod, Mark::Running, LIMIT).await?;
    world.remove_pod(name).await?;
    world.observer.wait(&pod, Mark::Gone, LIMIT).await?;
    if let Some(system) = system {
        world.remove(system, name).await?;
        let volume = world.last_of(system, name);
        world.observer.wait(&volume, Mark::Gone, LIMIT).await?;
        world.settled(system).await?;
    }
    Ok(running.duration_since(began).as_secs_f64())
}

/// A Pod with a volume at /data: the claim with its name, or an empty directory.
fn user(name: &str, with_claim: bool) -> Value {
    let volume = if with_claim {
        json!({"name": "data", "persistentVolumeClaim": {"claimName": name}})
    } else {
        json!({"name": "data", "emptyDir": {}})
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [volume],
        },
    })
}
