//! What the mounter counts, in the Prometheus format. No label has the name of an object or of a server in it.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::node::pool_usage::PoolUsage;

/// Call-outs that have a name of their own; any other is `other`.
const CALLS: &[&str] = &["init", "getvolumename", "mount", "unmount", "expandfs", "stats"];

/// Bounds of durations in seconds: from a system call to the shim's patience.
const SECONDS: [f64; 9] = [0.005, 0.02, 0.1, 0.5, 2.0, 5.0, 15.0, 60.0, 120.0];

const OUTAGE_SECONDS: [f64; 9] = [0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 1800.0];

/// A number of the node's pool: its name, what it is, and where it is from.
type OfPool = (&'static str, &'static str, fn(&PoolUsage) -> u64);

/// Of class `local`.
const POOL: [OfPool; 5] = [
    ("pool_disk_bytes", "Size of the disk of the node's pool", |pool| {
        pool.disk
    }),
    ("pool_free_bytes", "What is free on that disk", |pool| pool.free),
    ("pool_volumes", "Volumes of the pool", |pool| pool.volumes),
    ("pool_promised_bytes", "The sizes of all volumes of the pool", |pool| {
        pool.promised
    }),
    (
        "pool_written_bytes",
        "What the volumes of the pool hold of its disk",
        |pool| pool.written,
    ),
];

/// Labels, each with its value.
type Labels<const N: usize> = [(&'static str, String); N];

#[derive(Debug)]
struct Inner {
    calls: Family<Labels<3>, Counter>,
    durations: Family<Labels<1>, Histogram, fn() -> Histogram>,
    mounts: Family<Labels<1>, Gauge>,
    revivals: Family<Labels<2>, Counter>,
    outages: Histogram,
    given_up: Family<Labels<1>, Counter>,
    tripped: Gauge,
    left_behind: Gauge,
    bad_config: Gauge,
    ready: Gauge,
    pool: [Gauge; POOL.len()],
    registry: Registry,
}

/// All counters of the daemon; its clones share them.
#[derive(Debug, Clone)]
pub struct MounterMetrics(Arc<Inner>);

/// What is looked up when metrics are read.
#[derive(Debug, Clone, Default)]
pub struct MetricsSnapshot {
    /// File system type of each of Mooring's mounts.
    pub mounts: Vec<String>,
    /// Servers that are tripped, by name and client.
    pub tripped: Vec<String>,
    /// Workers that hang in the kernel.
    pub left_behind: usize,
    pub ready: bool,
    /// The node's pool, if it can be looked at.
    pub pool: Option<PoolUsage>,
}

impl Default for MounterMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("mooring_mounter");
        let to = &mut registry;
        let calls = "Call-outs of the kubelet by result and category";
        let durations = Family::new_with_constructor((|| Histogram::new(SECONDS)) as fn() -> _);
        let revivals = "Volumes whose program ended, by type and result: done, or failed (Mooring tries again)";
        let outages = "How long a volume whose program ended could not be used, from when that was noticed";
        let given_up = "Volumes of deleted Pods that did not answer, and whose users were given an error, by type";
        let bad_config = "Whether ConfigMap mounter-config or mooring-settings has an error";
        Self(Arc::new(Inner {
            calls: add(to, "calls", calls, Family::default()),
            durations: add(to, "call_duration_seconds", "How long call-outs took", durations),
            mounts: add(
                to,
                "mounts",
                "Volumes that are mounted, by file system",
                Family::default(),
            ),
            revivals: add(to, "revivals", revivals, Family::default()),
            outages: add(to, "outage_seconds", outages, Histogram::new(OUTAGE_SECONDS)),
            given_up: add(to, "given_up", given_up, Family::default()),
            tripped: add(to, "tripped_servers", "Servers that did not answer", Gauge::default()),
            left_behind: add(to, "hung_workers", "Workers that hang in the kernel", Gauge::default()),
            bad_config: add(to, "bad_config", bad_config, Gauge::default()),
            ready: add(to, "ready", "Whether the node can mount", Gauge::default()),
            pool: POOL.map(|(name, help, _)| add(to, name, help, Gauge::default())),
            registry,
        }))
    }
}

