//! Refuses properties that the image does not know: it would ignore a misspelt one in silence.

use mooring_contract::near_miss::nearest;
use mooring_contract::operation::Operation;
use mooring_contract::property::keys::ATTRIBUTE_PREFIX;
use mooring_contract::request::Request;
use mooring_contract::volume::keys::BYTES_PER_INODE;

use crate::error::Error;
use crate::given::KUBE_CA;

/// Keys beside the image's own: of what Mooring adds to a volume's options, and of what this program reads.
const NOT_THE_IMAGE_S: [&str; 2] = [BYTES_PER_INODE, KUBE_CA];

/// Checks that the run has no other properties for the image than `known` ones.
///
/// What deletes is never refused, nor what is about a volume that exists: Mooring remembers the parameters that it was
/// made with, which nobody can correct.
pub fn check(request: &Request, known: &[String]) -> Result<(), Error> {
    let (has_parameters, has_attributes) = match request.operation {
        Operation::Provision | Operation::Clone | Operation::Restore => (true, true),
        Operation::Discover => (true, false),
        Operation::Modify => (false, true),
        Operation::Delete
        | Operation::Expand
        | Operation::Snapshot
        | Operation::DeleteSnapshot
        | Operation::SnapshotGroup
        | Operation::DeleteGroup
        | Operation::Backup
        | Operation::DeleteBackup
        | Operation::Attach
        | Operation::Detach => (false, false),
    };
    let known = known.iter().map(String::as_str);
    let (attributes, own): (Vec<_>, Vec<_>) = known.partition(|name| name.starts_with(ATTRIBUTE_PREFIX));
    let parameters = request.parameters.keys().filter(|_| has_parameters);
    among(
        &own,
        parameters.filter(|name| !NOT_THE_IMAGE_S.contains(&name.as_str())),
        "ConfigMap or the StorageClass has property",
    )?;
    let given = request.attributes.iter().filter(|_| has_attributes);
    let attributes: Vec<_> = attributes
        .iter()
        .filter_map(|name| name.strip_prefix(ATTRIBUTE_PREFIX))
        .collect();
    among(
        &attributes,
        given.flat_map(|given| given.parameters.keys()),
        "VolumeAttributesClass has attribute",
    )
}

/// Checks that each of the `given` names is known.
fn among<'a>(known: &[&str], mut given: impl Iterator<Item = &'a String>, who: &'static str) -> Result<(), Error> {
    let Some(name) = given.find(|name| !known.contains(&name.as_str())) else {
        return Ok(());
    };
    Err(Error::Unknown {
        who,
        name: name.clone(),
        nearest: nearest(name, known.iter().copied()).map(str::to_owned),
        known: known.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use mooring_contract::operation::Operation;
    use mooring_contract::request::{Attributes, Request};
    use serde_json::json;

    use super::check;
    use crate::volume::tests::request;

    fn said(operation: Operation, parameter: &str, attribute: &str) -> String {
        let request = Request {
            operation,
            parameters: serde_json::from_value(json!({parameter: "x", "thin": "true"})).unwrap(),
            attributes: Some(Attributes {
                class: "gold".to_owned(),
                parameters: serde_json::from_value(json!({attribute: "x"})).unwrap(),
            }),
            ..request()
        };
        let known = ["thin", "preallocate", "attribute-preallocate"].map(str::to_owned);
        match check(&request, &known) {
            Ok(()) => String::new(),
            Err(error) => {
                assert_eq!(error.exit_code(), 78);
                error.to_string()
            }
        }
    }

    #[test]
    fn a_property_that_the_image_does_not_know_is_refused_with_the_one_that_was_meant() {
        for (parameter, attribute, words) in [
            ("preallocate", "preallocate", ""),
            ("bytes-per-inode", "preallocate", ""),
            ("kube-ca", "preallocate", ""),
            (
                "preallocat",
                "preallocate",
                "the ConfigMap or the StorageClass has property \"preallocat\", which the image does not know: write \
                 preallocate, or remove it; the image knows thin, preallocate",
            ),
            (
                "tihn",
                "preallocate",
                "\"tihn\", which the image does not know: write thin,",
            ),
            ("preAllocate", "preallocate", "write preallocate,"),
            (
                "zone",
                "preallocate",
                "\"zone\", which the image does not know: correct its name, or remove it;",
            ),
            (
                "thin",
                "colour",
                "the VolumeAttributesClass has attribute \"colour\", which the image does not know",
            ),
            (
                "thin",
                "preallocat",
                "write preallocate, or remove it; the image knows preallocate",
            ),
        ] {
            let error = said(Operation::Provision, parameter, attribute);
            assert!(
                error.contains(words) && error.is_empty() == words.is_empty(),
                "{parameter} {attribute}: {error}"
            );
        }
    }

    #[test]
    fn only_what_makes_a_volume_or_changes_it_so_is_refused() {
        for operation in Operation::ALL {
            let refused = |parameter, attribute| !said(operation, parameter, attribute).is_empty();
            let makes = matches!(operation, Operation::Provision | Operation::Clone | Operation::Restore);
            let discovers = operation == Operation::Discover;
            let modifies = operation == Operation::Modify;
            assert_eq!(refused("tihn", "preallocate"), makes || discovers, "{operation}");
            assert_eq!(refused("thin", "colour"), makes || modifies, "{operation}");
        }
    }
}
