use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use rustix::mount::MountAttrFlags;

use super::{GraftTask, KnownMounts, Owner, dead_mounts, graft, within};
use crate::sys::fake::target;
use crate::sys::graft::{Grafts, Likeness, Propagation};
use crate::sys::{Result, SysError};
use crate::volume::job::MountError;
use crate::volume::mount_table::{DeviceNumber, MountEntry, Table};
use crate::volume::target::{Target, TargetError};
use crate::volume::volume_id::VolumeId;

const NODE: &str = "\
10 1 8:1 / /kubelet rw shared:1 - ext4 /dev/root rw
11 10 0:50 / /kubelet/pods/u/volumes/mooring.dev~vcs/v rw,nosuid shared:9 - fuse.sshfs h:/a rw
";

/// A container of Pod u with the volume, a part of it read-only, a file of its Pod, and another's mount.
const CONTAINER: &str = "\
20 2 0:30 / / rw - overlay overlay rw
21 20 8:1 /kubelet/pods/u/etc-hosts /etc/hosts rw - ext4 /dev/root rw
22 20 0:40 / /data rw,nosuid - fuse.sshfs h:/a rw
23 20 0:40 /deep/part//deleted /part ro,nosuid master:4 - fuse.sshfs h:/a rw
24 20 0:40 / /other rw - fuse.sshfs mooring:00 rw
25 20 0:41 / /live rw - fuse.sshfs h:/a rw
";

const DEAD: DeviceNumber = DeviceNumber { major: 0, minor: 40 };

/// A kernel in memory with two mount namespaces: the node's, and one container's.
struct Fake {
    tables: RefCell<[Table; 2]>,
    inside: bool,
    /// Mounts, by number, whose daemon is gone.
    dead: Vec<u64>,
    /// Whether the kernel can mount beneath.
    beneath: bool,
    /// What can't be opened in the volume.
    missing: &'static str,
    /// What is opened at this path is on mount 99.
    covered: &'static str,
    /// The Pod that the process belongs to once it is opened.
    pod: Option<&'static str>,
    /// Whether the namespace of the opened process is of a user namespace of its own.
    own_users: bool,
    said: RefCell<Vec<String>>,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            tables: RefCell::new([NODE, CONTAINER].map(|text| Table::parse(text.as_bytes()))),
            inside: false,
            dead: vec![22, 23, 24],
            beneath: true,
            missing: "-",
            covered: "-",
            pod: Some("u"),
            own_users: false,
            said: RefCell::default(),
        }
    }
}

impl Fake {
    fn say(&self, what: String) {
        self.said.borrow_mut().push(what);
    }

    fn container(&self) -> Vec<MountEntry> {
        self.tables.borrow()[1].0.clone()
    }

    /// The devices at a path of the container, the uppermost last.
    fn devices(&self, path: &str) -> Vec<u32> {
        let entries = self.container().into_iter();
        let at = entries.filter(|entry| entry.mount_point == Path::new(path));
        at.map(|entry| entry.device.minor).collect()
    }

    fn put(&self, mount: &(PathBuf, Likeness), place: &(u64, PathBuf), beneath: bool) {
        let mut tables = self.tables.borrow_mut();
        let table = &mut tables[1].0;
        let index = table.iter().position(|entry| entry.id == place.0).unwrap();
        let mut new = table[index].clone();
        new.id = 100 + table.len() as u64;
        new.device.minor = 50;
        if beneath {
            table[index].parent = new.id;
            table.insert(index, new);
        } else {
            new.parent = place.0;
            table.push(new);
        }
        drop(tables);
        let (part, likeness) = mount;
        self.say(format!(
            "{} of {} {:?} {:?}",
            place.1.display(),
            part.display(),
            likeness.flags,
            likeness.propagation
        ));
    }
}

impl Grafts for Fake {
    type Place = (u64, PathBuf);
    type Mount = (PathBuf, Likeness);
    type Container = ();

    fn table(&self) -> Result<Table> {
        Ok(self.tables.borrow()[usize::from(self.inside)].clone())
    }

    fn open_container(&self, _: i32, _: u64) -> Result<()> {
        Ok(())
    }

