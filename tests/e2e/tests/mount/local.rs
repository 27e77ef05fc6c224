//! Volumes that are image files in a node's own pool.

use std::time::Duration;

use anyhow::Result;
use mooring_harness::nodes::{POOL, on_own_nodes};
use mooring_harness::{Scope, wait_until};
use serde_json::{Value, json};

const NODE: &str = "node-1";

/// Creates an empty image file in the pool of node-1, and a claim of the same name.
fn blank(scope: &Scope, name: &str, size: &str, more: &Value) -> Result<()> {
    let file = scope.volume_name(name);
    scope.on_node(1, &format!("mkdir -p {POOL} && truncate -s {size} {POOL}/{file}"))?;
    let mut options = json!({"client": "local", "source": file});
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        options[key] = value;
    }
    scope.volume(name, &options)
}

/// The options that the kubelet would pass to `mount` for a volume of this test.
fn kubelet_options(scope: &Scope, name: &str) -> String {
    let volume = scope.volume_name(name);
    json!({
        "client": "local",
        "source": volume,
        "kubernetes.io/fsType": "",
        "kubernetes.io/readwrite": "rw",
        "kubernetes.io/pvOrVolumeName": volume,
        "kubernetes.io/pod.name": "user",
        "kubernetes.io/pod.namespace": scope.namespace,
    })
    .to_string()
}

/// The fifth field of a line of the mount table.
fn mount_point(line: &str) -> &str {
    line.split(' ').nth(4).unwrap_or_default()
}

#[test]
fn an_ext4_volume_holds_no_more_than_its_size() {
    on_own_nodes("mount-ext4", async |scope| {
        blank(&scope, "data", "64M", &json!({}))?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod_ready("user").await?;
        assert!(
            scope
                .exec("user", ["grep", " /data ext4 ", "/proc/mounts"])?
                .contains("nosuid,nodev")
        );
        scope.exec("user", ["dd", "if=/dev/zero", "of=/data/a", "bs=1M", "count=32"])?;
        let error = scope
            .exec("user", ["dd", "if=/dev/zero", "of=/data/b", "bs=1M", "count=64"])
            .unwrap_err();
        assert!(error.to_string().contains("No space left on device"), "{error:#}");
        Ok(())
    });
}

/// Or the volume is busy for ever, and the Pod stays `Terminating`.
#[test]
fn what_a_container_mounts_within_a_volume_goes_with_it() {
    on_own_nodes("mount-within", async |scope| {
        blank(&scope, "data", "64M", &json!({}))?;
        let main = json!([{
            "name": "main", "image": "busybox:1", "command": ["sleep", "1000000"],
            "securityContext": {"privileged": true},
            "volumeMounts": [{"name": "data", "mountPath": "/data", "mountPropagation": "Bidirectional"}],
        }]);
        scope.pod("user", NODE, "data", json!({"containers": main}))?;
        scope.pod_ready("user").await?;
        let target = mount_point(&scope.mounts_on(1)?[0]).to_owned();
        for directory in ["/data/inner", "/data/inner/deep"] {
            scope.exec("user", ["mkdir", directory])?;
            scope.exec("user", ["mount", "-t", "tmpfs", "within", directory])?;
        }
        let within = || scope.on_node(1, &format!("grep -c '^within {target}/inner' /proc/mounts || true"));
        assert_eq!(within()?.trim(), "2");
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        assert_eq!(within()?.trim(), "0");
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        Ok(())
    });
}

