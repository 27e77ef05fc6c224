//! CSI's service Identity: which driver this is.

use mooring_contract::names::CSI_DRIVER;
use mooring_csi_proto::csi::identity_server;
use mooring_csi_proto::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use crate::drivers::call_out;

#[derive(Debug, Clone, Copy)]
pub(super) struct IdentityService;

#[tonic::async_trait]
impl identity_server::Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(call_out::asked("GetPluginInfo", || {
            Response::new(GetPluginInfoResponse {
                name: CSI_DRIVER.to_owned(),
                vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
                ..GetPluginInfoResponse::default()
            })
        }))
    }

    /// None: there is no controller service, and where a volume can be used its `PersistentVolume` says.
    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(call_out::asked("GetPluginCapabilities", || {
            Response::new(GetPluginCapabilitiesResponse::default())
        }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(call_out::asked("Probe", || {
            Response::new(ProbeResponse { ready: Some(true) })
        }))
    }
}
