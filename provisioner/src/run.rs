//! One run of the provisioning image.
//!
//! [`properties`] is what the image is given. [`pod`] is the provisioning Pod that carries the run out. [`outcome`] is what
//! came of it, read from the Pod.

pub mod outcome;
pub mod pod;
pub mod properties;
