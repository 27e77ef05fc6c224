//! Imports images into a containerd that does not run yet: unpacking them in the machine would take several times as
//! long.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::binaries::Binaries;
use crate::command::{command, output};
use crate::layout::{make_folder, write_file};
use crate::wait::{Look, wait_for};

/// Longest until containerd accepts images.
const START_LIMIT: Duration = Duration::from_mins(1);

/// A containerd without a node. It ends when this is dropped, and when the thread that started it ends.
struct Importer {
    child: Child,
    socket: PathBuf,
}

/// Imports images below `root`.
pub(super) fn into_containerd(binaries: &Binaries, images: &[PathBuf], root: &Path, work: &Path) -> Result<()> {
    let importer = Importer::start(binaries, root, work)?;
    for image in images {
        let mut ctr = command(binaries.path("ctr"), ["--address"]);
        ctr.arg(&importer.socket)
            .args(["-n", "k8s.io", "images", "import"])
            .arg(image);
        output(&mut ctr)?;
    }
    Ok(())
}

impl Importer {
    fn start(binaries: &Binaries, root: &Path, work: &Path) -> Result<Self> {
        make_folder(root)?;
        let (state, socket, log) = (work.join("state"), work.join("socket"), work.join("importer.log"));
        let config = work.join("importer.toml");
        write_file(
            &config,
            format!(
                r#"version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri"]

[grpc]
address = "{socket}"

[plugins.'io.containerd.internal.v1.opt']
path = "{root}/opt"
"#,
                root = root.display(),
                state = state.display(),
                socket = socket.display(),
            ),
        )?;
        let said = std::fs::File::create(&log).with_context(|| format!("failed to make {}", log.display()))?;
        // Its mounts for unpacking end with its mount namespace.
        let mut enter = command("unshare", ["--mount", "--", "setpriv", "--pdeathsig", "KILL", "--"]);
        enter
            .arg(binaries.path("containerd"))
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(said.try_clone().context("failed to share the log")?)
            .stderr(said);
        let child = enter.spawn().context("failed to run containerd")?;
        let mut importer = Self { child, socket };
        wait_for("containerd to take images", START_LIMIT, &[log], || {
            if let Ok(Some(status)) = importer.child.try_wait() {
                return Look::NotYet(format!("it has ended ({status})"));
            }
            let mut ask = command(binaries.path("ctr"), ["--address"]);
            match output(ask.arg(&importer.socket).args(["--connect-timeout=1s", "version"])) {
                Ok(_) => Look::Ready(()),
                Err(error) => Look::NotYet(error.to_string()),
            }
        })?;
        Ok(importer)
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        // With SIGTERM first, so that it writes what it has in memory about the images.
        let pid = i32::try_from(self.child.id()).unwrap_or(i32::MAX);
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