#[test]
fn an_xfs_volume_holds_no_more_than_its_size_and_grows_when_the_kubelet_says_so() {
    on_own_nodes("mount-xfs", async |scope| {
        blank(&scope, "data", "320M", &json!({"fs-type": "xfs"}))?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["grep", " /data xfs ", "/proc/mounts"])?;
        scope.exec("user", ["fallocate", "-l", "200M", "/data/a"])?;
        let error = scope.exec("user", ["fallocate", "-l", "200M", "/data/b"]).unwrap_err();
        assert!(error.to_string().contains("No space left on device"), "{error:#}");

        // The image file has not grown yet.
        let target = mount_point(&scope.mounts_on(1)?[0]).to_owned();
        let options = kubelet_options(&scope, "data");
        let size = (640 << 20).to_string();
        let call = ["expandfs", options.as_str(), "", &target, &size, "335544320"];
        let early = scope.call_out(1, &call)?;
        assert!(early.message().contains("enlarge the file first"), "{early:?}");

        scope.on_node(1, &format!("truncate -s 640M {POOL}/{}", scope.volume_name("data")))?;
        for _ in 0..2 {
            let grown = scope.call_out(1, &call)?;
            assert_eq!(grown.status(), "Success", "{grown:?}");
        }
        scope.exec("user", ["fallocate", "-l", "200M", "/data/c"])?;
        Ok(())
    });
}

#[test]
fn an_ext4_volume_grows_at_once_or_where_the_node_lacks_the_capability_for_the_next_pod() {
    on_own_nodes("mount-grow-ext4", async |scope| {
        blank(&scope, "data", "64M", &json!({}))?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod_ready("user").await?;
        scope.on_node(1, &format!("truncate -s 128M {POOL}/{}", scope.volume_name("data")))?;
        let target = mount_point(&scope.mounts_on(1)?[0]).to_owned();
        let options = kubelet_options(&scope, "data");
        let grown = scope.call_out(1, &["expandfs", &options, "", &target, "134217728", "67108864"])?;
        if grown.status() == "Success" {
            scope.exec("user", ["fallocate", "-l", "100M", "/data/a"])?;
        } else {
            assert!(grown.message().contains("CAP_SYS_RESOURCE"), "{grown:?}");
            // The kubelet only logs that.
            let event = scope.event("user", "keeps its size here").await?;
            assert_eq!(event.reason.as_deref(), Some("FileSystemResizeFailed"));
            scope.exec("user", ["touch", "/data/still-there"])?;
            scope.delete("pod/user")?;
            scope.pod_gone("user").await?;
            scope.pod("later", NODE, "data", Value::Null)?;
            scope.pod_ready("later").await?;
            scope.exec("later", ["ls", "/data/still-there"])?;
            scope.exec("later", ["fallocate", "-l", "100M", "/data/a"])?;
        }
        Ok(())
    });
}

#[test]
fn what_a_pod_deletes_is_free_in_the_pool_again() {
    on_own_nodes("mount-discard", async |scope| {
        blank(&scope, "data", "64M", &json!({}))?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod_ready("user").await?;
        let mebibytes = || -> Result<u32> {
            let taken = format!("du -m {POOL}/{} | cut -f 1", scope.volume_name("data"));
            Ok(scope.on_node(1, &taken)?.trim().parse()?)
        };
        let fill = "dd if=/dev/urandom of=/data/file bs=1M count=32 status=none; sync";
        scope.exec("user", ["sh", "-euc", fill])?;
        let used = mebibytes()?;
        scope.exec("user", ["sh", "-euc", "rm /data/file; sync"])?;
        wait_until("the pool to have its room back", Duration::from_mins(2), async || {
            Ok((mebibytes()? + 30 <= used).then_some(()))
        })
        .await
    });
}

/// Neither the kernel nor a Pod that deletes files takes room from it.
#[test]
fn a_volume_that_is_to_keep_its_space_has_it_after_deletions_and_mounts() {
    on_own_nodes("mount-preallocated", async |scope| {
        blank(&scope, "data", "256M", &json!({}))?;
        let file = scope.volume_name("data");
        let mark = format!("{POOL}/.{file}.preallocated");
        scope.on_node(1, &format!("fallocate -l 256M {POOL}/{file} && : >{mark}"))?;
        for pod in ["one", "two"] {
            scope.pod(pod, NODE, "data", Value::Null)?;
            scope.pod_ready(pod).await?;
            let change = "dd if=/dev/urandom of=/data/file bs=1M count=32 status=none; sync; rm /data/file; sync";
            scope.exec(pod, ["sh", "-euc", change])?;
            let mounts = scope.exec(pod, ["grep", " /data ext4 ", "/proc/mounts"])?;
            assert!(!mounts.contains("discard"), "{mounts}");
            let taken = scope.on_node(1, &format!("stat -c %b {POOL}/{file}"))?;
            assert!(taken.trim().parse::<u64>()? * 512 >= 256 << 20, "{taken}");
            scope.delete(&format!("pod/{pod}"))?;
            scope.pod_gone(pod).await?;
        }
        scope.on_node(1, &format!("rm {mark}"))?;
        Ok(())
    });
}

