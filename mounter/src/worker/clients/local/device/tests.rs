use std::path::Path;

use nix::errno::Errno;

use super::super::{expand, mount};
use super::{hide, show};
use crate::grant::Grant;
use crate::grant::request::MountRequest;
use crate::grant::tests::granted;
use crate::sys::fake::{Fake, Image, target};
use crate::sys::{Kernel, Sys};
use crate::volume::target::Target;
use crate::worker::task::tests::{asked, task};
use crate::worker::usage::usage;

const POOL: &str = "/pool";

fn pool() -> &'static Path {
    Path::new(POOL)
}

fn fake() -> Fake {
    Fake::default().image(
        "/pool/a",
        Image {
            size: 1 << 30,
            content: vec![0; 4096],
            marked: false,
            is_preallocated: false,
        },
    )
}

fn device(pod: &str) -> Target {
    let path = format!("/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/v/{pod}");
    Target::parse_csi(Path::new("/kubelet"), &path).unwrap()
}

fn asked_by(line: &str, pod: &str) -> MountRequest {
    MountRequest {
        target: device(pod),
        ..asked(line)
    }
}

fn of(line: &str, pod: &str) -> Grant {
    granted(asked_by(line, pod))
}

const LINE: &str = "client=local,source=a";

/// Proves: M2
#[test]
fn a_blank_image_becomes_a_device_and_is_not_formatted() {
    let fake = fake();
    for _ in 0..2 {
        show(&fake, pool(), &of(LINE, "u")).unwrap();
        // The worker ends: only what is kept stays.
        fake.kill_worker();
        assert_eq!((fake.mounts_on(&device("u")), fake.loops()), (1, 1));
    }
    assert!(fake.programs().is_empty());
    for _ in 0..2 {
        hide(&fake, pool(), &device("u")).unwrap();
        fake.kill_worker();
        assert_eq!((fake.mounts_on(&device("u")), fake.loops()), (0, 0));
    }
}

/// Proves: M2
#[test]
fn two_pods_share_one_device_which_goes_with_the_last_of_them() {
    let fake = fake();
    for pod in ["u", "w"] {
        show(&fake, pool(), &of(LINE, pod)).unwrap();
    }
    assert_eq!(fake.loops(), 1);
    hide(&fake, pool(), &device("u")).unwrap();
    assert_eq!((fake.mounts_on(&device("w")), fake.loops()), (1, 1));
    hide(&fake, pool(), &device("w")).unwrap();
    fake.kill_worker();
    assert_eq!(fake.loops(), 0);
}

#[test]
fn what_is_only_read_is_a_device_that_no_pod_can_write() {
    let readers = |pod| {
        granted(MountRequest {
            only_read: true,
            ..asked_by(LINE, pod)
        })
    };
    let fake = fake();
    for pod in ["u", "u", "w"] {
        show(&fake, pool(), &readers(pod)).unwrap();
    }
    let error = show(&fake, pool(), &of(LINE, "x")).unwrap_err();
    assert!(error.to_string().contains("another access mode"), "{error}");
    for pod in ["u", "w"] {
        hide(&fake, pool(), &device(pod)).unwrap();
    }
    fake.kill_worker();
    show(&fake, pool(), &of(LINE, "x")).unwrap();
    let error = show(&fake, pool(), &readers("u")).unwrap_err();
    assert!(error.to_string().contains("another access mode"), "{error}");
    assert_eq!((fake.mounts_on(&device("u")), fake.loops()), (0, 1));
}

#[test]
fn a_device_can_be_written_while_a_pod_has_it_for_writing() {
    let reader = |pod| {
        granted(MountRequest {
            read_only: true,
            ..asked_by(LINE, pod)
        })
    };
    let fake = fake();
    for pod in ["r", "r", "s"] {
        show(&fake, pool(), &reader(pod)).unwrap();
        assert!(!fake.is_written(), "{pod}");
    }
    for pod in ["u", "w"] {
        show(&fake, pool(), &of(LINE, pod)).unwrap();
        assert!(fake.is_written(), "{pod}");
    }
    show(&fake, pool(), &reader("t")).unwrap();
    for (pod, is_written) in [("r", true), ("u", true), ("w", false), ("s", false)] {
        hide(&fake, pool(), &device(pod)).unwrap();
        assert_eq!(fake.is_written(), is_written, "{pod}");
    }
    hide(&fake, pool(), &device("t")).unwrap();
    assert!(fake.is_written(), "the next file can't be written");
}

