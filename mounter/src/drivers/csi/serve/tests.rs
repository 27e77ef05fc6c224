use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Uri;
use http::uri::PathAndQuery;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mooring_csi_proto::csi::volume_capability::{AccessType, MountVolume};
use mooring_csi_proto::csi::{
    CapacityRange, GetPluginInfoRequest, GetPluginInfoResponse, NodeExpandVolumeRequest, NodeExpandVolumeResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetStorageHealthRequest, NodeGetStorageHealthResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeStageVolumeRequest, NodeStageVolumeResponse, VolumeCapability,
};
use mooring_csi_proto::registration::{InfoRequest, PluginInfo};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::{CsiServices, serve};
use crate::core::circuit_breaker::CallEnd;
use crate::core::{Core, CoreParts};
use crate::drivers::csi::node::NodeService;
use crate::drivers::csi::registration::Registration;
use crate::drivers::socket::PrivateSocket;

const NAME: &str = "csi.sock";

/// A driver that is asked as the kubelet asks.
struct Driver {
    directory: tempfile::TempDir,
    core: Arc<Core>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Driver {
    /// One that this process may ask, whoever runs it.
    fn start() -> Self {
        Self::start_for(nix::unistd::geteuid().as_raw())
    }

    fn start_for(asker: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start_in(directory, Path::new("/kubelet"), asker)
    }

    /// One whose kubelet has its root there.
    fn start_in(directory: tempfile::TempDir, kubelet_root: &Path, asker: u32) -> Self {
        let core = Arc::new(Core::new(CoreParts::standalone(kubelet_root)));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let mut socket = PrivateSocket::bind(directory.path(), NAME).unwrap();
        assert_eq!(socket.asker, 0, "others than root may ask");
        socket.asker = asker;
        let name = Some("node-1".to_owned());
        let node = NodeService::new(Arc::clone(&core), name, Duration::from_secs(10), tasks.clone());
        let node = node.with_at_most(NonZeroU16::new(7));
        let services = CsiServices::new(node, Registration::of(Path::new("/k/csi.sock")));
        tasks.spawn(serve(socket, services, tasks.clone(), stop.clone()));
        Self {
            directory,
            core,
            stop,
            tasks,
        }
    }

    async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let stream = UnixStream::connect(self.directory.path().join(NAME)).await.unwrap();
        let io = TokioIo::new(stream);
        let unknown = |error: hyper::Error| Status::unknown(error.to_string());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.map_err(unknown)?;
        tokio::spawn(connection);
        let send = tower::service_fn(move |request| sender.clone().send_request(request));
        let mut client = Grpc::with_origin(send, Uri::from_static("http://localhost"));
        client.ready().await.map_err(unknown)?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = client.unary(Request::new(request), PathAndQuery::from_static(method), codec);
        Ok(answer.await?.into_inner())
    }
}

#[tokio::test]
async fn the_kubelet_is_told_who_registers_and_which_node_this_is() {
    let driver = Driver::start();
    let info: PluginInfo = driver
        .call("/pluginregistration.Registration/GetInfo", InfoRequest {})
        .await
        .unwrap();
    assert_eq!(
        (info.endpoint.as_str(), info.supported_versions.len()),
        ("/k/csi.sock", 1)
    );
    let info: GetPluginInfoResponse = driver
        .call("/csi.v1.Identity/GetPluginInfo", GetPluginInfoRequest {})
        .await
        .unwrap();
    assert_eq!(info.name, "vcs.mooring.dev");
    let node: NodeGetInfoResponse = driver
        .call("/csi.v1.Node/NodeGetInfo", NodeGetInfoRequest {})
        .await
        .unwrap();
    assert_eq!((node.node_id.as_str(), node.accessible_topology), ("node-1", None));
    assert_eq!(node.max_volumes_per_node, 7);
}

/// The reasons that a volume is not well.
async fn ails(driver: &Driver, id: &str, path: &Path) -> Result<Vec<String>, Code> {
    let request = NodeGetVolumeHealthRequest {
        volume_id: id.into(),
        volume_publish_path: path.to_str().unwrap().into(),
        ..NodeGetVolumeHealthRequest::default()
    };
    let answer: Result<NodeGetVolumeHealthResponse, _> = driver.call("/csi.v1.Node/NodeGetVolumeHealth", request).await;
    let health = answer.map_err(|status| status.code())?.volume_health.unwrap();
    assert_eq!(health.volume_id, id);
    Ok(health.health_statuses.into_iter().map(|found| found.reason).collect())
}

