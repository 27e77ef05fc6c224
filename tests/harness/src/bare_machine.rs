//! A virtual machine with Debian's stock kernel, for features that this machine's kernel lacks, such as NFS.
//!
//! It has no kubelet, no mount helper and no package: only a kernel, its modules for NFS, and the programs that the
//! test puts into it. It runs without KVM, so starting a process takes long there; mounting does not. It shares the
//! network that it is started in, with the same addresses. Commands and answers go over a serial line.

pub mod hung;
mod mounter;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::waits::Limit;
use mooring_testbed::base_images;
use mooring_testbed::command::{command, line};
use mooring_testbed::layout::make_folder;
use mooring_testbed::packages;
use mooring_testbed::progress::{note, spoken};
use mooring_testbed::virtual_machine::initramfs::Archive;
use mooring_testbed::virtual_machine::{
    BEFORE_OTHERS, KERNEL_ARGUMENTS, PROCESSOR, accelerator, add_modules, kernel, put_before_others, read,
};
use mooring_testbed::wait::tails;

/// How long a test with such a machine may take.
pub const LIMIT: Duration = Duration::from_mins(20);

/// Longest wait until it takes commands: four times what it took on two busy processors.
const BOOT_LIMIT: Duration = Duration::from_mins(2);

/// Longest wait until qemu has opened its end of the serial line.
const START_LIMIT: Duration = Duration::from_mins(1);

/// How often a machine is started until it comes up.
const STARTS: u32 = 3;

/// How often to look for that.
const PERIOD: Duration = Duration::from_millis(20);

/// Time limit of a command that has nothing to wait for.
const COMMAND_LIMIT: Duration = Duration::from_mins(1);

/// Memory in MiB.
const MEMORY: &str = "512";

/// The modules to load; those that they depend on are loaded too.
const WANTED: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "nfs",
    "nfsv3",
    "nfsv4",
    "cifs",
    // The kernel requests these by function, so no module depends on them: the cryptography of SMB, and UTF-8 in its
    // names.
    "aes_generic",
    "cmac",
    "ccm",
    "ctr",
    "gcm",
    "ghash_generic",
    "hmac",
    "md5",
    "sha256_generic",
    "sha512_generic",
    "nls_utf8",
];

/// A file to put into the machine.
#[derive(Debug, Clone)]
pub struct Put {
    /// Its path on this machine.
    pub from: PathBuf,
    /// Its path in the machine.
    pub to: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub code: i32,
    /// What it printed, on standard output and standard error.
    pub output: String,
}

/// A running virtual machine. It ends when this is dropped, and when the thread that started it ends.
pub struct Machine {
    child: Child,
    serial: UnixStream,
    /// Bytes received that do not make a whole line yet.
    received: Vec<u8>,
    folder: PathBuf,
    sent: u32,
}

impl Machine {
    /// Starts a machine in the network of a process, and waits until it takes commands. The kernel and qemu are fetched
    /// once and kept. One that does not come up is started again: under qemu's translation, the kernel sometimes hangs
    /// before its first program.
    pub fn boot(network_of: i32, files: &[Put]) -> Result<Self> {
        packages::ensure_machine_packages()?;
        let kernel = kernel::ensure()?;
        let mut starts = 1;
        loop {
            match Self::boot_once(network_of, &kernel, files) {
                Err(error) if starts < STARTS => note(format!("the machine is started again: {error:#}")),
                booted => return booted,
            }
            starts += 1;
        }
    }

