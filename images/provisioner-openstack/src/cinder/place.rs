//! What a PersistentVolume says of where its volume is. How a node reaches it, Cinder says only when it is attached:
//! until then its source has the volume's id.

use crate::error::OpenstackError;
use crate::given::GivenRun;

/// Stands where a server's name will be.
const LATER: &str = "by-attach";

/// What Cinder's drivers put before a volume's id.
const BEFORE: &str = "volume-";

/// The clients that can mount volumes of Cinder.
const CLIENTS: &str = "rbd, iscsi or block";

/// The client that mounts the volumes of this ConfigMap or class.
pub(super) fn client(given: &GivenRun) -> Result<String, OpenstackError> {
    let client = given.needed("client", CLIENTS)?;
    match client.as_str() {
        "rbd" | "iscsi" | "block" => Ok(client),
        _ => Err(OpenstackError::Property {
            name: "client",
            value: client,
            wanted: CLIENTS,
        }),
    }
}

/// The source of a volume that is attached nowhere.
pub(super) fn source(client: &str, id: &str) -> String {
    match client {
        "rbd" => format!("rbd://{LATER}/cinder/{BEFORE}{id}"),
        _ => format!("iscsi://{LATER}/{BEFORE}{id}/0"),
    }
}

/// The volume's id in a source.
pub(super) fn id(source: &str) -> Option<&str> {
    let ids = source.split('/').filter_map(|part| part.strip_prefix(BEFORE));
    ids.into_iter()
        .find(|id| !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
}

#[cfg(test)]
mod tests {
    use super::{client, id, source};
    use crate::answer::options;
    use crate::given::tests::given;
    use mooring_contract::volume::{Speaker, Volume};
    use serde_json::json;

    #[test]
    fn a_source_has_the_volume_s_id_and_can_stand_in_a_persistentvolume() {
        for client in ["rbd", "iscsi", "block"] {
            let source = source(client, "0a-1");
            assert_eq!(id(&source), Some("0a-1"));
            let options = options([("client", client.to_owned()), ("source", source)]);
            Volume::from_options(&options)
                .unwrap()
                .check(Speaker::Image, &[])
                .unwrap();
        }
        for none in ["", "rbd://h/p/image", "rbd://h/p/volume-", "iscsi://h/volume-%2e/0"] {
            assert_eq!(id(none), None, "{none}");
        }
    }

    #[test]
    fn a_client_that_has_no_device_is_refused() {
        for (name, known) in [("rbd", true), ("block", true), ("nfs", false)] {
            let (_folder, given) = given(&json!({}), &[("client", name)]);
            assert_eq!(client(&given).is_ok(), known, "{name}");
        }
    }
}
