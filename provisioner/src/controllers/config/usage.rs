//! Who uses a StorageClass.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use crate::cache::store::Cache;

/// How many PVs and claims name each of some classes.
pub type Uses = BTreeMap<String, usize>;

/// How often each of these classes is used; `None` before everything has been listed.
pub fn uses(cache: &Cache, classes: &BTreeSet<String>) -> Option<Uses> {
    if !cache.volumes.is_listed() || !cache.claims.is_listed() {
        return None;
    }
    let (volumes, claims) = (cache.volumes.state(), cache.claims.state());
    let by_volume = volumes
        .iter()
        .filter_map(|volume| volume.spec.as_ref()?.storage_class_name.as_ref());
    let by_claim = claims.iter().filter_map(|claim| class_of(claim));
    Some(count(classes, by_volume.chain(by_claim)))
}

/// The class of a claim, by its field or by the older annotation.
fn class_of(claim: &PersistentVolumeClaim) -> Option<&String> {
    let named = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    named.or_else(|| claim.annotations().get("volume.beta.kubernetes.io/storage-class"))
}

fn count<'a>(classes: &BTreeSet<String>, named: impl Iterator<Item = &'a String>) -> Uses {
    let mut counts: Uses = classes.iter().map(|class| (class.clone(), 0)).collect();
    for class in named {
        counts.entry(class.clone()).and_modify(|count| *count += 1);
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::count;

    #[test]
    fn a_class_without_users_counts_as_zero() {
        let classes = BTreeSet::from(["gold".to_owned(), "silver".to_owned()]);
        let named = ["silver".to_owned(), "silver".to_owned()];
        let counts = count(&classes, named.iter());
        assert_eq!((counts["gold"], counts["silver"]), (0, 2));
    }
}
