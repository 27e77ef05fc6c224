//! The `FlexVolume` driver: what the kubelet asks through the shim, and what it is answered.
//!
//! Files: [`call`] reads a call-out, [`answer`] writes the answer, [`socket`] is where both pass.

pub mod answer;
pub mod call;
pub mod socket;

use std::time::Instant;

use tracing::Span;

use crate::core::Core;
use answer::FlexVolumeAnswer;
use call::{CallOutError, FlexVolumeCall};

pub async fn handle(core: &Core, args: &[String], deadline: Instant) -> (FlexVolumeAnswer, &'static str) {
    let call = match FlexVolumeCall::parse(args, core.kubelet_root()) {
        Ok(call) => call,
        Err(CallOutError::NotSupported(_)) => return (FlexVolumeAnswer::NotSupported, "not-supported"),
        Err(error) => return (FlexVolumeAnswer::failure(error.to_string()), "bad-call"),
    };
    let result = match call {
        FlexVolumeCall::Init => return (FlexVolumeAnswer::Init, ""),
        FlexVolumeCall::GetVolumeName { name } => return (FlexVolumeAnswer::VolumeName(name), ""),
        FlexVolumeCall::Mount(call) => core.mount(*call, deadline).await,
        FlexVolumeCall::Unmount { target } => core.unmount(&target, deadline).await,
        FlexVolumeCall::ExpandFs { volume, target, size } => {
            Span::current().record("volume.client", volume.client.as_str());
            core.expand(&target, size, deadline).await
        }
    };
    match result {
        Ok(()) => (FlexVolumeAnswer::Success, ""),
        Err(error) => (FlexVolumeAnswer::failure(error.to_string()), error.category()),
    }
}
