//! The program around the controllers.
//!
//! It has the API [`client`], [`health`] and [`metrics`], the lease ([`election`]), the wait for admission policies
//! that restrict the controller (`held`), the administrator's `settings`, and [`events`]. [`objects`] are read and
//! written in the API; a [`call`] that failed says what was attempted.
//! Nothing here knows of ConfigMaps or volumes: [`crate::runtime`] puts it together with the controllers.

pub mod call;
pub mod client;
pub mod election;
pub mod events;
pub mod health;
pub(crate) mod held;
pub mod metrics;
pub mod objects;
pub(crate) mod settings;
