//! The kubelet's service Registration: the kubelet asks behind each socket in its registry which driver that is, and
//! says whether it registered the driver.

use std::path::Path;

use mooring_contract::names::CSI_DRIVER;
use mooring_csi_proto::registration::registration_server;
use mooring_csi_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::drivers::call_out;

/// What the kubelet calls a CSI driver (`pkg/apis/pluginregistration/v1/constants.go`).
const CSI_PLUGIN: &str = "CSIPlugin";

/// The least version of CSI 1: the kubelet takes no version in the place of a higher one.
const VERSION: &str = "1.0.0";

#[derive(Debug, Clone)]
pub(super) struct Registration {
    endpoint: String,
}

impl Registration {
    pub(super) fn of(socket: &Path) -> Self {
        Self {
            endpoint: socket.display().to_string(),
        }
    }
}

#[tonic::async_trait]
impl registration_server::Registration for Registration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(call_out::asked("GetInfo", || {
            Response::new(PluginInfo {
                r#type: CSI_PLUGIN.to_owned(),
                name: CSI_DRIVER.to_owned(),
                endpoint: self.endpoint.clone(),
                supported_versions: vec![VERSION.to_owned()],
            })
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        Ok(call_out::asked("NotifyRegistrationStatus", || {
            if status.plugin_registered {
                info!("the kubelet has registered CSI driver {CSI_DRIVER}");
            } else {
                warn!(
                    "the kubelet did not register CSI driver {CSI_DRIVER}, and tries again: {}",
                    status.error
                );
            }
            Response::new(RegistrationStatusResponse::default())
        }))
    }
}

#[cfg(test)]
mod tests {
    use mooring_csi_proto::registration::InfoRequest;
    use mooring_csi_proto::registration::registration_server::Registration as _;
    use tonic::Request;

    use super::Registration;
    use crate::drivers::csi::socket;

    #[tokio::test]
    async fn the_kubelet_is_told_where_the_driver_s_socket_is() {
        let registration = Registration::of(&socket("/var/lib/k0s/kubelet".as_ref()));
        let info = registration
            .get_info(Request::new(InfoRequest {}))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(info.endpoint, "/var/lib/k0s/kubelet/plugins/vcs.mooring.dev/csi.sock");
        assert_eq!(
            (info.r#type.as_str(), info.name.as_str()),
            ("CSIPlugin", "vcs.mooring.dev")
        );
    }
}
