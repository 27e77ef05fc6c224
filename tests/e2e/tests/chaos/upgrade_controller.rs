//! The controller of an earlier commit ends what this one has begun, and the other way round: by the records on claims
//! and `PersistentVolumes`. Alone: the controllers of the cluster are replaced.
//!
//! That commit can't expand. It takes the record of an expansion for that of making the volume, and removes the volume
//! for its size: docs/earlier-versions.md says to let expansions end before the way back.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use mooring_contract::names::{NAMESPACE, annotations, finalizers, labels, paths};
use mooring_harness::backend::PRINT;
use mooring_harness::clients::{earlier_controller, remove_image};
use mooring_harness::nodes::on_own_nodes;
use mooring_harness::provisioner::{CONFIG_NAMESPACE, Provisioner};
use mooring_harness::rollout::Installed;
use mooring_harness::{Scope, open_target, skip, wait_until};
use mooring_testbed::earlier;

use crate::upgrade::LIMIT;

/// Makes a run wait until it is told to continue.
const WAIT: &str = "until [ -e /tmp/go ]; do sleep 0.1; done";

/// The first run of a script fails, so that a record says which attempt is next.
fn at_second_attempt(script: &str) -> String {
    let volume = format!("{}/$PV_NAME", paths::BACKEND);
    format!(
        "if [ -d \"{volume}\" ] && [ ! -e \"{volume}/tried\" ]; then touch \"{volume}/tried\"; exit 1; fi\n\
         {WAIT}\n{script}"
    )
}

/// What one version has begun: the second attempts at a volume and at a deletion, which wait.
struct Begun {
    made: String,
    made_uid: String,
    removed: String,
    removed_uid: String,
    /// The uids of their Pods.
    pods: Vec<String>,
}

impl Begun {
    fn runs(&self) -> [(&'static str, String); 2] {
        [
            ("provision", self.made_uid.clone()),
            ("delete", self.removed_uid.clone()),
        ]
    }
}

struct Versions<'a> {
    scope: &'a Scope,
    /// Its volumes take a second attempt and a word of the test's to be made.
    slow: Provisioner,
    /// The same for their deletion.
    kept: Provisioner,
}

impl Versions<'_> {
    async fn begin(&self, version: &str) -> Result<Begun> {
        let scope = self.scope;
        let [made, removed] = ["made", "removed"].map(|what| format!("{what}-by-{version}"));
        let removed_uid = scope.claim(&removed, &self.kept.class, "1Gi").await?;
        scope.claim_bound(&removed).await?;
        let made_uid = scope.claim(&made, &self.slow.class, "1Gi").await?;
        scope.delete(&format!("persistentvolumeclaim/{removed}"))?;
        let mut begun = Begun {
            made,
            made_uid,
            removed,
            removed_uid,
            pods: Vec::new(),
        };
        for (operation, uid) in begun.runs() {
            let pod = scope
                .run_until(operation, &uid, "to run for the second time", is_second_attempt)
                .await?;
            begun.pods.push(pod.uid().context("a Pod without a uid")?);
        }
        let claim: PersistentVolumeClaim = scope.api().get(&begun.made).await?;
        let volume = scope.provisioned(&begun.removed_uid).await?;
        let volume = volume.context("the volume is gone before its deletion has succeeded")?;
        for annotations in [claim.annotations(), volume.annotations()] {
            let record = annotations.get(annotations::OPERATION);
            ensure!(
                record.is_some_and(|record| record.contains("\"attempt\":2")),
                "not the second attempt: {record:?}"
            );
        }
        Ok(begun)
    }

    /// The other version lets the same Pods end, and does the rest.
    async fn go_on(&self, begun: &Begun) -> Result<()> {
        let scope = self.scope;
        let pods: Api<Pod> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        for ((operation, uid), pod) in begun.runs().into_iter().zip(&begun.pods) {
            let found = pods.get(&format!("{operation}-{uid}")).await?.uid();
            ensure!(
                found.as_ref() == Some(pod),
                "another Pod than {pod} is at {operation} of {uid}: {found:?}"
            );
            scope.let_run_go_on(operation, &uid)?;
        }
        scope.claim_bound(&begun.made).await?;
        self.at_rest(&begun.made, &begun.made_uid).await?;
        scope.gone_without_trace(&begun.removed, &begun.removed_uid).await
    }

    /// A claim has one volume, and nothing is under way for it.
    async fn at_rest(&self, claim: &str, uid: &str) -> Result<()> {
        let scope = self.scope;
        wait_until(&format!("the run for {claim} to be gone"), LIMIT, async || {
            let left = scope.left_of(&[uid.to_owned()]).await?;
            ensure!(left.is_empty(), "there are {}", left.join(", "));
            Ok(Some(()))
        })
        .await?;
        let seen: PersistentVolumeClaim = scope.api().get(claim).await?;
        let record = seen.annotations().get(annotations::OPERATION);
        ensure!(record.is_none(), "{claim} has the record {record:?}");
        let is_held = seen.finalizers().iter().any(|one| one == finalizers::CLAIM);
        ensure!(!is_held, "{claim} is held without a record");
        let stored = scope.on_backend(uid)?;
        ensure!(stored.len() == 1, "the storage has for {claim}: {stored:?}");
        Ok(())
    }

    /// The classes have the volumes of these claims, and no other.
    async fn only_volumes_of(&self, uids: &[&str]) -> Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(self.scope.client.clone());
        let mut found = volumes.list(&ListParams::default()).await?.items;
        let classes = [&self.slow.class, &self.kept.class];
        found.retain(|volume| {
            let spec = volume.spec.as_ref();
            let class = spec.and_then(|spec| spec.storage_class_name.as_ref());
            class.is_some_and(|class| classes.contains(&class))
        });
        let mut found: Vec<_> = found.iter().map(ResourceExt::name_any).collect();
        let mut wanted: Vec<_> = uids.iter().map(|uid| format!("pvc-{uid}")).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
        Ok(())
    }

    /// Waits until a controller of an image leads.
    async fn leads(&self, image: &str) -> Result<()> {
        let scope = self.scope;
        wait_until(&format!("a controller of {image} to lead"), LIMIT, async || {
            let leader = scope.leader()?;
            let its_image = "jsonpath={.spec.containers[0].image}";
            let found = scope.kubectl(["-n", NAMESPACE, "get", "pod", &leader, "-o", its_image])?;
            ensure!(found == image, "{leader} is of {found}");
            Ok(Some(()))
        })
        .await
    }
}

