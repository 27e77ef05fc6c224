//! NFS served by `self`: the kernel mounts, and the node has nothing else for it. This machine's kernel has no NFS, so
//! the node is a virtual machine with Debian's stock kernel, in which the mounter and the shim are called as a kubelet
//! calls them; the server is a real one.

use std::time::Instant;

use anyhow::{Result, ensure};
use mooring_harness::Scope;
use mooring_harness::bare_machine::hung::CALL_TIMEOUT;
use mooring_harness::bare_machine::{LIMIT, Machine};
use mooring_harness::nodes::on_own_nodes_within;
use mooring_harness::server::Server;
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

/// The node whose network machine and server use.
const NODE: &str = "node-1";

/// A server, and a machine with a mounter beside it.
async fn set_up(scope: &Scope) -> Result<(Server, Machine)> {
    let server = scope.storage_server("nfs", NODE, &Value::Null).await?;
    let mut machine = Machine::beside(scope, NODE)?;
    let timeout = format!("--call-timeout={}s", CALL_TIMEOUT.as_secs());
    machine.start_mounter(&["--mount-container=nfs=self", &timeout])?;
    Ok((server, machine))
}

fn volume(server: &str, path: &str, mount_options: &str) -> Value {
    json!({"client": "nfs", "source": format!("{server}:{path}"), "mount-options": mount_options})
}

#[test]
fn nfs_volumes_are_mounted_by_the_kernel_alone_and_outlive_the_mounter() {
    on_own_nodes_within(LIMIT, "vm-nfs", async |scope| {
        let (server, mut machine) = set_up(&scope).await?;
        let address = server.address.as_str();
        assert_eq!(machine.call(&["init"])?.status(), "Success");
        assert_eq!(machine.sh("ls /sbin /usr 2>/dev/null || echo nothing")?, "nothing\n");

        for (name, options, version) in [
            ("newest", "", "4.2"),
            ("older", "vers=4.1,soft,nconnect=2", "4.1"),
            ("oldest", "v4.0", "4.0"),
            // Its locks stay on the node: nothing there would send them to the server.
            ("third", "vers=3,nolock", "3"),
        ] {
            scope.exec("nfs", ["mkdir", "-p", &format!("/srv/open/{name}")])?;
            // Version 3 uses the paths on the server itself.
            let exported = if version == "3" { "/srv/open" } else { "/open" };
            let volume = volume(address, &format!("{exported}/{name}/"), options);
            let started = Instant::now();
            machine.mounted(name, &volume)?;
            note(format!("NFS {version} was mounted after {}", spoken(started.elapsed())));
            // The kubelet may repeat the call, as after a restart.
            machine.mounted(name, &volume)?;
            let mounts = machine.mounts(name)?;
            assert_eq!(mounts.len(), 1, "{mounts:?}");
            for word in [
                "nosuid",
                "nodev",
                &format!(
                    " {} {address}:{exported}/{name} ",
                    if version == "3" { "nfs" } else { "nfs4" }
                ),
                &format!("vers={version}"),
            ] {
                assert!(mounts[0].contains(word), "{word} is not in {mounts:?}");
            }
            machine.sh(&format!("echo from {name} >{}", Machine::path(name, "letter")))?;
            let letter = format!("/srv/open/{name}/letter");
            assert_eq!(scope.exec("nfs", ["cat", &letter])?, format!("from {name}\n"));
        }
        ensure!(
            machine.mounts("older")?[0].contains("soft"),
            "{:?}",
            machine.mounts("older")?
        );

        // The mounter's network ends with it; its mounts use the host's.
        machine.sh("kill -9 $(pidof mounter)")?;
        machine.sh(&format!("echo alone >{}; sync", Machine::path("newest", "letter")))?;
        assert_eq!(scope.exec("nfs", ["cat", "/srv/open/newest/letter"])?, "alone\n");
        machine.start_mounter(&["--mount-container=nfs=self"])?;
        machine.mounted("newest", &volume(address, "/open/newest", ""))?;
        assert_eq!(machine.mounts("newest")?.len(), 1);

        // Read-only because of the Pod, and because of the volume.
        let mut by_pod = volume(address, "/open/newest", "");
        by_pod["kubernetes.io/readwrite"] = "ro".into();
        for (name, options) in [("by-pod", by_pod), ("by-volume", volume(address, "/open/newest", "ro"))] {
            machine.mounted(name, &options)?;
            assert_eq!(
                machine.sh(&format!("cat {}", Machine::path(name, "letter")))?,
                "alone\n"
            );
            let written = machine.run(&format!("echo x >{}", Machine::path(name, "letter")), CALL_TIMEOUT)?;
            assert!(written.output.contains("Read-only file system"), "{written:?}");
        }

        // A host name, resolved where the mounter runs.
        machine.sh(&format!("echo '{address} nas.example.com' >>/etc/hosts"))?;
        machine.mounted("named", &volume("nas.example.com", "/open", "port=2049"))?;
        assert_eq!(
            machine.sh(&format!("cat {}", Machine::path("named", "newest/letter")))?,
            "alone\n"
        );
        machine.mounted("named", &volume("nas.example.com", "/open", ""))?;
        assert_eq!(machine.mounts("named")?.len(), 1);

        for name in ["newest", "older", "oldest", "third", "by-pod", "by-volume", "named"] {
            machine.unmounted(name)?;
        }
        let table = machine.sh("cat /proc/self/mountinfo")?;
        assert!(!table.contains(" nfs"), "{table}");
        Ok(())
    });
}