    fn boot_once(network_of: i32, kernel: &kernel::Kernel, files: &[Put]) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("mooring-machine-{}-{}", std::process::id(), unique()));
        make_folder(&folder)?;
        let started = Instant::now();
        let machine = Self::start(network_of, kernel, files, &folder);
        if machine.is_err() {
            let _ = std::fs::remove_dir_all(&folder);
        }
        let mut machine = machine?;
        let ready = machine.read_line(Instant::now() + BOOT_LIMIT)?;
        ensure!(
            ready == "READY",
            "the machine said {ready:?} first{}",
            machine.console()
        );
        note(format!("the machine was up after {}", spoken(started.elapsed())));
        Ok(machine)
    }

    fn start(network_of: i32, kernel: &kernel::Kernel, files: &[Put], folder: &Path) -> Result<Self> {
        let initramfs = folder.join("initramfs");
        std::fs::write(&initramfs, contents(kernel, files)?).context("failed to write the initramfs")?;
        let socket = folder.join("serial");
        let mut child = qemu(network_of, &kernel.image, &initramfs, folder)?;
        let limit = Limit::of(START_LIMIT);
        let serial = loop {
            if let Ok(serial) = UnixStream::connect(&socket) {
                break serial;
            }
            let ended = child.try_wait()?;
            if ended.is_some() || limit.is_over() {
                let _ = child.kill();
                let _ = child.wait();
                bail!("qemu does not start ({ended:?}){}", tails(&[folder.join("qemu.log")]));
            }
            std::thread::sleep(PERIOD);
        };
        put_before_others(&child.id().to_string());
        Ok(Self {
            child,
            serial,
            received: Vec::new(),
            folder: folder.to_owned(),
            sent: 0,
        })
    }

    /// Runs a shell script in the machine to its end.
    ///
    /// # Errors
    /// If it does not end in time; the machine takes no further command then.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<Ran> {
        let deadline = Instant::now() + limit;
        self.sent += 1;
        let number = self.sent;
        let text = format!("{number} {}\n", STANDARD.encode(script));
        self.serial.set_write_timeout(Some(limit))?;
        self.serial
            .write_all(text.as_bytes())
            .with_context(|| format!("the machine takes no command{}", self.console()))?;
        let begin = format!("END {number} ");
        loop {
            let answer = self
                .read_line(deadline)
                .with_context(|| format!("in the machine: {script}"))?;
            let Some(rest) = answer.strip_prefix(&begin) else {
                continue;
            };
            let (code, output) = rest.split_once(' ').unwrap_or((rest, ""));
            let output = STANDARD.decode(output.trim()).context("the answer is cut short")?;
            return Ok(Ran {
                code: code.parse().with_context(|| format!("{code:?} is no exit code"))?,
                output: String::from_utf8_lossy(&output).into_owned(),
            });
        }
    }

    /// Runs a shell script in the machine that has to succeed; returns what it printed.
    pub fn sh(&mut self, script: &str) -> Result<String> {
        let ran = self.run(script, COMMAND_LIMIT)?;
        ensure!(
            ran.code == 0,
            "in the machine: {script}\nended with {}: {}",
            ran.code,
            ran.output
        );
        Ok(ran.output)
    }

    fn read_line(&mut self, deadline: Instant) -> Result<String> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let text: Vec<_> = self.received.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&text).trim().to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "the machine does not answer in time{}", self.console());
            self.serial.set_read_timeout(Some(left))?;
            match self.serial.read(&mut chunk) {
                Ok(0) => bail!("the machine has ended{}", self.console()),
                Ok(length) => self.received.extend_from_slice(&chunk[..length]),
                Err(error)
                    if [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted].contains(&error.kind()) => {
                }
                Err(error) => return Err(error).context("failed to hear from the machine"),
            }
        }
    }

    /// The last lines of its console and of qemu's log.
    fn console(&self) -> String {
        tails(&[self.folder.join("console"), self.folder.join("qemu.log")])
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A number that no other machine of this process has.
fn unique() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// The machine's whole root file system.
fn contents(kernel: &kernel::Kernel, files: &[Put]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in [
        "bin", "dev", "etc", "modules", "proc", "run", "sys", "tmp", "var", "var/lib",
    ] {
        archive.folder(folder);
    }
    archive.character_device("dev/console", 5, 1);
    archive.file("init", 0o755, include_bytes!("bare_machine/init"));
    archive.file("bin/busybox", 0o755, &base_images::busybox_program()?);
    add_modules(&mut archive, kernel, WANTED)?;
    for file in files {
        archive.file(file.to.trim_start_matches('/'), 0o755, &read(&file.from)?);
    }
    Ok(archive.finish())
}

fn qemu(network_of: i32, kernel: &Path, initramfs: &Path, folder: &Path) -> Result<Child> {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let log = File::create(folder.join("qemu.log")).context("failed to make qemu's log")?;
    // It enters only the network. It ends with the thread that starts it, however that ends. It has a session of its
    // own, whose priority can be raised.
    let mut enter: Command = command("nsenter", ["--net"]);
    enter
        .arg(format!("--target={network_of}"))
        .args(["--", "setpriv", "--pdeathsig", "KILL", "--", "setsid", "--"])
        .args(BEFORE_OTHERS)
        .arg("qemu-system-x86_64")
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-machine", "pc", "-accel", &accelerator(), "-cpu", PROCESSOR])
        .args(["-smp", "1", "-m", MEMORY])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", KERNEL_ARGUMENTS])
        .args(["-chardev", &format!("file,id=console,path={}", path("console"))])
        .args(["-serial", "chardev:console"])
        .args([
            "-chardev",
            &format!("socket,id=line,path={},server=on,wait=off", path("serial")),
        ])
        .args(["-serial", "chardev:line"])
        .args([
            "-netdev",
            "user,id=net",
            "-device",
            "virtio-net-pci,netdev=net,romfile=",
        ])
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("failed to share qemu's log")?)
        .stderr(log);
    enter.spawn().with_context(|| format!("failed to run {}", line(&enter)))
}
