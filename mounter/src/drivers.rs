//! How the kubelet reaches the mounter: what it calls, and what it needs for that in its plugin directory. Runs in the
//! daemon.
//!
//! Files: [`flexvolume`] (the call-outs, and their answers), [`plugin_directories`] (where the kubelet looks),
//! [`install`] (the shim in there), [`endpoint`] (keeps shim and socket there), [`uninstall`] (takes them out).

pub mod endpoint;
pub mod flexvolume;
pub mod install;
pub mod plugin_directories;
pub mod uninstall;
