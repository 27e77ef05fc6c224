//! Serving mode `host`: the host's own `mount`, run in the host's mount namespace.
//!
//! The program mounts on a directory in `/run` that is root's alone. From there the worker moves the mount to the
//! volume's directory by its handle, so no program walks a path that a tenant could have changed. This mode is for
//! mounts that live in the kernel. A daemon that the program leaves behind (FUSE) belongs to the mounter's container
//! and ends with it; client containers are for those.

use std::path::Path;

use mooring_contract::volume::check_kind;

use super::checks::{already, check_not_here};
use crate::grant::Grant;
use crate::sys::{Program, Sys};
use crate::volume::job::MountError;
use crate::volume::mount_options::{self, MountFlags, is_plain_type};
use crate::volume::target::Target;

/// Runs `mount -t TYPE -o OPTIONS -- SOURCE STAGE` on the host and moves the mount to the target.
pub fn mount(sys: &impl Sys, namespace: Option<&Path>, grant: &Grant) -> Result<(), MountError> {
    let volume = grant.volume();
    let fs_type = if volume.fs_type.is_empty() {
        volume.client.as_str()
    } else {
        &volume.fs_type
    };
    let bad = |message: String| Err(MountError::BadOptions(message.into()));
    if volume.source.is_empty() || volume.source.starts_with('-') {
        return bad(format!(
            "option source={:?} can't be mounted: say what to mount, such as source=server:/path",
            volume.source
        ));
    }
    if !is_plain_type(fs_type) {
        return bad(format!(
            "fs-type {fs_type:?} would run a program of the volume's choice on the host: give a plain file system type"
        ));
    }
    let flags = mount_options::sort(&volume.mount_options, grant.is_read_only())
        .map_err(MountError::bad_options)?
        .flags;
    let options = mount_options::join_for(fs_type, &volume.mount_options, grant.is_read_only());
    let options = options.map_err(MountError::bad_options)?;
    let options = match grant.label() {
        Some(label) => format!("{options},{}", label.for_mount()),
        None => options,
    };
    check_kind(fs_type, &volume.mount_options).map_err(MountError::bad_options)?;

    sys.enter_host(namespace, grant.target())?;
    check_not_here(sys, &volume.source)?;
    if let Some(entry) = sys.mount_table()?.top(&grant.target().path()) {
        let found = MountFlags::of(entry);
        // The host's program may set more flags than it was asked for, such as `ro` for a disk that can't be written.
        let flags = if flags.shown().are_all_in(found) { found } else { flags };
        return already(entry, grant, fs_type, &volume.source, flags);
    }
    let stage = sys.make_stage(grant.target())?;
    let moved = sys
        .run(&Program {
            name: "mount".to_owned(),
            args: vec![
                "-t".into(),
                fs_type.into(),
                "-o".into(),
                options.into(),
                "--".into(),
                volume.source.clone().into(),
                stage.clone().into(),
            ],
            last_good_exit: 0,
        })
        .map_err(|error| {
            MountError::failed(
                format!("mount {} as {fs_type} by the host's mount", volume.source),
                error.cause,
            )
        })
        .and_then(|()| {
            let directory = sys.open_stage(&stage)?.ok_or_else(|| {
                MountError::failed(
                    format!("mount {} as {fs_type}", volume.source),
                    "the host's mount exited with 0, but nothing is mounted: see the node's own log",
                )
            })?;
            check_label(sys, grant, &stage)?;
            let mount = sys.clone_mount(&directory, flags)?;
            let target = sys.open_target(grant.target())?;
            Ok(sys.attach(&mount, &target)?)
        });
    let removed = sys.remove_stage(&stage);
    moved?;
    Ok(removed?)
}

/// Fails if the Pod has a label and the host's program mounted without: nobody else would label the files.
fn check_label(sys: &impl Sys, grant: &Grant, stage: &Path) -> Result<(), MountError> {
    let Some(label) = grant.label() else { return Ok(()) };
    if label.is_borne_at(stage, &sys.mount_table()?) {
        return Ok(());
    }
    Err(MountError::failed(
        "give the volume the SELinux label of the Pod",
        "the host's mount left it out: leave the files' labels to the container runtime, with seLinuxMount: \
                false in the CSIDriver",
    ))
}

/// Removes what an unfinished mount has left: its stage, and what may be mounted there.
pub fn clear(sys: &impl Sys, namespace: Option<&Path>, target: &Target) -> Result<(), MountError> {
    sys.enter_host(namespace, target)?;
    Ok(sys.remove_stage(&sys.stage(target))?)
}

#[cfg(test)]
mod tests {
    use super::{clear, mount};
    use crate::grant::request::MountRequest;
    use crate::grant::tests::granted;
    use crate::sys::fake::{Fake, target};
    use crate::volume::selinux_label::SelinuxLabel;
    use crate::worker::task::tests::{asked, task};

    /// Proves: M4
    #[test]
    fn the_host_s_mount_gets_its_arguments_as_they_are_and_its_mount_ends_at_the_target() {
        let fake = Fake::default();
        let task = task("client=nfs,source=10.10.2.4:/exports,mount-options=vers=4.1");
        mount(&fake, None, &task).unwrap();
        assert_eq!(
            fake.programs(),
            ["mount -t nfs -o vers=4.1,nosuid,nodev -- 10.10.2.4:/exports /run/stage"]
        );
        assert_eq!(fake.mounts_on(&target()), 1);
        assert!(fake.calls().contains(&"remove_stage".to_owned()));
    }

    #[test]
    fn a_mount_that_failed_leaves_no_stage() {
        let fake = Fake::default().fail_program("mount", "mount.nfs: Connection refused");
        let error = mount(&fake, None, &task("client=nfs,source=10.10.2.4:/exports"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("Connection refused"), "{error}");
        assert!(fake.calls().contains(&"remove_stage".to_owned()));
        assert_eq!(fake.mounts_on(&target()), 0);
    }

    #[test]
    fn a_mount_without_the_label_of_the_pod_is_taken_away() {
        let fake = Fake::default();
        let labelled = granted(MountRequest {
            label: SelinuxLabel::read("u:r:t:s0:c1,c2").ok(),
            ..asked("client=nfs,source=10.10.2.4:/exports")
        });
        let error = mount(&fake, None, &labelled).unwrap_err().to_string();
        assert!(error.contains("left it out"), "{error}");
        assert_eq!(
            fake.programs(),
            ["mount -t nfs -o nosuid,nodev,context=\"u:r:t:s0:c1,c2\" -- 10.10.2.4:/exports /run/stage"]
        );
        assert!(fake.calls().contains(&"remove_stage".to_owned()));
        assert_eq!(fake.mounts_on(&target()), 0);
    }

    #[test]
    fn what_a_killed_mount_has_left_is_taken_away() {
        let fake = Fake::default();
        clear(&fake, None, &target()).unwrap();
        assert_eq!(fake.calls(), ["enter_host", "remove_stage"]);
    }

    #[test]
    fn what_would_run_another_program_is_refused_before_anything_happens() {
        for line in [
            "client=x,source=a:/b,fs-type=fuse.sh",
            "client=x,source=-oProxyCommand=sh",
            "client=x",
            "client=x,source=a,mount-options=bind",
            "client=x,source=a,fs-type=overlay,mount-options=lowerdir=/",
            "client=x,source=a,mount-options=source=/dev/vda1",
        ] {
            let fake = Fake::default();
            assert!(mount(&fake, None, &task(line)).is_err(), "{line}");
            assert!(fake.calls().is_empty(), "{line}");
        }
    }
}