#[test]
fn two_pods_of_a_node_share_one_device_and_the_last_leaves_nothing() {
    on_own_nodes("mount-share", async |scope| {
        blank(&scope, "data", "64M", &json!({}))?;
        scope.pod("one", NODE, "data", Value::Null)?;
        scope.pod("two", NODE, "data", Value::Null)?;
        scope.pod_ready("one").await?;
        scope.pod_ready("two").await?;
        scope.exec("one", ["sh", "-c", "echo hello >/data/letter"])?;
        assert_eq!(scope.exec("two", ["cat", "/data/letter"])?, "hello\n");
        assert_eq!(scope.mounts_on(1)?.len(), 2);
        assert_eq!(scope.loop_devices()?.len(), 1);

        scope.delete("pod/one")?;
        scope.pod_gone("one").await?;
        assert_eq!(scope.exec("two", ["cat", "/data/letter"])?, "hello\n");
        scope.delete("pod/two")?;
        scope.pod_gone("two").await?;
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        // The kernel detaches the device a moment after the last unmount.
        wait_until("the loop device to be gone", Duration::from_mins(2), async || {
            Ok(scope.loop_devices()?.is_empty().then_some(()))
        })
        .await
    });
}

#[test]
fn a_read_only_volume_takes_no_writes_and_keeps_what_was_written() {
    on_own_nodes("mount-read-only", async |scope| {
        blank(&scope, "data", "64M", &json!({}))?;
        scope.pod("writer", NODE, "data", Value::Null)?;
        scope.pod_ready("writer").await?;
        scope.exec("writer", ["sh", "-c", "echo kept >/data/letter"])?;
        scope.delete("pod/writer")?;
        scope.pod_gone("writer").await?;

        let claim = json!({"claimName": "data", "readOnly": true});
        let more = json!({"volumes": [{"name": "data", "persistentVolumeClaim": claim}]});
        scope.pod("reader", NODE, "data", more)?;
        scope.pod_ready("reader").await?;
        assert_eq!(scope.exec("reader", ["cat", "/data/letter"])?, "kept\n");
        let error = scope.exec("reader", ["touch", "/data/x"]).unwrap_err();
        assert!(error.to_string().contains("Read-only file system"), "{error:#}");
        Ok(())
    });
}

#[test]
fn a_pod_that_is_not_root_writes_by_its_fs_group() {
    on_own_nodes("mount-fs-group", async |scope| {
        blank(&scope, "data", "64M", &json!({}))?;
        let user = json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000});
        scope.pod("user", NODE, "data", json!({"securityContext": user}))?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["touch", "/data/mine"])?;
        assert_eq!(
            scope.exec("user", ["stat", "-c", "%u:%g", "/data/mine"])?,
            "1000:2000\n"
        );
        // The files are the last Pod's group's. What may only be read stays.
        let group = |group: u32| json!({"runAsUser": 1001, "runAsGroup": 1001, "fsGroup": group});
        let claim = json!({"claimName": "data", "readOnly": true});
        let read_only = json!([{"name": "data", "persistentVolumeClaim": claim}]);
        let more = json!({"securityContext": group(4000), "volumes": read_only});
        scope.pod("reader", NODE, "data", more)?;
        scope.pod_ready("reader").await?;
        scope.pod("other", NODE, "data", json!({"securityContext": group(3000)}))?;
        scope.pod_ready("other").await?;
        scope.exec("other", ["sh", "-c", "echo hello >>/data/mine"])?;
        let stat = ["stat", "-c", "%u:%g %a", "/data/mine", "/data"];
        assert_eq!(scope.exec("other", stat)?, "1000:3000 664\n0:3000 2775\n");
        Ok(())
    });
}

