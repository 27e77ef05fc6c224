//! The vendor's kit: images that keep to the contract pass, and one that does not is told what it breaks.

use std::time::Duration;

use anyhow::{Result, ensure};
use mooring_contract::names::labels;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner};
use mooring_harness::{Scope, in_namespace_within, is_whole_suite, wait_until};

/// Longest judgement of an image: dozens of runs, each a Pod.
const LIMIT: Duration = Duration::from_mins(20);

/// Longest wait for claims that the kit has deleted to be gone.
const GONE_LIMIT: Duration = Duration::from_mins(1);

pub(super) const LOCAL: &str =
    "provision, delete, expand, modify, clone, snapshot, delete-snapshot, snapshot-group, delete-group, restore";

/// Of these, the kit tries enough in every run of the suite.
const SOME: &str = "provision, delete, expand, snapshot, delete-snapshot, restore";

pub(super) fn local_provisioner(scope: &Scope) -> Provisioner {
    scope
        .provisioner()
        .key("image", "mooring.dev/provisioner-local:0.1.0")
        .key("backend-volume", "client=pool")
        .key("volume-source", "csi")
        .key("operations", if is_whole_suite() { LOCAL } else { SOME })
        // Its workers take as long again.
        .key("workers", if is_whole_suite() { "2" } else { "0" })
}

pub(super) fn passes_as_local(scope: &Scope, provisioner: &Provisioner) -> Result<()> {
    let judgement = scope.judged_by_kit(provisioner, &["--attribute=preallocate=true"])?;
    ensure!(judgement.passed, "{}", judgement.said);
    ensure!(judgement.said.contains(" 0 failed, 1 skipped"), "{}", judgement.said);
    Ok(())
}

#[test]
fn the_image_of_class_local_passes_the_vendor_s_kit() {
    in_namespace_within(LIMIT, "kit-local", async |scope| {
        passes_as_local(&scope, &local_provisioner(&scope))
    });
}

#[test]
fn a_kit_that_is_interrupted_leaves_nothing_and_says_that_it_has_not_tried_all() {
    in_namespace_within(LIMIT, "kit-interrupted", async |scope| {
        let mut begun = String::new();
        let judgement = scope.interrupted_kit(&local_provisioner(&scope), || {
            let uids = "-o=jsonpath={.items[*].metadata.uid}";
            begun = scope.kubectl(["get", "persistentvolumeclaims", uids])?;
            Ok(())
        })?;
        let said = &judgement.said;
        ensure!(!judgement.passed && said.contains("FAILED  kit"), "{said}");
        let begun: Vec<_> = begun.split_whitespace().map(str::to_owned).collect();
        ensure!(!begun.is_empty(), "it was at nothing: {said}");
        // Kubernetes keeps a deleted claim until it has seen that no Pod uses it.
        wait_until("the kit's claims to be gone", GONE_LIMIT, async || {
            let left = scope.kubectl(["get", "persistentvolumeclaims", "-o", "name"])?;
            ensure!(left.is_empty(), "there are {left}");
            Ok(Some(()))
        })
        .await?;
        let left = scope.left_of(&begun).await?;
        ensure!(left.is_empty(), "the kit left {}", left.join(", "));
        for uid in &begun {
            let left = scope.on_backend(uid)?;
            ensure!(left.is_empty(), "the kit left {}", left.join(", "));
        }
        Ok(())
    });
}

/// The kit removes the workers that it has made, whatever it found.
pub(super) fn no_worker_left(scope: &Scope, provisioner: &Provisioner) -> Result<()> {
    let of_it = format!("{},{}={}", labels::WORKER, labels::CONFIG_NAME, provisioner.name);
    let left = scope.kubectl(["-n", CONFIG_NAMESPACE, "get", "pods", "-l", &of_it, "-o", "name"])?;
    ensure!(left.is_empty(), "the kit left {left}");
    Ok(())
}

fn found(scope: &Scope, provision: &str, delete: &str, words: &[&str]) -> Result<()> {
    let provisioner = scope
        .provisioner_named("faulty")
        .key("volume-source", "flexVolume")
        .key("operations", "provision, delete")
        .key("workers", "1")
        .on_provision(provision)
        .on_delete(delete);
    let judgement = scope.judged_by_kit(&provisioner, &["--unreachable=server=192.0.2.1"])?;
    ensure!(!judgement.passed, "{}", judgement.said);
    for words in words {
        ensure!(
            judgement.said.contains(words),
            "{words:?} is not in: {}",
            judgement.said
        );
    }
    no_worker_left(scope, &provisioner)
}

#[test]
fn an_image_that_forgets_what_it_made_lies_about_its_storage_and_is_no_worker_does_not_pass() {
    in_namespace_within(LIMIT, "kit-faulty", async |scope| {
        found(
            &scope,
            "pv options client=nfs source=10.0.0.1:/\"$(cat /proc/sys/kernel/random/uuid)\"",
            "true",
            &[
                "name a volume after pv-name",
                "says that it is done, though its storage",
                "ended at its start: exit code 0; have it run \"pv serve\" where OPERATION is \"serve\"",
            ],
        )
    });
}
