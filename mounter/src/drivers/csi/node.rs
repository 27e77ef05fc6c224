//! CSI's service Node: mounts and unmounts, and how a volume is.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooring_contract::names::CSI_DEVICES_DIR;
use mooring_csi_proto::csi::node_server;
use mooring_csi_proto::csi::node_service_capability::{Rpc, Type, rpc};
use mooring_csi_proto::csi::volume_usage::Unit;
use mooring_csi_proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetStorageHealthRequest, NodeGetStorageHealthResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, VolumeHealth, VolumeUsage,
};
use mooring_program::error::chain;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};
use tracing::{Instrument, warn};

use super::failure::CsiError;
use super::health::FailedMounts;
use super::publish::CsiRequestError;
use super::{expand, health, publish};
use crate::core::Core;
use crate::core::client::Trouble;
use crate::deadlines;
use crate::drivers::call_out::{self, CallOutcome, EXPAND, MOUNT, STATS, UNMOUNT};
use crate::volume::job::{MountError, mount_table};
use crate::volume::mount_table::MountEntry;
use crate::volume::target::{Driver, Target, TargetError};
use crate::volume::volume_data;
use crate::worker::usage::Usage;

/// How long a volume may take to say how full it is: the kubelet asks for one after another.
const STATS_LIMIT: Duration = Duration::from_secs(10);

/// What this service can do beyond what every one can.
const CAPABILITIES: [rpc::Type; 6] = [
    rpc::Type::GetVolumeStats,
    rpc::Type::GetVolumeHealth,
    rpc::Type::GetStorageHealth,
    rpc::Type::ExpandVolume,
    // With it the kubelet tells ReadWriteOncePod from ReadWriteOnce.
    rpc::Type::SingleNodeMultiWriter,
    // The kubelet says a Pod's fsGroup, which a mounter can't see in the Pod before Kubernetes 1.36.
    rpc::Type::VolumeMountGroup,
];

/// Mounts and unmounts by the core.
#[derive(Clone)]
pub(super) struct NodeService {
    core: Arc<Core>,
    name: Option<String>,
    max_volumes: Option<NonZeroU16>,
    limit: Duration,
    failed: FailedMounts,
    /// What is being done, whether or not somebody waits for it.
    calls: TaskTracker,
}

impl NodeService {
    /// Of the node of this name. A call has its answer within `limit`; `calls` are those in progress.
    pub(super) fn new(core: Arc<Core>, name: Option<String>, limit: Duration, calls: TaskTracker) -> Self {
        Self {
            core,
            name,
            max_volumes: None,
            limit: deadlines::inner(limit),
            failed: FailedMounts::default(),
            calls,
        }
    }

    pub(super) fn with_at_most(self, max_volumes: Option<NonZeroU16>) -> Self {
        Self { max_volumes, ..self }
    }

    /// Does what a call asks for, to its end. A kubelet that goes away half-way asks again, and the answer is then that
    /// the call is in progress.
    async fn call<T: Send + 'static>(
        &self,
        call: &'static str,
        act: impl Future<Output = Result<T, CsiError>> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let core = Arc::clone(&self.core);
        let answered = async move {
            let start = Instant::now();
            let result = act.await;
            let outcome = match &result {
                Ok(_) => CallOutcome::Success,
                Err(error) => CallOutcome::Failure {
                    category: error.category(),
                    message: error,
                },
            };
            call_out::answered(core.metrics(), call, start.elapsed(), &outcome);
            result
        };
        match self.calls.spawn(answered.instrument(call_out::span(call))).await {
            Ok(result) => Ok(Response::new(result?)),
            Err(error) => Err(Status::internal(format!("the call's task broke: {error}"))),
        }
    }
}

