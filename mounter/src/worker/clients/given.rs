//! A device that a client container gives, as a raw block volume: the device's node is mounted on the file that the
//! kubelet names for the Pod. The client container keeps the device for as long as the node is mounted there.

use super::checks::shown_as;
use crate::grant::Grant;
use crate::sys::Sys;
use crate::volume::job::MountError;
use crate::volume::mount_table::DeviceNumber;
use crate::worker::unmount::unmount;

/// Shows a Pod a device of this node.
pub fn show(sys: &impl Sys, device: DeviceNumber, grant: &Grant) -> Result<(), MountError> {
    let (target, read_only) = (grant.target(), grant.is_read_only());
    let table = sys.mount_table()?;
    for entry in &table.0 {
        let place = &entry.mount_point;
        if *place == target.path() || place.parent() != target.path().parent() {
            continue;
        }
        if grant.is_sole() {
            return Err(MountError::NotAlone {
                volume: format!("volume {}", target.name()),
                other: place.display().to_string(),
            });
        }
        let uid = place.file_name().unwrap_or_default().to_string_lossy();
        // Each would have a cache of its own, and overwrite what the other has written.
        if sys.device_at(&target.of_pod(&uid))? != Some(device) {
            let message = format!(
                "another Pod on this node uses it as a device ({}), and two devices would not see each other's writes: \
                 delete that Pod, and this one starts by itself",
                place.display()
            );
            return Err(MountError::Node(message.into()));
        }
    }
    if let Some(entry) = table.top(&target.path()) {
        match sys.device_at(target)? {
            Some(shown) if shown == device => return shown_as(entry, target, read_only),
            Some(_) => {
                return Err(MountError::occupied(
                    target,
                    "another device",
                    format!("device {}:{}", device.major, device.minor),
                ));
            }
            None => unmount(sys, target, false)?,
        }
    }
    let node = sys.clone_node_of(device, read_only)?;
    Ok(sys.attach(&node, &sys.open_target(target)?)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mooring_contract::volume::Volume;

    use super::show;
    use crate::grant::Grant;
    use crate::grant::request::MountRequest;
    use crate::grant::request::tests::request;
    use crate::grant::tests::granted;
    use crate::sys::fake::Fake;
    use crate::volume::mount_table::DeviceNumber;
    use crate::volume::target::Target;
    use crate::worker::clients::local::hide;

    const ONE: DeviceNumber = DeviceNumber { major: 7, minor: 1 };
    const OTHER: DeviceNumber = DeviceNumber { major: 7, minor: 2 };

    fn target(pod: &str) -> Target {
        let path = format!("/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/v/{pod}");
        Target::parse_csi(Path::new("/kubelet"), &path).unwrap()
    }

    fn asked(pod: &str) -> MountRequest {
        request(Volume::from_line("client=iscsi,source=h/iqn").unwrap(), target(pod))
    }

    fn shared(pod: &str) -> Grant {
        granted(asked(pod))
    }

    fn sole(pod: &str) -> Grant {
        granted(MountRequest {
            sole: true,
            ..asked(pod)
        })
    }

    /// Proves: M2
    #[test]
    fn a_device_is_shown_once_however_often_that_is_asked_and_is_taken_away_once() {
        let fake = Fake::default();
        for _ in 0..2 {
            show(&fake, ONE, &sole("u")).unwrap();
            assert_eq!(fake.mounts_on(&target("u")), 1);
        }
        let error = show(&fake, OTHER, &sole("u")).unwrap_err();
        assert_eq!(error.category(), "occupied");
        for _ in 0..2 {
            hide(&fake, Path::new("/pool"), &target("u")).unwrap();
            assert_eq!(fake.mounts_on(&target("u")), 0);
        }
    }

    #[test]
    fn two_pods_share_one_device_but_have_no_two_devices_of_one_volume() {
        let fake = Fake::default();
        show(&fake, ONE, &shared("u")).unwrap();
        show(&fake, ONE, &shared("w")).unwrap();
        let error = show(&fake, OTHER, &shared("x")).unwrap_err();
        assert_eq!(error.category(), "node");
        assert!(error.to_string().contains("each other's writes"), "{error}");
        let error = show(&fake, ONE, &sole("x")).unwrap_err();
        assert_eq!(error.category(), "not-alone");
        assert_eq!(fake.mounts_on(&target("x")), 0);
    }
}
