//! What holds while parts are killed, cut off or silent.

mod api;
mod bounds;
mod client_cycles;
mod control_plane;
mod full;
mod kube_proxy;
mod kubelet;
mod lost;
mod mount;
mod mount_cycles;
mod pod;
mod provision;
mod readiness;
mod reboot;
mod revive;
mod settings;
mod swap;
mod uninstall;
mod unrestricted;
mod upgrade;
mod upgrade_controller;
