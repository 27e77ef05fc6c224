//! Which nodes a node selector selects: the scheduler's own rule for node affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement};

/// Whether the node `name` with `labels` is selected: any term, each with all its requirements. A term without
/// requirements selects nothing.
pub fn selects(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let fields = term.match_fields.as_deref().unwrap_or_default();
        let by_field =
            |field: &NodeSelectorRequirement| field.key == "metadata.name" && meets(field, Some(&name.to_owned()));
        !(expressions.is_empty() && fields.is_empty())
            && expressions.iter().all(|wanted| meets(wanted, labels.get(&wanted.key)))
            && fields.iter().all(by_field)
    })
}

/// Whether what a requirement is about has a value that meets it.
pub fn meets(wanted: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let among = value.is_some_and(|value| values.contains(value));
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    match (wanted.operator.as_str(), number(value), number(values.first())) {
        ("In", ..) => among,
        ("NotIn", ..) => !among,
        ("Exists", ..) => value.is_some(),
        ("DoesNotExist", ..) => value.is_none(),
        ("Gt", Some(value), Some(bound)) => value > bound,
        ("Lt", Some(value), Some(bound)) => value < bound,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::selects;

    #[test]
    fn terms_are_alternatives_and_requirements_are_not() {
        let labels = [
            ("kubernetes.io/hostname", "host-a"),
            ("topology.kubernetes.io/zone", "west"),
            ("disks", "4"),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let table = [
            (json!([]), false),
            (json!([{}]), false),
            (
                json!([{"matchExpressions": [{"key": "disks", "operator": "Exists"}]}]),
                true,
            ),
            (
                json!([{"matchExpressions": [{"key": "disks", "operator": "DoesNotExist"}]}]),
                false,
            ),
            (
                json!([{"matchExpressions": [{"key": "disks", "operator": "Gt", "values": ["3"]}]}]),
                true,
            ),
            (
                json!([{"matchExpressions": [{"key": "disks", "operator": "Lt", "values": ["3"]}]}]),
                false,
            ),
            (
                json!([{"matchExpressions": [
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["west"]},
                    {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["host-a"]}]}]),
                false,
            ),
            (
                json!([{"matchExpressions": [{"key": "no", "operator": "Exists"}]},
                       {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]),
                true,
            ),
            (
                json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]),
                false,
            ),
            (
                json!([{"matchExpressions": [{"key": "disks", "operator": "Like"}]}]),
                false,
            ),
        ];
        for (terms, want) in table {
            let selector = serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap();
            assert_eq!(selects(&selector, "a", &labels), want, "{terms}");
        }
    }
}
