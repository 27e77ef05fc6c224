//! The services that an image's program can ask for: the arguments of `mounter service`, which are sent to the agent
//! unchanged.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use crate::volume::selinux_label::SelinuxLabel;
use crate::volume::volume_id::VolumeId;

/// A service of the agent for one volume. It ends with the volume.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceCall {
    /// Start a program that the volume needs while it is mounted, and return when it is ready.
    ///
    /// When it ends by itself, the volume's later daemons are ended too, and a file system that died with them is
    /// mounted again. After the volume was unmounted, the program gets SIGTERM, and SIGKILL after 10 s.
    Daemon {
        /// The program goes to the background by itself, is ready then, and writes its process id to this file.
        #[arg(long, value_name = "FILE", conflicts_with = "ready")]
        pid_file: Option<PathBuf>,
        /// The program stays in the foreground, and is ready when this path exists; a directory counts when a file
        /// system is mounted on it and answers.
        #[arg(long, value_name = "PATH")]
        ready: Option<PathBuf>,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        program: Vec<String>,
    },
    /// Attach a file to a free loop device and print the device, which is detached when the volume is unmounted.
    Loop {
        /// The file, such as one that a daemon provides.
        file: PathBuf,
        /// Attach it read-only.
        #[arg(long)]
        read_only: bool,
        /// Read and write past the node's cache of the file: what another node writes is seen then.
        #[arg(long)]
        direct: bool,
    },
    /// Kill the volume's daemons when their server has been silent for too long, so that all that wait for it get an
    /// error.
    WatchServer {
        /// The limit in seconds; 0 means forever.
        #[arg(long, value_name = "SECONDS")]
        limit: u64,
        /// A file from the daemon whose first block has to be read from the server.
        file: PathBuf,
    },
    /// Show a device as file "disk" in the volume's directory, with nbdfuse.
    ShowDevice {
        /// Socket on which a daemon of the volume serves the device by NBD, as export "disk".
        socket: PathBuf,
        /// Show it read-only.
        #[arg(long)]
        read_only: bool,
    },
    /// Give the Pod a device of the node as its raw block volume. It is kept open until the volume is unmounted.
    GiveDevice {
        /// The device, such as the one that service loop printed.
        device: PathBuf,
    },
}

/// The name of the file that shows that a device is kept open.
const HELD: &str = "held";

/// The program that keeps a device open, and the path that exists when it is ready.
pub(super) fn holds(agent: &Path, device: &Path, state: &Path) -> (Vec<String>, PathBuf) {
    let held = state.join(HELD);
    let words = [agent, Path::new("hold-device"), device, &held];
    (words.map(|word| word.display().to_string()).into(), held)
}

/// The name of the file that shows a device.
const DISK: &str = "disk";

/// The program that shows a device in a directory, and the path that exists when it is ready.
pub(super) fn shows(
    socket: &Path,
    read_only: bool,
    volume: &VolumeId,
    label: Option<&SelinuxLabel>,
    directory: &Path,
) -> (Vec<String>, PathBuf) {
    let disk = directory.join(DISK);
    let read_only = read_only.then_some("--readonly");
    let place = disk.display().to_string();
    let device = format!("nbd+unix:///{DISK}?socket={}", socket.display());
    let words = ["nbdfuse"].into_iter().chain(read_only);
    let source = format!("fsname={}", volume.as_str());
    let label = label.map(SelinuxLabel::for_mount);
    // nbdfuse takes each text after -o for one option, with its commas.
    let options = ["allow_other", &source].into_iter().chain(label.as_deref());
    let words = words.chain(options.flat_map(|option| ["-o", option]));
    let words = words.chain([place.as_str(), &device]);
    (words.map(str::to_owned).collect(), disk)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::sys::fake::target;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        service: ServiceCall,
    }

    fn read(line: &str) -> Option<ServiceCall> {
        let words = ["service"].into_iter().chain(line.split(' '));
        Line::try_parse_from(words).ok().map(|line| line.service)
    }

    #[test]
    fn a_daemon_s_own_arguments_are_passed_on() {
        let daemon = read("daemon --pid-file /s/pid -- qemu --daemonize --pidfile /s/pid").unwrap();
        let ServiceCall::Daemon { program, .. } = &daemon else {
            panic!("{daemon:?}");
        };
        assert_eq!(program, &["qemu", "--daemonize", "--pidfile", "/s/pid"]);
        assert_eq!(read("daemon --pid-file a --ready b -- qemu"), None);
        assert_eq!(read("daemon --"), None);
        assert!(read("watch-server /s/disk").is_none());
        let json = serde_json::to_vec(&daemon).unwrap();
        assert_eq!(serde_json::from_slice::<ServiceCall>(&json).unwrap(), daemon);
    }

    #[test]
    fn a_device_is_kept_open_by_the_agent_s_own_program() {
        let (program, ready) = holds(Path::new("/m"), Path::new("/dev/loop1"), Path::new("/s"));
        assert_eq!(program, ["/m", "hold-device", "/dev/loop1", "/s/held"]);
        assert_eq!(ready, Path::new("/s/held"));
        assert!(read("give-device /dev/loop1").is_some() && read("give-device").is_none());
    }

    #[test]
    fn a_device_is_shown_as_a_file_of_the_volume_s_directory() {
        let volume = VolumeId::of(&target());
        let (program, ready) = shows(Path::new("/s/socket"), true, &volume, None, Path::new("/d"));
        assert_eq!(
            program.join(" "),
            format!(
                "nbdfuse --readonly -o allow_other -o fsname={} /d/disk nbd+unix:///disk?socket=/s/socket",
                volume.as_str()
            )
        );
        assert_eq!(ready, Path::new("/d/disk"));
        let label = SelinuxLabel::read("u:r:t:s0:c1,c2").ok();
        let (program, _) = shows(Path::new("/s/socket"), false, &volume, label.as_ref(), Path::new("/d"));
        let labelled = program
            .windows(2)
            .any(|pair| pair == ["-o", "context=\"u:r:t:s0:c1,c2\""]);
        assert!(labelled, "{program:?}");
    }
}
