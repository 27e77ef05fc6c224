//! What of GlusterFS is in its client image, by the build's own commands with an `apt-get` of the test's own; and how the
//! image's program starts it.
#![allow(clippy::unwrap_used)]

#[path = "support/node.rs"]
#[allow(dead_code)]
mod node;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use node::Node;

/// What Debian 13 installs in `/usr/lib/x86_64-linux-gnu/glusterfs/11.1`.
const INSTALLED: &str = "
    auth/addr auth/login cloudsync-plugins/cloudsynccvlt rpc-transport/socket xlator/cluster/afr xlator/cluster/dht
    xlator/cluster/disperse xlator/cluster/distribute xlator/cluster/ec xlator/cluster/nufa xlator/cluster/replicate
    xlator/cluster/switch xlator/debug/delay-gen xlator/debug/error-gen xlator/debug/io-stats xlator/debug/sink
    xlator/debug/trace xlator/features/access-control xlator/features/arbiter xlator/features/barrier
    xlator/features/bit-rot xlator/features/bitrot-stub xlator/features/cdc xlator/features/changelog
    xlator/features/cloudsync xlator/features/gfid-access xlator/features/index xlator/features/leases
    xlator/features/locks xlator/features/marker xlator/features/namespace xlator/features/posix-locks
    xlator/features/quiesce xlator/features/quota xlator/features/quotad xlator/features/read-only xlator/features/sdfs
    xlator/features/selinux xlator/features/shard xlator/features/simple-quota xlator/features/snapview-client
    xlator/features/snapview-server xlator/features/thin-arbiter xlator/features/trash xlator/features/upcall
    xlator/features/utime xlator/features/worm xlator/meta xlator/mgmt/glusterd xlator/mount/api xlator/mount/fuse
    xlator/performance/io-cache xlator/performance/io-threads xlator/performance/md-cache
    xlator/performance/nl-cache xlator/performance/open-behind xlator/performance/quick-read
    xlator/performance/read-ahead xlator/performance/readdir-ahead xlator/performance/stat-prefetch
    xlator/performance/write-behind xlator/playground/template xlator/protocol/client xlator/protocol/server
    xlator/storage/posix xlator/system/posix-acl";

/// What a server could turn against the node of a client.
const OF_SERVERS: [&str; 6] = [
    "xlator/storage/posix.so",
    "xlator/protocol/server.so",
    "xlator/mgmt/glusterd.so",
    "xlator/debug/trace.so",
    "xlator/features/changelog.so",
    "auth/login.so",
];

/// What each volume needs of a client.
const OF_CLIENTS: [&str; 6] = [
    "xlator/protocol/client.so",
    "xlator/cluster/replicate.so",
    "xlator/mount/fuse.so",
    "xlator/meta.so",
    "xlator/performance/io-threads.so",
    "rpc-transport/socket.so",
];

const INSTALLATION: &str = "usr/lib/x86_64-linux-gnu/glusterfs/11.1";

/// Runs the commands of the image's build where GlusterFS has these modules, without `.so`.
fn build(root: &Path, modules: &[&str]) -> Output {
    let images = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../images/client-glusterfs");
    let containerfile = fs::read_to_string(images.join("Containerfile")).unwrap();
    let containerfile = containerfile.replace("\\\n", "");
    let mut steps = containerfile.lines().filter_map(|line| line.strip_prefix("RUN "));
    let mut script = steps.find(|step| step.contains("glusterfs-client")).unwrap().to_owned();
    let at = root.display();
    // Nothing of the machine's own is removed.
    for folder in ["/usr/", "/var/"] {
        script = script.replace(&format!(" {folder}"), &format!(" {at}{folder}"));
    }
    assert!(!script.replace(&format!(" {at}/"), "").contains(" /"), "{script}");
    let tools = root.join("usr/libexec/mooring-build");
    fs::create_dir_all(&tools).unwrap();
    for tool in ["xlators", "keep-xlators"] {
        fs::copy(images.join(tool), tools.join(tool)).unwrap();
    }
    let installs = modules.iter().map(|module| {
        let path = root.join(INSTALLATION).join(module);
        let folder = path.parent().unwrap().display();
        format!("mkdir -p {folder}; : >{}.so\n", path.display())
    });
    let install = format!(
        "#!/bin/sh\n[ \"$1\" = install ] || exit 0\n{}",
        installs.collect::<String>()
    );
    let bin = root.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("apt-get"), install).unwrap();
    fs::set_permissions(bin.join("apt-get"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-ec", &script]).env("PATH", path).output().unwrap()
}

fn is_there(root: &Path, module: &str) -> bool {
    root.join(INSTALLATION).join(module).exists()
}

#[test]
fn the_client_image_has_no_module_that_only_servers_use() {
    let root = tempfile::tempdir().unwrap();
    let installed: Vec<_> = INSTALLED.split_whitespace().collect();
    let output = build(root.path(), &installed);
    assert!(output.status.success(), "{output:?}");
    for module in OF_SERVERS {
        assert!(
            !is_there(root.path(), module),
            "a server can have the client load {module}"
        );
    }
    for module in OF_CLIENTS {
        assert!(is_there(root.path(), module), "the client lacks {module}");
    }
}

#[test]
fn a_build_without_a_module_that_clients_use_fails() {
    let installed: Vec<_> = INSTALLED.split_whitespace().collect();
    for missing in ["xlator/features/shard", "xlator/meta", "rpc-transport/socket"] {
        let root = tempfile::tempdir().unwrap();
        let without: Vec<_> = installed.iter().copied().filter(|module| *module != missing).collect();
        let output = build(root.path(), &without);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "an image without {missing} is built");
        assert!(said.contains(missing), "{said}");
    }
}

#[test]
fn glusterfs_runs_with_what_keeps_modules_in_their_directory() {
    let node = Node::new("client-glusterfs/glusterfs");
    node.command("glusterfs", "echo \"preloads $LD_PRELOAD\" >>\"$NODE/calls\"");
    for command in ["stat", "mountpoint"] {
        node.command(command, "");
    }
    node.write("secrets/v1/there", "");
    let output = node.run("v1", &["mount", "server:/volume/directory", "/target"], &[]);
    assert!(output.status.success(), "{output:?}");
    let calls = node.calls();
    let expected = format!("\npreloads {}\n", node.at("lib/preload.so").display());
    assert!(calls.contains(&expected), "glusterfs runs without preload.so: {calls}");
}
