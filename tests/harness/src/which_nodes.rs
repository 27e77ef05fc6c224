//! Tests that need certain nodes: a cluster without them skips the test, with the reason.

use std::time::Duration;

use anyhow::Result;

use super::connection::{nodes_for_pods, open_target};
use super::in_namespace::{in_namespace, in_namespace_within};
use super::scope::Scope;
use super::skip::skip;
use super::time_limit::TEST_LIMIT;

/// [`in_namespace`] for a test that works on the nodes themselves, by their names in the testbed. On another cluster
/// the test is skipped and says so.
pub fn on_own_nodes<F>(name: &str, test: F)
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    on_own_nodes_within(TEST_LIMIT, name, test);
}

/// [`on_own_nodes`] for a test that takes longer than others.
pub fn on_own_nodes_within<F>(limit: Duration, name: &str, test: F)
where
    F: AsyncFnOnce(Scope) -> Result<()>,
{
    if open_target().is_ok_and(|target| target.own_cluster().is_none()) {
        return skip("it works on the nodes of the testbed's own cluster");
    }
    in_namespace_within(limit, name, test);
}

/// [`in_namespace`] for a test whose Pods run on two nodes, whose names it gets. On a cluster with fewer nodes that take
/// Pods, the test is skipped and says so.
///
/// # Panics
/// Like [`in_namespace`].
pub fn on_two_nodes<F>(name: &str, test: F)
where
    F: AsyncFnOnce(Scope, [String; 2]) -> Result<()>,
{
    let nodes = open_target().and_then(|target| match target.own_cluster() {
        Some(_) => Ok(vec!["node-1".to_owned(), "node-2".to_owned()]),
        None => nodes_for_pods(&target),
    });
    match nodes.as_deref() {
        Ok([one, two, ..]) => {
            let nodes = [one.clone(), two.clone()];
            in_namespace(name, async |scope| test(scope, nodes).await);
        }
        Ok(fewer) => skip(&format!(
            "it needs two nodes that take Pods, and there is {}",
            fewer.len()
        )),
        Err(error) => panic!("{name}: {error:#}"),
    }
}
