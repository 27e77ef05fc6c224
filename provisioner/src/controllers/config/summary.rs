//! One status for several provisioner ConfigMaps: those whose label `app.kubernetes.io/part-of` names a ConfigMap of
//! type `provisioner-status` in their namespace.
//!
//! Its conditions are those of a `ClusterOperator`, with the same meanings
//! (<https://github.com/openshift/api/blob/master/config/v1/types_cluster_operator.go>).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use mooring_contract::named;
use mooring_contract::names::labels;
use serde::{Deserialize, Serialize};

use super::verdict::Verdict;
use crate::config::ConfigRef;
use crate::config::discovered::{LastDiscovery, Shown};
use crate::config::storage_class::Claim;
use crate::process::metrics::ConfigState;
use crate::time::whole_seconds;
use crate::yaml;

/// Key of the ConfigMap that has all conditions, as YAML.
const CONDITIONS: &str = "conditions";

/// The reason of a condition that is as it should be.
const AS_EXPECTED: &str = "AsExpected";

named! {
    /// What a condition is about.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub enum ConditionKind {
        /// At least one ConfigMap serves claims.
        Available = "Available",
        /// At least one storage is being asked what it can serve.
        Progressing = "Progressing",
        /// Something is not as the ConfigMaps want it.
        Degraded = "Degraded",
        /// A new version of Mooring will find all as it is now.
        Upgradeable = "Upgradeable",
    }
}

named! {
    /// As Kubernetes writes it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Truth {
        #[serde(rename = "True")]
        Yes = "True",
        #[serde(rename = "False")]
        No = "False",
    }
}

/// One of the conditions, in the form of Kubernetes' own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: ConditionKind,
    pub status: Truth,
    /// A word for programs.
    pub reason: String,
    /// For people: what there is, by ConfigMap.
    pub message: String,
    /// Since when the status is what it is.
    pub last_transition_time: Timestamp,
}

/// A provisioner ConfigMap, as this turn has found it.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    reference: ConfigRef,
    /// The status that it is part of.
    of: Option<&'a str>,
    /// What is said on the ConfigMap itself.
    says: String,
    serves: bool,
    is_asked: bool,
    /// What is wrong with it: the reason of the condition `Degraded`.
    fault: Option<Fault>,
}

/// The worst that there is comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    ConfigRefused,
    ClassTaken,
    DiscoveryFailed,
}

impl Fault {
    fn reason(self) -> &'static str {
        match self {
            Self::ConfigRefused => "ConfigRefused",
            Self::ClassTaken => "ClassTaken",
            Self::DiscoveryFailed => "DiscoveryFailed",
        }
    }
}

impl<'a> Part<'a> {
    pub fn new(config_map: &'a ConfigMap, verdict: &Verdict, claim: Option<&Claim>, shown: Option<&Shown>) -> Self {
        let class_is_there = match claim {
            Some(Claim::Kept(_) | Claim::Own(_)) => true,
            Some(Claim::Taken { .. } | Claim::Foreign { .. } | Claim::Failed { .. }) | None => false,
        };
        let fault = match (verdict.state, claim, shown.map(|shown| &shown.last)) {
            (ConfigState::LastGood | ConfigState::Refused, ..) => Some(Fault::ConfigRefused),
            (_, Some(Claim::Taken { .. } | Claim::Foreign { .. } | Claim::Failed { .. }), _) => Some(Fault::ClassTaken),
            (.., Some(LastDiscovery::Failed(_))) => Some(Fault::DiscoveryFailed),
            (ConfigState::InForce, ..) => None,
        };
        Self {
            reference: ConfigRef::of(config_map),
            of: config_map.labels().get(labels::PART_OF).map(String::as_str),
            says: verdict.status(claim, shown),
            serves: verdict.entry.good.is_some() && shown.map_or(class_is_there, |shown| shown.served > 0),
            is_asked: shown.is_some_and(|shown| shown.last == LastDiscovery::UnderWay),
            fault,
        }
    }
}

