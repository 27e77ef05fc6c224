//! Has Mooring judged by others' tests.

mod csi;
mod images;
mod kubernetes;
mod report;

pub use csi::{CsiArgs, csi};
pub use kubernetes::{KubernetesArgs, kubernetes};
pub use report::Report;
