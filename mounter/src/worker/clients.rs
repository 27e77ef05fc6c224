//! The clients that a worker runs: one file for each serving mode, and one for each file system that needs more than
//! that. `checks` is what they share.

pub mod checks;
pub mod file_system;
pub mod given;
pub mod host;
pub mod image;
pub mod local;
mod nfs;
pub mod pool;
mod remote;
pub mod self_mode;
mod smb;
mod unmounted_growth;