/// Whether a ConfigMap is for a status, and no provisioner.
pub fn is_status(config_map: &ConfigMap) -> bool {
    config_map.labels().get(labels::TYPE).map(String::as_str) == Some(labels::TYPE_PROVISIONER_STATUS)
}

/// The conditions that this ConfigMap is to have. Each keeps the time of its last change.
pub fn conditions(status_map: &ConfigMap, parts: &[Part<'_>], now: Timestamp) -> Vec<Condition> {
    let reference = ConfigRef::of(status_map);
    let parts: Vec<&Part<'_>> = parts
        .iter()
        .filter(|part| part.reference.namespace == reference.namespace && part.of == Some(reference.name.as_str()))
        .collect();
    let written = status_map.data.as_ref().and_then(|data| data.get(CONDITIONS));
    // What somebody else has written there is written anew.
    let before: Vec<Condition> = written.and_then(|text| yaml::from_str(text).ok()).unwrap_or_default();
    ConditionKind::ALL
        .into_iter()
        .map(|kind| {
            let (status, reason, message) = judge(kind, &parts, &reference);
            let before = before
                .iter()
                .find(|condition| condition.kind == kind && condition.status == status);
            Condition {
                kind,
                status,
                reason: reason.to_owned(),
                message,
                last_transition_time: before.map_or(whole_seconds(now), |condition| condition.last_transition_time),
            }
        })
        .collect()
}

fn judge(kind: ConditionKind, parts: &[&Part<'_>], reference: &ConfigRef) -> (Truth, &'static str, String) {
    let some = |which: &dyn Fn(&Part<'_>) -> bool| list(parts.iter().copied().filter(|part| which(part)));
    match kind {
        ConditionKind::Available if parts.is_empty() => {
            let name = &reference.name;
            let label = labels::PART_OF;
            (
                Truth::No,
                "NoConfigMaps",
                format!("no provisioner ConfigMap of this namespace has label {label}={name}"),
            )
        }
        ConditionKind::Available => match some(&|part| part.serves) {
            Some(list) => (Truth::Yes, AS_EXPECTED, list),
            None => (
                Truth::No,
                "NothingServed",
                list(parts.iter().copied()).unwrap_or_default(),
            ),
        },
        ConditionKind::Progressing => match some(&|part| part.is_asked) {
            Some(list) => (Truth::Yes, "Discovering", list),
            None => (Truth::No, AS_EXPECTED, String::new()),
        },
        ConditionKind::Degraded => {
            let worst = parts.iter().filter_map(|part| part.fault).min();
            match (worst, some(&|part| part.fault.is_some())) {
                (Some(worst), Some(list)) => (Truth::Yes, worst.reason(), list),
                _ => (Truth::No, AS_EXPECTED, String::new()),
            }
        }
        // Another version of Mooring may not take what this one still has of the version before.
        ConditionKind::Upgradeable => match some(&|part| part.fault == Some(Fault::ConfigRefused)) {
            Some(list) => (Truth::No, Fault::ConfigRefused.reason(), list),
            None => (Truth::Yes, AS_EXPECTED, String::new()),
        },
    }
}

/// What these say, with their names, a line each; `None` if there are none.
fn list<'a>(parts: impl Iterator<Item = &'a Part<'a>>) -> Option<String> {
    let lines: Vec<String> = parts
        .map(|part| format!("{}: {}", part.reference.name, part.says))
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// The `data` that the ConfigMap is to have, if it is another than it has.
pub fn change(status_map: &ConfigMap, conditions: &[Condition]) -> Option<BTreeMap<String, String>> {
    let mut data: BTreeMap<String, String> = conditions
        .iter()
        .map(|condition| {
            (
                condition.kind.as_str().to_lowercase(),
                condition.status.as_str().to_owned(),
            )
        })
        .collect();
    // Nothing but text goes into it, so nothing can fail.
    data.insert(CONDITIONS.to_owned(), yaml::to_string(&conditions).unwrap_or_default());
    let there = status_map.data.as_ref();
    let is_there = data
        .iter()
        .all(|(key, value)| there.and_then(|there| there.get(key)) == Some(value));
    (!is_there).then_some(data)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::jiff::Timestamp;

    use super::{Condition, ConditionKind, Fault, Part, change, conditions};
    use crate::config::ConfigRef;
    use crate::yaml;

    fn status_map(data: &str) -> ConfigMap {
        yaml::from_str(&format!(
            "{{metadata: {{namespace: mooring, name: openstack, labels: {{type: provisioner-status}}}}, data: {data}}}"
        ))
        .unwrap()
    }

    fn part(name: &str, serves: bool, is_asked: bool, fault: Option<Fault>) -> Part<'static> {
        Part {
            reference: ConfigRef::new("mooring", name),
            of: Some("openstack"),
            says: "in force".to_owned(),
            serves,
            is_asked,
            fault,
        }
    }

    fn unexpected(all: &[Condition]) -> Vec<String> {
        let unexpected = all.iter().filter(|condition| condition.reason != "AsExpected");
        unexpected
            .map(|condition| {
                let (kind, status) = (condition.kind.as_str(), condition.status.as_str());
                format!("{kind} {status} {}", condition.reason)
            })
            .collect()
    }

    #[test]
    fn a_part_that_fails_degrades_the_whole_and_what_serves_is_available() {
        let failed = Some(Fault::DiscoveryFailed);
        let refused = Some(Fault::ConfigRefused);
        for (cinder, manila, wanted) in [
            ((true, false, None), (true, false, None), &[][..]),
            (
                (true, false, None),
                (false, true, None),
                &["Progressing True Discovering"],
            ),
            (
                (true, false, None),
                (false, false, failed),
                &["Degraded True DiscoveryFailed"],
            ),
            (
                (false, false, failed),
                (false, false, failed),
                &["Available False NothingServed", "Degraded True DiscoveryFailed"],
            ),
            (
                (true, false, refused),
                (true, false, failed),
                &["Degraded True ConfigRefused", "Upgradeable False ConfigRefused"],
            ),
        ] {
            let parts = [
                part("cinder", cinder.0, cinder.1, cinder.2),
                part("manila", manila.0, manila.1, manila.2),
            ];
            let all = conditions(&status_map("{}"), &parts, Timestamp::UNIX_EPOCH);
            assert_eq!(unexpected(&all), wanted, "{parts:?}");
        }
    }

    #[test]
    fn those_of_another_whole_or_namespace_do_not_count() {
        let mut other = part("rbd", true, false, None);
        other.of = Some("ceph");
        let mut elsewhere = part("cinder", true, false, None);
        elsewhere.reference.namespace = "admin".to_owned();
        let all = conditions(&status_map("{}"), &[other, elsewhere], Timestamp::UNIX_EPOCH);
        assert_eq!(unexpected(&all), ["Available False NoConfigMaps"]);
        let wanted = "no provisioner ConfigMap of this namespace has label app.kubernetes.io/part-of=openstack";
        assert_eq!(all[0].message, wanted);
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_change_and_nothing_is_written_twice() {
        let (then, now) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(100).unwrap());
        let mut map = status_map("{}");
        let all = conditions(&map, &[part("cinder", true, false, None)], then);
        map.data = change(&map, &all);
        assert_eq!(map.data.as_ref().unwrap()["available"], "True");
        assert_eq!(
            change(&map, &conditions(&map, &[part("cinder", true, false, None)], now)),
            None
        );

        let failed = part("cinder", true, false, Some(Fault::DiscoveryFailed));
        let all = conditions(&map, &[failed], now);
        map.data = change(&map, &all);
        assert_eq!(map.data.as_ref().unwrap()["degraded"], "True");
        for condition in all {
            let wanted = if condition.kind == ConditionKind::Degraded {
                now
            } else {
                then
            };
            assert_eq!(condition.last_transition_time, wanted, "{condition:?}");
        }

        let junk = status_map("{conditions: '- no', available: maybe}");
        assert!(change(&junk, &conditions(&junk, &[], now)).is_some());
    }
}