fn is_second_attempt(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.labels().get(labels::ATTEMPT).is_some_and(|attempt| attempt == "2")
}

/// Proves: P1
#[test]
fn controllers_of_an_earlier_commit_and_of_this_one_end_what_the_other_began() {
    if let Some(reason) = earlier::missing() {
        return skip(&reason);
    }
    // Before the test's own time limit begins.
    if open_target().is_ok_and(|target| target.own_cluster().is_some()) {
        earlier::ensure().unwrap();
    }
    on_own_nodes("chaos-controllers", async |scope| {
        scope.require_mooring().await?;
        let earlier = earlier::ensure()?;
        let volume = format!("{}/$PV_NAME", paths::BACKEND);
        let kept = scope.provisioner_named("-kept").on_pool(PRINT);
        let versions = Versions {
            scope: &scope,
            slow: scope.provisioner().on_pool(&at_second_attempt(PRINT)),
            kept: kept
                .clone()
                .on_delete(&at_second_attempt(&format!("rm -rf \"{volume}\""))),
        };
        versions.slow.apply().await?;
        versions.kept.apply().await?;
        let installed = Installed::controllers(&scope).await?;
        let image = earlier_controller(&scope, &earlier, "earlier")?;

        let by_this = versions.begin("this").await?;
        installed.downgrade(&image, &earlier.controllers_manifest()?).await?;
        versions.leads(&image).await?;
        versions.go_on(&by_this).await?;
        versions.only_volumes_of(&[&by_this.made_uid]).await?;

        let by_earlier = versions.begin("earlier").await?;
        installed.roll_back().await?;
        versions.leads(installed.image()).await?;
        versions.go_on(&by_earlier).await?;

        let made = [&by_this.made_uid, &by_earlier.made_uid].map(String::as_str);
        versions.only_volumes_of(&made).await?;

        kept.apply().await?;
        for (claim, uid) in [
            (&by_this.made, &by_this.made_uid),
            (&by_earlier.made, &by_earlier.made_uid),
        ] {
            scope.delete(&format!("persistentvolumeclaim/{claim}"))?;
            scope.gone_without_trace(claim, uid).await?;
        }
        versions.only_volumes_of(&[]).await?;
        drop(installed);
        remove_image(&scope, &image).context("failed to remove the earlier image")
    });
}
