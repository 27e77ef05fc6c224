//! Debian packages that the testbed needs. It installs only those that are missing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{command, find_program, watched_within};
use crate::progress::Step;

/// Longest time to fetch and install packages.
const LIMIT: Duration = Duration::from_mins(20);

/// How to tell whether a package is installed.
enum Sign {
    /// A program on the `PATH`.
    Program(&'static str),
    File(&'static str),
}

/// Needed programs and files, and their packages. `busybox-static` is not among them: it would replace the
/// distribution's own busybox, so it is unpacked into the cache instead (see [`crate::base_images`]).
const NEEDED: &[(Sign, &str)] = &[
    (Sign::Program("runc"), "runc"),
    (Sign::Program("nft"), "nftables"),
    // The names of protocols for nft: see `node::root::PROTOCOLS`.
    (Sign::File("/etc/protocols"), "netbase"),
    (Sign::Program("conntrack"), "conntrack"),
    (Sign::Program("ip"), "iproute2"),
    (Sign::Program("losetup"), "mount"),
    (Sign::Program("nsenter"), "util-linux"),
    (Sign::Program("mkfs.ext4"), "e2fsprogs"),
    (Sign::Program("mkfs.xfs"), "xfsprogs"),
    (Sign::Program("buildah"), "buildah"),
    (Sign::Program("mmdebstrap"), "mmdebstrap"),
    (
        Sign::File("/usr/share/keyrings/debian-archive-keyring.gpg"),
        "debian-archive-keyring",
    ),
    (Sign::Program("ssh-keygen"), "openssh-client"),
    (Sign::File("/usr/lib/cni/ptp"), "containernetworking-plugins"),
    (Sign::File("/etc/ssl/certs/ca-certificates.crt"), "ca-certificates"),
    // For cargo and go themselves, on a machine that has only them.
    (Sign::Program("cc"), "gcc"),
    (Sign::File("/usr/include/stdio.h"), "libc6-dev"),
];

/// Further packages for virtual machines; most people never start one.
const MACHINES: &[(Sign, &str)] = &[
    (Sign::Program("qemu-system-x86_64"), "qemu-system-x86"),
    (Sign::Program("setpriv"), "util-linux"),
    (Sign::Program("checkpolicy"), "checkpolicy"),
    // Compresses a kernel's modules.
    (Sign::Program("xz"), "xz-utils"),
];

/// Further packages for the checks of [`crate::extra_checks`].
const CHECKS: &[(Sign, &str)] = &[
    (Sign::Program("shellcheck"), "shellcheck"),
    // Runs the shim for aarch64.
    (Sign::Program("qemu-aarch64"), "qemu-user"),
];

/// Refuses early, with a clear message, what would fail late.
pub fn check_machine() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the testbed makes namespaces, links and mounts, which takes root: run it again as root (sudo -E cargo testbed \
         …)"
    );
    for (program, cure) in [
        (
            "go",
            "install Go 1.24 or newer from https://go.dev/dl/ (Kubernetes is built with it, once)",
        ),
        ("cargo", "install Rust from https://rustup.rs/"),
    ] {
        if find_program(program).is_none() {
            bail!("{program} is not on the PATH: {cure}");
        }
    }
    Ok(())
}

/// Those of these packages that are missing.
fn missing(needed: &[(Sign, &'static str)]) -> Vec<&'static str> {
    needed
        .iter()
        .filter(|(sign, _)| match sign {
            Sign::Program(name) => find_program(name).is_none(),
            Sign::File(path) => !PathBuf::from(path).exists(),
        })
        .map(|(_, package)| *package)
        .collect()
}

/// Installs missing packages; needs no network if there are none.
pub fn ensure_packages() -> Result<()> {
    ensure_all(NEEDED)
}

/// Installs missing packages for virtual machines.
pub fn ensure_machine_packages() -> Result<()> {
    ensure_all(MACHINES)
}

/// Installs missing packages for [`crate::extra_checks`].
pub fn ensure_check_packages() -> Result<()> {
    ensure_all(CHECKS)
}

fn ensure_all(needed: &[(Sign, &'static str)]) -> Result<()> {
    let missing = missing(needed);
    if missing.is_empty() {
        return Ok(());
    }
    ensure!(
        find_program("apt-get").is_some(),
        "these are missing and there is no apt-get to install them with: {}; install them by hand",
        missing.join(" ")
    );
    let mut step = Step::begin("install Debian packages");
    step.update(&missing.join(" "));
    apt(&["update"], &mut step).context("failed to refresh the package lists")?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&missing);
    apt(&arguments, &mut step).context("failed to install packages")?;
    step.done(&missing.join(" "));
    Ok(())
}

fn apt(arguments: &[&str], step: &mut Step) -> Result<()> {
    let mut apt = command("apt-get", ["-q", "-o", "DPkg::Lock::Timeout=120"]);
    apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    watched_within(&mut apt, LIMIT, |line| step.update(line))?;
    Ok(())
}
