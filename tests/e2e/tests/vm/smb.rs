//! SMB served by `self`: the kernel mounts, and the node has nothing else for it. This machine's kernel has no SMB, so
//! the node is a virtual machine with Debian's stock kernel, in which the mounter and the shim are called as a kubelet
//! calls them; the server is Samba.

use std::time::Instant;

use anyhow::{Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mooring_harness::Scope;
use mooring_harness::bare_machine::hung::CALL_TIMEOUT;
use mooring_harness::bare_machine::{LIMIT, Machine};
use mooring_harness::nodes::{CallOut, on_own_nodes_within};
use mooring_testbed::progress::{note, spoken};
use serde_json::{Value, json};

/// The node whose network machine and server use.
const NODE: &str = "node-1";

/// All as in tests/images/samba/serve.
const USER: &str = "tom";
const PASSWORD: &str = "not-to-be-seen-smb,vers=1.0,uid=7 \"ö";

/// The part of the password that would show up first.
const SEEN: &str = "not-to-be-seen";

/// A server's address, and a machine with a mounter beside it.
async fn set_up(scope: &Scope) -> Result<(String, Machine)> {
    let server = scope.storage_server("samba", NODE, &Value::Null).await?;
    let mut machine = Machine::beside(scope, NODE)?;
    let timeout = format!("--call-timeout={}s", CALL_TIMEOUT.as_secs());
    machine.start_mounter(&["--mount-container=smb=self", &timeout])?;
    Ok((server.address, machine))
}

/// A volume with its Secret, as the kubelet passes it.
fn volume_of(server: &str, path: &str, mount_options: &str, user: &str, password: &str) -> Value {
    json!({
        "client": "smb", "source": format!("//{server}/{path}"), "mount-options": mount_options,
        "kubernetes.io/secret/username": STANDARD.encode(user),
        "kubernetes.io/secret/password": STANDARD.encode(password),
    })
}

fn volume(server: &str, path: &str, mount_options: &str) -> Value {
    volume_of(server, path, mount_options, USER, PASSWORD)
}

fn refused(answer: &CallOut, words: &[&str]) -> Result<()> {
    let message = answer.message();
    ensure!(!message.contains(SEEN), "the password is in the answer {message}");
    answer.refused(words)
}

/// Searches for the password wherever it could be seen.
fn password_is_nowhere(machine: &mut Machine) -> Result<()> {
    let seen = machine.sh(
        "cat /proc/mounts /proc/self/mountinfo /proc/fs/cifs/DebugData /run/mounter.log
         for process in /proc/[0-9]*; do tr '\\0' ' ' <$process/cmdline; tr '\\0' ' ' <$process/environ; done 2>/dev/null || true
         dmesg",
    )?;
    ensure!(seen.contains("username=tom"), "the mount table is not in {seen}");
    for part in [SEEN, &STANDARD.encode(PASSWORD)] {
        ensure!(!seen.contains(part), "the password is in {seen}");
    }
    Ok(())
}

#[test]
fn smb_volumes_are_mounted_by_the_kernel_alone_for_the_secret_s_user_whose_password_nobody_sees() {
    on_own_nodes_within(LIMIT, "vm-smb", async |scope| {
        let (server, mut machine) = set_up(&scope).await?;
        let server = server.as_str();
        assert_eq!(machine.sh("ls /sbin /usr 2>/dev/null || echo nothing")?, "nothing\n");

        for (name, options, words) in [
            ("newest", "", &["vers=3.1.1", "file_mode=0777", "dir_mode=0777"][..]),
            ("older", "vers=3.0,cache=none", &["vers=3.0,", "cache=none"]),
            (
                "sealed",
                "seal,uid=7,file_mode=0640,nosharesock",
                &["vers=3.1.1", "seal", "uid=7", "file_mode=0640"],
            ),
        ] {
            scope.exec("samba", ["mkdir", "-p", &format!("/srv/volumes/{name}")])?;
            let volume = volume(server, &format!("volumes/{name}/"), options);
            let started = Instant::now();
            machine.mounted(name, &volume)?;
            note(format!("SMB {name} was mounted after {}", spoken(started.elapsed())));
            // The kubelet may repeat the call, as after a restart.
            machine.mounted(name, &volume)?;
            let mounts = machine.mounts(name)?;
            assert_eq!(mounts.len(), 1, "{mounts:?}");
            let source = format!(" cifs //{server}/volumes/{name} ");
            for word in ["nosuid", "nodev", source.as_str(), "username=tom"].iter().chain(words) {
                assert!(mounts[0].contains(word), "{word} is not in {mounts:?}");
            }
            machine.sh(&format!("echo from {name} >{}", Machine::path(name, "lettre-à-tous")))?;
            let letter = format!("/srv/volumes/{name}/lettre-à-tous");
            assert_eq!(scope.exec("samba", ["cat", &letter])?, format!("from {name}\n"));
        }
        // Another client's changes can be seen.
        scope.exec("samba", ["sh", "-c", "echo answer >/srv/volumes/older/answer"])?;
        assert_eq!(
            machine.sh(&format!("cat {}", Machine::path("older", "answer")))?,
            "answer\n"
        );
        password_is_nowhere(&mut machine)?;

        // The mounter's network ends with it; its mounts use the host's.
        machine.sh("kill -9 $(pidof mounter)")?;
        machine.sh(&format!("echo alone >{0}; sync {0}", Machine::path("newest", "letter")))?;
        assert_eq!(scope.exec("samba", ["cat", "/srv/volumes/newest/letter"])?, "alone\n");
        machine.start_mounter(&["--mount-container=smb=self"])?;
        machine.mounted("newest", &volume(server, "volumes/newest", ""))?;
        assert_eq!(machine.mounts("newest")?.len(), 1);

        // A Pod's group owns the files, and the kubelet's attempt to change the owner does no harm.
        let mut grouped = volume(server, "volumes/newest", "");
        grouped["kubernetes.io/mounterArgs.FsGroup"] = "2000".into();
        machine.mounted("grouped", &grouped)?;
        machine.sh(&format!(
            "chgrp -R 2000 {0}; chmod -R g+rw {0}",
            Machine::path("grouped", "")
        ))?;
        let files = machine.sh(&format!(
            "stat -c '%u %g %a' {0} {0}letter",
            Machine::path("grouped", "")
        ))?;
        assert_eq!(files, "0 2000 2770\n0 2000 770\n");

        // Read-only because of the Pod, and because of the volume.
        let mut by_pod = volume(server, "volumes/newest", "");
        by_pod["kubernetes.io/readwrite"] = "ro".into();
        for (name, options) in [
            ("by-pod", by_pod),
            ("by-volume", volume(server, "volumes/newest", "ro")),
        ] {
            machine.mounted(name, &options)?;
            assert_eq!(
                machine.sh(&format!("cat {}", Machine::path(name, "letter")))?,
                "alone\n"
            );
            let written = machine.run(&format!("echo x >{}", Machine::path(name, "letter")), CALL_TIMEOUT)?;
            assert!(written.output.contains("Read-only file system"), "{written:?}");
        }

        // A share for guests, and a host name, resolved where the mounter runs.
        let everybody =
            json!({"client": "smb", "source": format!("//{server}/everybody"), "mount-options": "sec=none"});
        machine.mounted("everybody", &everybody)?;
        assert_eq!(
            machine.sh(&format!("cat {}", Machine::path("everybody", "letter")))?,
            "hello\n"
        );
        machine.sh(&format!("echo '{server} nas.example.com' >>/etc/hosts"))?;
        for _ in 0..2 {
            machine.mounted("named", &volume("nas.example.com", "volumes", "port=445"))?;
        }
        assert_eq!(
            machine.sh(&format!("cat {}", Machine::path("named", "newest/letter")))?,
            "alone\n"
        );
        assert_eq!(machine.mounts("named")?.len(), 1);

        for name in [
            "newest",
            "older",
            "sealed",
            "grouped",
            "by-pod",
            "by-volume",
            "everybody",
            "named",
        ] {
            machine.unmounted(name)?;
        }
        let table = machine.sh("cat /proc/self/mountinfo")?;
        assert!(!table.contains("cifs"), "{table}");
        Ok(())
    });
}

/// Proves: M1
#[test]
fn a_refusing_smb_server_is_reported_and_a_hanging_one_delays_nobody() {
    on_own_nodes_within(LIMIT, "vm-smb-hung", async |scope| {
        let (server, mut machine) = set_up(&scope).await?;
        let server = server.as_str();
        for (source, options, words) in [
            (
                "volumes/nowhere",
                "",
                &["no share or no directory volumes/nowhere", server][..],
            ),
            ("nowhere", "", &["no share or no directory nowhere", server]),
            ("others", "", &["denies this user access to others"]),
            ("volumes", "port=446", &["no SMB server listens on port 446", server]),
            ("volumes", "port=1445", &["does not speak SMB 3.1.1"]),
            ("volumes", "vers=2.1", &["no longer safe"]),
            ("volumes", "ip=192.0.2.1", &["would replace the server"]),
            ("volumes", "sec=krb5", &["cifs.upcall"]),
            (
                "volumes",
                "password=not-to-be-seen",
                &["Secret of type mooring.dev/vcs"],
            ),
        ] {
            let answer = machine.mount("refused", &volume(server, source, options))?;
            note(format!("{source} {options}: {}", answer.message()));
            refused(&answer, words)?;
        }
        let wrong = format!("{PASSWORD}x");
        let answer = machine.mount("refused", &volume_of(server, "volumes", "", USER, &wrong))?;
        note(format!("wrong password: {}", answer.message()));
        refused(&answer, &["does not take the user and password", server])?;
        let answer = machine.mount("refused", &volume("nowhere.example.com", "volumes", ""))?;
        refused(&answer, &["nowhere.example.com", "DNS"])?;
        let nobody = json!({"client": "smb", "source": format!("//{server}/volumes")});
        refused(&machine.mount("refused", &nobody)?, &["no username", "secretRef"])?;
        assert!(machine.mounts("refused")?.is_empty());

        machine.mounted("used", &volume(server, "volumes", ""))?;
        // An open connection does not get around the password.
        let answer = machine.mount("refused", &volume_of(server, "volumes", "", USER, &wrong))?;
        refused(&answer, &["does not take the user and password"])?;
        password_is_nowhere(&mut machine)?;
        // One that has a connection of its own, and one that could share that of `used`.
        let apart = volume(server, "volumes", "nosharesock");
        let late = volume(server, "volumes", "");
        let other = scope
            .storage_server_called("samba-other", "samba", NODE, &Value::Null)
            .await?;
        let other = volume(&other.address, "volumes", "");
        let told = machine
            .hang(&scope, ("samba", server), "used", &apart, &late, &other)
            .await?;
        ensure!(!told.contains(SEEN), "the password is in the answer {told}");
        Ok(())
    });
}
