use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use mooring_contract::volume::file_system::FileSystem;

use super::{NewFileSystem, Place, expand, mount};
use crate::sys::fake::{Fake, Image, target};
use crate::sys::{Kernel, Sys as _};
use crate::volume::job::MountError;
use crate::worker::task::tests::task;
use nix::errno::Errno;
use std::path::Path;

const POOL: &str = "/pool";

/// Of files that mkfs runs on.
const SIZE: u64 = 256 << 20;

fn pool() -> &'static Path {
    Path::new(POOL)
}

fn blank() -> Image {
    Image {
        size: 1 << 30,
        content: vec![0; 4096],
        marked: false,
        is_preallocated: false,
    }
}

fn with(content: &[u8]) -> Image {
    Image {
        content: content.to_vec(),
        ..blank()
    }
}

#[test]
fn a_blank_image_is_formatted_once_and_a_repeated_mount_is_success() {
    let fake = Fake::default().image("/pool/a", blank());
    let task = task("client=local,source=a");
    mount(&fake, pool(), &task).unwrap();
    mount(&fake, pool(), &task).unwrap();
    assert_eq!(
        fake.programs(),
        ["mkfs.ext4 -q -b 4096 -m 0 -e remount-ro -E nodiscard -F -- handle:/pool/a"]
    );
    assert_eq!((fake.mounts_on(&target()), fake.loops()), (1, 1));
    assert!(!fake.is_marked_now("/pool/a"));
}

#[test]
fn a_new_ext4_gets_as_many_inodes_as_the_volume_says() {
    let fake = Fake::default().image("/pool/a", blank());
    mount(&fake, pool(), &task(&format!("{EXT4},bytes-per-inode=4096"))).unwrap();
    assert!(fake.programs()[0].contains(" -i 4096 "), "{:?}", fake.programs());
}

#[test]
fn an_image_file_that_is_being_copied_is_waited_for_a_moment_and_not_taken_for_a_slow_disk() {
    let task = task("client=local,source=a");
    let locked = |times| {
        let fake = Fake::default().image("/pool/a", blank());
        (0..times).fold(fake, |fake, _| fake.fail("open_image", 0, Errno::EAGAIN))
    };
    let soon_free = locked(3);
    mount(&soon_free, pool(), &task).unwrap();
    assert_eq!(soon_free.mounts_on(&target()), 1);

    let backed_up = locked(1000);
    for attempt in [mount(&backed_up, pool(), &task), {
        let other = Fake::default().image("/pool/a", blank());
        mount(&other, pool(), &task).unwrap();
        let locked = (0..1000).fold(other, |fake, _| fake.fail("open_image", 0, Errno::EAGAIN));
        expand(&locked, pool(), &target(), 1 << 30)
    }] {
        let error = attempt.unwrap_err();
        assert_eq!(error.category(), "image-busy", "{error}");
        let text = error.to_string();
        assert!(text.contains("image file a ") && text.contains("backed up"), "{text}");
    }
    let pauses = backed_up.calls().iter().filter(|call| *call == "pause").count();
    assert!((10..=100).contains(&pauses), "the kubelet waits too long: {pauses}");
    assert_eq!((backed_up.mounts_on(&target()), backed_up.loops()), (0, 0));
}

#[test]
fn what_was_looked_at_is_what_is_formatted() {
    let fake = Fake::default().image("/pool/a", blank());
    mount(&fake, pool(), &task("client=local,source=a")).unwrap();
    let program = fake.programs().remove(0);
    assert!(!program.ends_with(" /pool/a"), "it is formatted by its name: {program}");
}