    fn pod_of(&self, (): &()) -> Result<Option<String>> {
        Ok(self.pod.map(str::to_owned))
    }

    fn is_of_root(&self, (): &()) -> Result<bool> {
        Ok(!self.own_users)
    }

    fn table_of(&self, (): &()) -> Result<Table> {
        Ok(self.tables.borrow()[1].clone())
    }

    fn open_target(&self, _: &Target) -> Result<Self::Place, TargetError> {
        Ok((11, PathBuf::new()))
    }

    fn open_at(&self, path: &Path) -> Result<Self::Place> {
        assert!(self.inside);
        let id = if path == Path::new(self.covered) {
            99
        } else {
            self.tables.borrow()[1].top(path).unwrap().id
        };
        Ok((id, path.to_owned()))
    }

    fn open_within(&self, _: &Self::Place, path: &Path) -> Result<Self::Place> {
        assert!(!self.inside);
        if path == Path::new(self.missing) {
            return Err(SysError::call("open", Errno::ENOENT));
        }
        Ok((11, path.to_owned()))
    }

    fn mount_id(&self, place: &Self::Place) -> Result<u64> {
        Ok(place.0)
    }

    fn is_dead(&self, place: &Self::Place) -> Result<bool> {
        Ok(self.dead.contains(&place.0))
    }

    fn copy(&self, place: &Self::Place, likeness: Likeness) -> Result<Self::Mount> {
        assert!(!self.inside);
        Ok((place.1.clone(), likeness))
    }

    fn enter(&mut self, (): &()) -> Result<()> {
        self.inside = true;
        Ok(())
    }

    fn put_beneath(&self, mount: &Self::Mount, top: &Self::Place) -> Result<bool> {
        if self.beneath {
            self.put(mount, top, true);
        }
        Ok(self.beneath)
    }

    fn put_onto(&self, mount: &Self::Mount, place: &Self::Place) -> Result<()> {
        self.put(mount, place, false);
        Ok(())
    }

    fn detach(&self, top: &Self::Place) -> Result<()> {
        self.tables.borrow_mut()[1].0.retain(|entry| entry.id != top.0);
        Ok(())
    }
}

fn pod(uid: &str) -> Owner {
    Owner::Pod(uid.to_owned())
}

fn task() -> GraftTask {
    GraftTask {
        pid: 7,
        namespace: 1,
        owner: pod("u"),
        target: target(),
        dead: vec![DEAD],
        unrecorded: BTreeSet::new(),
        show_id: false,
    }
}

#[test]
fn a_container_gets_the_new_mount_in_the_place_of_each_dead_one_and_nothing_else_is_touched() {
    let mut fake = Fake::default();
    let before = fake.container().len();
    graft(&mut fake, &task()).unwrap();
    assert_eq!((fake.devices("/data"), fake.devices("/part")), (vec![50], vec![50]));
    // Another volume's id with the same number, and the same source with another number.
    assert_eq!((fake.devices("/other"), fake.devices("/live")), (vec![40], vec![41]));
    assert_eq!(fake.container().len(), before);
    let said = fake.said.borrow().clone();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with("/data of  ") && said[0].ends_with("Private"),
        "{said:?}"
    );
    assert!(
        said[1].starts_with("/part of deep/part ") && said[1].contains("RDONLY") && said[1].ends_with("Slave"),
        "{said:?}"
    );
}

#[test]
fn a_second_time_nothing_is_done() {
    let mut fake = Fake::default();
    graft(&mut fake, &task()).unwrap();
    let after = fake.container();
    fake.inside = false;
    graft(&mut fake, &task()).unwrap();
    assert_eq!(fake.container(), after);
}

#[test]
fn on_an_old_kernel_the_new_mount_lies_on_the_dead_one_and_that_is_enough() {
    let mut fake = Fake {
        beneath: false,
        ..Fake::default()
    };
    graft(&mut fake, &task()).unwrap();
    assert_eq!(fake.devices("/data"), [40, 50]);
    let after = fake.container();
    fake.inside = false;
    graft(&mut fake, &task()).unwrap();
    assert_eq!(fake.container(), after);
}

