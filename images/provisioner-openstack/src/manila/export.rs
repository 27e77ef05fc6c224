//! Where a share is.

use serde::Deserialize;

use super::Manila;
use super::protocol::Protocol;
use crate::error::OpenstackError;
use crate::storage::Item;

/// Metadata of a share of CephFS that names its file system, as in `fs=cephfs`.
const MOUNT_OPTIONS: &str = "__mount_options";

/// What a mount needs to know.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) source: String,
    /// The Ceph file system; empty if nobody says it.
    pub(super) fs_name: String,
}

#[derive(Debug, Deserialize)]
struct Location {
    path: String,
    #[serde(default)]
    preferred: bool,
    #[serde(default)]
    is_admin_only: bool,
}

impl Manila<'_> {
    /// The place of a share that its back end prefers.
    pub(super) fn export(&self, share: &Item, protocol: Protocol) -> Result<Export, OpenstackError> {
        let what = format!("ask where share {} is", share.id);
        let mut found = self
            .storage
            .service
            .get(&what, &format!("/shares/{}/export_locations", share.id))?;
        let locations: Vec<Location> = self.storage.service.read(&what, found["export_locations"].take())?;
        let open = || locations.iter().filter(|location| !location.is_admin_only);
        let best = open().find(|location| location.preferred).or_else(|| open().next());
        let best = best.ok_or_else(|| {
            OpenstackError::NotNow(format!(
                "Manila does not say where share {} is: it is asked again",
                share.id
            ))
        })?;
        let said = share.says(MOUNT_OPTIONS);
        let fs_name = match protocol {
            Protocol::CephFs => self
                .storage
                .given
                .property("fs-name")?
                .or_else(|| fs_in(said.unwrap_or_default())),
            Protocol::Nfs | Protocol::Cifs => None,
        };
        Ok(Export {
            source: match protocol {
                // Back ends write it as Windows does.
                Protocol::Cifs => best.path.replace('\\', "/"),
                Protocol::CephFs | Protocol::Nfs => best.path.clone(),
            },
            fs_name: fs_name.unwrap_or_default(),
        })
    }
}

/// The file system in mount options.
fn fs_in(options: &str) -> Option<String> {
    let mut options = options.split(',');
    options.find_map(|option| option.strip_prefix("fs=").map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::fs_in;

    #[test]
    fn a_file_system_is_found_among_mount_options() {
        assert_eq!(fs_in("ro,fs=cephfs").as_deref(), Some("cephfs"));
        assert_eq!(fs_in("ro"), None);
    }
}
