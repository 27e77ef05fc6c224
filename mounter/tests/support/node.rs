//! A node for the programs of images: the kernel's folders and the commands are files of a temporary directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mooring_mounter::agent::protocol::MountCall;
use mooring_mounter::volume::device_owner::DeviceOwner;

/// A node whose commands write down how they were called.
pub(crate) struct Node {
    directory: tempfile::TempDir,
}

impl Node {
    /// A node for a program below `images`, such as `client-block/node-disk`.
    pub(crate) fn new(program: &str) -> Self {
        let node = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        for folder in [
            "bin",
            "lib",
            "sys/block",
            "kubelet",
            "run/mooring/mounts",
            "secrets",
            "tmp",
        ] {
            fs::create_dir_all(node.at(folder)).unwrap();
        }
        let images = images();
        // What the program reads is in `images/lib`, and beside it.
        let beside = images.join(program).with_file_name("");
        for folder in [images.join("lib"), beside] {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "sh") {
                    node.copy(&path, &node.at("lib").join(path.file_name().unwrap()));
                }
            }
        }
        node.copy(&images.join(program), &node.at("program"));
        node.write("boot_id", "boot-1\n");
        node.write("mountinfo", "");
        node.command("mount", "");
        // Only claims are the agent's own.
        let agent = env!("CARGO_BIN_EXE_mounter");
        node.command("agent", &format!("[ \"$1\" != claim-device ] || exec {agent} \"$@\""));
        node.command("blockdev", "");
        node.command("dumpe2fs", "");
        node.command("sleep", "exec true");
        node.command("mknod", "exec touch \"$1\"");
        node
    }

    /// Copies a program, with the node's paths in place of the system's.
    fn copy(&self, from: &Path, to: &Path) {
        let mut text = fs::read_to_string(from).unwrap();
        for (path, ours) in [
            // The node itself may be there: before any of its paths is in the text.
            ("/tmp/", "tmp/"),
            ("/usr/libexec/mooring-lib", "lib"),
            ("/proc/self/mountinfo", "mountinfo"),
            ("/proc/sys/kernel/random/boot_id", "boot_id"),
            ("/proc/", "proc/"),
            ("/sys/", "sys/"),
            ("/run/mooring-devices", "devices"),
            ("/run/mooring/", "run/mooring/"),
            ("/etc/iscsi", "etc/iscsi"),
            ("/etc/tgt", "etc/tgt"),
        ] {
            text = text.replace(path, &self.at(ours).display().to_string());
        }
        fs::write(to, text).unwrap();
    }

    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Writes a file below the node's directory.
    pub(crate) fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Replaces a command, which finds the node's directory in `$NODE`.
    pub(crate) fn command(&self, name: &str, script: &str) {
        let calls = self.at("calls");
        let text = format!("#!/bin/sh\necho {name} \"$@\" >>{}\n{script}\n", calls.display());
        let path = self.at("bin").join(name);
        let _alone = alone();
        self.write(&path, text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Gives a volume a target below the kubelet's root, as the agent records it.
    pub(crate) fn target(&self, volume: &str, target: &str) {
        self.target_of(volume, target, None);
    }

    /// The same for a volume of which the mounter said whose it is.
    pub(crate) fn target_of(&self, volume: &str, target: &str, owner: Option<&DeviceOwner>) {
        let target = self.at("kubelet").join(target);
        fs::create_dir_all(&target).unwrap();
        let call: MountCall = serde_json::from_value(serde_json::json!({
            "target": target, "client": "of-the-test", "source": "", "owner": owner, "limit_ms": 1
        }))
        .unwrap();
        let record = serde_json::to_string(&call).unwrap();
        self.write(format!("run/mooring/mounts/{volume}.json"), record);
    }

    /// Runs the program for a volume with variables such as `MOORING_OPTION_…`. Without a target of its own, the volume
    /// is of PersistentVolume `pv-1`.
    pub(crate) fn run(&self, volume: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
        if !self.at(format!("run/mooring/mounts/{volume}.json")).exists() {
            self.target(volume, &format!("pods/{volume}/volumes/mooring.dev~vcs/pv-1"));
        }
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("sh");
        command.arg(self.at("program")).args(args).env("PATH", path);
        command
            .env("NODE", self.directory.path())
            .env("MOORING_KUBELET_ROOT", self.at("kubelet"))
            .env("MOORING_AGENT", self.at("bin/agent"))
            .env("MOORING_VOLUME", volume)
            .env("MOORING_STATE", self.at("state"))
            .env("MOORING_SECRETS", self.at("secrets").join(volume))
            .env("MOORING_MOUNT_OPTIONS", "nosuid,nodev")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started = {
            let _alone = alone();
            command.spawn()
        };
        let output = started.unwrap().wait_with_output().unwrap();
        if args.first() == Some(&"unmount") && output.status.success() {
            self.withdraw_claims(volume);
        }
        output
    }

    /// Withdraws the claims of a volume's target, as the agent does after an unmount.
    fn withdraw_claims(&self, volume: &str) {
        let record = fs::read(self.at(format!("run/mooring/mounts/{volume}.json"))).unwrap();
        let call: MountCall = serde_json::from_slice(&record).unwrap();
        let Ok(claims) = fs::read_dir(self.at("kubelet/plugins/mooring.dev/claims")) else {
            return;
        };
        for claim in claims {
            let path = claim.unwrap().path();
            if fs::read_to_string(&path)
                .unwrap()
                .contains(&format!("{:?}", call.target))
            {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// How the commands were called, each call after a line's end.
    pub(crate) fn calls(&self) -> String {
        let calls = fs::read_to_string(self.at("calls")).unwrap_or_default();
        format!("\n{calls}")
    }
}

pub(crate) fn images() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../images")
}

/// What a program says that refuses a volume.
pub(crate) fn refusal(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(75), "the volume is not refused: {said}");
    said
}

/// While a test writes a command, no other may start a program: until that is executed, it would have the file open for
/// writing too, and whoever runs the command meanwhile gets "Text file busy".
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
