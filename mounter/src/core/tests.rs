use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use mooring_contract::volume::Volume;

use super::{Core, Places};
use crate::client::{Client, MountError, MountJob, PodRef, Secrets};
use crate::clients::registry::Registry;
use crate::metrics::Metrics;
use crate::target::Target;

/// A client container whose server `dead` never answers.
#[derive(Default)]
struct Container {
    asked: AtomicUsize,
}

#[async_trait]
impl Client for Container {
    async fn mount(&self, job: &MountJob) -> Result<(), MountError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(job.image.as_deref(), Some("a/b:1"));
        if job.server() != "dead" {
            return Ok(());
        }
        Err(MountError::Timeout {
            attempted: "the mount".to_owned(),
            seconds: 1,
            server: job.server(),
        })
    }
}

fn core(container: &Arc<Container>) -> Core {
    let places = Places {
        kubelet_root: "/kubelet".into(),
        pool: "/pool".into(),
        host_namespace: None,
    };
    let registry = Registry::new(vec!["nfs=a/b:1".parse().unwrap()]);
    let container: Arc<dyn Client> = Arc::<Container>::clone(container);
    Core::new(places, registry, Some(container), Metrics::default())
}

fn job(line: &str, name: &str) -> MountJob {
    MountJob {
        volume: Volume::from_line(line).unwrap(),
        secrets: Secrets::default(),
        target: Target::parse(
            Path::new("/kubelet"),
            &format!("/kubelet/pods/u/volumes/mooring.dev~vcs/{name}"),
        )
        .unwrap(),
        read_only: false,
        fs_group: None,
        pod: PodRef::default(),
        volume_name: name.to_owned(),
        image: None,
        deadline: Instant::now() + Duration::from_secs(10),
    }
}

#[tokio::test]
async fn a_dead_server_is_asked_once_and_delays_no_other() {
    let container = Arc::new(Container::default());
    let core = core(&container);
    let dead = "client=nfs,source=dead:/x";
    let first = core.mount(job(dead, "a")).await.unwrap_err();
    assert_eq!(first.category(), "timeout");
    let second = core.mount(job(dead, "b")).await.unwrap_err();
    assert_eq!(second.category(), "tripped");
    assert!(second.to_string().contains("dead"), "{second}");
    core.mount(job("client=nfs,source=alive:/x", "c")).await.unwrap();
    assert_eq!(container.asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn two_operations_on_one_directory_do_not_run_at_a_time() {
    let container = Arc::new(Container::default());
    let core = core(&container);
    let alive = "client=nfs,source=alive:/x";
    let (first, second) = tokio::join!(core.mount(job(alive, "a")), core.mount(job(alive, "a")));
    first.unwrap();
    assert_eq!(second.unwrap_err().category(), "in-progress");
    core.mount(job(alive, "a")).await.unwrap();
}

#[tokio::test]
async fn where_no_pod_would_see_a_mount_none_is_made() {
    let container = Arc::new(Container::default());
    let core = core(&container).unless(|root| Some(format!("{} is not shared", root.display())));
    let error = core.mount(job("client=nfs,source=alive:/x", "a")).await.unwrap_err();
    assert_eq!(error.category(), "node");
    assert!(error.to_string().contains("/kubelet is not shared"), "{error}");
    assert_eq!(container.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_volume_that_nobody_serves_says_where_to_name_somebody() {
    let core = core(&Arc::default());
    let error = core.mount(job("client=ceph,source=h:/x", "a")).await.unwrap_err();
    assert_eq!(error.category(), "not-served");
    let target = job("client=ceph", "a").target;
    let grown = Volume::from_line("client=nfs,source=h:/x").unwrap();
    core.expand(&grown, &target, 1, Instant::now() + Duration::from_secs(1))
        .await
        .unwrap();
}
