//! The program around the controllers.
//!
//! [`runtime`] reads the flags ([`args`]), starts the log, the API [`client`], [`health`] and [`metrics`], waits for the
//! lease ([`election`]) and for admission policies that hold the controller, and then runs the controllers that it is
//! given with a [`context`]: their handles and settings, [`events`] among them. A [`call`] to the API that failed says what was attempted.

pub mod args;
pub mod call;
pub mod client;
pub mod context;
pub mod election;
pub mod events;
pub mod health;
mod held;
pub mod metrics;
pub mod runtime;
