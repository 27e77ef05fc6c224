//! The `FlexVolume` driver: what the kubelet asks through the shim, and what it is answered.
//!
//! Files: [`call`] reads a call-out, [`answer`] writes the answer, [`socket`] is where both pass.

pub mod answer;
pub mod call;
pub mod socket;

use std::time::Instant;

use crate::core::Core;
use answer::Answer;
use call::{Call, CallError};

/// Answers one call-out.
pub async fn handle(core: &Core, args: &[String], deadline: Instant) -> (Answer, &'static str) {
    let call = match Call::parse(args, core.kubelet_root()) {
        Ok(call) => call,
        Err(CallError::NotSupported(_)) => return (Answer::NotSupported, "not-supported"),
        Err(error) => return (Answer::failure(error.to_string()), "bad-call"),
    };
    let result = match call {
        Call::Init => return (Answer::Init, ""),
        Call::GetVolumeName { name } => return (Answer::VolumeName(name), ""),
        Call::Mount(call) => core.mount(call.into_job(deadline)).await,
        Call::Unmount { target } => core.unmount(&target, deadline).await,
        Call::ExpandFs { volume, target, size } => core.expand(&volume, &target, size, deadline).await,
    };
    match result {
        Ok(()) => (Answer::Success, ""),
        Err(error) => (Answer::failure(error.to_string()), error.category()),
    }
}
