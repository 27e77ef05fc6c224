//! Everything on the machine's disk except images: a host with what a kubelet needs, the kernel's modules, and no
//! storage client.

use std::fmt::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::super::numbering::{MACHINE, MAX_NODES, name};
use super::super::root::PROTOCOLS;
use super::super::{Flavour, own, processes, write_files};
use crate::base_images;
use crate::binaries::Binaries;
use crate::command::{command, find_program, output};
use crate::layout::{Layout, make_folder, write_file};
use crate::network::Block;
use crate::pki::Authority;
use crate::virtual_machine::kernel::Kernel;

/// The node's taint, with effect `PreferNoSchedule`.
const TAINT: &str = "testbed.mooring.dev/machine";

/// Folders that exist from the start.
const FOLDERS: &[&str] = &[
    "bin", "dev", "proc", "root", "run", "sbin", "sys", "tmp", "usr/bin", "usr/sbin", "var",
];

/// Programs of this machine that the virtual one has under the same path, with the libraries that they need.
const PROGRAMS: &[&str] = &["conntrack", "losetup", "mount", "nft", "runc", "umount"];

/// The same for CNI.
const CNI_PROGRAMS: &[&str] = &["host-local", "loopback", "ptp"];

/// The testbed's own programs, which need no library.
const BUILT_PROGRAMS: &[&str] = &["containerd", "containerd-shim-runc-v2", "kube-proxy", "kubelet"];

/// Fills the node's folder; returns its path.
pub(super) fn fill(
    layout: &Layout,
    binaries: &Binaries,
    authority: &Authority,
    block: Block,
    kernel: &Kernel,
) -> Result<PathBuf> {
    let root = layout.node(&name(MACHINE));
    // The remains of an earlier one.
    let _ = std::fs::remove_dir_all(&root);
    for folder in FOLDERS {
        make_folder(&root.join(folder))?;
    }
    link("/run", &root.join("var/run"))?;
    write_files(layout, binaries, authority, block, MACHINE, "", Flavour::Plain)?;
    put_busybox(&root)?;
    for program in PROGRAMS {
        let path = find_program(program).with_context(|| format!("{program} is not on the PATH"))?;
        put_with_libraries(&root, &path)?;
    }
    for program in CNI_PROGRAMS {
        put_with_libraries(&root, &Path::new("/usr/lib/cni").join(program))?;
    }
    for program in BUILT_PROGRAMS {
        copy(&binaries.path(program), &root.join("usr/bin").join(program))?;
    }
    let (from, to) = kernel.modules();
    copy_folder(&from, &root.join(to))?;

    let put = |path: &str, content: &str| write_file(&own(layout, &name(MACHINE), path), content);
    put(
        "/etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    )?;
    put("/etc/group", "root:x:0:\nnogroup:x:65534:\n")?;
    put("/etc/protocols", PROTOCOLS)?;
    put("/etc/testbed/settings", &settings(block))?;
    put("/etc/testbed/processes", &process_lines(binaries, block))?;
    put_policy(&root)?;
    put("/sbin/init", include_str!("init"))?;
    executable(&root.join("sbin/init"))?;
    Ok(root)
}

/// A line for each process of a node: its name, its program, its arguments, none of which contains a blank.
pub(super) fn process_lines(binaries: &Binaries, block: Block) -> String {
    let mut lines = String::new();
    for process in processes(binaries, block, MACHINE, Flavour::Plain) {
        let _ = write!(lines, "{} /usr/bin/{}", process.name, process.name);
        let of_kubelet = [
            format!("--register-with-taints={TAINT}=:PreferNoSchedule"),
            // As with k0s: the mounter finds the root there.
            "--root-dir=/var/lib/k0s/kubelet".to_owned(),
            // The default of ten seconds takes a tenth of the machine's time here.
            "--housekeeping-interval=60s".to_owned(),
            "--volume-stats-agg-period=1m".to_owned(),
        ];
        let more = of_kubelet.iter().filter(|_| process.name == "kubelet");
        for arg in process.args.iter().chain(more) {
            let _ = write!(lines, " {arg}");
        }
        lines.push('\n');
    }
    lines
}

/// The settings for the machine's process 1, in a form that a shell reads.
pub(super) fn settings(block: Block) -> String {
    // The routes to other nodes' Pods, two words each.
    let routes: Vec<_> = (1..=MAX_NODES)
        .map(|other| format!("{} {}", block.pods(other), block.node(other)))
        .collect();
    format!(
        "NAME={}\nADDRESS={}\nGATEWAY={}\nROUTES='{}'\n",
        name(MACHINE),
        block.node(MACHINE),
        block.control_plane(),
        routes.join(" "),
    )
}

/// A policy for SELinux, which init loads if the kernel has it on, and what the kubelet reads to make a label of a Pod's
/// `seLinuxOptions`.
fn put_policy(root: &Path) -> Result<()> {
    let folder = root.join("etc/selinux");
    write_file(&folder.join("config"), "SELINUXTYPE=testbed\n")?;
    let all = "all_u:all_r:all_t:s0";
    let contexts = format!("process = \"{all}\"\nfile = \"{all}\"\n");
    write_file(&folder.join("testbed/contexts/lxc_contexts"), contexts)?;
    let text = folder.join("policy.conf");
    write_file(&text, include_str!("policy.conf"))?;
    let mut compile = command("checkpolicy", ["-M", "-U", "allow", "-o"]);
    output(compile.arg(folder.join("policy")).arg(text))?;
    Ok(())
}

/// A shell, and the other programs that a script needs: none of them mounts anything over a network.
fn put_busybox(root: &Path) -> Result<()> {
    let program = root.join("bin/busybox");
    write_file(&program, base_images::busybox_program()?)?;
    executable(&program)?;
    // The kernel calls this to load modules.
    link("../bin/busybox", &root.join("sbin/modprobe"))?;
    for applet in output(&mut command(&program, ["--list"]))?.lines() {
        if applet != "busybox" && !PROGRAMS.contains(&applet) {
            link("busybox", &root.join("bin").join(applet))?;
        }
    }
    Ok(())
}

fn put_with_libraries(root: &Path, program: &Path) -> Result<()> {
    let place = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    copy(program, &place(program))?;
    // It fails for a program that needs no library.
    let listed = output(command("ldd", [""; 0]).arg(program)).unwrap_or_default();
    for library in libraries(&listed) {
        copy(library, &place(library))?;
    }
    Ok(())
}

/// The files that `ldd` has listed.
fn libraries(listed: &str) -> Vec<&Path> {
    let words = listed
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(Path::new).collect()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    make_folder(to.parent().unwrap_or(to))?;
    std::fs::copy(from, to).with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    make_folder(to)?;
    let entries = std::fs::read_dir(from).with_context(|| format!("failed to list {}", from.display()))?;
    for entry in entries.flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            copy_folder(&entry.path(), &target)?;
        } else {
            copy(&entry.path(), &target)?;
        }
    }
    Ok(())
}

fn link(to: &str, from: &Path) -> Result<()> {
    symlink(to, from).with_context(|| format!("failed to link {} to {to}", from.display()))
}

fn executable(path: &Path) -> Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("failed to make {} a program", path.display()))
}

#[cfg(test)]
mod tests {
    use super::libraries;
    use std::path::Path;

    #[test]
    fn libraries_are_read_wherever_they_are() {
        let listed = "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibx.so => not found\n";
        let want = ["/lib/x/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(Path::new);
        assert_eq!(libraries(listed), want);
        assert!(libraries("").is_empty());
    }
}