#[test]
fn what_is_for_one_pod_is_not_given_to_a_second() {
    let sole = |pod| {
        granted(MountRequest {
            sole: true,
            ..asked_by(LINE, pod)
        })
    };
    let fake = fake();
    for _ in 0..2 {
        show(&fake, pool(), &sole("u")).unwrap();
    }
    let error = show(&fake, pool(), &sole("w")).unwrap_err();
    assert_eq!(error.category(), "not-alone");
    hide(&fake, pool(), &device("u")).unwrap();
    show(&fake, pool(), &sole("w")).unwrap();

    let fake = self::fake();
    let of_pod = |uid: &str| {
        granted(MountRequest {
            sole: true,
            target: Target::parse(
                Path::new("/kubelet"),
                &format!("/kubelet/pods/{uid}/volumes/mooring.dev~vcs/v"),
            )
            .unwrap(),
            ..asked(LINE)
        })
    };
    for _ in 0..2 {
        mount(&fake, pool(), &of_pod("u")).unwrap();
    }
    let error = mount(&fake, pool(), &of_pod("w")).unwrap_err();
    assert_eq!(error.category(), "not-alone");
}

#[test]
fn whatever_call_fails_the_next_try_ends_with_one_device_and_the_end_leaves_none() {
    for read_only in [false, true] {
        let task = granted(MountRequest {
            read_only,
            ..asked_by(LINE, "u")
        });
        let calls = {
            let fake = fake();
            show(&fake, pool(), &task).unwrap();
            fake.calls()
        };
        for (index, call) in calls.iter().enumerate() {
            let earlier = calls[..index].iter().filter(|other| *other == call).count();
            let broken = || {
                let fake = fake().fail(call, earlier, Errno::EIO);
                assert!(show(&fake, pool(), &task).is_err(), "{call}");
                fake.kill_worker();
                fake
            };
            let again = broken();
            show(&again, pool(), &task).unwrap_or_else(|error| panic!("after a failed {call}: {error}"));
            again.kill_worker();
            assert_eq!((again.mounts_on(&device("u")), again.loops()), (1, 1), "{call}");
            assert_eq!(again.is_written(), !read_only, "{call}");
            for fake in [again, broken()] {
                hide(&fake, pool(), &device("u")).unwrap_or_else(|error| panic!("after a failed {call}: {error}"));
                fake.kill_worker();
                assert_eq!((fake.mounts_on(&device("u")), fake.loops()), (0, 0), "{call}");
                assert!(
                    fake.is_written(),
                    "the next file can't be written, after a failed {call}"
                );
            }
        }
    }
}

#[test]
fn whatever_call_of_the_end_fails_the_next_try_leaves_nothing() {
    let shown = || {
        let fake = fake();
        let task = granted(MountRequest {
            read_only: true,
            ..asked_by(LINE, "u")
        });
        show(&fake, pool(), &task).unwrap();
        fake
    };
    let calls = {
        let fake = shown();
        let before = fake.calls().len();
        hide(&fake, pool(), &device("u")).unwrap();
        fake.calls()[before..].to_vec()
    };
    for (index, call) in calls.iter().enumerate() {
        let earlier = calls[..index].iter().filter(|other| *other == call).count();
        let fake = shown().fail(call, earlier, Errno::EIO);
        assert!(hide(&fake, pool(), &device("u")).is_err(), "{call}");
        fake.kill_worker();
        hide(&fake, pool(), &device("u")).unwrap_or_else(|error| panic!("after a failed {call}: {error}"));
        fake.kill_worker();
        assert_eq!((fake.mounts_on(&device("u")), fake.loops()), (0, 0), "{call}");
        assert!(
            fake.is_written(),
            "the next file can't be written, after a failed {call}"
        );
    }
}

#[test]
fn a_device_whose_image_file_is_being_backed_up_stays_until_that_is_done() {
    let fake = fake();
    show(&fake, pool(), &of(LINE, "u")).unwrap();
    // As long as the mounter waits for it.
    let fake = (0..50).fold(fake, |fake, _| fake.fail("open_image", 0, Errno::EAGAIN));
    let error = hide(&fake, pool(), &device("u")).unwrap_err();
    assert_eq!(error.category(), "image-busy", "{error}");
    assert_eq!((fake.mounts_on(&device("u")), fake.loops()), (1, 1));
    hide(&fake, pool(), &device("u")).unwrap();
    fake.kill_worker();
    assert_eq!((fake.mounts_on(&device("u")), fake.loops()), (0, 0));
}

