//! What a mounter says when its node lacks something, and that it continues by itself once that exists: space in the
//! pool, loop devices, propagation, a disk that answers, `/dev/fuse`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use mooring_harness::clients::{image_of_its_own, remove_image};
use mooring_harness::nodes::{CallOut, on_own_nodes};
use mooring_harness::own_mounter::OwnMounter;
use mooring_harness::{Scope, wait_until};
use mooring_testbed::command::{command, output};
use mooring_testbed::progress::note;
use serde_json::{Value, json};

/// Time limit of calls here, so that a hanging disk does not use up the test's time.
const CALL_TIMEOUT: &str = "--call-timeout=10s";

/// The longest that there is, for a call that hangs until the test ends that.
const LONG_TIMEOUT: &str = "--call-timeout=110s";

/// Longest wait for a mount or unmount that has to succeed.
const MOUNT_LIMIT: Duration = Duration::from_mins(2);

/// How memory file systems are served: volumes that need neither pool nor loop device.
const MEMORY: &str = "--mount-container=tmpfs=self";

fn local(source: &str) -> Value {
    json!({"client": "local", "source": source})
}

fn good(call_out: &CallOut) -> Result<()> {
    ensure!(call_out.status() == "Success", "{call_out:?}");
    Ok(())
}

/// Mounts a volume as the kubelet does, which asks again: on a busy machine, the first call may take too long.
async fn mounted(mounter: &OwnMounter, volume: &str, options: &Value) -> Result<()> {
    wait_until(&format!("{volume} to be mounted"), MOUNT_LIMIT, async || {
        good(&mounter.mount("pod", volume, options)?)?;
        Ok(Some(()))
    })
    .await
}

/// Mounts a volume until it is refused with these words. Too slow a call says only that there was no answer.
async fn refused(mounter: &OwnMounter, volume: &str, options: &Value, words: &[&str]) -> Result<()> {
    let what = format!("{volume} to be refused");
    let last = wait_until(&what, MOUNT_LIMIT, async || {
        let call_out = mounter.mount("pod", volume, options)?;
        if call_out.status() != "Success" {
            call_out.refused(words)?;
        }
        Ok(Some(call_out))
    });
    last.await?.refused(words)
}

/// The same for an unmount.
async fn unmounted(mounter: &OwnMounter, volume: &str) -> Result<()> {
    wait_until(&format!("{volume} to be unmounted"), MOUNT_LIMIT, async || {
        good(&mounter.unmount("pod", volume)?)?;
        Ok(Some(()))
    })
    .await
}

#[test]
fn a_full_pool_is_reported_and_the_volume_mounts_once_there_is_space() {
    on_own_nodes("mount-full", async |scope| {
        let mut mounter = OwnMounter::new(&scope, "full", &[CALL_TIMEOUT, MEMORY], "")?;
        let root = mounter.root().display().to_string();
        scope.on_node(
            1,
            &format!(
                "mount -t tmpfs -o size=48m pool {root}/pool
                 truncate -s 32M {root}/pool/old.img {root}/pool/new.img"
            ),
        )?;
        mounter.start()?;
        mounted(&mounter, "old", &local("old.img")).await?;
        let content = mounter.on_node(&mounter.target("pod", "old")).join("content");
        std::fs::write(&content, "kept")?;
        unmounted(&mounter, "old").await?;
        scope.on_node(
            1,
            &format!("dd if=/dev/zero of={root}/pool/ballast bs=1M 2>/dev/null || true"),
        )?;

        for _ in 0..2 {
            let words = ["pool", "is full", "free space there"];
            refused(&mounter, "new", &local("new.img"), &words).await?;
        }
        // It needs no space, and is not delayed.
        mounted(&mounter, "memory", &json!({"client": "tmpfs"})).await?;
        ensure!(mounter.mounts("/new ")?.is_empty(), "a half-made volume is mounted");
        scope.on_node(1, &format!("rm {root}/pool/ballast"))?;
        mounted(&mounter, "new", &local("new.img")).await?;
        mounted(&mounter, "old", &local("old.img")).await?;
        ensure!(std::fs::read_to_string(&content)? == "kept");
        for volume in ["new", "old", "memory"] {
            unmounted(&mounter, volume).await?;
        }
        output(&mut command(
            "e2fsck",
            ["-fn".into(), mounter.on_node(&mounter.root().join("pool/new.img"))],
        ))?;
        Ok(())
    });
}

