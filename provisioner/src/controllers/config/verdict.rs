//! Judges one ConfigMap: which version of it is in force, and what its author is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use mooring_contract::names::{annotations, labels};
use serde::{Deserialize, Serialize};

use crate::config::discovered::{LastDiscovery, Shown};
use crate::config::problem::join;
use crate::config::storage_class::Claim;
use crate::config::store::Entry;
use crate::config::trust::Trust;
use crate::config::{ConfigProblem, ProvisionerConfig, Severity};
use crate::process::metrics::ConfigState;

/// What came of judging one ConfigMap.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// For the store.
    pub entry: Entry,
    /// For the metrics.
    pub state: ConfigState,
    /// The record of this version, if it is good.
    pub record: Option<String>,
}

/// A version of a ConfigMap that was good: annotation `mooring.dev/last-good`.
///
/// It lies in the ConfigMap itself, so it is as secret as what it repeats. It is checked like any version when it is
/// read, so writing it gives nobody more than writing `data` would.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Record {
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pass_through: Option<String>,
    data: BTreeMap<String, String>,
}

/// Reads a ConfigMap. A bad one leaves in force what was: the version that this replica knows, else the one on record.
pub fn verdict(config_map: &ConfigMap, before: Option<&Entry>, trust: &Trust) -> Verdict {
    match ProvisionerConfig::parse(config_map, trust) {
        Ok(config) => Verdict {
            entry: Entry {
                problems: config.warnings.clone(),
                good: Some(Arc::new(config)),
            },
            state: ConfigState::InForce,
            record: record(config_map),
        },
        Err(problems) => {
            let known = before
                .and_then(|entry| entry.good.clone())
                .filter(|good| Some(&good.uid) == config_map.metadata.uid.as_ref());
            let good = known.or_else(|| restore(config_map, trust).map(Arc::new));
            Verdict {
                state: if good.is_some() {
                    ConfigState::LastGood
                } else {
                    ConfigState::Refused
                },
                entry: Entry { good, problems },
                record: None,
            }
        }
    }
}

fn record(config_map: &ConfigMap) -> Option<String> {
    let record = Record {
        storage_class: meta(config_map.metadata.labels.as_ref(), labels::STORAGE_CLASS),
        pass_through: meta(config_map.metadata.annotations.as_ref(), annotations::PASS_THROUGH),
        data: config_map.data.clone().unwrap_or_default(),
    };
    // Short enough for an annotation: a ConfigMap that is not is refused.
    serde_json::to_string(&record).ok()
}

/// The version on record, if it is still good under the present trust.
fn restore(config_map: &ConfigMap, trust: &Trust) -> Option<ProvisionerConfig> {
    let text = meta(config_map.metadata.annotations.as_ref(), annotations::LAST_GOOD)?;
    let record: Record = serde_json::from_str(&text).ok()?;
    let mut then = config_map.clone();
    then.data = Some(record.data);
    then.binary_data = None;
    then.metadata.labels = record
        .storage_class
        .map(|class| BTreeMap::from([(labels::STORAGE_CLASS.to_owned(), class)]));
    then.metadata.annotations = record
        .pass_through
        .map(|list| BTreeMap::from([(annotations::PASS_THROUGH.to_owned(), list)]));
    ProvisionerConfig::parse(&then, trust).ok()
}

fn meta(map: Option<&BTreeMap<String, String>>, key: &str) -> Option<String> {
    map?.get(key).cloned()
}

impl Verdict {
    /// The problems that keep this version of the ConfigMap from being in force.
    pub fn errors(&self) -> impl Iterator<Item = &ConfigProblem> {
        self.entry
            .problems
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
    }

    /// What the annotation `mooring.dev/status` is to say; `claim` is what has become of the class, and `shown` of what
    /// was discovered, if the ConfigMap promises that.
    pub fn status(&self, claim: Option<&Claim>, shown: Option<&Shown>) -> String {
        let problems = join(&self.entry.problems);
        match self.state {
            ConfigState::LastGood => {
                format!("refused, and the version before it stays in force: {problems}")
            }
            ConfigState::Refused => format!("refused: {problems}"),
            ConfigState::InForce => {
                let class = match claim {
                    None => String::new(),
                    Some(Claim::Kept(class)) => format!("; storage class {class}"),
                    Some(Claim::Own(class)) => {
                        format!("; storage class {class} existed already, and Mooring leaves it unchanged")
                    }
                    Some(Claim::Foreign { class, provisioner }) => format!(
                        "; storage class {class} is {provisioner}'s, and Mooring leaves it unchanged: use another name \
                         in label {}",
                        labels::STORAGE_CLASS
                    ),
                    Some(Claim::Failed { why, .. }) => format!("; {why}"),
                    Some(Claim::Taken { class, by }) => format!(
                        "; storage class {class} belongs to the older ConfigMap {by}: use another name in label {}, or \
                         delete that ConfigMap",
                        labels::STORAGE_CLASS
                    ),
                };
                let but = if problems.is_empty() {
                    String::new()
                } else {
                    format!("; note {problems}")
                };
                let found = shown.map(discovered).unwrap_or_default();
                let failed = match shown.map(|shown| &shown.last) {
                    Some(LastDiscovery::Failed(why)) => format!("{LAST_FAILED}{why}"),
                    Some(LastDiscovery::UnderWay | LastDiscovery::Listed) | None => String::new(),
                };
                format!("in force{class}{found}{but}{failed}")
            }
        }
    }
}

/// What stands before the reason for which the last discovery failed, the end of a status.
const LAST_FAILED: &str = "; the last discovery failed: ";

/// A status without what it says of the last discovery.
pub fn without_last_discovery(status: &str) -> &str {
    status.split_once(LAST_FAILED).map_or(status, |(before, _)| before)
}

