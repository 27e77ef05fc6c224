use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mooring_csi_proto::csi::{
    CapacityRange, GetPluginInfoRequest, GetPluginInfoResponse, NodeExpandVolumeRequest, NodeExpandVolumeResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeStageVolumeRequest, NodeStageVolumeResponse,
};
use mooring_csi_proto::registration::{InfoRequest, PluginInfo};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::client::Grpc;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::{Services, serve};
use crate::core::metrics::MounterMetrics;
use crate::core::{Core, Places};
use crate::drivers::csi::node::Node;
use crate::drivers::csi::registration::Registration;
use crate::drivers::socket::PrivateSocket;
use crate::volume::registry::Registry;

const NAME: &str = "csi.sock";

/// A driver that is asked as the kubelet asks.
struct Driver {
    directory: tempfile::TempDir,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Driver {
    /// One that this process may ask, whoever runs it.
    fn start() -> Self {
        Self::start_for(rustix::process::geteuid().as_raw())
    }

    fn start_for(asker: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let places = Places {
            kubelet_root: "/kubelet".into(),
            pool: "/pool".into(),
            host_namespace: None,
        };
        let core = Arc::new(Core::new(places, Registry::default(), None, MounterMetrics::default()));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let mut socket = PrivateSocket::bind(directory.path(), NAME).unwrap();
        assert_eq!(socket.asker, 0, "others than root may ask");
        socket.asker = asker;
        let node = Node::new(core, Some("node-1".to_owned()), Duration::from_secs(10), tasks.clone());
        let services = Services::new(node, Registration::of(Path::new("/k/csi.sock")));
        tasks.spawn(serve(socket, services, tasks.clone(), stop.clone()));
        Self { directory, stop, tasks }
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
}

#[tokio::test]
async fn what_is_not_served_and_what_makes_no_sense_is_said_by_its_code() {
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
    let driver = Driver::start();
    let directory = "/kubelet/pods/u/volumes/kubernetes.io~csi/v/mount";
    for (path, range, code) in [
        ("", (1, 0), Code::InvalidArgument),
        ("/etc", (1, 0), Code::NotFound),
        (directory, (2, 1), Code::OutOfRange),
        (directory, (1, 0), Code::NotFound),
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
        assert_eq!(refused.unwrap_err().code(), code, "{path}");
    }
}

#[tokio::test]
async fn a_call_of_another_user_gets_no_answer() {
    let driver = Driver::start_for(rustix::process::geteuid().as_raw() + 1);
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