/// Proves: M1
#[test]
fn a_refusing_nfs_server_is_reported_and_a_hanging_one_delays_nobody() {
    on_own_nodes_within(LIMIT, "vm-nfs-hung", async |scope| {
        let (server, mut machine) = set_up(&scope).await?;
        let address = server.address.as_str();
        // What a tenant can do in a directory of theirs.
        let links = "mkdir -p /srv/open/team-a/plain /srv/open/team-b/deeper && cd /srv/open/team-a && \
                     ln -sfn ../team-b up && ln -sfn /open/team-b whole && ln -sfn plain beside";
        scope.exec("nfs", ["sh", "-ec", links])?;
        for link in ["up", "up/deeper", "whole", "beside"] {
            let answer = machine.mount("refused", &volume(address, &format!("/open/team-a/{link}"), ""))?;
            answer.refused(&["symbolic link", address])?;
        }
        machine.mounted("refused", &volume(address, "/open/team-a/plain", ""))?;
        machine.unmounted("refused")?;
        for (source, options, words) in [
            ("/closed", "", &["no such path for this node", "to whom"][..]),
            ("/open/nowhere", "", &["no such path for this node"]),
            ("/open", "port=2050", &["no NFS server listens on port 2050", address]),
            ("/open", "vers=3", &["rpc.statd", "nfs-locks", "nolock"]),
            ("/open", "addr=192.0.2.1", &["would replace the server"]),
            ("/open", "sec=krb5", &["rpc.gssd"]),
        ] {
            let answer = machine.mount("refused", &volume(address, source, options))?;
            answer.refused(words)?;
            note(format!("{source} {options}: {}", answer.message()));
        }
        let answer = machine.mount("refused", &volume("nowhere.example.com", "/open", ""))?;
        answer.refused(&["nowhere.example.com", "DNS"])?;
        assert!(machine.mounts("refused")?.is_empty());

        machine.mounted("used", &volume(address, "/open", ""))?;
        let late = volume(address, "/open", "");
        let other = scope
            .storage_server_called("nfs-other", "nfs", NODE, &Value::Null)
            .await?;
        let other = volume(&other.address, "/open", "");
        machine
            .hang(&scope, ("nfs", address), "used", &late, &late, &other)
            .await?;
        Ok(())
    });
}
