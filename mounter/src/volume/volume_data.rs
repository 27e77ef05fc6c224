//! What the kubelet notes of a CSI volume beside the directory that it is mounted on: all CSI drivers have theirs in
//! one place, so nothing else tells which volumes are Mooring's. It is there from before the volume is mounted until
//! after it is unmounted.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use mooring_contract::names::{CSI_DRIVER, CSI_VOLUME_DATA};
use serde::Deserialize;

/// More than the kubelet ever writes there.
const MOST: u64 = 16 << 10;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeData {
    driver_name: String,
    #[serde(default)]
    volume_handle: String,
}

/// Whether a CSI volume is Mooring's, by the directory that it is mounted on. Nothing of the volume itself is looked
/// at.
pub fn is_ours(target: &Path) -> io::Result<bool> {
    match target.parent() {
        Some(directory) => Ok(ours(directory)?.is_some()),
        None => Ok(false),
    }
}

/// Whether a raw block volume is Mooring's, by its name in the kubelet's directory of them.
pub fn is_our_device(devices: &Path, name: &OsStr) -> io::Result<bool> {
    Ok(of_device(devices, name)?.is_some())
}

/// Whether a raw block volume is Mooring's and has this id.
pub fn is_our_device_of(devices: &Path, name: &OsStr, volume_id: &str) -> io::Result<bool> {
    Ok(of_device(devices, name)?.is_some_and(|data| data.volume_handle == volume_id))
}

fn of_device(devices: &Path, name: &OsStr) -> io::Result<Option<VolumeData>> {
    ours(&devices.join(name).join("data"))
}

/// What is noted in a directory, if that is about a volume of Mooring's.
fn ours(directory: &Path) -> io::Result<Option<VolumeData>> {
    let file = match File::open(directory.join(CSI_VOLUME_DATA)) {
        // The kubelet notes each volume of a CSI driver before that mounts it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut text = Vec::new();
    file.take(MOST).read_to_end(&mut text)?;
    let data: VolumeData = serde_json::from_slice(&text)?;
    Ok(Some(data).filter(|data| data.driver_name == CSI_DRIVER))
}
