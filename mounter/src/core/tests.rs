use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::poll;
use mooring_contract::volume::Volume;
use tokio::sync::Notify;

use super::circuit_breaker::CallEnd;
use super::client::{Client, MountJob, Trouble};
use super::{Core, CoreParts, Obstacle, Places, Waits};
use crate::api::recorder::Recorder;
use crate::api::recorder::tests::{api, recorded};
use crate::core::metrics::MounterMetrics;
use crate::grant::author::Author;
use crate::grant::granter::Granter;
use crate::grant::request::MountRequest;
use crate::grant::request::tests::request;
use crate::sys::fake::target;
use crate::sys::{Kernel, Sys as _};
use crate::volume::job::{Access, MountError};
use crate::volume::mount_table::Table;
use crate::volume::registry::{Registry, Serving};
use crate::volume::target::Target;
use crate::worker::{WorkerError, Workers};

/// A client container whose server `dead` does not answer: the container gives up when the test says so, or soon.
#[derive(Default)]
pub(crate) struct Container {
    asked: AtomicUsize,
    given_up: Option<Notify>,
}

#[async_trait]
impl Client for Container {
    async fn mount(&self, job: &MountJob) -> Result<(), MountError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        assert_eq!(job.image.as_deref(), Some("a/b:1"));
        match (job.grant.server().as_str(), &self.given_up) {
            ("dead", Some(given_up)) => given_up.notified().await,
            ("dead", None) => {}
            ("busy", _) => {
                return Err(MountError::InProgress {
                    operation: "mount".to_owned(),
                    seconds: 0,
                });
            }
            _ => return Ok(()),
        }
        Err(MountError::Timeout {
            attempted: "the mount".to_owned(),
            seconds: 1,
            server: job.grant.server(),
        })
    }

    fn trouble(&self, target: &Target) -> Option<Trouble> {
        (target.name() == "troubled").then(|| Trouble::Ended {
            source_name: "h:/troubled".to_owned(),
            next: "Mooring mounts it again".to_owned(),
        })
    }

    fn source_of(&self, target: &Target) -> Option<String> {
        (target.name() == "remembered").then(|| "h:/remembered".to_owned())
    }
}

pub(crate) fn core(container: &Arc<Container>) -> Core {
    let container: Arc<dyn Client> = Arc::<Container>::clone(container);
    Core::new(CoreParts {
        registry: Registry::new(vec!["nfs=a/b:1".parse().unwrap()]),
        container: Some(container),
        ..CoreParts::standalone(Path::new("/kubelet"))
    })
}

impl CoreParts {
    /// Those of a mounter without a cluster, whose kubelet has its root there.
    pub(crate) fn standalone(kubelet_root: &Path) -> Self {
        Self {
            places: Places {
                kubelet_root: kubelet_root.into(),
                pool: "/pool".into(),
                host_namespace: None,
            },
            registry: Registry::default(),
            container: None,
            workers: Workers::default(),
            metrics: MounterMetrics::default(),
            obstacle: |_| None,
            unheld: Obstacle::default(),
            waits: Waits::new(None),
            events: None,
            granter: Granter::standalone(),
            attachments: None,
        }
    }
}

pub(crate) fn volume(line: &str, name: &str) -> MountRequest {
    let path = format!("/kubelet/pods/u/volumes/mooring.dev~vcs/{name}");
    let target = Target::parse(Path::new("/kubelet"), &path).unwrap();
    request(Volume::from_line(line).unwrap(), target)
}

impl Core {
    /// Mounts it within ten seconds.
    pub(crate) async fn mount_soon(&self, request: MountRequest) -> Result<(), MountError> {
        self.mount(request, Instant::now() + Duration::from_secs(10)).await
    }
}

#[test]
fn a_pod_s_own_volume_is_mounted_by_nothing_that_follows_links_on_its_server() {
    let image = || Serving::Container("a/b:1".into());
    for (author, client, serving, allowed) in [
        (Author::Tenant, "nfs", Serving::Kernel, true),
        (Author::Tenant, "nfs", Serving::Host, false),
        (Author::Tenant, "nfs", image(), false),
        (Author::Tenant, "smb", Serving::Host, false),
        (Author::Tenant, "sshfs", image(), true),
        (Author::Administrator, "nfs", Serving::Host, true),
        (Author::Image, "nfs", image(), true),
    ] {
        let checked = super::check_links(author, client, &serving);
        assert_eq!(checked.is_ok(), allowed, "{author:?} {client} {serving:?}");
    }
}

/// It is not unmounted lazily: what it has in memory would be lost.
#[test]
fn a_volume_of_which_nothing_is_known_may_be_on_a_disk_of_the_node() {
    let target = volume("client=nfs,source=alive:/x", "a").target;
    let unreadable = Err(MountError::Node("no memory".into()));
    assert!(super::is_on_a_device(&unreadable, &target), "it may be on a disk");
    assert!(!super::is_on_a_device(&Ok(Table::default()), &target));
}