#[test]
fn a_number_that_a_live_mount_has_by_now_is_left_alone() {
    let mut fake = Fake {
        dead: Vec::new(),
        ..Fake::default()
    };
    let before = fake.container();
    graft(&mut fake, &task()).unwrap();
    assert_eq!(fake.container(), before);
}

#[test]
fn another_pod_s_container_is_left_alone() {
    // Whatever it has mounted where.
    let forged = Table::parse(CONTAINER.as_bytes());
    assert!(dead_mounts(&pod("x"), &forged, &target(), &[DEAD]).is_empty());
    assert_eq!(dead_mounts(&pod("u"), &forged, &target(), &[DEAD]).len(), 3);
    let other = [DeviceNumber { major: 0, minor: 9 }];
    assert!(dead_mounts(&pod("u"), &forged, &target(), &other).is_empty());
}

#[test]
fn a_process_that_is_another_pod_s_by_the_time_it_is_opened_is_left_alone() {
    for pod in [Some("x"), None] {
        let mut fake = Fake { pod, ..Fake::default() };
        let before = fake.container();
        let error = graft(&mut fake, &task()).unwrap_err().to_string();
        assert!(error.contains("not of Pod u"), "{error}");
        assert_eq!(fake.container(), before);
        assert!(!fake.inside);
    }
}

/// The kubelet gives a container the part that it has mounted for it, also when the container starts again.
#[test]
fn on_the_node_a_volume_has_what_is_in_its_pod_s_directory() {
    let node = NODE.to_owned()
        + "12 10 0:40 /a /kubelet/pods/u/volume-subpaths/v/main/0 rw shared:9 - fuse.sshfs h:/a rw\n\
           13 10 0:40 / /kubelet/pods/ux/volumes/mooring.dev~vcs/v rw shared:9 - fuse.sshfs h:/a rw\n\
           14 10 0:40 / /mnt rw - fuse.sshfs h:/a rw\n";
    let node = Table::parse(node.as_bytes());
    let dead = dead_mounts(&Owner::Node, &node, &target(), &[DEAD]);
    let ids: Vec<_> = dead.iter().map(|entry| entry.id).collect();
    assert_eq!(ids, [12]);
}

fn unattributed(
    node: &Table,
    (owner, table): (&Owner, &Table),
    target: &Target,
    recorded: &BTreeSet<DeviceNumber>,
) -> BTreeSet<DeviceNumber> {
    let mounted = [target.clone()];
    let found = KnownMounts::new(node, &mounted, recorded).unrecorded(owner, table);
    assert!(found.iter().all(|found| !found.show_id));
    found.into_iter().flat_map(|found| found.devices).collect()
}

fn devices(minors: &[u32]) -> BTreeSet<DeviceNumber> {
    minors.iter().map(|&minor| DeviceNumber { major: 0, minor }).collect()
}

#[test]
fn a_dead_mount_that_no_agent_recorded_is_of_no_volume_for_sure() {
    let [node, container] = [NODE, CONTAINER].map(|text| Table::parse(text.as_bytes()));
    let unrecorded = BTreeSet::new();
    let (ours, other) = (pod("u"), pod("x"));
    let theirs = (&ours, &container);
    assert_eq!(unattributed(&node, theirs, &target(), &unrecorded), devices(&[40, 41]));
    assert_eq!(unattributed(&node, theirs, &target(), &devices(&[40])), devices(&[41]));
    // Another volume of the same source is alive on the node.
    let two = NODE.to_owned() + "12 10 0:41 / /kubelet/pods/u/volumes/mooring.dev~vcs/w rw - fuse.sshfs h:/a rw\n";
    let two = Table::parse(two.as_bytes());
    assert_eq!(unattributed(&two, theirs, &target(), &unrecorded), devices(&[40]));
    // Another Pod's container, and a volume that is not mounted.
    let others = (&other, &container);
    assert_eq!(unattributed(&node, others, &target(), &unrecorded), unrecorded);
    assert_eq!(unattributed(&container, theirs, &target(), &unrecorded), unrecorded);
}