#[test]
fn a_file_system_and_a_device_of_one_image_are_not_used_at_a_time() {
    let fake = fake();
    mount(&fake, pool(), &task(LINE)).unwrap();
    let error = show(&fake, pool(), &of(LINE, "u")).unwrap_err().to_string();
    assert!(error.contains("mounted on /kubelet/pods/u"), "{error}");
    let fake = self::fake();
    show(&fake, pool(), &of(LINE, "u")).unwrap();
    let error = mount(&fake, pool(), &task(LINE)).unwrap_err().to_string();
    assert!(error.contains("a Pod uses it as a device"), "{error}");
    assert_eq!(fake.mounts_on(&target()), 0);
    assert!(fake.programs().is_empty());
}

#[test]
fn what_is_for_a_file_system_is_refused_and_another_s_device_is_left_alone() {
    for line in ["fs-type=ext4", "mount-options=noatime"] {
        let error = show(&fake(), pool(), &of(&format!("{LINE},{line}"), "u")).unwrap_err();
        assert_eq!(error.category(), "bad-options", "{line}");
    }
    let other = fake().image(
        "/pool/b",
        Image {
            size: 1,
            ..Image::default()
        },
    );
    show(&other, pool(), &of("client=local,source=b", "u")).unwrap();
    let error = show(&other, pool(), &of(LINE, "u")).unwrap_err();
    assert_eq!(error.category(), "occupied");
}

#[test]
fn a_device_grows_without_a_program() {
    let fake = fake();
    let error = expand(&fake, pool(), &device("u"), 1).unwrap_err();
    assert_eq!(error.category(), "failed", "{error}");
    show(&fake, pool(), &of(LINE, "u")).unwrap();
    expand(&fake, pool(), &device("u"), 1 << 30).unwrap();
    assert_eq!(fake.calls().last().unwrap(), "refresh_loop");
    assert!(fake.programs().is_empty());
    let error = expand(&fake, pool(), &device("u"), 2 << 30).unwrap_err().to_string();
    assert!(error.contains("enlarge the file first"), "{error}");
}

/// With the kernel itself: a mere mount of its node does not hold a device.
#[test]
fn the_kernel_keeps_a_device_without_a_user_until_it_is_taken_away() {
    let root = tempfile::tempdir().unwrap();
    let (pool, volume) = (
        root.path().join("pool"),
        root.path().join("plugins/kubernetes.io/csi/volumeDevices/publish/v"),
    );
    std::fs::create_dir_all(&pool).unwrap();
    std::fs::create_dir_all(&volume).unwrap();
    let name = root
        .path()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .trim_start_matches('.');
    std::fs::File::create(pool.join(name))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let target = Target::parse_csi(root.path(), volume.join("u").to_str().unwrap()).unwrap();
    target.make().unwrap();
    let task = granted(MountRequest {
        target: target.clone(),
        read_only: true,
        ..asked(&format!("client=local,source={name}"))
    });
    // Only root can, where there are such devices.
    if show(&Kernel, &pool, &task).is_err() {
        return;
    }
    let shown = || {
        let number = target.device().unwrap()?;
        Kernel.file_behind(number).unwrap()
    };
    let first = shown();
    let again = show(&Kernel, &pool, &task);
    std::fs::File::options()
        .write(true)
        .open(pool.join(name))
        .unwrap()
        .set_len(2 << 20)
        .unwrap();
    let grown = expand(&Kernel, &pool, &target, 2 << 20);
    let size = usage(&target).map(|usage| usage.bytes);
    let number = target.device().unwrap().unwrap();
    let refuses = || std::fs::read_to_string(format!("/sys/block/loop{}/ro", number.minor)).unwrap();
    let before = refuses();
    let hidden = hide(&Kernel, &pool, &target);
    let after = refuses();
    assert_eq!(first.unwrap().to_str(), Some(name));
    again.unwrap();
    grown.unwrap();
    assert_eq!(size, Ok(2 << 20));
    hidden.unwrap();
    assert_eq!((before.as_str(), after.as_str()), ("1\n", "0\n"));
    assert_eq!((shown(), target.device()), (None, Ok(None)));
    // As long as nobody else looks at it just now.
    let gone = || {
        Kernel
            .file_behind(number)
            .unwrap()
            .is_none_or(|now| now.to_str() != Some(name))
    };
    assert!((0..50).any(|_| gone() || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        false
    }));
    hide(&Kernel, &pool, &target).unwrap();
    target.remove().unwrap();
}