/// A client container gives the device a node of its own, whose path the mount table shows.
#[test]
fn a_volume_is_on_a_device_of_the_node_whatever_its_source_is_called() {
    let target = volume("client=nfs,source=alive:/x", "a").target;
    for (number, mounted, expected) in [
        ("7:3", "ext4 /dev/loop3", true),
        ("253:16", "ext4 /run/mooring-devices/vdb", true),
        ("8:16", "xfs /run/mooring-devices/sdb", true),
        ("252:0", "ext4 /run/mooring-devices/rbd0", true),
        ("0:44", "btrfs /dev/nbd0", true),
        ("0:45", "nfs4 10.0.0.4:/x", false),
        ("0:46", "cifs //10.0.0.4/dev", false),
        ("0:47", "fuse.s3fs /dev/x", false),
    ] {
        let line = format!("30 22 {number} / {target} rw - {mounted} rw\n");
        let table = Table::parse(line.as_bytes());
        assert_eq!(super::is_on_a_device(&Ok(table), &target), expected, "{mounted}");
    }
}

/// Each question would take a worker, which hangs with the volume.
#[tokio::test]
async fn a_volume_whose_client_knows_that_it_is_in_trouble_is_not_asked_how_full_it_is() {
    let core = core(&Arc::default());
    let target = volume("client=nfs,source=h:/troubled", "troubled").target;
    let soon = Instant::now() + Duration::from_secs(5);
    let error = core.usage(&target, "h:/troubled", soon).await.unwrap_err();
    assert_eq!(error.category(), "container", "a worker asks: {error}");
}

/// A FUSE mount shows its volume's id, which says nothing to people.
#[test]
fn the_source_of_a_mount_that_shows_an_id_is_the_source_that_its_client_remembers() {
    let core = core(&Arc::default());
    for (name, shown, expected) in [
        ("remembered", "mooring:00c0ffee", Some("h:/remembered")),
        ("forgotten", "mooring:00c0ffee", Some("a volume of Mooring's")),
        ("of-the-kernel", "h:/data", Some("h:/data")),
    ] {
        let target = volume("client=nfs,source=h:/data", name).target;
        let table = Table::parse(format!("30 22 0:44 / {target} rw - fuse.sshfs {shown} rw\n").as_bytes());
        assert_eq!(core.source_in(&table, &target).as_deref(), expected, "{name}");
        assert_eq!(
            core.source_in(&Table::parse(b""), &target),
            None,
            "{name} is not mounted"
        );
    }
}

#[tokio::test]
async fn a_mount_that_did_not_begin_says_nothing_about_its_server() {
    let core = core(&Arc::default());
    let (now, name) = (Instant::now(), "busy (nfs)");
    let long_ago = now.checked_sub(Duration::from_mins(1)).unwrap();
    let late = core.breakers().enter(name, long_ago).unwrap();
    late.end(CallEnd::Late, long_ago);
    let error = core
        .mount_soon(volume("client=nfs,source=busy:/x", "a"))
        .await
        .unwrap_err();
    assert_eq!(error.category(), "in-progress");
    assert_eq!(core.breakers().tripped(now), [name], "counts as one that answers");
}

