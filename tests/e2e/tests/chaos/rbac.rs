//! The rights that Mooring is installed with are sufficient, and all are needed: each is removed, a request that needs
//! it is refused, and the controller goes on when it has the right back. Alone, since this fills the cluster with
//! controllers and changes the mounters' rights.

mod life;
mod mooring;
mod rights;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{bail, ensure};
use mooring_harness::{in_namespace, in_namespace_within, wait_until};
use mooring_testbed::progress::note;

use self::mooring::Mooring;
use self::rights::{Rights, hold, refusal};

/// Longest wait for a step in a controller's life, in which it may miss several rights.
const LIMIT: Duration = Duration::from_mins(5);

/// Time limit of the test.
const WHOLE_LIMIT: Duration = Duration::from_mins(30);

/// Number of controllers at once. Each begins without its share of the rights, no two of which are next to each other.
const CONTROLLERS: usize = 5;

#[test]
fn the_controller_does_all_it_does_with_its_rights_and_uses_each_of_them() {
    in_namespace("rbac-all", async |scope| {
        scope.require_mooring().await?;
        scope.snapshot_api()?;
        scope.grants_api()?;
        let rights = Rights::installed(&scope).await?;
        hold(&scope).await?;
        let mut mooring = Mooring::start(&scope, "all", &rights).await?;
        mooring.by_worker = true;
        let all = rights.all();
        let unused = Box::pin(mooring.life_with(&all)).await?;
        ensure!(unused.is_empty(), "rights that nothing needs: {unused:?}");
        mooring.finish(&rights).await
    });
}

#[test]
fn a_controller_that_no_admission_policy_holds_does_nothing_until_one_does() {
    in_namespace("rbac-unheld", async |scope| {
        scope.require_mooring().await?;
        scope.snapshot_api()?;
        scope.grants_api()?;
        let rights = Rights::installed(&scope).await?;
        let mooring = Mooring::start(&scope, "unheld", &rights).await?;
        wait_until("the controller to say that nothing holds it", LIMIT, async || {
            let log = mooring.kubectl(["logs", "controller"])?;
            Ok(log
                .contains("no admission policy restricts this controller, so it does nothing")
                .then_some(()))
        })
        .await?;
        let path = format!(
            "/api/v1/namespaces/{}/pods/controller:8080/proxy/readyz",
            mooring.namespace
        );
        // With kubectl: the client library would try again when the answer is that the controller is not ready.
        match scope.kubectl(["get", "--raw", &path]) {
            Ok(said) => bail!("it says that it is ready: {said}"),
            Err(error) => ensure!(format!("{error:#}").contains("unable to handle"), "{error:#}"),
        }
        let asked = |code| ("create".to_owned(), "pods".to_owned(), code);
        let mut made: BTreeSet<_> = mooring.requests().await?;
        // A busy API server may have had it ask again.
        made.retain(|request| ![429, 500, 503, 504].map(asked).contains(request));
        assert_eq!(made, BTreeSet::from([asked(201)]), "it did more than ask, by dry run");

        hold(&scope).await?;
        let class = &mooring.namespace;
        mooring
            .class(class, "to be made by a controller that is held", |class| {
                class.is_some()
            })
            .await?;
        mooring.finish(&rights).await
    });
}

#[test]
fn the_controller_needs_each_of_its_rights_and_continues_when_one_is_restored() {
    in_namespace_within(WHOLE_LIMIT, "rbac", async |scope| {
        scope.require_mooring().await?;
        scope.snapshot_api()?;
        scope.grants_api()?;
        let rights = Rights::installed(&scope).await?;
        hold(&scope).await?;
        let all = rights.all();
        ensure!(all.len() > 25, "only {} rights were found", all.len());
        let lives = (0..CONTROLLERS).map(|index| {
            let (scope, rights) = (&scope, &rights);
            let lacking: Vec<_> = all.iter().skip(index).step_by(CONTROLLERS).collect();
            async move {
                let refusals: BTreeSet<_> = lacking.iter().map(|right| refusal(right)).collect();
                ensure!(
                    refusals.len() == lacking.len(),
                    "two rights can't be told apart: {lacking:?}"
                );
                let mut mooring = Mooring::start(scope, &index.to_string(), &rights.without(&lacking)).await?;
                mooring.by_worker = lacking
                    .iter()
                    .any(|right| right.resource == "pods" && right.verb == "patch");
                let not_missed = Box::pin(mooring.life_without(rights, lacking)).await?;
                mooring.finish(rights).await?;
                anyhow::Ok(not_missed)
            }
        });
        let not_needed = futures::future::try_join_all(lives).await?.concat();
        ensure!(not_needed.is_empty(), "rights that are not needed: {not_needed:?}");
        note(format!("{} rights were removed", all.len()));
        Ok(())
    });
}
