//! `cargo testbed openstack --faults`: the image's runs against the real services, each of them killed at each of its
//! calls, and each call answered as the services do at their worst. There is one of everything in the end, and then
//! nothing, by the lists of OpenStack, Kubernetes and Ceph.

mod calls;
mod cloud;
mod expected;
mod fault;
mod ground;
mod http;
mod life;
mod program;
mod proxy;
mod scene;
mod shown;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::fault::Of;
use self::ground::Ground;
use self::life::{Count, Life};
use self::proxy::Proxy;
use self::scene::{SCENES, Scene};
use super::kustomization::Kustomization;
use super::share_type;
use mooring_testbed::layout::repository;
use mooring_testbed::progress::{Step, fail, say, spoken, step};
use mooring_testbed::target::Target;
use mooring_testbed::wait::{Look, wait_for};

/// A share type of Manila's, made for this.
const SHARE_TYPE: &str = "faults";

/// How many lives there are at once: a run mostly waits, those of Manila more.
const AT_ONCE: [(&str, usize); 2] = [("cinder", 2), ("manila", 4)];

/// Longest until all is gone that was made.
const LIMIT: Duration = Duration::from_mins(2);

/// The services, with a Manila that does not count how full its small storage is, which it hears of once a minute, and
/// that looks often whether a share of a snapshot is complete.
pub(super) fn settings() -> Kustomization {
    let settings = "[DEFAULT]\n\
                    scheduler_default_filters = AvailabilityZoneFilter,CapabilitiesFilter\n\
                    scheduler_default_extend_filters = DriverFilter\n\
                    periodic_interval = 3";
    Kustomization::new(&[]).with_file("manila", "30-override.conf", settings)
}

pub(super) fn run(target: &Target) -> Result<()> {
    let began = Instant::now();
    let ground = Ground::prepare(target)?;
    share_type(target, SHARE_TYPE)?;
    let before = ground.everything()?;
    let folder = repository().join("target/openstack-trial").join(&ground.name);
    let played = play_all(&ground, &folder);
    // The runs' folders have passwords.
    std::fs::remove_dir_all(&folder).with_context(|| format!("failed to remove {}", folder.display()))?;
    let count = played?;
    step("OpenStack, Kubernetes and Ceph have what they had before", |_| {
        wait_for("what was made to be gone", LIMIT, &[], || match ground.everything() {
            Ok(left) if left == before => Look::Ready(()),
            Ok(left) => Look::NotYet(format!("{left:?} instead of {before:?}")),
            Err(error) => Look::NotYet(format!("{error:#}")),
        })?;
        Ok(())
    })?;
    ground.remove()?;
    share_type(target, &format!("-{SHARE_TYPE}"))?;
    say(format!(
        "  {} runs of the image with {} calls, {} of them with a fault, {} since one had asked for another; the lists \
         were compared {} times: nothing was left, and nothing there twice ({})",
        count.runs,
        count.calls,
        count.faults,
        count.more,
        count.lists,
        spoken(began.elapsed())
    ));
    Ok(())
}

/// Plays all scenes, several at once; one that fails does not keep others from being played.
fn play_all(ground: &Ground<'_>, folder: &Path) -> Result<Count> {
    let all: Vec<_> = SCENES.iter().flat_map(|scene| Of::ALL.map(|of| (scene, of))).collect();
    let total = Mutex::new((Count::default(), 0));
    let play = |(scene, of): (&Scene, Of)| {
        let played = play(ground, scene, of, folder);
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        match played {
            Ok(count) => total.0.add(count),
            Err(error) => {
                total.1 += 1;
                fail(&error);
            }
        }
    };
    std::thread::scope(|scope| {
        for (service, at_once) in AT_ONCE {
            let own = all.iter().copied().filter(|(scene, _)| scene.service == service);
            let queue = Arc::new(Mutex::new(own.collect::<VecDeque<_>>()));
            for _ in 0..at_once {
                let (queue, play) = (queue.clone(), &play);
                let next = move || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                scope.spawn(move || std::iter::from_fn(next).for_each(play));
            }
        }
    });
    let (count, failed) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed > 0 {
        bail!("{failed} of {} lives did not end as they should: see above", all.len());
    }
    Ok(count)
}

fn play(ground: &Ground<'_>, scene: &Scene, of: Of, folder: &Path) -> Result<Count> {
    let title = format!("{}: {}, {}", scene.service, scene.name, of.name());
    let folder = folder.join(scene.service).join(scene.name).join(of.name());
    let mut progress = Step::begin(&title);
    let proxy = Proxy::start(ground.servers.clone())?;
    let life = Life::begin(ground, (scene, of), &proxy, folder)?;
    let count = life.play(&mut progress).context(title)?;
    progress.done(&format!("{} runs, {} with a fault", count.runs, count.faults));
    Ok(count)
}