/// Proves: M1
#[tokio::test]
async fn a_dead_server_is_asked_once_and_delays_no_other() {
    let container = Arc::new(Container {
        given_up: Some(Notify::new()),
        ..Container::default()
    });
    let core = core(&container);
    let (dead, alive) = ("client=nfs,source=dead:/x", "client=nfs,source=alive:/x");
    let mut first = pin!(core.mount_soon(volume(dead, "a")));
    assert!(poll!(&mut first).is_pending());
    core.mount_soon(volume(alive, "b")).await.unwrap();
    assert!(poll!(&mut first).is_pending(), "the dead server was given up first");
    container.given_up.as_ref().unwrap().notify_one();
    assert_eq!(first.await.unwrap_err().category(), "timeout");
    let second = core.mount_soon(volume(dead, "c")).await.unwrap_err();
    assert_eq!(second.category(), "tripped");
    assert!(second.to_string().contains("dead"), "{second}");
    core.mount_soon(volume(alive, "d")).await.unwrap();
    assert_eq!(container.asked.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_server_that_had_the_rest_of_a_call_only_is_asked_again_at_once() {
    let container = Arc::new(Container::default());
    let core = core(&container);
    for asked in 1..3 {
        let request = volume("client=nfs,source=dead:/x", "a");
        let late = core.mount(request, Instant::now() + Duration::from_secs(1)).await;
        assert_eq!(late.unwrap_err().category(), "timeout");
        assert_eq!(container.asked.load(Ordering::Relaxed), asked);
    }
}

#[tokio::test]
async fn two_operations_on_one_directory_do_not_run_at_a_time() {
    let container = Arc::new(Container::default());
    let core = core(&container);
    let alive = "client=nfs,source=alive:/x";
    let (first, second) = tokio::join!(core.mount_soon(volume(alive, "a")), core.mount_soon(volume(alive, "a")));
    first.unwrap();
    assert_eq!(second.unwrap_err().category(), "in-progress");
    core.mount_soon(volume(alive, "a")).await.unwrap();
}

#[tokio::test]
async fn no_mount_is_made_where_no_pod_would_see_it() {
    let container = Arc::new(Container::default());
    let mut core = core(&container);
    core.parts.obstacle = |root| Some(format!("{} is not shared", root.display()));
    let error = core
        .mount_soon(volume("client=nfs,source=alive:/x", "a"))
        .await
        .unwrap_err();
    assert_eq!(error.category(), "node");
    assert!(error.to_string().contains("/kubelet is not shared"), "{error}");
    assert_eq!(container.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn where_no_policy_holds_the_mounter_nothing_is_mounted_until_one_does() {
    let container = Arc::new(Container::default());
    let core = core(&container);
    let unheld = &core.parts.unheld;
    let alive = "client=nfs,source=alive:/x";
    assert!(unheld.set(Some("no policy".to_owned())));
    let error = core.mount_soon(volume(alive, "a")).await.unwrap_err();
    assert_eq!(error.category(), "node");
    assert!(error.to_string().contains("no policy"), "{error}");
    assert!(unheld.set(None));
    core.mount_soon(volume(alive, "a")).await.unwrap();
}

#[tokio::test]
async fn a_type_without_a_client_says_where_to_name_one() {
    let core = core(&Arc::default());
    let error = core
        .mount_soon(volume("client=ceph,source=h:/x", "a"))
        .await
        .unwrap_err();
    assert_eq!(error.category(), "not-served");
}

#[tokio::test]
async fn a_client_that_has_no_device_to_give_is_not_asked_for_one() {
    let container = Arc::new(Container::default());
    let core = core(&container);
    for line in ["client=nfs,source=alive:/x", "client=sshfs,source=u@h:/x"] {
        let mut raw = volume(line, "a");
        raw.access = Access::Device;
        let error = core.mount_soon(raw).await.unwrap_err();
        assert_eq!(error.category(), "no-device", "{line}: {error}");
        assert!(error.to_string().contains("local, rbd, block or iscsi"), "{error}");
    }
    assert_eq!(container.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn nothing_is_mounted_that_was_not_granted() {
    let container = Arc::new(Container::default());
    let mut core = core(&container);
    core.parts.granter = Granter::new(None, []);
    let error = core
        .mount_soon(volume("client=nfs,source=alive:/x", "a"))
        .await
        .unwrap_err();
    assert_eq!(error.category(), "node");
    assert!(error.to_string().contains("no access to the Kubernetes API"), "{error}");
    assert_eq!(container.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_volume_that_is_not_what_its_client_s_record_says_is_refused_before_anybody_is_asked() {
    let container = Arc::new(Container::default());
    let core = core(&container);
    for line in [
        "client=nfs,source=//dev/loop1",
        "client=nfs,source=h:/x,server=dead",
        "client=nfs,source=h:/x,fs-type=ext4",
        "client=nfs,source=h:/x,mount-options=bind",
    ] {
        let error = core.mount_soon(volume(line, "a")).await.unwrap_err();
        assert_eq!(error.category(), "bad-options", "{line}: {error}");
    }
    assert_eq!(container.asked.load(Ordering::Relaxed), 0);
}

/// The breaker counts by where a volume is mounted from, not by what a tenant says.
#[tokio::test]
async fn one_tenant_s_options_can_t_trip_another_server() {
    let core = core(&Arc::new(Container::default()));
    let lying = "client=x,client-image=a/b:1,source=dead:/x,server=alive";
    assert_eq!(
        core.mount_soon(volume(lying, "a")).await.unwrap_err().category(),
        "timeout"
    );
    core.mount_soon(volume("client=x,client-image=a/b:1,source=alive:/x", "b"))
        .await
        .unwrap();
}

#[tokio::test]
async fn what_the_host_s_program_may_have_left_is_told_of_on_the_node_with_how_to_remove_it() {
    let (client, heard) = api(0);
    let events = Recorder::start(client, None);
    let mut core = core(&Arc::new(Container::default()));
    core.parts.events = Some((events, "node-1".to_owned()));
    let failed = MountError::Failed {
        attempted: "unmount it".to_owned(),
        cause: "no such device".into(),
    };
    core.tell_of_stage(&target(), &WorkerError::Late { limit: Duration::ZERO });
    core.tell_of_stage(&target(), &WorkerError::Failed(failed));
    let events = recorded(&heard, 1).await;
    let [(_, event)] = &events[..] else {
        panic!("not one: {events:?}")
    };
    assert_eq!(
        (&event["reason"], &event["regarding"]["kind"]),
        (&"CleanUpFailed".into(), &"Node".into())
    );
    let note = event["note"].as_str().unwrap();
    let stage = Kernel.stage(&target());
    let command = format!("umount -l {0}; rmdir {0}", stage.display());
    assert!(note.contains(&command) && note.contains("no such device"), "{note}");
}
