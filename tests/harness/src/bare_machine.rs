//! A virtual machine with Debian's stock kernel, for what the kernel of this machine lacks, such as NFS.
//!
//! It is a node with nothing on it: no kubelet, no mount helper, no package; a kernel, its modules for NFS, and the programs
//! that are put into it. It runs without KVM, so a process takes long to start there, and a mount does not. It reaches what the
//! network that it is started in reaches, under the same addresses. Commands go in and answers come out by a serial line.

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

use mooring_testbed::base_images;
use mooring_testbed::command::{command, line};
use mooring_testbed::layout::make_folder;
use mooring_testbed::packages;
use mooring_testbed::progress::{note, spoken};
use mooring_testbed::virtual_machine::initramfs::Archive;
use mooring_testbed::virtual_machine::{
    BEFORE_OTHERS, KERNEL_ARGUMENTS, PROCESSOR, accelerator, add_modules, kernel, read,
};
use mooring_testbed::wait::tails;

/// How long a test with such a machine may take.
pub const LIMIT: Duration = Duration::from_mins(20);

/// Longest until it takes commands: on two busy processors it took a quarter of this.
const BOOT_LIMIT: Duration = Duration::from_mins(2);

/// Longest until qemu has opened its end of the serial line.
const START_LIMIT: Duration = Duration::from_secs(20);

/// How often that is looked for.
const PERIOD: Duration = Duration::from_millis(20);

/// Longest for a command that nobody has to wait for.
const COMMAND_LIMIT: Duration = Duration::from_mins(1);

/// Memory in MiB.
const MEMORY: &str = "512";

/// The modules that are loaded; what they depend on comes with them.
const WANTED: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "nfs",
    "nfsv3",
    "nfsv4",
    "cifs",
    // The kernel asks for these by what they do, so nothing depends on them: the cryptography of SMB, and UTF-8 in its names.
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

/// A file to be put into the machine.
#[derive(Debug, Clone)]
pub struct Put {
    /// Where it is on this machine.
    pub from: PathBuf,
    /// Where it goes.
    pub to: &'static str,
}

/// What a command in the machine did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Exit code.
    pub code: i32,
    /// What it printed, on either output.
    pub output: String,
}

/// A virtual machine that runs. It ends when this is dropped, and also when the thread that started it ends in any way.
pub struct Machine {
    child: Child,
    serial: UnixStream,
    /// What came over the line and is not a whole line yet.
    received: Vec<u8>,
    folder: PathBuf,
    sent: u32,
}

impl Machine {
    /// Starts a machine in the network of a process, and waits until it takes commands. The kernel and qemu are fetched once.
    pub fn boot(network_of: i32, files: &[Put]) -> Result<Self> {
        packages::ensure_machine_packages()?;
        let kernel = kernel::ensure()?;
        let folder = std::env::temp_dir().join(format!("mooring-machine-{}-{}", std::process::id(), unique()));
        make_folder(&folder)?;
        let started = Instant::now();
        let machine = Self::start(network_of, &kernel, files, &folder);
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
        let deadline = Instant::now() + START_LIMIT;
        let serial = loop {
            if let Ok(serial) = UnixStream::connect(&socket) {
                break serial;
            }
            let ended = child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                bail!("qemu does not start ({ended:?}){}", tails(&[folder.join("qemu.log")]));
            }
            std::thread::sleep(PERIOD);
        };
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
    /// If it does not end in time; the machine takes no other command then.
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

    /// Runs a shell script in the machine that has to end well; gives what it printed.
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

    /// The last lines of its console, and of what qemu said.
    fn console(&self) -> String {
        tails(&[self.folder.join("console"), self.folder.join("qemu.log")])
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // One that has ended already is what is wanted.
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

/// The whole of the machine's root file system.
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
    // In the network alone; and it goes with the thread that starts it, whatever becomes of that.
    let mut enter: Command = command("nsenter", ["--net"]);
    enter
        .arg(format!("--target={network_of}"))
        .args(["--", "setpriv", "--pdeathsig", "KILL", "--"])
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
