//! What virtual machines are started from: Debian's stock kernel, its modules, and an initial root file system.

pub mod initramfs;
pub mod kernel;

use std::path::Path;

use anyhow::{Context, Result};

use initramfs::Archive;

/// Environment variable: another accelerator of qemu than its own translation, such as `kvm`. A stock kernel does not start under
/// every `/dev/kvm` that can be opened, so it is not tried by itself.
const ACCELERATOR: &str = "MOORING_TESTBED_ACCEL";

/// What the kernel is told. Programs written in Go ask for the time all along: with several processors and no such word, the kernel asks
/// the HPET, a device, where the processor's counter would do. Programs that lie where they lay before need no new translation.
pub const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 loglevel=5 panic=-1 mitigations=off random.trust_cpu=on tsc=reliable nowatchdog norandmaps";

/// The processor: with all instructions that qemu knows, since it translates those for cryptography and for copying into the machine's own,
/// and without what only costs time there. Copying by `erms` would go byte by byte.
pub const PROCESSOR: &str = "max,erms=off,smap=off,smep=off,la57=off,pku=off";

/// Adds modules to a root file system, in its folder `modules`, named so that they come in the order in which to load them.
pub fn add_modules(archive: &mut Archive, kernel: &kernel::Kernel, wanted: &[&str]) -> Result<()> {
    for (index, module) in kernel.to_load(wanted)?.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("modules/{index:02}-{name}"), 0o644, &read(module)?);
    }
    Ok(())
}

/// The accelerator that qemu is to use.
pub fn accelerator() -> String {
    std::env::var(ACCELERATOR).unwrap_or_else(|_| "tcg,thread=multi".to_owned())
}

/// What runs qemu before others: a program takes thirty times as long in the machine as beside it, so what waits for one there
/// would wait in vain on busy processors.
pub const BEFORE_OTHERS: [&str; 3] = ["nice", "-n", "-19"];

/// Reads a file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))
}