/// The line of a mount that shows the id of a volume.
fn line(id: u64, device: u32, place: &str, volume: &Target) -> String {
    let source = VolumeId::of(volume);
    format!("{id} 20 0:{device} / {place} rw - fuse.s3fs {} rw\n", source.as_str())
}

fn volume(name: &str) -> Target {
    let directory = format!("/kubelet/pods/u/volumes/mooring.dev~vcs/{name}");
    Target::parse(Path::new("/kubelet"), &directory).unwrap()
}

#[test]
fn a_dead_mount_that_no_agent_recorded_is_known_by_the_id_of_its_volume() {
    let (v, w) = (volume("v"), volume("w"));
    let node = line(11, 50, &v.to_string(), &v)
        + &line(12, 51, &w.to_string(), &w)
        // What the kubelet has mounted for a container of a part of it.
        + &line(13, 40, "/kubelet/pods/u/volume-subpaths/v/main/0", &v);
    let container = line(22, 40, "/v", &v)
        + &line(23, 41, "/w", &w)
        + &line(24, 50, "/live", &v)
        // An old kernel has laid the new mount on the dead one.
        + &line(25, 42, "/covered", &v)
        + &line(26, 50, "/covered", &v).replace("26 20", "26 25");
    let [node, container] = [node, container].map(|text| Table::parse(text.as_bytes()));
    let mounted = [v.clone(), w.clone()];
    let found = |recorded: &[u32], owner: &Owner, table| {
        let known = KnownMounts::new(&node, &mounted, &devices(recorded));
        let found = known.unrecorded(owner, table).into_iter();
        let of = |name: &str, minors: &[u32]| (volume(name), devices(minors), true);
        (
            found
                .map(|one| (one.target.clone(), one.devices, one.show_id))
                .collect::<Vec<_>>(),
            of,
        )
    };
    let (all, of) = found(&[], &pod("u"), &container);
    assert_eq!(all, [of("v", &[40]), of("w", &[41])]);
    let (rest, of) = found(&[40], &pod("u"), &container);
    assert_eq!(rest, [of("w", &[41])]);
    let (parts, of) = found(&[], &Owner::Node, &node);
    assert_eq!(parts, [of("v", &[40])]);
    assert!(found(&[], &pod("x"), &container).0.is_empty());
}

/// Even if a device number that an agent recorded is another volume's by now.
#[test]
fn volumes_whose_mounts_show_their_ids_never_change_places() {
    let (v, w) = (volume("v"), volume("w"));
    let text = [
        line(11, 50, &v.to_string(), &v) + &line(12, 50, &w.to_string(), &w),
        line(22, 40, "/v", &v) + &line(23, 41, "/w", &w),
    ];
    for (target, minor, replaced) in [(&v, 40, "/v"), (&w, 41, "/w"), (&v, 41, ""), (&w, 40, "")] {
        let mut fake = Fake {
            tables: RefCell::new(text.each_ref().map(|text| Table::parse(text.as_bytes()))),
            dead: vec![22, 23],
            ..Fake::default()
        };
        let task = GraftTask {
            target: target.clone(),
            dead: Vec::new(),
            unrecorded: [DeviceNumber { major: 0, minor }].into(),
            show_id: true,
            ..task()
        };
        let recorded = GraftTask {
            dead: vec![DeviceNumber { major: 0, minor }],
            unrecorded: BTreeSet::new(),
            ..task.clone()
        };
        graft(&mut fake, &task).unwrap();
        fake.inside = false;
        graft(&mut fake, &recorded).unwrap();
        let is_new = |place: &&str| fake.devices(place) == [50];
        let new: Vec<_> = ["/v", "/w"].into_iter().filter(is_new).collect();
        assert_eq!(new.concat(), replaced, "{target} {minor}");
    }
}

