//! Has Mooring judged by others' tests.

mod csi;
mod images;
mod kubernetes;
mod report;
mod server;
mod snapshots;

pub use csi::{CsiArgs, csi};
pub use kubernetes::{KubernetesArgs, kubernetes};
pub use report::Report;
