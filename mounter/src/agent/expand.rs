//! Lets a mounted volume use what its storage has gained.

use std::sync::Arc;
use std::time::Duration;

use super::mounts::{AgentError, Mounts, for_program, in_thread};
use super::run::ProgramError;
use super::{program, run, target_mounts};
use crate::deadlines::AgentDeadlines;

/// The exit code of the image's program where the volume keeps its size for as long as it is mounted: `EX_CONFIG`, as
/// where a run of an image is not to be tried again.
const KEEPS_ITS_SIZE: i32 = 78;

impl Mounts {
    /// Expands a volume to `size` bytes at least: by the image's own program, and without one only if there is nothing
    /// to do.
    pub async fn expand(self: &Arc<Self>, path: &str, size: u64, limit: Duration) -> Result<(), AgentError> {
        let deadlines = AgentDeadlines::of(limit);
        let target = self.target(path)?;
        let _busy = self.begin(path)?;
        let call = self.record_of(path)?;
        let mut invocation = program::expand(&call, &target.path(), size)?;
        invocation
            .env
            .extend(self.services.environment(&self.store.volume(path)));
        let looked = in_thread(path, move || {
            // The program follows the path by itself: this shows that there is no link on the way.
            target.open()?;
            if target.is_device() {
                return Ok(target.device()?);
            }
            Ok::<_, AgentError>(target_mounts::device(&target)?)
        });
        let device = looked.await?;
        if invocation.program.is_file() {
            let grown = run::run(&invocation, for_program(path, deadlines)?).await;
            return grown.map_err(failed);
        }
        match device {
            // Its server has given it more room already.
            Some(device) if !device.is_of_a_device() => Ok(()),
            _ => Err(AgentError::NoExpansion {
                program: invocation.program.display().to_string(),
            }),
        }
    }
}

fn failed(error: ProgramError) -> AgentError {
    match error {
        ProgramError::Failed { status, .. } if status.code() == Some(KEEPS_ITS_SIZE) => AgentError::KeepsItsSize(error),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;
    use std::sync::Arc;
    use std::time::Duration;

    use super::failed;
    use crate::agent::mounts::Mounts;
    use crate::agent::protocol::{AgentFailure, FailureCategory, MountCall};
    use crate::agent::run::{OutputLines, ProgramError};
    use crate::agent::store::{self, Store};

    /// Until the kubelet goes on without it, no further Pod of the volume starts.
    #[test]
    fn a_volume_that_keeps_its_size_while_it_is_mounted_is_not_tried_again() {
        for (code, category) in [(78, FailureCategory::Invalid), (75, FailureCategory::Refused)] {
            let error = failed(ProgramError::Failed {
                program: "block.expand".to_owned(),
                status: ExitStatus::from_raw(code << 8),
                last_lines: OutputLines::default(),
            });
            assert_eq!(AgentFailure::from(&error).category, category, "{code}");
        }
    }

    /// After [`FailureCategory::Invalid`] the kubelet goes on without the expansion.
    #[tokio::test]
    async fn a_volume_that_can_t_be_looked_at_just_now_is_to_be_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = Arc::new(Mounts::new(dir.path().to_owned(), Store::unprepared(dir.path())).unwrap());
        let target = dir.path().join("pods/u/volumes/mooring.dev~vcs/v");
        let json = serde_json::json!({"target": target, "client": "nfs", "source": "h:/e", "limit_ms": 1000});
        let call: MountCall = serde_json::from_value(json).unwrap();
        mounts.store.record(&call, &store::id(&call.target)).unwrap();
        let unmounted = format!("{}-unmounted", call.target);
        for target in [&call.target, &unmounted] {
            let error = mounts.expand(target, 1, Duration::from_mins(1)).await.unwrap_err();
            let category = AgentFailure::from(&error).category;
            assert_eq!(category, FailureCategory::System, "{error}");
        }
    }
}
