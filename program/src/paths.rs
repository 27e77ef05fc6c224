//! Paths of a program's HTTP port.

/// Whether the program is alive; otherwise Kubernetes restarts it.
pub const LIVE: &str = "/livez";

/// Whether the program can do its work.
pub const READY: &str = "/readyz";

/// The program's metrics, in Prometheus' format.
pub const METRICS: &str = "/metrics";
