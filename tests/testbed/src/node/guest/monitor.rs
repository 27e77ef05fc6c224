//! Disks that are plugged into the running machine and pulled out of it, as a cloud's hypervisor does, by QEMU's monitor
//! (QMP).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::super::numbering::{MACHINE, name};
use crate::layout::Layout;

/// How much of a serial virtio-blk shows (`VIRTIO_BLK_ID_BYTES` of the kernel).
const SERIAL_LENGTH: usize = 20;

/// Longest wait for an answer, or for the machine to let a disk go.
const LIMIT: Duration = Duration::from_mins(1);

pub(super) fn path(layout: &Layout) -> PathBuf {
    layout.machine(&name(MACHINE)).join("monitor")
}

/// The monitor of the machine.
pub struct Monitor {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Monitor {
    pub fn open(layout: &Layout) -> Result<Self> {
        let path = path(layout);
        let what = || format!("failed to reach QEMU's monitor {}", path.display());
        let stream = UnixStream::connect(&path).with_context(what)?;
        stream.set_read_timeout(Some(LIMIT)).with_context(what)?;
        let lines = BufReader::new(stream.try_clone().with_context(what)?);
        let mut monitor = Self { stream, lines };
        // The greeting.
        monitor.line()?;
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Plugs a file in as a disk. `name` is its serial, as far as such a disk shows it.
    pub fn plug(&mut self, name: &str, file: &Path) -> Result<()> {
        self.plug_with(name, name, file)
    }

    /// [`Self::plug`] with another serial than the name by which it is known here.
    pub fn plug_with(&mut self, name: &str, serial: &str, file: &Path) -> Result<()> {
        let drive = json!({"driver": "raw", "node-name": node(name), "file": {"driver": "file", "filename": file}});
        self.ask("blockdev-add", &drive)?;
        let serial: String = serial.chars().take(SERIAL_LENGTH).collect();
        let device = json!({"driver": "virtio-blk-pci", "drive": node(name), "id": device(name), "serial": serial});
        self.ask("device_add", &device)
    }

    /// Gives a disk another size, in bytes, and its file with it.
    pub fn resize(&mut self, name: &str, size: u64) -> Result<()> {
        self.ask("block_resize", &json!({"node-name": node(name), "size": size}))
    }

    /// Pulls a disk out; returns when the machine has let it go.
    pub fn unplug(&mut self, name: &str) -> Result<()> {
        self.ask("device_del", &json!({"id": device(name)}))?;
        loop {
            let line = self.line()?;
            if line["event"] == "DEVICE_DELETED" && line["data"]["device"] == device(name) {
                break;
            }
        }
        self.ask("blockdev-del", &json!({"node-name": node(name)}))
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let asked = json!({"execute": command, "arguments": arguments}).to_string();
        writeln!(self.stream, "{asked}").with_context(|| format!("failed to ask QEMU for {asked}"))?;
        loop {
            let line = self.line()?;
            if line["return"].is_object() {
                return Ok(());
            }
            if line["error"].is_object() {
                bail!("QEMU refuses {asked}: {}", line["error"]["desc"]);
            }
        }
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.lines
            .read_line(&mut line)
            .context("QEMU's monitor did not answer")?;
        serde_json::from_str(&line).with_context(|| format!("QEMU's monitor said {line:?}"))
    }
}

// A name in QEMU has no more than 31 characters, and begins with a letter.
fn node(name: &str) -> String {
    format!("d{}", name.chars().take(SERIAL_LENGTH).collect::<String>())
}

fn device(name: &str) -> String {
    format!("plugged-{}", node(name))
}