#[test]
fn missing_loop_devices_are_reported_with_their_cure_and_the_volume_mounts_once_they_exist() {
    on_own_nodes("mount-no-loop", async |scope| {
        // A /dev that contains only what is needed to ask for a loop device.
        let poor = "mount --make-rprivate /dev; mkdir -p $root/dev; touch $root/dev/loop-control $root/dev/null
                    mount --bind /dev/loop-control $root/dev/loop-control; mount --bind /dev/null $root/dev/null
                    mount --rbind $root/dev /dev";
        // A /dev that lacks even that.
        let poorer = "mount --make-rprivate /dev; mkdir -p $root/none; touch $root/none/null
                      mount --bind /dev/null $root/none/null; mount --rbind $root/none /dev";
        let mut mounter = OwnMounter::new(&scope, "loop", &[CALL_TIMEOUT], poorer)?;
        let root = mounter.root().display().to_string();
        scope.on_node(1, &format!("truncate -s 32M {root}/pool/a.img"))?;
        mounter.start()?;
        refused(&mounter, "a", &local("a.img"), &["loop"]).await?;
        mounter.set_up(poor);
        mounter.start()?;
        refused(&mounter, "a", &local("a.img"), &["/dev/loop", "host's /dev"]).await?;
        ensure!(mounter.mounts("/a ")?.is_empty());
        mounter.set_up("");
        mounter.start()?;
        mounted(&mounter, "a", &local("a.img")).await?;
        unmounted(&mounter, "a").await?;
        Ok(())
    });
}

#[test]
fn no_volume_is_mounted_where_no_pod_would_see_it() {
    on_own_nodes("mount-private", async |scope| {
        let mut mounter = OwnMounter::new(&scope, "private", &[CALL_TIMEOUT, MEMORY], "mount --make-rprivate /")?;
        mounter.start()?;
        let memory = json!({"client": "tmpfs"});
        let words = ["not shared", "mountPropagation: Bidirectional"];
        refused(&mounter, "a", &memory, &words).await?;
        // A volume from before can still be unmounted.
        unmounted(&mounter, "a").await?;
        mounter.set_up("");
        mounter.start()?;
        mounted(&mounter, "a", &memory).await?;
        ensure!(mounter.mounts("/a ")?.len() == 1);
        unmounted(&mounter, "a").await?;
        Ok(())
    });
}

/// A frozen file system: a process that writes to it hangs in the kernel, where no signal reaches it. Dropping this
/// thaws it.
struct Frozen<'a>(&'a Scope, String);

impl<'a> Frozen<'a> {
    fn new(scope: &'a Scope, path: String) -> Result<Self> {
        scope.on_node(1, &format!("fsfreeze -f {path}"))?;
        Ok(Self(scope, path))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.on_node(1, &format!("fsfreeze -u {}", self.1)) {
            note(format!("{} stays frozen: {error:#}", self.1));
        }
    }
}

