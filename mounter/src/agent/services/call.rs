//! What an image's program can ask for: the arguments of `mounter service`, which go to the agent as they are.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::{Deserialize, Serialize};

/// A service of the agent's for one volume. It ends with the volume.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// Start a program that the volume needs for as long as it is mounted, and return when it is ready.
    ///
    /// When it ends by itself, the volume's later daemons are ended too, and a file system that died with them is
    /// mounted anew. After the volume was unmounted the program gets SIGTERM, and SIGKILL after 10 s.
    Daemon {
        /// The program goes to the background by itself, is ready then, and writes its process number here.
        #[arg(long, value_name = "FILE", conflicts_with = "ready")]
        pid_file: Option<PathBuf>,
        /// The program stays in the foreground, and is ready when this is there; a directory when a file system is
        /// mounted on it and answers.
        #[arg(long, value_name = "PATH")]
        ready: Option<PathBuf>,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        program: Vec<String>,
    },
    /// Put a file behind a free loop device and print the device, which goes when the volume is unmounted.
    Loop {
        /// The file, such as one that a daemon shows.
        file: PathBuf,
        /// Nobody can write to it.
        #[arg(long)]
        read_only: bool,
    },
    /// Kill the volume's daemons when their server has been silent for too long, so that who waits for it gets an
    /// error.
    WatchServer {
        /// How many seconds that is; 0 for ever.
        #[arg(long, value_name = "SECONDS")]
        limit: u64,
        /// A file of the daemon's whose first block only the server has.
        file: PathBuf,
    },
    /// Show a device as file "disk" of the volume's directory, by nbdfuse.
    ShowDevice {
        /// Where a daemon of the volume's serves it by NBD, as export "disk".
        socket: PathBuf,
        /// Nobody can write to it.
        #[arg(long)]
        read_only: bool,
    },
}

/// The name of the file that shows a device.
const DISK: &str = "disk";

/// The program that shows a device in a directory, and what is there when it does.
pub(super) fn shows(socket: &Path, read_only: bool, directory: &Path) -> (Vec<String>, PathBuf) {
    let disk = directory.join(DISK);
    let read_only = read_only.then_some("--readonly");
    let place = disk.display().to_string();
    let device = format!("nbd+unix:///{DISK}?socket={}", socket.display());
    let words = ["nbdfuse"].into_iter().chain(read_only);
    let words = words.chain(["-o", "allow_other", &place, &device]);
    (words.map(str::to_owned).collect(), disk)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        service: Service,
    }

    fn read(line: &str) -> Option<Service> {
        let words = ["service"].into_iter().chain(line.split(' '));
        Line::try_parse_from(words).ok().map(|line| line.service)
    }

    #[test]
    fn a_daemon_s_own_arguments_are_left_to_it() {
        let daemon = read("daemon --pid-file /s/pid -- qemu --daemonize --pidfile /s/pid").unwrap();
        let Service::Daemon { program, .. } = &daemon else {
            panic!("{daemon:?}");
        };
        assert_eq!(program, &["qemu", "--daemonize", "--pidfile", "/s/pid"]);
        assert_eq!(read("daemon --pid-file a --ready b -- qemu"), None);
        assert_eq!(read("daemon --"), None);
        assert!(read("watch-server /s/disk").is_none());
        let json = serde_json::to_vec(&daemon).unwrap();
        assert_eq!(serde_json::from_slice::<Service>(&json).unwrap(), daemon);
    }

    #[test]
    fn a_device_is_shown_as_a_file_of_the_volume_s_directory() {
        let (program, ready) = shows(Path::new("/s/socket"), true, Path::new("/d"));
        assert_eq!(
            program.join(" "),
            "nbdfuse --readonly -o allow_other /d/disk nbd+unix:///disk?socket=/s/socket"
        );
        assert_eq!(ready, Path::new("/d/disk"));
    }
}