#[tokio::test]
async fn a_volume_that_can_t_be_mounted_is_not_well_and_one_that_nobody_asked_for_is_not_known() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_owned();
    let driver = Driver::start_in(directory, &root, nix::unistd::geteuid().as_raw());
    let target = root.join("pods/u/volumes/kubernetes.io~csi/v/mount");
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    assert_eq!(ails(&driver, "id", &target).await, Err(Code::NotFound));
    assert_eq!(ails(&driver, "id", Path::new("/etc")).await, Err(Code::NotFound));
    assert_eq!(ails(&driver, "", &target).await, Err(Code::InvalidArgument));
    let nowhere = Path::new("");
    assert_eq!(ails(&driver, "id", nowhere).await, Ok(vec![]));
    // No client Pod can be started for it.
    let options = [
        ("client", "sshfs"),
        ("source", "tom@10.0.0.1:/x"),
        ("client-image", "a/b:1"),
    ];
    let request = NodePublishVolumeRequest {
        volume_id: "id".into(),
        target_path: target.to_str().unwrap().into(),
        volume_capability: Some(VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            ..VolumeCapability::default()
        }),
        volume_context: options.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..NodePublishVolumeRequest::default()
    };
    let published: Result<NodePublishVolumeResponse, _> = driver.call("/csi.v1.Node/NodePublishVolume", request).await;
    assert_eq!(published.unwrap_err().code(), Code::Unavailable);
    assert_eq!(ails(&driver, "id", &target).await, Ok(vec!["NotMounted".to_owned()]));
    assert_eq!(ails(&driver, "id", nowhere).await, Ok(vec!["NotMounted".to_owned()]));
    assert_eq!(ails(&driver, "another", nowhere).await, Ok(vec![]));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_told_until_it_answers() {
    let driver = Driver::start();
    let ask = async || -> NodeGetStorageHealthResponse {
        let request = NodeGetStorageHealthRequest::default();
        driver.call("/csi.v1.Node/NodeGetStorageHealth", request).await.unwrap()
    };
    assert_eq!(ask().await.backend_health, []);
    let now = Instant::now();
    let enter = || driver.core.breakers().enter("10.0.0.1 (nfs)", now);
    enter().unwrap().end(CallEnd::Late, now);
    let found = ask().await.backend_health;
    assert!(
        found.len() == 1 && found[0].message.contains("10.0.0.1 (nfs)"),
        "{found:?}"
    );
    assert!(driver.core.breakers().enter("10.0.0.1 (nfs)", now).is_err());
    let later = now + Duration::from_mins(1);
    let probe = driver.core.breakers().enter("10.0.0.1 (nfs)", later).unwrap();
    probe.end(CallEnd::Mounted, later);
    assert_eq!(ask().await.backend_health, []);
}

#[tokio::test]
async fn unserved_and_malformed_calls_get_their_own_grpc_codes() {
    let driver = Driver::start();
    let unknown: Result<NodeStageVolumeResponse, _> = driver
        .call("/csi.v1.Controller/CreateVolume", NodeStageVolumeRequest::default())
        .await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
    let staged: Result<NodeStageVolumeResponse, _> = driver
        .call("/csi.v1.Node/NodeStageVolume", NodeStageVolumeRequest::default())
        .await;
    assert_eq!(staged.unwrap_err().code(), Code::Unimplemented);
    let request = NodePublishVolumeRequest {
        volume_id: "x".into(),
        target_path: "/etc".into(),
        ..NodePublishVolumeRequest::default()
    };
    let published: Result<NodePublishVolumeResponse, _> = driver.call("/csi.v1.Node/NodePublishVolume", request).await;
    let refused = published.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("not under the kubelet's root"),
        "{refused:?}"
    );
}

/// Proves: M3
#[tokio::test]
async fn only_a_volume_of_this_node_is_expanded_and_no_code_ends_what_may_still_come_about() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("kubelet");
    let of_volume = |root: &Path, name: &str| {
        let path = root.join(format!("pods/u/volumes/kubernetes.io~csi/{name}/mount"));
        path.to_str().unwrap().to_owned()
    };
    let missing = of_volume(&root, "missing");
    // These exist as well, and are not of the kubelet's.
    let outside = of_volume(&directory.path().join("outside"), "there");
    let upwards = format!(
        "{}/../outside/pods/u/volumes/kubernetes.io~csi/there/mount",
        root.display()
    );
    let above = format!("{}/pods/u/volumes/kubernetes.io~csi", root.display());
    for path in [&outside, &above] {
        std::fs::create_dir_all(path).unwrap();
    }
    let driver = Driver::start_in(directory, &root, nix::unistd::geteuid().as_raw());
    let unknown = |path: &str| format!("nothing is mounted on {path}");
    for (path, range, code, words) in [
        ("", (1, 0), Code::InvalidArgument, "no target path".to_owned()),
        ("/etc", (1, 0), Code::NotFound, unknown("/etc")),
        (&outside, (1, 0), Code::NotFound, unknown(&outside)),
        (&upwards, (1, 0), Code::NotFound, unknown(&upwards)),
        (&above, (1, 0), Code::NotFound, unknown(&above)),
        (
            &missing,
            (2, 1),
            Code::OutOfRange,
            "at least 2 and at most 1".to_owned(),
        ),
        (
            &missing,
            (1, 0),
            Code::NotFound,
            unknown(missing.trim_end_matches("/mount")),
        ),
    ] {
        let request = NodeExpandVolumeRequest {
            volume_id: "x".into(),
            volume_path: path.into(),
            capacity_range: Some(CapacityRange {
                required_bytes: range.0,
                limit_bytes: range.1,
            }),
            ..NodeExpandVolumeRequest::default()
        };
        let refused: Result<NodeExpandVolumeResponse, _> = driver.call("/csi.v1.Node/NodeExpandVolume", request).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), code, "{path}: {refused:?}");
        assert!(refused.message().contains(&words), "{path}: {refused:?}");
    }
}

#[tokio::test]
async fn a_call_of_another_user_gets_no_answer() {
    let driver = Driver::start_for(nix::unistd::geteuid().as_raw() + 1);
    let refused: Result<NodeGetInfoResponse, _> = driver.call("/csi.v1.Node/NodeGetInfo", NodeGetInfoRequest {}).await;
    refused.unwrap_err();
}

#[tokio::test]
async fn a_driver_that_is_told_to_stop_ends_with_its_connections() {
    let driver = Driver::start();
    let node: Result<NodeGetInfoResponse, _> = driver.call("/csi.v1.Node/NodeGetInfo", NodeGetInfoRequest {}).await;
    node.unwrap();
    driver.stop.cancel();
    driver.tasks.close();
    tokio::time::timeout(Duration::from_secs(5), driver.tasks.wait())
        .await
        .unwrap();
}
