//! The clients, one file each, and who serves which type of volume.

pub mod container;
pub mod host;
mod image;
pub mod kernel;
pub mod local;
mod nfs;
pub mod pool;
pub mod registry;
mod remote;
mod smb;
