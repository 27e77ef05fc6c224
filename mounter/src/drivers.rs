//! How the kubelet reaches the mounter: what it calls, and what it needs for that. Runs in the daemon. Two drivers, one
//! core: no other module knows by which driver a volume came.
//!
//! | driver | files |
//! | --- | --- |
//! | `FlexVolume` | [`flexvolume`] (the call-outs, and their answers), [`plugin_directories`] (where the kubelet looks), [`install`] (the shim in there), [`endpoint`] (keeps shim and socket there) |
//! | CSI | [`csi`] |
//! | both | [`socket`] (root's only), `call_out` (span, log and metrics of a call-out), `event_text` (the words of an answer), [`uninstall`] (takes all of it out) |

mod call_out;
pub mod csi;
pub mod endpoint;
mod event_text;
pub mod flexvolume;
pub mod install;
pub mod plugin_directories;
pub mod socket;
pub mod uninstall;