/// Its agent holds it, which proves whose it is, whatever it shows.
#[test]
fn a_dead_mount_of_an_earlier_release_is_replaced_by_one_that_shows_the_id() {
    let v = volume("v");
    let text = [line(11, 50, &v.to_string(), &v), CONTAINER.to_owned()];
    let mut fake = Fake {
        tables: RefCell::new(text.each_ref().map(|text| Table::parse(text.as_bytes()))),
        ..Fake::default()
    };
    graft(&mut fake, &task()).unwrap();
    assert_eq!((fake.devices("/data"), fake.devices("/part")), (vec![50], vec![50]));
    // By its id alone it would not be known.
    let mut fake = Fake {
        tables: RefCell::new(text.each_ref().map(|text| Table::parse(text.as_bytes()))),
        ..Fake::default()
    };
    let by_id = GraftTask {
        dead: Vec::new(),
        unrecorded: [DEAD].into(),
        show_id: true,
        ..task()
    };
    graft(&mut fake, &by_id).unwrap();
    assert_eq!(fake.devices("/data"), [40]);
}

#[test]
fn a_dead_mount_that_may_be_another_volume_s_is_an_error_and_stays() {
    let mut fake = Fake::default();
    let before = fake.container();
    let doubtful = GraftTask {
        dead: Vec::new(),
        unrecorded: [DEAD].into(),
        ..task()
    };
    let error = graft(&mut fake, &doubtful).unwrap_err().to_string();
    assert!(error.contains("/data") && error.contains("does not know"), "{error}");
    assert_eq!(fake.container(), before);
    // A mount that is alive is left alone without an error.
    let mut fake = Fake {
        dead: Vec::new(),
        ..Fake::default()
    };
    graft(&mut fake, &doubtful).unwrap();
    assert_eq!(fake.container(), before);
}

/// In a user namespace of its own, a container that has only a part of the volume could have all of it by a mount with
/// the id. Whose the namespace is is asked once it is held: the process may have entered another one since the scan.
#[test]
fn a_dead_mount_with_an_id_is_replaced_unless_it_may_be_forged() {
    let v = volume("v");
    for (own_users, expected) in [(false, 50), (true, 40)] {
        let text = [line(11, 50, &v.to_string(), &v), line(22, 40, "/v", &v)];
        let mut fake = Fake {
            tables: RefCell::new(text.map(|text| Table::parse(text.as_bytes()))),
            own_users,
            ..Fake::default()
        };
        let by_id = GraftTask {
            dead: Vec::new(),
            unrecorded: [DEAD].into(),
            show_id: true,
            ..task()
        };
        let done = graft(&mut fake, &by_id);
        assert_eq!(
            matches!(done, Err(MountError::Unattributed { .. })),
            own_users,
            "{done:?}"
        );
        assert_eq!(fake.devices("/v"), [expected]);
    }
}

#[test]
fn a_mount_that_can_t_be_replaced_is_an_error_and_delays_no_other() {
    let mut fake = Fake {
        missing: "deep/part",
        ..Fake::default()
    };
    let error = graft(&mut fake, &task()).unwrap_err().to_string();
    assert!(error.contains("/part"), "{error}");
    assert_eq!((fake.devices("/data"), fake.devices("/part")), (vec![50], vec![40]));

    let mut fake = Fake {
        covered: "/data",
        ..Fake::default()
    };
    let error = graft(&mut fake, &task()).unwrap_err().to_string();
    assert!(error.contains("/data") && error.contains("over it"), "{error}");
    assert_eq!((fake.devices("/data"), fake.devices("/part")), (vec![40], vec![50]));
}

#[test]
fn nothing_is_done_before_the_volume_is_mounted_again() {
    let mut fake = Fake::default();
    let before = fake.container();
    let mut early = task();
    early.dead.push(DeviceNumber { major: 0, minor: 50 });
    assert!(graft(&mut fake, &early).is_err());
    assert_eq!(fake.container(), before);
}

#[test]
fn a_mount_s_likeness_and_part_are_read_from_the_mount_table() {
    let table = Table::parse(CONTAINER.as_bytes());
    let of = |index: usize| Likeness::of(&table.0[index]);
    assert_eq!(of(2).flags, MountAttrFlags::MOUNT_ATTR_NOSUID);
    assert_eq!(
        (of(2).propagation, of(3).propagation),
        (Propagation::Private, Propagation::Slave)
    );
    for (root, part) in [("/", ""), ("/a/b", "a/b"), ("/a//deleted", "a")] {
        assert_eq!(within(Path::new(root)), PathBuf::from(part));
    }
}