#[tonic::async_trait]
impl node_server::Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let (core, deadline) = (Arc::clone(&self.core), Instant::now() + self.limit);
        let failed = self.failed.clone();
        self.call(MOUNT, async move {
            let request = request.into_inner();
            let volume_id = request.volume_id.clone();
            let request = publish::mount(request, core.kubelet_root())?;
            let target = request.target.clone();
            // The kubelet has made its parent only.
            target.make()?;
            let mounted = core.mount(request, deadline).await;
            failed.note(&target, &volume_id, &mounted, Instant::now());
            let mounted = mounted.map_err(CsiError::from);
            if let Err(error) = &mounted
                && error.is_final()
                && target.is_device()
                && let Err(error) = target.remove()
            {
                // The kubelet would remove a directory, but it asks nobody about a raw block volume that it never got.
                warn!(target.path = %target, error = %chain(&error), "its file stays");
            }
            mounted.map(|()| NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let (core, deadline) = (Arc::clone(&self.core), Instant::now() + self.limit);
        let failed = self.failed.clone();
        self.call(UNMOUNT, async move {
            let request = request.into_inner();
            publish::named(&request.volume_id)?;
            let target = publish::target(core.kubelet_root(), &request.target_path)?;
            core.unmount(&target, deadline).await?;
            failed.forget(&target);
            target.remove()?;
            Ok(NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let (core, deadline) = (Arc::clone(&self.core), Instant::now() + self.limit);
        self.call(EXPAND, async move {
            let request = request.into_inner();
            publish::named(&request.volume_id)?;
            let target = mounted(&core, &request.volume_path)?;
            let size = expand::size(request.capacity_range)?;
            // A volume that this node does not have is an end to the kubelet. One that is not mounted just now is not.
            if let Err(TargetError::Missing(path)) = target.open_parent() {
                return Err(CsiError::NotMounted(path.display().to_string()));
            }
            core.expand(&target, size, deadline).await?;
            Ok(NodeExpandVolumeResponse {
                capacity_bytes: i64::try_from(size).unwrap_or_default(),
            })
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let core = Arc::clone(&self.core);
        self.call(STATS, async move {
            let request = request.into_inner();
            publish::named(&request.volume_id)?;
            let target = mounted(&core, &request.volume_path)?;
            let source = core
                .source_of(&target)?
                .ok_or_else(|| CsiError::NotMounted(target.to_string()))?;
            let usage = core.usage(&target, &source, Instant::now() + STATS_LIMIT).await?;
            Ok(NodeGetVolumeStatsResponse { usage: usages(usage) })
        })
        .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let (core, failed) = (Arc::clone(&self.core), self.failed.clone());
        self.call(STATS, async move {
            let request = request.into_inner();
            publish::named(&request.volume_id)?;
            let found = match request.volume_publish_path.as_str() {
                // The kubelet has no path of a volume that it never got, and names none of a raw block volume.
                "" => match trouble_of_device(&core, &request.volume_id)? {
                    Some(trouble) => Some(health::troubled(&trouble)),
                    None => failed.of(None, &request.volume_id, Instant::now()),
                },
                path => {
                    let target = mounted(&core, path)?;
                    match (core.source_of(&target)?, core.trouble(&target)) {
                        // What is known already costs no worker, and no time.
                        (Some(_), Some(trouble)) => Some(health::troubled(&trouble)),
                        (Some(source), None) => {
                            let used = core.usage(&target, &source, Instant::now() + STATS_LIMIT).await;
                            used.err().map(|error| health::unanswered(&error, &source))
                        }
                        (None, _) => {
                            let found = failed.of(Some(&target), &request.volume_id, Instant::now());
                            Some(found.ok_or_else(|| CsiError::NotMounted(target.to_string()))?)
                        }
                    }
                }
            };
            Ok(NodeGetVolumeHealthResponse {
                volume_health: Some(VolumeHealth {
                    volume_id: request.volume_id,
                    health_statuses: found.into_iter().collect(),
                }),
            })
        })
        .await
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        let core = Arc::clone(&self.core);
        self.call(STATS, async move {
            let tripped = core.breakers().tripped(Instant::now());
            Ok(NodeGetStorageHealthResponse {
                backend_health: health::of_the_storage(&tripped, core.obstacle()),
            })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capabilities = CAPABILITIES.map(|can| NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: can.into() })),
        });
        Ok(call_out::asked("NodeGetCapabilities", || {
            Response::new(NodeGetCapabilitiesResponse {
                capabilities: capabilities.into(),
            })
        }))
    }

    /// Returns no topology: the kubelet would put it on the Node as labels. A `PersistentVolume` says by other labels
    /// which nodes can have its volume ([`crate::daemon::publish`]).
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        call_out::asked("NodeGetInfo", || {
            Ok(Response::new(NodeGetInfoResponse {
                node_id: self.name.clone().ok_or(CsiError::NoNode)?,
                // 0 is no limit.
                max_volumes_per_node: self.max_volumes.map_or(0, |most| most.get().into()),
                ..NodeGetInfoResponse::default()
            }))
        })
    }
}

/// The target that a question about a mounted volume names. CSI wants `NOT_FOUND` for any other path.
fn mounted(core: &Core, path: &str) -> Result<Target, CsiError> {
    match publish::mounted(core.kubelet_root(), path) {
        Err(CsiRequestError::Target(_)) => Err(CsiError::NotMounted(path.to_owned())),
        target => Ok(target?),
    }
}

/// What is wrong with the raw block volume of this id, as its client has heard.
fn trouble_of_device(core: &Core, volume_id: &str) -> Result<Option<Trouble>, CsiError> {
    let root = core.kubelet_root();
    let devices = root.join(CSI_DEVICES_DIR.iter().collect::<PathBuf>());
    let table = mount_table()?;
    let target = |entry: &MountEntry| Target::parse_as(Driver::CsiDevice, root, entry.mount_point.to_str()?).ok();
    for target in table.known_volumes(root).filter_map(target) {
        let is_it = volume_data::is_our_device_of(&devices, target.name().as_ref(), volume_id);
        let is_it = is_it.map_err(MountError::failed_to(format!("read which volume is on {target}")))?;
        if is_it && let Some(trouble) = core.trouble(&target) {
            return Ok(Some(trouble));
        }
    }
    Ok(None)
}

/// Of a device only the total is known. The other fields are optional, and 0 is their default, which is not sent: see
/// "REQUIRED vs. OPTIONAL" in CSI's `spec.md`.
fn usages(usage: Usage) -> Vec<VolumeUsage> {
    let one = |unit: Unit, total: u64, free: u64, available: u64| {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        VolumeUsage {
            available: signed(available),
            total: signed(total),
            used: signed(total.saturating_sub(free)),
            unit: unit.into(),
        }
    };
    let bytes = one(Unit::Bytes, usage.bytes, usage.bytes_free, usage.bytes_available);
    // Many file systems of servers count no files.
    let inodes = (usage.inodes > 0).then(|| one(Unit::Inodes, usage.inodes, usage.inodes_free, usage.inodes_free));
    std::iter::once(bytes).chain(inodes).collect()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::{Unit, Usage, VolumeUsage, usages};

    #[test]
    fn of_a_raw_block_volume_only_its_size_is_reported() {
        let device = Usage {
            bytes: 1 << 30,
            bytes_free: 1 << 30,
            bytes_available: 0,
            inodes: 0,
            inodes_free: 0,
        };
        let size = VolumeUsage {
            total: 1 << 30,
            unit: Unit::Bytes.into(),
            ..VolumeUsage::default()
        };
        let reported = usages(device);
        assert_eq!(reported, [size]);
        // The fields 2 and 4, and no others: total and unit.
        assert_eq!(
            reported[0].encode_to_vec(),
            [0x10, 0x80, 0x80, 0x80, 0x80, 0x04, 0x20, 0x01]
        );
    }

    #[test]
    fn of_a_file_system_that_counts_no_files_only_its_bytes_are_reported() {
        let usage = Usage {
            bytes: 100,
            bytes_free: 60,
            bytes_available: 50,
            inodes: 0,
            inodes_free: 0,
        };
        let bytes = |usage| {
            usages(usage)
                .into_iter()
                .map(|one| (one.used, one.available, one.unit))
                .collect::<Vec<_>>()
        };
        assert_eq!(bytes(usage), [(40, 50, Unit::Bytes.into())]);
        let counted = Usage {
            inodes: 10,
            inodes_free: 7,
            ..usage
        };
        assert_eq!(bytes(counted)[1], (3, 7, Unit::Inodes.into()));
    }
}
