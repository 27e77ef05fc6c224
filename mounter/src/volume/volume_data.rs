//! What the kubelet notes of a CSI volume beside the directory that it is mounted on: all CSI drivers have theirs in
//! one place, so nothing else tells which volumes are Mooring's. It is there from before the volume is mounted until
//! after it is unmounted.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use mooring_contract::names::{CSI_DRIVER, CSI_VOLUME_DATA};
use serde::Deserialize;

/// More than the kubelet ever writes there.
const MOST: u64 = 16 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeData {
    driver_name: String,
}

/// Whether a CSI volume is Mooring's, by the directory that it is mounted on. Nothing of the volume itself is looked
/// at.
pub fn is_ours(target: &Path) -> bool {
    target.parent().is_some_and(says_so)
}

/// Whether a raw block volume is Mooring's, by its name in the kubelet's directory of them.
pub fn is_our_device(devices: &Path, name: &OsStr) -> bool {
    says_so(&devices.join(name).join("data"))
}

fn says_so(directory: &Path) -> bool {
    let read = || -> std::io::Result<VolumeData> {
        let mut text = Vec::new();
        File::open(directory.join(CSI_VOLUME_DATA))?
            .take(MOST)
            .read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    };
    read().is_ok_and(|data| data.driver_name == CSI_DRIVER)
}
