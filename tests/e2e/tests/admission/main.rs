//! How the admission policies judge objects.

mod drop_in;
mod generated;
mod rules;