#[test]
fn an_ext4_never_has_the_node_panic() {
    for options in ["", ",mount-options=errors=panic", ",mount-options=errors=continue"] {
        let fake = Fake::default().image("/pool/a", with(&small_ext4().content));
        mount(&fake, pool(), &task(&format!("{EXT4}{options}"))).unwrap();
        let mounted = fake.new_mounts();
        let is_safe = mounted[0].contains(" errors=remount-ro,discard") && mounted[0].matches("errors").count() == 1;
        assert!(
            is_safe,
            "its superblock or its author decides what an error does: {mounted:?}"
        );
    }
    let xfs = Fake::default().image("/pool/a", small_xfs());
    mount(&xfs, pool(), &task(XFS)).unwrap();
    assert!(!xfs.new_mounts()[0].contains("errors"));
}

#[test]
fn what_a_pod_deletes_is_free_in_the_pool_again_unless_the_volume_is_to_be_allocated_whole() {
    let given = |is_preallocated: bool, options: &str| {
        let image = Image {
            is_preallocated,
            ..small_xfs()
        };
        let fake = Fake::default().image("/pool/a", image);
        mount(&fake, pool(), &task(&format!("{XFS}{options}"))).unwrap();
        fake.new_mounts().remove(0)
    };
    assert!(given(false, "").ends_with(" nouuid,discard"));
    for (is_preallocated, options) in [
        (true, ""),
        (false, ",mount-options=nodiscard"),
        (false, ",mount-options=ro"),
    ] {
        let mounted = given(is_preallocated, options);
        assert!(!mounted.contains(",discard"), "{mounted}");
    }
    assert_eq!(given(true, ",mount-options=discard").matches("discard").count(), 1);
}

#[test]
fn a_preallocated_file_gets_back_what_it_has_lost_when_it_gets_a_device() {
    for (is_preallocated, calls) in [(true, 1), (false, 0)] {
        let image = Image {
            is_preallocated,
            ..blank()
        };
        let fake = Fake::default().image("/pool/a", image);
        for _ in 0..2 {
            mount(&fake, pool(), &task(EXT4)).unwrap();
        }
        let allocated = fake.calls().iter().filter(|call| *call == "allocate").count();
        assert_eq!(allocated, calls);
        let is_written_out = fake.programs()[0].contains("lazy_itable_init=0");
        assert_eq!(is_written_out, is_preallocated, "{:?}", fake.programs());
    }
}

/// The kernel zeroes the tables of inodes that mkfs leaves to it, and a loop device does that by making holes.
#[test]
fn an_ext4_in_a_preallocated_file_leaves_no_hole_and_none_to_the_kernel() {
    let pool = tempfile::tempdir().unwrap();
    let path = pool.path().join("a");
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    assert!(!Kernel.open_image(pool.path(), "a").unwrap().is_preallocated);
    File::create(pool.path().join(".a.preallocated")).unwrap();
    let image = Kernel.open_image(pool.path(), "a").unwrap();
    assert!(image.is_preallocated);
    let new = NewFileSystem::of_size(SIZE, FileSystem::Ext4, Place::File).unwrap();
    new.written_out(true).make(&Kernel, &image.by_handle()).unwrap();
    Kernel.allocate(&image).unwrap();
    assert!(image.file.metadata().unwrap().blocks() * 512 >= SIZE);
    let shown = Command::new("dumpe2fs").arg(&path).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let groups = shown.lines().filter(|line| line.contains("(Blocks "));
    let left: Vec<_> = groups.clone().filter(|line| !line.contains("ITABLE_ZEROED")).collect();
    assert!(groups.count() > 1 && left.is_empty(), "{left:?}");
}

