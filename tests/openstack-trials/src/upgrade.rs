//! `cargo testbed openstack --upgrade`: from the packages of Debian's release before to those of this one, while Pods
//! use a volume and a share.

use anyhow::{Result, ensure};

use super::kustomization::Kustomization;
use super::trial::Trial;
use super::volumes::InUse;
use super::{NAMESPACE, put_and_wait};
use mooring_testbed::command::output;
use mooring_testbed::images::{Built, HOST, Selection};
use mooring_testbed::progress::step;
use mooring_testbed::target::Target;

/// What runs in Pods of which nothing is kept, and is of this release from the start: the Job that makes Secrets, and
/// the client.
const WITHOUT_STATE: &str = "openstack-base";

pub(super) fn run(target: &Target, images: &[Built]) -> Result<()> {
    let before = target.load_images(Selection::OpenStackBefore)?;
    let new = Kustomization::new(&[]);
    let mut old = new.clone();
    for image in before
        .iter()
        .filter_map(|image| image.archive.name.strip_prefix(&format!("{HOST}/before-")))
    {
        let name = image.split(':').next().unwrap_or_default();
        if name != WITHOUT_STATE {
            old = old.with_image(&format!("{HOST}/{name}"), &format!("{HOST}/before-{name}"));
        }
    }
    let all: Vec<_> = images.iter().chain(&before).cloned().collect();
    put_and_wait(target, &old.write()?, &all)?;
    releases(target, "of the release before", |image| image.contains("/before-"))?;
    let trial = Trial {
        target,
        images: &all,
        kustomization: &new,
    };
    let mut things = trial.make()?;
    let in_use = InUse::begin(target)?;
    in_use.goes_on()?;
    put_and_wait(target, &new.write()?, &all)?;
    releases(target, "of this release", |image| !image.contains("/before-"))?;
    step("the Pods have gone on writing, and do", |_| in_use.goes_on())?;
    in_use.end()?;
    trial.restore_and_remove(&mut things)
}

/// Says what runs, and checks the images of all Pods that have state or a database.
fn releases(target: &Target, what: &str, is: impl Fn(&str) -> bool) -> Result<()> {
    step(&format!("all Pods are {what}"), |progress| {
        let path = "jsonpath={range .items[?(@.metadata.ownerReferences[0].kind!=\"Job\")]}\
                    {.metadata.name} {.spec.containers[0].image}{\"\\n\"}{end}";
        let pods = output(&mut target.kubectl(["-n", NAMESPACE, "get", "pods", "-o", path]))?;
        let of_release = pods
            .lines()
            .filter(|line| !line.contains(&format!("/{WITHOUT_STATE}:")));
        let others: Vec<_> = of_release.filter(|line| !is(line)).collect();
        ensure!(others.is_empty(), "these are not: {others:?}");
        progress.update(&pods);
        Ok(())
    })
}
