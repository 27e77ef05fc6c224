//! The agent: this program run inside a client container, so that any image can be a client image. Runs there; the
//! daemon uses [`protocol`] to speak with it.
//!
//! It listens on a socket in an emptyDir of its Pod, which the mounter reaches under the kubelet's root, and mounts
//! what the mounter asks for by the image's own programs ([`program`] has their contract). Files: [`protocol`] (what is
//! said), [`serve`] (the socket), [`mounts`] (what is done), [`record`] (what an image says of its client),
//! [`run`](mod@run) (running a program), [`target_mounts`] (system calls on targets), [`revive`] (mounting again what
//! has died, as often as [`revivals`] lets it), `expand` (letting a volume grow), [`claims`] (which volume has a device
//! of the node), `share` (one device for all Pods of a volume, `one_at_a_time`), [`give_up`] (ending what nobody waits
//! for any more), [`services`] (what the agent does for the image's programs besides), `image_daemon` (the daemon that
//! all volumes of an image need), [`store`] (its own files), [`supervise`] (process 1), `oom_score` (whom the kernel
//! ends first where memory is short), [`install`] (how it comes into the Pod).

pub mod claims;
mod dead_mounts;
mod expand;
pub mod give_up;
pub mod grow_file_system;
mod image_daemon;
pub mod install;
pub mod make_file_system;
pub mod mount_device;
pub mod mounts;
mod one_at_a_time;
mod oom_score;
pub mod program;
pub mod protocol;
pub mod record;
pub mod revivals;
pub mod revive;
pub mod run;
pub mod serve;
pub mod services;
mod share;
pub mod store;
pub mod supervise;
pub mod target_mounts;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mooring_program::error::chain;
use mooring_program::log;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use self::mounts::Mounts;
use self::store::Store;

/// Longest for an image's own start: until then no volume is mounted.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Flags of `mounter agent`.
#[derive(Debug, Clone, clap::Args)]
pub struct AgentArgs {
    /// Directory for the agent's socket and its own files: an emptyDir of its Pod.
    #[arg(long, default_value = "/run/mooring")]
    pub dir: PathBuf,
    /// The kubelet's root directory, mounted at the same path with Bidirectional propagation.
    #[arg(long, env = "MOORING_KUBELET_ROOT", default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentProcessError {
    #[error("failed to start the agent's runtime")]
    Runtime(#[source] io::Error),
    /// As process 1.
    #[error(transparent)]
    Supervise(#[from] supervise::SuperviseError),
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error(transparent)]
    Serve(#[from] serve::ServeError),
}

/// Runs the agent until it was told to end and its last mount is gone. As process 1 of its container it runs itself
/// once more and stays beside it: see [`supervise`].
pub fn run(args: AgentArgs) -> Result<(), AgentProcessError> {
    log::start_by_environment();
    let is_first = std::process::id() == 1;
    // Before there is another thread or process, which inherits it.
    oom_score::lower(is_first);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AgentProcessError::Runtime)?;
    let result = if is_first {
        runtime
            .block_on(supervise::supervise(&args.kubelet_root))
            .map_err(Into::into)
    } else {
        runtime.block_on(agent(args))
    };
    // A system call may be stuck on a dead server: nothing waits for it.
    runtime.shutdown_background();
    result
}

async fn agent(args: AgentArgs) -> Result<(), AgentProcessError> {
    let AgentArgs { dir, kubelet_root } = args;
    let store = Store::open(&dir)?;
    if let Err(error) = supply_mount_table(Path::new("/etc/mtab")) {
        warn!(
            error = %chain(&error),
            "the image has no /etc/mtab, and the agent failed to make it: some mount programs want it"
        );
    }
    let mounts = Mounts::new(kubelet_root.clone(), store)?;
    start_image().await;
    let daemon_dir = dir.clone();
    let _daemon = AbortOnDropHandle::new(tokio::spawn(async move {
        if let Err(error) = image_daemon::keep(&daemon_dir, &kubelet_root).await {
            warn!("{}", chain(&error));
        }
    }));
    Ok(serve::serve(&dir, Arc::new(mounts)).await?)
}

/// Makes `/etc/mtab` where an image has none, as slim ones of Debian: docker gives it to each container, and containerd
/// does not.
fn supply_mount_table(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::os::unix::fs::symlink("/proc/self/mounts", path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Runs what the image has to have run before its first volume. What becomes of volumes without it, the image's
/// programs say.
async fn start_image() {
    let start = program::start();
    if start.program.is_file()
        && let Err(error) = run::run(&start, START_LIMIT).await
    {
        warn!("{}", chain(&error));
    }
}

#[cfg(test)]
mod tests {
    use super::supply_mount_table;

    #[test]
    fn an_image_without_a_mount_table_gets_one_and_another_keeps_its_own() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("etc/mtab");
        supply_mount_table(&path).unwrap();
        assert_eq!(std::fs::read_link(&path).unwrap().to_str(), Some("/proc/self/mounts"));
        supply_mount_table(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "its own").unwrap();
        supply_mount_table(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "its own");
    }
}
