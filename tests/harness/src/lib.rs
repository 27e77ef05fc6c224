//! The base of the end-to-end tests in `tests/e2e/`: a cluster; a namespace per test, which must be gone after it; a
//! folder with all information when a test fails; and time limits for the test and its waits.
//!
//! ```no_run
//! use mooring_harness::in_namespace;
//!
//! #[test]
//! fn a_pod_runs() {
//!     in_namespace("a-pod-runs", async |scope| {
//!         scope.apply("…")?;
//!         scope.pod_ready("writer").await?;
//!         assert_eq!(scope.exec("writer", ["cat", "/data/f"])?, "x\n");
//!         Ok(())
//!     });
//! }
//! ```
#![forbid(unsafe_code)]

pub mod api_proxy;
pub mod audit;
pub mod backend;
pub mod bare_machine;
mod census;
pub mod ceph;
pub mod children;
pub mod clients;
mod conditions;
mod connection;
pub mod controller;
pub mod counting;
pub mod credentials;
mod drop_in;
mod exec;
mod glusterfs;
mod grants;
pub mod guest_node;
pub mod hidden;
mod in_namespace;
pub mod iscsi;
pub mod kit;
mod leaks;
mod manifests;
pub mod migrate;
mod mount_answers;
mod names;
mod namespace;
mod nbd;
#[cfg(test)]
mod no_seconds;
pub mod nodes;
pub mod own_mounter;
pub mod processes;
pub mod provisioner;
pub mod random;
pub mod registry;
mod results;
pub mod rollout;
pub mod s3;
mod scope;
pub mod server;
mod skip;
pub mod smb;
pub mod snapshots;
pub mod ssh;
mod time_limit;
pub mod volumes;
mod waiting;
mod waits;
pub mod ways;
mod web;
mod which_nodes;
mod workplace;
mod writer;

pub use conditions::recorded;
pub use connection::{client, open_target};
pub use in_namespace::{KEEP_VARIABLE, in_namespace, in_namespace_within, run};
pub use results::RESULTS_VARIABLE;
pub use scope::Scope;
pub use skip::{SKIPPED_MARK, is_whole_suite, skip, skipped_without_all};
pub use time_limit::TEST_LIMIT;
pub use waiting::WAITS_VARIABLE;
pub use waits::{Limit, wait_until};
