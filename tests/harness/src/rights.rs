//! The single rights in RBAC rules, so that a test can remove each of them.

use std::fmt;

use k8s_openapi::api::rbac::v1::PolicyRule;

/// One verb on one resource, for one object name if the rule has names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    /// The role whose rule it is in.
    pub role: &'static str,
    /// Which of its rules, from 0.
    pub rule: usize,
    pub group: String,
    pub resource: String,
    /// The only object that it applies to.
    pub name: Option<String>,
    pub verb: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            role,
            rule,
            resource,
            name,
            verb,
            ..
        } = self;
        write!(f, "{verb} {resource}")?;
        if let Some(name) = name {
            write!(f, " {name}")?;
        }
        write!(f, " (rule {} of {role})", rule + 1)
    }
}

/// What a rule covers, each with one group, one resource and at most one name.
fn parts(rule: &PolicyRule) -> Vec<(String, String, Option<String>)> {
    let names: Vec<_> = rule.resource_names.iter().flatten().cloned().map(Some).collect();
    let names = if names.is_empty() { vec![None] } else { names };
    let mut parts = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            parts.extend(names.iter().map(|name| (group.clone(), resource.clone(), name.clone())));
        }
    }
    parts
}

/// The single rights in the rules of a role.
pub fn rights_in(role: &'static str, rules: &[PolicyRule]) -> Vec<Right> {
    let mut rights = Vec::new();
    for (rule, one) in rules.iter().enumerate() {
        for (group, resource, name) in parts(one) {
            rights.extend(one.verbs.iter().map(|verb| Right {
                role,
                rule,
                group: group.clone(),
                resource: resource.clone(),
                name: name.clone(),
                verb: verb.clone(),
            }));
        }
    }
    rights
}

/// The rules without some of their rights. The other rights stay.
pub fn without(rules: &[PolicyRule], taken: &[&Right]) -> Vec<PolicyRule> {
    let mut left = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        if taken.iter().all(|right| right.rule != index) {
            left.push(rule.clone());
            continue;
        }
        for (group, resource, name) in parts(rule) {
            let is_taken = |verb: &String| {
                taken.iter().any(|right| {
                    (right.rule, &right.group, &right.resource) == (index, &group, &resource)
                        && (&right.name, &right.verb) == (&name, verb)
                })
            };
            let verbs: Vec<_> = rule.verbs.iter().filter(|verb| !is_taken(verb)).cloned().collect();
            if !verbs.is_empty() {
                left.push(PolicyRule {
                    api_groups: Some(vec![group]),
                    resources: Some(vec![resource]),
                    resource_names: name.map(|name| vec![name]),
                    verbs,
                    ..PolicyRule::default()
                });
            }
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::PolicyRule;

    use super::{Right, rights_in, without};

    #[test]
    fn rights_can_be_removed_and_all_others_stay() {
        let rule = |groups: &[&str], resources: &[&str], names: &[&str], verbs: &[&str]| {
            let list = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
            PolicyRule {
                api_groups: Some(list(groups)),
                resources: Some(list(resources)),
                resource_names: Some(list(names)).filter(|names| !names.is_empty()),
                verbs: list(verbs),
                ..PolicyRule::default()
            }
        };
        let rules = [
            rule(&[""], &["pods", "secrets"], &[], &["get", "list"]),
            rule(&["", "events.k8s.io"], &["events"], &[], &["create"]),
            rule(&["coordination.k8s.io"], &["leases"], &["a", "b"], &["update"]),
        ];
        let plain = |rights: &[Right]| {
            let mut all: Vec<_> = rights
                .iter()
                .map(|right| {
                    (
                        right.group.clone(),
                        right.resource.clone(),
                        right.name.clone(),
                        right.verb.clone(),
                    )
                })
                .collect();
            all.sort();
            all
        };
        let all = rights_in("x", &rules);
        assert_eq!(all.len(), 8);
        for first in &all {
            for second in &all {
                let left = rights_in("x", &without(&rules, &[first, second]));
                let others: Vec<_> = all
                    .iter()
                    .filter(|right| ![first, second].contains(right))
                    .cloned()
                    .collect();
                assert_eq!(plain(&left), plain(&others), "without {first} and {second}");
            }
        }
        assert!(without(&rules, &all.iter().collect::<Vec<_>>()).is_empty());
    }
}
