//! A node in a virtual machine with Debian's stock kernel: an ordinary node, with file systems and modules that this
//! machine's kernel lacks. A taint keeps Pods off it that can run elsewhere: without KVM, it is several times slower.
//!
//! Its disk is made here, once per cluster, with its programs and images, and each start begins with the disk in that
//! state. Its link is on the cluster's bridge like other nodes', so everything can reach it; but its namespaces can't
//! be entered.

mod import;
mod monitor;
pub mod scripts;
mod tree;

pub use monitor::Monitor;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sched::CloneFlags;

use super::numbering::{MACHINE, name};
use crate::base_images;
use crate::binaries::Binaries;
use crate::command::{command, find_program, output};
use crate::layout::{Layout, make_folder, write_file};
use crate::namespaces::start_init;
use crate::network::{Block, connect_machine};
use crate::packages;
use crate::pki::Authority;
use crate::spec::{InitSpec, ProcessSpec, environment};
use crate::virtual_machine::initramfs;
use crate::virtual_machine::{BEFORE_OTHERS, KERNEL_ARGUMENTS, PROCESSOR, accelerator, add_modules, kernel};

/// What the kernel needs to find the disk, which has everything else.
const FIRST_MODULES: &[&str] = &["virtio_pci", "virtio_blk", "crc32c_generic", "ext4"];

/// Memory in MiB.
const MEMORY: &str = "1536";

const PROCESSORS: &str = "2";

/// The kernel's argument to start with one processor: the machine's process 1 starts the others once the kernel has
/// rewritten its code.
const ONE_AT_FIRST: &str = "maxcpus=1";

/// Whether the machine's kernel has SELinux on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selinux {
    Off,
    /// With a policy that allows everything: files have labels.
    On,
}

impl Selinux {
    /// The kernel's arguments for it, after others.
    fn arguments(self) -> &'static str {
        match self {
            Self::Off => "",
            Self::On => " security=selinux selinux=1",
        }
    }
}

/// The size of the disk. Only written parts take space.
const DISK_SIZE: &str = "16G";

/// The serial of that disk.
pub const ROOT_SERIAL: &str = "mooring-root";

/// The file with the disk, and the one that records what it was made from.
const DISK: &str = "disk";
const RECIPE: &str = "recipe";

/// The programs whose logs this machine gets, besides the machine's console.
const LOGS: [&str; 3] = ["containerd", "kubelet", "kube-proxy"];

/// The record of what a disk is made from: if any of it has changed, another disk has to be made. `images` names the
/// images, with their digests.
pub fn recipe(binaries: &Binaries, block: Block, images: &str) -> Result<String> {
    let (_, modules) = kernel::ensure()?.modules();
    let (settings, processes) = (tree::settings(block), tree::process_lines(binaries, block));
    let scripts = [include_str!("guest/init"), include_str!("guest/policy.conf")].concat();
    Ok(format!("{images}{}\n{settings}{processes}{scripts}", modules.display()))
}

/// Whether there is a disk with this record.
pub fn has_disk(layout: &Layout, recipe: &str) -> bool {
    let folder = layout.machine(&name(MACHINE));
    std::fs::read_to_string(folder.join(RECIPE)).is_ok_and(|made| made == recipe)
}

/// Makes the machine's disk, with the images of these archives, which contain the images' names.
pub fn make_disk(
    layout: &Layout,
    binaries: &Binaries,
    authority: &Authority,
    block: Block,
    images: &[PathBuf],
    recipe: &str,
) -> Result<()> {
    packages::ensure_machine_packages()?;
    let kernel = kernel::ensure()?;
    let node = name(MACHINE);
    let folder = layout.machine(&node);
    // Without the files of an earlier disk.
    for file in [RECIPE, DISK] {
        let _ = std::fs::remove_file(folder.join(file));
    }
    let made = tree::fill(layout, binaries, authority, block, &kernel)
        .and_then(|root| {
            import::into_containerd(binaries, images, &root.join("var/lib/containerd"), &folder)?;
            make_file_system(&root, &folder.join(DISK))
        })
        .with_context(|| format!("failed to make the disk of {node}"));
    // The disk has everything now, or it failed.
    let _ = std::fs::remove_dir_all(layout.node(&node));
    for image in images {
        let _ = std::fs::remove_file(image);
    }
    made?;
    // Last, since this file marks a complete disk.
    write_file(&folder.join(RECIPE), recipe)
}

