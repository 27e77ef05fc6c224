//! Paths of a program's HTTP port.

/// Whether the program lives; else Kubernetes starts it again.
pub const LIVE: &str = "/livez";

/// Whether it can work.
pub const READY: &str = "/readyz";

/// What it counts, as Prometheus reads it.
pub const METRICS: &str = "/metrics";
