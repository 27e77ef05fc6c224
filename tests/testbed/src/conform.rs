//! Has Mooring judged by others' tests.

mod csi;
mod kubernetes;
mod machine;
mod report;
mod server;
mod snapshots;
mod suite_images;
mod zones;

pub use csi::{CsiArgs, csi, judge_driver};
pub use kubernetes::{KubernetesArgs, Services, kubernetes};
pub use report::Report;
