//! Prometheus metrics. No label ever holds the name of an object.

use std::sync::Arc;
use std::time::Duration;

use mooring_contract::named;
use mooring_contract::operation::Operation;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};

pub mod api;

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum OperationResult {
        /// The image did it.
        Done = "done",
        Retry = "retry",
        /// It will not be tried again before something changes.
        GivenUp = "given-up",
    }
}

named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ConfigState {
        InForce = "in-force",
        /// An earlier version is in force; the current one has errors.
        LastGood = "last-good",
        /// No version of it is in force.
        Refused = "refused",
    }
}

/// The labels of a metric, each with its value.
type Labels<const N: usize> = [(&'static str, &'static str); N];
type Gauges<const N: usize> = Family<Labels<N>, Gauge>;
type Counters<const N: usize> = Family<Labels<N>, Counter>;
type Histograms = Family<Labels<1>, Histogram, fn() -> Histogram>;

/// All metrics. A clone counts into the same.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    operations: Counters<3>,
    durations: Histograms,
    in_flight: Gauges<1>,
    queued: Gauges<1>,
    reconciles: Counters<2>,
    configs: Gauges<1>,
    config_problems: Gauges<1>,
    conditions: Gauges<2>,
    discovered: Gauges<1>,
    discovered_capacity: Gauge,
    workers: Gauges<1>,
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
        let all = &mut registry;
        let durations: Histograms = Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.25, 2.0, 13)));
        let took = "Time from the recorded intent to the end of an operation, without retries";
        let waiting = "Operations that wait for max-parallel or for their backoff";
        let problems = "Errors in the current versions of provisioner ConfigMaps";
        let summaries = "ConfigMaps that sum up others (label type=provisioner-status), by condition and its status";
        let listed = "StorageClasses of what images have discovered, by whether the storage still lists it";
        let left = "Capacity left for new volumes in all discovered storage that has a capacity";
        let workers = "Workers of provisioner ConfigMaps, by whether they are starting, free, at a run, or unreachable";
        let dropped = "Events not published: too many at once, or not taken by the API server";
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        Self {
            operations: new(all, "operations", "Ends of runs of provisioning images"),
            durations: register(all, "operation_duration_seconds", took, durations),
            in_flight: new(all, "operations_in_flight", "Provisioning Pods that exist"),
            queued: new(all, "operations_queued", waiting),
            reconciles: new(all, "reconciles", "Reconciles, by controller and result"),
            configs: new(all, "configs", "Provisioner ConfigMaps by state"),
            config_problems: new(all, "config_problems", problems),
            conditions: new(all, "conditions", summaries),
            discovered: new(all, "discovered_classes", listed),
            discovered_capacity: new(all, "discovered_capacity_bytes", left),
            workers: new(all, "workers", workers),
            events_dropped: new(all, "events_dropped", dropped),
            leader: new(all, "leader", "1 in the leading replica, 0 in a standby"),
            api: api::ApiMetrics::register(all),
            registry: {
                registry.register("build", "Version, as a label", version);
                Arc::new(registry)
            },
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
        let operation = ("operation", operation.as_str());
        let labels = [operation, ("result", result.as_str()), ("category", category)];
        self.operations.get_or_create(&labels).inc();
        self.durations.get_or_create(&[operation]).observe(took.as_secs_f64());
    }

    /// Sets how many Pods of an operation there are.
    pub fn set_in_flight(&self, operation: Operation, count: usize) {
        set(&self.in_flight, "operation", operation.as_str(), count);
    }

    /// Sets how many operations wait for `max-parallel` or for their backoff.
    pub fn set_queued(&self, operation: Operation, count: usize) {
        set(&self.queued, "operation", operation.as_str(), count);
    }

    /// Sets how many workers there are in each state.
    pub fn set_workers(&self, counts: impl IntoIterator<Item = (&'static str, usize)>) {
        for (state, count) in counts {
            set(&self.workers, "state", state, count);
        }
    }

    /// Counts one reconcile. `result` is "ok" or an error's `category()`.
    pub fn reconciled(&self, controller: &'static str, result: &'static str) {
        let labels = [("controller", controller), ("result", result)];
        self.reconciles.get_or_create(&labels).inc();
    }

    /// Counts one turn of a controller that looks at everything in each.
    pub fn turned(&self, controller: &'static str, is_well: bool) {
        self.reconciled(controller, if is_well { "ok" } else { "api" });
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
            set(&self.configs, "state", state.as_str(), count);
        }
        self.config_problems.clear();
        for category in problems {
            self.config_problems.get_or_create(&[("category", category)]).inc();
        }
    }

    /// Sets the picture of all ConfigMaps that sum up others: each condition with its status.
    pub fn set_conditions(&self, conditions: impl IntoIterator<Item = (&'static str, &'static str)>) {
        self.conditions.clear();
        for (condition, status) in conditions {
            let labels = [("condition", condition), ("status", status)];
            self.conditions.get_or_create(&labels).inc();
        }
    }

    /// Sets how many classes there are of what images have discovered, how many of those the storage does not list any
    /// more, and how many bytes are left in all.
    pub fn set_discovered(&self, served: usize, vanished: usize, capacity: u64) {
        for (state, count) in [("served", served), ("vanished", vanished)] {
            set(&self.discovered, "state", state, count);
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

fn new<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    register(registry, name, help, M::default())
}

fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn set(gauges: &Gauges<1>, label: &'static str, value: &'static str, count: usize) {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    gauges.get_or_create(&[(label, value)]).set(count);
}

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