fn add<M: Metric + Clone>(to: &mut Registry, name: &str, help: &str, metric: M) -> M {
    to.register(name, help, metric.clone());
    metric
}

impl MounterMetrics {
    /// A call-out was answered: with this result, as the driver calls it.
    pub fn called(&self, call: &str, result: &'static str, category: &'static str, took: Duration) {
        let call = CALLS.iter().find(|known| **known == call).copied().unwrap_or("other");
        let labels = [("call", call), ("result", result), ("category", category)];
        let labels = labels.map(|(name, value)| (name, value.to_owned()));
        self.0.calls.get_or_create(&labels).inc();
        let duration = self.0.durations.get_or_create(&[("call", call.to_owned())]);
        duration.observe(took.as_secs_f64());
    }

    /// A volume of this type whose program ended can be used again, after this time.
    pub fn revived(&self, client: &str, outage: Duration) {
        self.revival(client, "done");
        self.0.outages.observe(outage.as_secs_f64());
    }

    /// One could not be mounted again yet; Mooring keeps trying.
    pub fn not_revived(&self, client: &str) {
        self.revival(client, "failed");
    }

    fn revival(&self, client: &str, result: &'static str) {
        let labels = [("client", client.to_owned()), ("result", result.to_owned())];
        self.0.revivals.get_or_create(&labels).inc();
    }

    /// A volume of this type did not answer, and was given up with its Pod.
    pub fn given_up(&self, client: &str) {
        let labels = [("client", client.to_owned())];
        self.0.given_up.get_or_create(&labels).inc();
    }

    pub fn bad_config(&self, bad: bool) {
        self.0.bad_config.set(bad.into());
    }

    pub fn encode(&self, now: &MetricsSnapshot) -> Result<String, std::fmt::Error> {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        if let Some(now) = &now.pool {
            for (gauge, (_, _, value)) in self.0.pool.iter().zip(POOL) {
                gauge.set(i64::try_from(value(now)).unwrap_or(i64::MAX));
            }
        }
        self.0.mounts.clear();
        for fs_type in &now.mounts {
            let labels = [("fs_type", fs_type.clone())];
            self.0.mounts.get_or_create(&labels).inc();
        }
        self.0.tripped.set(gauge(now.tripped.len()));
        self.0.left_behind.set(gauge(now.left_behind));
        self.0.ready.set(now.ready.into());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.0.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::{MetricsSnapshot, MounterMetrics};
    use crate::node::pool_usage::PoolUsage;
    use std::time::Duration;

    #[test]
    fn calls_are_counted_by_result_and_category_and_unknown_ones_together() {
        let metrics = MounterMetrics::default();
        metrics.called("mount", "Success", "", Duration::from_millis(7));
        metrics.called("mount", "Failure", "timeout", Duration::from_secs(7));
        metrics.called("made-up", "Not supported", "not-supported", Duration::ZERO);
        metrics.revived("sshfs", Duration::from_millis(700));
        metrics.not_revived("sshfs");
        metrics.given_up("cephfs");
        let now = MetricsSnapshot {
            mounts: vec!["ext4".into(), "ext4".into()],
            tripped: vec!["10.0.0.4 (sshfs)".into()],
            pool: Some(PoolUsage {
                promised: 3 << 30,
                ..PoolUsage::default()
            }),
            ..MetricsSnapshot::default()
        };
        let text = metrics.encode(&now).unwrap();
        for line in [
            r#"mooring_mounter_calls_total{call="mount",result="Failure",category="timeout"} 1"#,
            r#"mooring_mounter_calls_total{call="other",result="Not supported",category="not-supported"} 1"#,
            r#"mooring_mounter_mounts{fs_type="ext4"} 2"#,
            r#"mooring_mounter_revivals_total{client="sshfs",result="done"} 1"#,
            r#"mooring_mounter_revivals_total{client="sshfs",result="failed"} 1"#,
            r#"mooring_mounter_outage_seconds_bucket{le="1.0"} 1"#,
            r#"mooring_mounter_given_up_total{client="cephfs"} 1"#,
            "mooring_mounter_tripped_servers 1",
            "mooring_mounter_ready 0",
            "mooring_mounter_pool_promised_bytes 3221225472",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
