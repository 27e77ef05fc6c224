//! What people run beside the controller: `mooring lint`, `mooring conform`, `mooring migrate`.
//!
//! Each judges by the controller's own code, the library `flex_provisioner`: what a ConfigMap means, what a run is
//! given, what of its answer is accepted. The controller knows nothing of this crate.
//!
//! A module imports only from the modules below it in this table:
//!
//! | module | what it does |
//! | --- | --- |
//! | [`cli`] | from the command line to an exit code |
//! | [`args`] | the command line |
//! | [`lint`] | checks provisioner ConfigMaps in files, without a cluster |
//! | [`conform`] | tries a vendor's image by the contract |
//! | [`migrate`] | moves volumes between FlexVolume and CSI |
//! | [`say`] | prints for people |
#![forbid(unsafe_code)]

pub mod args;
pub mod cli;
pub mod conform;
pub mod lint;
pub mod migrate;
mod say;

use std::time::Duration;

/// Exit code of a command that could not do what it is for.
const NOT_TRIED: u8 = 2;

/// How long the API may take to answer a command.
const ANSWER: Duration = Duration::from_secs(30);