/// Proves: M2
#[test]
fn a_call_out_that_is_repeated_succeeds_and_changes_nothing() {
    on_own_nodes("mount-again", async |scope| {
        blank(&scope, "data", "64M", &json!({}))?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod_ready("user").await?;
        let before = scope.mounts_on(1)?;
        let target = mount_point(&before[0]).to_owned();
        let options = kubelet_options(&scope, "data");
        for _ in 0..3 {
            let again = scope.call_out(1, &["mount", &target, &options])?;
            assert_eq!(again.status(), "Success", "{again:?}");
        }
        assert_eq!(scope.mounts_on(1)?, before);
        // The volume is what its PersistentVolume says, whatever the call does.
        let other = options.replace(&scope.volume_name("data"), "another");
        let other = scope.call_out(1, &["mount", &target, &other])?;
        assert_eq!(other.status(), "Success", "{other:?}");
        assert_eq!(scope.mounts_on(1)?, before);
        // Nor is it for another Pod.
        let stranger = options.replace("\"user\"", "\"another\"");
        scope
            .call_out(1, &["mount", &target, &stranger])?
            .refused(&["no Pod"])?;
        assert_eq!(scope.mounts_on(1)?, before);

        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        let unmounted = scope.call_out(1, &["unmount", &target])?;
        assert_eq!(unmounted.status(), "Success", "{unmounted:?}");
        Ok(())
    });
}

#[test]
fn what_can_t_be_mounted_has_an_event_and_stays_as_it_was() {
    on_own_nodes("mount-refused", async |scope| {
        let ns = &scope.namespace;
        scope.on_node(
            1,
            &format!(
                "mkdir -p {POOL} && cd {POOL} && truncate -s 64M {ns}-blank {ns}-end {ns}-other && truncate -s 0 {ns}-empty
                 echo precious >{ns}-junk && truncate -s 64M {ns}-junk
                 echo precious | dd of={ns}-end bs=1 seek=60000000 conv=notrunc status=none
                 mkfs.ext4 -q -F {ns}-other
                 ln -s /etc/passwd {ns}-link"
            ),
        )?;
        let sums = format!("cd {POOL} && sha256sum {ns}-blank {ns}-end {ns}-other {ns}-junk /etc/passwd");
        let before = scope.on_node(1, &sums)?;
        let cases = [
            ("type", format!("{ns}-blank"), "btrfs", "use ext4 or xfs"),
            ("small", format!("{ns}-blank"), "xfs", "needs 300Mi at least"),
            ("up", format!("../pool/{ns}-blank"), "", "is not a file name"),
            ("missing", format!("{ns}-nowhere"), "", "there is no image file"),
            ("link", format!("{ns}-link"), "", "link"),
            ("empty", format!("{ns}-empty"), "", "it is empty"),
            ("junk", format!("{ns}-junk"), "", "never formatted"),
            ("end", format!("{ns}-end"), "", "never formatted"),
            ("other", format!("{ns}-other"), "xfs", "it holds"),
        ];
        for (name, source, fs_type, _) in &cases {
            scope.volume(name, &json!({"client": "local", "source": source, "fs-type": fs_type}))?;
            scope.pod(name, NODE, name, Value::Null)?;
        }
        for (name, _, _, words) in &cases {
            scope.event(name, words).await?;
        }
        assert_eq!(scope.on_node(1, &sums)?, before);
        assert_eq!(scope.mounts_on(1)?, Vec::<String>::new());
        Ok(())
    });
}

#[test]
fn the_kubelet_knows_how_full_a_volume_is() {
    on_own_nodes("mount-usage", async |scope| {
        blank(&scope, "data", "64M", &json!({}))?;
        scope.pod("user", NODE, "data", Value::Null)?;
        scope.pod_ready("user").await?;
        scope.exec("user", ["dd", "if=/dev/zero", "of=/data/a", "bs=1M", "count=20"])?;
        scope.exec("user", ["sync"])?;
        // The kubelet measures once a minute by default.
        wait_until("the kubelet to see 20 MiB used", Duration::from_mins(3), async || {
            Ok(scope.usage(NODE, "data")?.filter(|used| *used >= 20 << 20))
        })
        .await?;
        Ok(())
    });
}
