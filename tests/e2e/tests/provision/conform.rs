//! The vendor's kit: images that keep to the contract pass, and one that does not is told what it breaks.

use anyhow::{Result, ensure};
use mooring_harness::{Scope, in_namespace};

#[test]
fn the_image_of_class_local_passes_the_vendor_s_kit() {
    in_namespace("kit-local", async |scope| {
        let provisioner = scope
            .provisioner()
            .key("image", "mooring.dev/provisioner-local:0.1.0")
            .key("backend-volume", "client=pool")
            .key("volume-source", "csi")
            .key(
                "operations",
                "provision, delete, expand, clone, snapshot, delete-snapshot, restore",
            );
        let judgement = scope.judged_by_kit(&provisioner, &[])?;
        ensure!(judgement.passed, "{}", judgement.said);
        ensure!(judgement.said.contains(" 0 failed, 1 skipped"), "{}", judgement.said);
        Ok(())
    });
}

fn found(scope: &Scope, provision: &str, delete: &str, words: &[&str]) -> Result<()> {
    let provisioner = scope
        .provisioner_named("faulty")
        .key("volume-source", "flexVolume")
        .key("operations", "provision, delete")
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
    Ok(())
}

#[test]
fn an_image_that_forgets_what_it_made_and_lies_about_its_storage_does_not_pass() {
    in_namespace("kit-faulty", async |scope| {
        found(
            &scope,
            "pv options client=nfs source=10.0.0.1:/\"$(cat /proc/sys/kernel/random/uuid)\"",
            "true",
            &[
                "name a volume after pv-name",
                "says that it is done, though its storage",
            ],
        )
    });
}