/// Writes how to start the machine from its disk.
pub fn prepare(layout: &Layout, binaries: &Binaries, selinux: Selinux) -> Result<()> {
    packages::ensure_machine_packages()?;
    let kernel = kernel::ensure()?;
    let node = name(MACHINE);
    let folder = layout.machine(&node);
    let initramfs = folder.join("initramfs");
    write_file(&initramfs, first_root(&kernel)?)?;

    let logs = layout.logs(&node);
    make_folder(&logs)?;
    let mut environment = environment(&binaries.search_path());
    // qemu stores what the machine writes to its disk there, in a file without a name.
    environment.insert("TMPDIR".to_owned(), folder.to_string_lossy().into_owned());
    let qemu = find_program("qemu-system-x86_64").context("qemu-system-x86_64 is not on the PATH")?;
    let spec = InitSpec {
        logs: logs.clone(),
        environment,
        node: None,
        before_others: true,
        processes: vec![ProcessSpec {
            name: "qemu".to_owned(),
            program: find_program(BEFORE_OTHERS[0]).context("nice is not on the PATH")?,
            args: BEFORE_OTHERS[1..]
                .iter()
                .map(|&argument| argument.to_owned())
                .chain([qemu.to_string_lossy().into_owned()])
                .chain(qemu_arguments(layout, &kernel, selinux))
                .collect(),
            needs: None,
        }],
    };
    spec.save(layout, &node)
}

/// Starts it; the node is not ready yet.
pub fn start(layout: &Layout, block: Block) -> Result<()> {
    let node = name(MACHINE);
    // What an earlier start logged.
    for log in program_logs(layout) {
        let _ = std::fs::remove_file(log);
    }
    connect_machine(layout, block, MACHINE)?;
    start_init(layout, &node, CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS)?.go()
}

/// Whether one of its programs has logged something.
pub fn shows_life(layout: &Layout) -> bool {
    program_logs(layout).any(|log| std::fs::metadata(log).is_ok_and(|log| log.len() > 0))
}

fn program_logs(layout: &Layout) -> impl Iterator<Item = PathBuf> {
    let folder = layout.logs(&name(MACHINE));
    LOGS.into_iter().map(move |log| folder.join(format!("{log}.log")))
}

/// Makes a file system with everything below `root`, in a file.
fn make_file_system(root: &Path, disk: &Path) -> Result<()> {
    let mke2fs = find_program("mke2fs").context("mke2fs is not on the PATH")?;
    let mut make = command(
        mke2fs,
        ["-q", "-F", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1", "-d"],
    );
    output(make.arg(root).arg(disk).arg(DISK_SIZE))?;
    Ok(())
}

/// The root that the kernel starts from: it loads the modules for the disk, and continues there.
fn first_root(kernel: &kernel::Kernel) -> Result<Vec<u8>> {
    let mut archive = initramfs::Archive::default();
    for folder in ["bin", "dev", "modules", "root"] {
        archive.folder(folder);
    }
    archive.character_device("dev/console", 5, 1);
    archive.file("init", 0o755, include_bytes!("guest/first"));
    archive.file("bin/busybox", 0o755, &base_images::busybox_program()?);
    add_modules(&mut archive, kernel, FIRST_MODULES)?;
    Ok(archive.finish())
}

fn qemu_arguments(layout: &Layout, kernel: &kernel::Kernel, selinux: Selinux) -> Vec<String> {
    let node = name(MACHINE);
    let (folder, logs) = (layout.machine(&node), layout.logs(&node));
    let mut all = vec![
        "-nodefaults -no-user-config -no-reboot -display none -machine pc".to_owned(),
        format!(
            "-accel {} -cpu {PROCESSOR} -smp {PROCESSORS} -m {MEMORY}",
            accelerator()
        ),
        format!(
            "-kernel {} -initrd {}",
            kernel.image.display(),
            folder.join("initramfs").display()
        ),
        format!(
            "-chardev file,id=console,append=on,path={}",
            logs.join("console.log").display()
        ),
        "-serial chardev:console -device virtio-serial-pci".to_owned(),
        // Each start begins with the original disk, and after a crash of this machine, no later write is needed.
        format!(
            "-drive file={},format=raw,if=none,id=disk,cache=unsafe,snapshot=on",
            folder.join(DISK).display()
        ),
        format!("-device virtio-blk-pci,drive=disk,serial={ROOT_SERIAL}"),
        format!("-qmp unix:{},server=on,wait=off", monitor::path(layout).display()),
        format!(
            "-netdev tap,id=net,ifname={},script=no,downscript=no",
            layout.link(MACHINE)
        ),
        "-device virtio-net-pci,netdev=net,romfile=".to_owned(),
    ];
    for log in LOGS {
        let path = logs.join(format!("{log}.log"));
        all.push(format!("-chardev file,id={log},append=on,path={}", path.display()));
        all.push(format!("-device virtserialport,chardev={log},name={log}"));
    }
    let port = scripts::PORT;
    let path = scripts::path(layout);
    all.push(format!(
        "-chardev socket,id={port},server=on,wait=off,path={}",
        path.display()
    ));
    all.push(format!("-device virtserialport,chardev={port},name={port}"));
    let words = all.iter().flat_map(|line| line.split(' ').map(str::to_owned));
    words
        .chain([
            "-append".to_owned(),
            format!("{KERNEL_ARGUMENTS} {ONE_AT_FIRST}{}", selinux.arguments()),
        ])
        .collect()
}