/// What a status says of the classes of what was discovered.
fn discovered(shown: &Shown) -> String {
    let list = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let mut parts = vec![match shown.served {
        1 => "; 1 storage class by discovery".to_owned(),
        served => format!("; {served} storage classes by discovery"),
    }];
    if !shown.vanished.is_empty() {
        parts.push(format!(
            "; not listed by the storage any more, and deleted as soon as nothing uses them: {}",
            list(&shown.vanished)
        ));
    }
    if !shown.nameless.is_empty() {
        parts.push(format!(
            "; no class for {}, since other classes have both names that it could have: delete those classes",
            list(&shown.nameless)
        ));
    }
    parts.concat()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use mooring_contract::names::annotations;

    use super::{Verdict, verdict, without_last_discovery};
    use crate::config::ConfigRef;
    use crate::config::discovered::{LastDiscovery, Shown};
    use crate::config::storage_class::Claim;
    use crate::config::trust::Trust;
    use crate::process::metrics::ConfigState;
    use crate::yaml;

    fn trust(image: &str) -> Trust {
        Trust::new(["mooring".to_owned()], [image.parse().unwrap()])
    }

    fn config_map(data: &str) -> ConfigMap {
        yaml::from_str(&format!(
            "metadata: {{namespace: mooring, name: a, uid: u, labels: {{storage-class: silver}}}}\ndata: \
             {{plugin-name: mooring.dev/flex-provisioner, image: mooring.dev/x, {data}}}"
        ))
        .unwrap()
    }

    fn judge(config_map: &ConfigMap, before: Option<&Verdict>) -> Verdict {
        verdict(
            config_map,
            before.map(|verdict| &verdict.entry),
            &trust("mooring.dev/*"),
        )
    }

    fn zone(verdict: &Verdict) -> Option<&str> {
        let good = verdict.entry.good.as_ref()?;
        good.pass_through.get("zone").map(String::as_str)
    }

    /// Proves: P5
    #[test]
    fn a_bad_version_leaves_the_good_one_in_force_also_after_a_restart() {
        let good = judge(&config_map("zone: west"), None);
        assert_eq!((good.state, zone(&good)), (ConfigState::InForce, Some("west")));

        let mut bad = config_map("zone: east, timeout: soon");
        bad.metadata
            .labels
            .as_mut()
            .unwrap()
            .insert("storage-class".into(), "gold".into());
        let known = judge(&bad, Some(&good));
        assert_eq!((known.state, zone(&known)), (ConfigState::LastGood, Some("west")));

        let unknown = judge(&bad, None);
        assert_eq!((unknown.state, zone(&unknown)), (ConfigState::Refused, None));

        bad.metadata.annotations = Some([(annotations::LAST_GOOD.to_owned(), good.record.clone().unwrap())].into());
        let restored = judge(&bad, None);
        assert_eq!((restored.state, zone(&restored)), (ConfigState::LastGood, Some("west")));
        let class = restored.entry.good.as_ref().unwrap().class_name.clone();
        assert_eq!(class.as_deref(), Some("silver"), "the class is the good version's too");
        assert!(restored.record.is_none(), "a bad version must not touch the record");

        let distrusted = verdict(&bad, None, &trust("other.dev/*"));
        assert_eq!(
            distrusted.state,
            ConfigState::Refused,
            "the record is under the present trust"
        );
    }

    #[test]
    fn a_config_map_made_anew_does_not_inherit() {
        let good = judge(&config_map("zone: west"), None);
        let mut bad = config_map("timeout: soon");
        bad.metadata.uid = Some("other".into());
        assert_eq!(judge(&bad, Some(&good)).state, ConfigState::Refused);
    }

    #[test]
    fn the_status_says_what_is_and_what_to_do() {
        let good = judge(&config_map("zone: west"), None);
        let by = ConfigRef::new("mooring", "old");
        for (claim, text) in [
            (None, "in force"),
            (Some(Claim::Kept("silver".into())), "in force; storage class silver"),
            (
                Some(Claim::Taken {
                    class: "silver".into(),
                    by,
                }),
                "older ConfigMap mooring/old",
            ),
        ] {
            let status = good.status(claim.as_ref(), None);
            assert!(status.contains(text), "{status}");
        }
        let mut shown = Shown {
            served: 2,
            ..Shown::default()
        };
        let claim = Claim::Kept("silver".into());
        assert_eq!(
            good.status(Some(&claim), Some(&shown)),
            "in force; storage class silver; 2 storage classes by discovery"
        );
        shown.vanished.insert("silver-old".into());
        let status = good.status(Some(&claim), Some(&shown));
        assert!(status.ends_with("as soon as nothing uses them: silver-old"), "{status}");
        shown.last = LastDiscovery::Failed("exit code 75: no answer".into());
        let status = good.status(Some(&claim), Some(&shown));
        assert!(
            status.ends_with("; the last discovery failed: exit code 75: no answer"),
            "{status}"
        );
        let odd = judge(&config_map("use-nfs-server: 10.10.2.4 zone:west"), None).status(None, Some(&shown));
        let before = without_last_discovery(&odd);
        assert!(
            before.contains("; note use-nfs-server: ") && !before.contains("no answer"),
            "{odd}"
        );
        assert_eq!(without_last_discovery(before), before);
        let odd = judge(&config_map("use-nfs-server: 10.10.2.4 zone:west"), None).status(None, None);
        assert!(odd.starts_with("in force; note use-nfs-server: "), "{odd}");
        let bad = judge(&config_map("timeout: soon"), Some(&good)).status(None, None);
        assert!(
            bad.starts_with("refused, and the version before it stays in force: timeout: "),
            "{bad}"
        );
    }
}
