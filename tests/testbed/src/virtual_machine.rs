//! The files that virtual machines are started from: Debian's stock kernel, its modules, and an initial root file
//! system.

pub mod initramfs;
pub mod kernel;

use std::path::Path;

use anyhow::{Context, Result};

use initramfs::Archive;

use crate::progress::note;

/// Environment variable: another accelerator for qemu than its own translation, such as `kvm`. A stock kernel does not
/// start with every `/dev/kvm` that can be opened, so it is not tried by default.
const ACCELERATOR: &str = "MOORING_TESTBED_ACCEL";

/// The kernel's arguments. Programs written in Go read the clock all the time. With several processors, the kernel
/// would otherwise read the HPET, a device, where the processor's counter is enough. Without address randomization,
/// programs need no new translation at each start.
pub const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 loglevel=5 panic=-1 mitigations=off random.trust_cpu=on tsc=reliable nowatchdog norandmaps";

/// The processor: with all instructions that qemu knows, since it translates those for cryptography and for copying to
/// the machine's own; and without features that only take time here. With `erms`, the kernel would copy byte by byte.
pub const PROCESSOR: &str = "max,erms=off,smap=off,smep=off,la57=off,pku=off";

/// Adds modules to a root file system, in its folder `modules`, with names that sort in the order in which to load
/// them.
pub fn add_modules(archive: &mut Archive, kernel: &kernel::Kernel, wanted: &[&str]) -> Result<()> {
    for (index, module) in kernel.to_load(wanted)?.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("modules/{index:02}-{name}"), 0o644, &read(module)?);
    }
    Ok(())
}

/// The accelerator for qemu.
pub fn accelerator() -> String {
    std::env::var(ACCELERATOR).unwrap_or_else(|_| "tcg,thread=multi".to_owned())
}

/// Runs qemu with a higher priority: starting a program takes thirty times as long in the machine as outside, so waits
/// for one would fail on busy processors.
///
/// This counts only within a session, unless [`put_before_others`] raises the session as well.
pub const BEFORE_OTHERS: [&str; 3] = ["nice", "-n", "-19"];

/// The kernel's file with the priority of a process's session (`man 7 sched`, "The autogroup feature"), in a folder of
/// `/proc`.
const SESSION_PRIORITY: &str = "autogroup";

/// Raises the priority of the session of a process, `self` or a process id: where the kernel shares processors between
/// sessions first, the priority of a process counts only within its own. Like `nice`, it only says so where it may not.
pub fn put_before_others(process: &str) {
    let path = Path::new("/proc").join(process).join(SESSION_PRIORITY);
    match std::fs::write(&path, BEFORE_OTHERS[2]) {
        Ok(()) => {}
        // The kernel knows no such groups: the priority of a process counts everywhere.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => note(format!(
            "the virtual machine may be slow: failed to write {}: {error}",
            path.display()
        )),
    }
}

pub fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))
}
