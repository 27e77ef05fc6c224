//! Prometheus metrics. No label ever holds the name of an object.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use mooring_contract::operation::Operation;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub mod api;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationResult {
    /// The image did it.
    Done,
    Retry,
    /// It will not be tried again before something changes.
    GivenUp,
}

impl OperationResult {
    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Retry => "retry",
            Self::GivenUp => "given-up",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigState {
    InForce,
    /// An earlier version is in force; the current one has errors.
    LastGood,
    /// No version of it is in force.
    Refused,
}

impl ConfigState {
    pub const ALL: [Self; 3] = [Self::InForce, Self::LastGood, Self::Refused];

    fn as_str(self) -> &'static str {
        match self {
            Self::InForce => "in-force",
            Self::LastGood => "last-good",
            Self::Refused => "refused",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    operation: &'static str,
    result: &'static str,
    category: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    condition: &'static str,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CategoryLabels {
    category: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: &'static str,
}

/// All metrics. A clone counts into the same.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    operations: Family<ResultLabels, Counter>,
    durations: Family<OperationLabels, Histogram, fn() -> Histogram>,
    in_flight: Family<OperationLabels, Gauge>,
    queued: Family<OperationLabels, Gauge>,
    reconciles: Family<ReconcileLabels, Counter>,
    configs: Family<StateLabels, Gauge>,
    config_problems: Family<CategoryLabels, Gauge>,
    conditions: Family<ConditionLabels, Gauge>,
    discovered: Family<StateLabels, Gauge>,
    discovered_capacity: Gauge,
    workers: Family<StateLabels, Gauge>,
    events_dropped: Counter,
    leader: Gauge,
    pub api: api::ApiMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics that all stand at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("mooring_provisioner");
        let operations = Family::default();
        registry.register("operations", "Ends of runs of provisioning images", operations.clone());
        let durations: Family<_, _, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.25, 2.0, 13)));
        registry.register(
            "operation_duration_seconds",
            "Time from the recorded intent to the end of an operation, without retries",
            durations.clone(),
        );
        let in_flight = Family::default();
        registry.register(
            "operations_in_flight",
            "Provisioning Pods that exist",
            in_flight.clone(),
        );
        let queued = Family::default();
        registry.register(
            "operations_queued",
            "Operations that wait for max-parallel or for their backoff",
            queued.clone(),
        );
        let reconciles = Family::default();
        registry.register("reconciles", "Reconciles, by controller and result", reconciles.clone());
        let configs = Family::default();
        registry.register("configs", "Provisioner ConfigMaps by state", configs.clone());
        let config_problems = Family::default();
        registry.register(
            "config_problems",
            "Errors in the current versions of provisioner ConfigMaps",
            config_problems.clone(),
        );
        let conditions = Family::default();
        registry.register(
            "conditions",
            "ConfigMaps that sum up others (label type=provisioner-status), by condition and its status",
            conditions.clone(),
        );
        let discovered = Family::default();
        registry.register(
            "discovered_classes",
            "StorageClasses of what images have discovered, by whether the storage still lists it",
            discovered.clone(),
        );
        let discovered_capacity: Gauge = Gauge::default();
        registry.register(
            "discovered_capacity_bytes",
            "Capacity left for new volumes in all discovered storage that has a capacity",
            discovered_capacity.clone(),
        );
        let workers = Family::default();
        registry.register(
            "workers",
            "Workers of provisioner ConfigMaps, by whether they are starting, free, at a run, or unreachable",
            workers.clone(),
        );
        let events_dropped = Counter::default();
        registry.register(
            "events_dropped",
            "Events not published: too many at once, or refused by the API server",
            events_dropped.clone(),
        );
        let leader: Gauge = Gauge::default();
        registry.register("leader", "1 in the leading replica, 0 in a standby", leader.clone());
        let api = api::ApiMetrics::register(&mut registry);
        registry.register(
            "build",
            "Version, as a label",
            prometheus_client::metrics::info::Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        Self {
            registry: Arc::new(registry),
            operations,
            durations,
            in_flight,
            queued,
            reconciles,
            configs,
            config_problems,
            conditions,
            discovered,
            discovered_capacity,
            workers,
            events_dropped,
            leader,
            api,
        }
    }

    /// Counts the end of one run. `category` is an error's `category()`, or "" when done; `took` is from the intent.
    pub fn operation_ended(
        &self,
        operation: Operation,
        result: OperationResult,
        category: &'static str,
        took: Duration,
    ) {
        self.operations
            .get_or_create(&ResultLabels {
                operation: operation.as_str(),
                result: result.as_str(),
                category,
            })
            .inc();
        self.durations
            .get_or_create(&OperationLabels {
                operation: operation.as_str(),
            })
            .observe(took.as_secs_f64());
    }

    /// Sets how many Pods of an operation there are.
    pub fn set_in_flight(&self, operation: Operation, count: usize) {
        set(&self.in_flight, operation, count);
    }

    /// Sets how many operations wait for `max-parallel` or for their backoff.
    pub fn set_queued(&self, operation: Operation, count: usize) {
        set(&self.queued, operation, count);
    }

    /// Sets how many workers there are in each state.
    pub fn set_workers(&self, counts: impl IntoIterator<Item = (&'static str, usize)>) {
        for (state, count) in counts {
            self.workers.get_or_create(&StateLabels { state }).set(gauge(count));
        }
    }

    /// Counts one reconcile. `result` is "ok" or an error's `category()`.
    pub fn reconciled(&self, controller: &'static str, result: &'static str) {
        self.reconciles
            .get_or_create(&ReconcileLabels { controller, result })
            .inc();
    }

    /// Sets the picture of all ConfigMaps: the state of each, and the categories of all errors.
    pub fn set_configs(
        &self,
        states: impl IntoIterator<Item = ConfigState>,
        problems: impl IntoIterator<Item = &'static str>,
    ) {
        let states: Vec<_> = states.into_iter().collect();
        for state in ConfigState::ALL {
            let count = states.iter().filter(|&&s| s == state).count();
            self.configs
                .get_or_create(&StateLabels { state: state.as_str() })
                .set(gauge(count));
        }
        self.config_problems.clear();
        for category in problems {
            self.config_problems.get_or_create(&CategoryLabels { category }).inc();
        }
    }

    /// Sets the picture of all ConfigMaps that sum up others: each condition with its status.
    pub fn set_conditions(&self, conditions: impl IntoIterator<Item = (&'static str, &'static str)>) {
        self.conditions.clear();
        for (condition, status) in conditions {
            self.conditions
                .get_or_create(&ConditionLabels { condition, status })
                .inc();
        }
    }

    /// Sets how many classes there are of what images have discovered, how many of those the storage does not list any
    /// more, and how many bytes are left in all.
    pub fn set_discovered(&self, served: usize, vanished: usize, capacity: u64) {
        for (state, count) in [("served", served), ("vanished", vanished)] {
            self.discovered.get_or_create(&StateLabels { state }).set(gauge(count));
        }
        self.discovered_capacity
            .set(i64::try_from(capacity).unwrap_or(i64::MAX));
    }

    /// Counts an Event that nobody will see.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// The metrics as a scrape gets them (text form of `OpenMetrics`).
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn set(family: &Family<OperationLabels, Gauge<i64, std::sync::atomic::AtomicI64>>, operation: Operation, count: usize) {
    family
        .get_or_create(&OperationLabels {
            operation: operation.as_str(),
        })
        .set(gauge(count));
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Prometheus counts in 64 bits; this names the type once for [`api`].
type Count = Counter<u64, AtomicU64>;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mooring_contract::operation::Operation;

    use super::{ConfigState, Metrics, OperationResult};

    #[test]
    fn a_scrape_shows_what_was_counted() {
        let metrics = Metrics::new();
        metrics.operation_ended(
            Operation::Provision,
            OperationResult::Retry,
            "exit",
            Duration::from_secs(2),
        );
        metrics.set_in_flight(Operation::Delete, 3);
        metrics.set_configs(
            [ConfigState::InForce, ConfigState::InForce, ConfigState::Refused],
            ["near-miss"],
        );
        metrics.set_conditions([("Available", "True"), ("Degraded", "False"), ("Available", "True")]);
        metrics.set_leader(true);
        metrics.api.count("get", "pods", 200);
        let text = metrics.encode().unwrap();
        for line in [
            r#"mooring_provisioner_operations_total{operation="provision",result="retry",category="exit"} 1"#,
            r#"mooring_provisioner_operations_in_flight{operation="delete"} 3"#,
            r#"mooring_provisioner_configs{state="in-force"} 2"#,
            r#"mooring_provisioner_config_problems{category="near-miss"} 1"#,
            r#"mooring_provisioner_api_requests_total{verb="get",resource="pods",code="200"} 1"#,
            r#"mooring_provisioner_conditions{condition="Available",status="True"} 2"#,
            "mooring_provisioner_leader 1",
            r#"mooring_provisioner_build_info{version=""#,
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
        metrics.set_configs([], []);
        let text = metrics.encode().unwrap();
        assert!(!text.contains("near-miss"), "a problem that is gone still counts");
    }
}