/// Waits until so many programs format an image.
fn formats(mounter: &OwnMounter, programs: usize) -> Result<()> {
    let deadline = Instant::now() + MOUNT_LIMIT;
    while mounter.processes("mkfs.")?.len() < programs {
        ensure!(Instant::now() < deadline, "nothing formats an image: {}", mounter.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Proves: M1
#[test]
fn a_disk_that_hangs_is_reported_delays_no_other_volume_and_no_half_made_image_is_ever_mounted() {
    on_own_nodes("mount-frozen", async |scope| {
        let mut mounter = OwnMounter::new(&scope, "frozen", &[CALL_TIMEOUT, MEMORY], "")?;
        let root = mounter.root().display().to_string();
        // As if mkfs had been killed half-way: a file system that lacks a part, and the mark. So the first write goes
        // to the image itself.
        scope.on_node(
            1,
            &format!(
                "truncate -s 192M {root}/disk && mkfs.ext4 -q {root}/disk && mount -o loop {root}/disk {root}/pool
                 truncate -s 32M {root}/pool/blank.img
                 for half in marked second; do
                     truncate -s 32M {root}/pool/$half.img && touch {root}/pool/.$half.img.formatting
                     mkfs.ext4 -q -F {root}/pool/$half.img
                     dd if=/dev/zero of={root}/pool/$half.img bs=4k seek=1 count=1000 conv=notrunc status=none
                 done
                 sync"
            ),
        )?;
        mounter.start()?;
        let frozen = Frozen::new(&scope, format!("{root}/pool"))?;
        let hang = |volume: &str| {
            let hung = mounter.mount("pod", volume, &local(&format!("{volume}.img")))?;
            hung.refused(&["the disk under the node's pool", "did not answer"])
        };
        hang("marked")?;
        // The program that hangs has the image still.
        let has_image = [
            "marked.img",
            "is just being formatted",
            "the disk under the node's pool",
        ];
        refused(&mounter, "marked", &local("marked.img"), &has_image).await?;
        hang("blank")?;
        // The mounter that started the program is gone, but the program is not.
        mounter.flags(&[LONG_TIMEOUT, MEMORY]);
        mounter.start()?;
        refused(&mounter, "marked", &local("marked.img"), &has_image).await?;
        ensure!(mounter.mounts("/marked ")?.is_empty() && mounter.mounts("/blank ")?.is_empty());
        // The program can't be killed while the disk hangs, and no other is started on the same image.
        let programs = mounter.processes("mkfs.")?;
        ensure!(programs.len() == 1, "{} programs format one image", programs.len());
        // Another volume is mounted while a mount hangs, which goes on when the disk does.
        let (beside, hangs) = std::thread::scope(|threads| {
            let hanging = threads.spawn(|| mounter.mount("pod", "second", &local("second.img")));
            let beside =
                formats(&mounter, 2).and_then(|()| mounter.mount("pod", "memory", &json!({"client": "tmpfs"})));
            let hangs = !hanging.is_finished();
            drop(frozen);
            hanging.join().unwrap().and(beside).map(|beside| (beside, hangs))
        })?;
        good(&beside)?;
        ensure!(
            hangs,
            "\"second\" did not hang until \"memory\" was mounted: {}",
            mounter.log()
        );
        for volume in ["marked", "blank", "second"] {
            mounted(&mounter, volume, &local(&format!("{volume}.img"))).await?;
            let content = mounter.on_node(&mounter.target("pod", volume)).join("content");
            std::fs::write(content, "x".repeat(1 << 20))?;
        }
        for volume in ["marked", "blank", "second", "memory"] {
            unmounted(&mounter, volume).await?;
        }
        for image in ["marked", "blank", "second"] {
            output(&mut command(
                "e2fsck",
                [
                    "-fn".into(),
                    mounter.on_node(&mounter.root().join(format!("pool/{image}.img"))),
                ],
            ))?;
        }
        wait_until("all workers to have ended", MOUNT_LIMIT, async || {
            let left = mounter.busy_workers()?;
            ensure!(left.is_empty(), "{left:?}");
            Ok(Some(()))
        })
        .await
    });
}

/// Hides `/dev/fuse` of a node; dropping this shows it again.
struct NoFuse<'a>(&'a Scope);

impl Drop for NoFuse<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.on_node(1, "umount /dev/fuse") {
            note(format!("/dev/fuse stays hidden: {error:#}"));
        }
    }
}

#[test]
fn a_client_container_from_before_dev_fuse_existed_gets_it_too() {
    on_own_nodes("mount-no-fuse", async |scope| {
        let server = scope.ssh_server("node-2", &["data"]).await?;
        let image = image_of_its_own(&scope, "fuse")?;
        let mut options = server.volume("data");
        options["client-image"] = image.clone().into();
        scope.volume("data", &options)?;
        let file = format!("/run/{}-nothing", scope.namespace);
        // A container gets the files that are devices when it is created.
        scope.on_node(1, &format!("touch {file} && mount --bind {file} /dev/fuse"))?;
        let hidden = NoFuse(&scope);
        scope.pod("user", "node-1", "data", Value::Null)?;
        scope.pod_ready("user").await?;
        drop(hidden);
        scope.exec("user", ["sh", "-c", "echo x >/data/f"])?;
        scope.delete("pod/user")?;
        scope.pod_gone("user").await?;
        remove_image(&scope, &image)
    });
}