#[test]
fn a_volume_that_is_mounted_otherwise_than_it_is_wanted_is_an_error_and_the_same_again_is_success() {
    let ways = ["", ",mount-options=ro", ",mount-options=noexec"];
    for has in ways {
        for wanted in ways {
            let fake = Fake::default().image("/pool/a", blank());
            mount(&fake, pool(), &task(&format!("{EXT4}{has}"))).unwrap();
            let again = mount(&fake, pool(), &task(&format!("{EXT4}{wanted}")));
            if has == wanted {
                again.unwrap();
                continue;
            }
            let Err(error) = again else {
                panic!("{has:?} counts as mounted as {wanted:?}");
            };
            assert_eq!(error.category(), "occupied");
            let word = if has.is_empty() { wanted } else { has };
            let word = word.rsplit('=').next().unwrap();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}

#[test]
fn what_is_not_blank_is_never_formatted() {
    for (content, fs_type) in [(&b"rubbish"[..], "ext4"), (b"XFSB", "ext4"), (b"LUKS", "")] {
        let fake = Fake::default().image("/pool/a", with(content));
        let error = mount(
            &fake,
            pool(),
            &task(&format!("client=local,source=a,fs-type={fs_type}")),
        )
        .unwrap_err();
        assert!(error.to_string().contains("never formatted"), "{error}");
        assert!(fake.programs().is_empty());
        assert_eq!(fake.loops(), 0);
    }
}

#[test]
fn without_fs_type_the_file_system_that_is_there_is_mounted() {
    let fake = Fake::default().image("/pool/a", with(b"XFSB"));
    mount(&fake, pool(), &task("client=local,source=a")).unwrap();
    assert!(fake.programs().is_empty());
}

#[test]
fn a_format_that_was_ended_half_way_is_done_again() {
    let fake = Fake::default()
        .image("/pool/a", blank())
        .fail_program("mkfs.xfs", "killed");
    let task = task("client=local,source=a,fs-type=xfs");
    assert!(mount(&fake, pool(), &task).unwrap_err().to_string().contains("killed"));
    assert!(fake.is_marked_now("/pool/a"));
    fake.heal_programs();
    mount(&fake, pool(), &task).unwrap();
    assert!(!fake.is_marked_now("/pool/a"));
}

#[test]
fn whatever_call_fails_the_next_try_ends_with_one_mount_and_one_device() {
    let calls = {
        let fake = Fake::default().image("/pool/a", blank());
        mount(&fake, pool(), &task("client=local,source=a")).unwrap();
        fake.calls()
    };
    for (index, call) in calls.iter().enumerate() {
        let earlier = calls[..index].iter().filter(|other| *other == call).count();
        let fake = Fake::default()
            .image("/pool/a", blank())
            .fail(call, earlier, Errno::EIO);
        let task = task("client=local,source=a");
        assert!(mount(&fake, pool(), &task).is_err(), "{call}");
        fake.kill_worker();
        mount(&fake, pool(), &task).unwrap_or_else(|error| panic!("after a failed {call}: {error}"));
        assert_eq!((fake.mounts_on(&target()), fake.loops()), (1, 1), "{call}");
    }
}

#[test]
fn something_else_on_the_target_is_an_error() {
    let fake = Fake::default()
        .image("/pool/a", blank())
        .mounted(&target(), "tom@h:/x", "fuse.sshfs");
    let error = mount(&fake, pool(), &task("client=local,source=a")).unwrap_err();
    assert!(matches!(error, MountError::Occupied { .. }), "{error}");
    assert!(fake.programs().is_empty());
}

#[test]
fn a_source_that_is_no_file_name_is_refused_before_anything_happens() {
    for source in ["", ".a", "../a", "/etc/passwd", "a/b", "-a"] {
        let fake = Fake::default();
        let error = mount(&fake, pool(), &task(&format!("client=local,source={source}"))).unwrap_err();
        assert!(matches!(error, MountError::BadOptions(_)), "{error}");
        assert!(fake.calls().is_empty());
    }
}

#[test]
fn a_missing_and_an_empty_image_say_what_to_do() {
    let fake = Fake::default().image("/pool/empty", Image::default());
    let missing = mount(&fake, pool(), &task("client=local,source=gone"))
        .unwrap_err()
        .to_string();
    assert!(missing.contains("node affinity"), "{missing}");
    let empty = mount(&fake, pool(), &task("client=local,source=empty"))
        .unwrap_err()
        .to_string();
    assert!(empty.contains("truncate"), "{empty}");
}

#[test]
fn an_image_too_small_for_its_file_system_is_refused_with_the_least_size_and_is_not_taken_for_being_formatted() {
    for (options, size, least) in [
        (EXT4, (8 << 20) - 1, "8Mi"),
        (XFS, 299 << 20, "300Mi"),
        (EXT4, 1, "8Mi"),
    ] {
        let fake = Fake::default().image("/pool/a", Image { size, ..blank() });
        let error = mount(&fake, pool(), &task(options)).unwrap_err().to_string();
        assert!(error.contains(least) && error.contains("larger"), "{error}");
        assert!(fake.programs().is_empty() && !fake.is_marked_now("/pool/a"));
    }
    // One that has a file system is mounted as ever.
    let small = Image {
        size: 4 << 20,
        ..small_ext4()
    };
    let fake = Fake::default().image("/pool/a", small);
    mount(&fake, pool(), &task(EXT4)).unwrap();
}

#[test]
fn a_full_pool_is_said_and_the_volume_mounts_once_there_is_room() {
    let full = Fake::default()
        .image("/pool/a", blank())
        .full()
        .fail_program("mkfs.ext4", "it could not write");
    let error = mount(&full, pool(), &task("client=local,source=a"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("pool /pool is full"), "{error}");
    full.heal_programs();
    mount(&full, pool(), &task("client=local,source=a")).unwrap();
}

#[test]
fn a_file_system_grows_into_its_file_and_no_further() {
    let fake = Fake::default().image("/pool/a", small_ext4());
    let task = task("client=local,source=a");
    mount(&fake, pool(), &task).unwrap();
    for _ in 0..2 {
        expand(&fake, pool(), &target(), 1 << 30).unwrap();
        assert_eq!(fake.programs().last().unwrap(), "resize2fs /dev/loop1");
    }
    let error = expand(&fake, pool(), &target(), (1 << 30) + 1).unwrap_err().to_string();
    assert!(error.contains("enlarge the file first"), "{error}");
}

/// The kernel alone is asked: neither who mounted it nor its options matter.
#[test]
fn only_an_image_of_the_pool_grows_and_only_where_it_can_be_written() {
    let error = expand(&Fake::default(), pool(), &target(), 1).unwrap_err();
    assert_eq!(error.category(), "failed", "it may be mounted soon: {error}");
    let device = Fake::default().mounted(&target(), "/dev/sdb", "ext4");
    // A loop device with a file of the same name elsewhere, and one whose file is not in the pool.
    let elsewhere = Fake::default()
        .image("/pool/a", blank())
        .image("/other/a", with(b"XFSB"));
    let other = Path::new("/other");
    mount(&elsewhere, other, &task("client=local,source=a")).unwrap();
    let gone = Fake::default().image("/other/b", with(b"XFSB"));
    mount(&gone, other, &task("client=local,source=b")).unwrap();
    let read_only = Fake::default().image("/pool/a", with(b"XFSB"));
    mount(&read_only, pool(), &task("client=local,source=a")).unwrap();
    let read_only = read_only.read_only();
    for (fake, words) in [
        (device, "can't enlarge"),
        (elsewhere, "can't enlarge"),
        (gone, "can't enlarge"),
        (read_only, "read-only"),
    ] {
        let error = expand(&fake, pool(), &target(), 1).unwrap_err();
        assert_eq!(error.category(), "not-expanded");
        assert!(error.to_string().contains(words), "{error}");
        assert!(fake.programs().is_empty());
    }
}

/// An ext4 of 64 MiB in a file of 1 GiB.
fn small_ext4() -> Image {
    let mut content = vec![0; 4096];
    content[1080..1082].copy_from_slice(&[0x53, 0xef]);
    content[1028..1032].copy_from_slice(&16384_u32.to_le_bytes());
    content[1048] = 2;
    content[1056..1060].copy_from_slice(&32768_u32.to_le_bytes());
    with(&content)
}

/// An xfs of 64 MiB in a file of 1 GiB.
fn small_xfs() -> Image {
    with(b"XFSB\0\0\x10\0\0\0\0\0\0\0\x40\0")
}

const EXT4: &str = "client=local,source=a";
const XFS: &str = "client=local,source=a,fs-type=xfs";

#[test]
fn a_copy_that_is_larger_than_its_source_grows_at_its_mount_and_no_read_only_one_does() {
    let ext4 = Fake::default().image("/pool/a", small_ext4());
    mount(&ext4, pool(), &task(EXT4)).unwrap();
    assert_eq!(ext4.programs(), ["resize2fs /dev/loop1"]);
    let xfs = Fake::default().image("/pool/a", small_xfs());
    mount(&xfs, pool(), &task(XFS)).unwrap();
    assert_eq!(xfs.programs(), [format!("xfs_growfs -d {}", target().path().display())]);
    for (image, options) in [(small_ext4(), EXT4), (small_xfs(), XFS)] {
        let read_only = Fake::default().image("/pool/a", image);
        mount(&read_only, pool(), &task(&format!("{options},mount-options=ro"))).unwrap();
        assert!(read_only.programs().is_empty());
    }
}

#[test]
fn an_ext4_grows_before_its_mount_where_the_mounter_lacks_the_capability_and_an_xfs_as_ever() {
    let lacking = || Fake::default().grows_unmounted_only();
    let ext4 = lacking().image("/pool/a", small_ext4());
    mount(&ext4, pool(), &task(EXT4)).unwrap();
    let grown = ["e2fsck -f -p -- handle:/pool/a", "resize2fs handle:/pool/a"];
    assert_eq!(ext4.programs(), grown);
    assert_eq!(ext4.mounts_on(&target()), 1);
    let xfs = lacking().image("/pool/a", small_xfs());
    mount(&xfs, pool(), &task(XFS)).unwrap();
    assert!(xfs.programs()[0].starts_with("xfs_growfs "));
    let read_only = lacking().image("/pool/a", small_ext4());
    mount(&read_only, pool(), &task(&format!("{EXT4},mount-options=ro"))).unwrap();
    assert!(read_only.programs().is_empty());
}

#[test]
fn an_ext4_that_can_t_grow_now_is_mounted_for_a_second_pod_and_its_expansion_says_when_it_grows() {
    let fake = Fake::default().image("/pool/a", small_ext4());
    mount(&fake, pool(), &task(EXT4)).unwrap();
    let fake = fake.grows_unmounted_only();
    let programs = fake.programs();
    mount(&fake, pool(), &task(EXT4)).unwrap();
    let error = expand(&fake, pool(), &target(), 1 << 30).unwrap_err();
    assert_eq!(error.category(), "not-expanded");
    let text = error.to_string();
    assert!(
        text.contains("CAP_SYS_RESOURCE") && text.contains("delete the Pods"),
        "{text}"
    );
    assert_eq!(fake.programs(), programs);
}

/// The kubelet takes a volume that is mounted for one that is ready.
#[test]
fn a_volume_that_did_not_grow_is_not_left_mounted_and_grows_at_the_next_try() {
    for (image, options, program) in [(small_ext4(), EXT4, "resize2fs"), (small_xfs(), XFS, "xfs_growfs")] {
        let fake = Fake::default().image("/pool/a", image).fail_program(program, "killed");
        let task = task(options);
        let error = mount(&fake, pool(), &task).unwrap_err().to_string();
        assert!(error.contains("killed"), "{error}");
        assert_eq!(fake.mounts_on(&target()), 0, "{program}");
        fake.heal_programs();
        mount(&fake, pool(), &task).unwrap();
        assert_eq!(fake.mounts_on(&target()), 1);
        assert!(fake.programs().iter().any(|run| run.starts_with(program)));
    }
}
