//! The environment in which images are built.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use mooring_testbed::command::{command, output};
use mooring_testbed::images::try_out;

/// Fails if it finds a block device in any of the ways in which packages' scripts look for one.
const LOOKS_FOR_DEVICES: &str = r#"FROM busybox:1
RUN for folder in /sys/block /sys/class/block /sys/dev/block; do \
      if [ -n "$(ls -A $folder 2>/dev/null)" ]; then echo "FOUND $folder:" $(ls -A $folder); found=1; fi; \
    done; \
    devices=$(find /dev -type b -o -name 'loop*' -o -name fuse -o -name kvm); \
    if [ -n "$devices" ]; then echo "FOUND" $devices; found=1; fi; \
    [ -z "$found" ]
RUN echo x >/dev/null && [ -n "$(head -c 8 /dev/urandom)" ] && [ -c /dev/ptmx ] && echo y >/dev/shm/y && [ -e /dev/fd/0 ]
"#;

/// A loop device of the machine, which is detached when this is dropped.
struct Loop(String);

impl Loop {
    fn attach(file: &Path) -> Result<Self> {
        File::create(file)
            .and_then(|file| file.set_len(1 << 20))
            .with_context(|| format!("failed to make {}", file.display()))?;
        let device = output(command("losetup", ["--find", "--show"]).arg(file))?;
        Ok(Self(device.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = output(&mut command("losetup", ["--detach", &self.0]));
    }
}

/// lvm2's scripts scan all block devices that they find, and never end if there is an attached loop device.
#[test]
fn an_image_build_sees_no_device_of_the_machine() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("mooring-images-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let result = (|| {
        let device = Loop::attach(&folder.join("disk"))?;
        let containerfile = folder.join("Containerfile");
        std::fs::write(&containerfile, LOOKS_FOR_DEVICES).context("failed to write a Containerfile")?;
        try_out(&containerfile)?;
        // The machine itself still has it.
        ensure!(Path::new(&device.0).exists(), "{} is gone from the machine", device.0);
        let sees = std::fs::read_dir("/sys/block")
            .context("failed to list /sys/block")?
            .count();
        ensure!(sees > 0, "the machine's own /sys/block is empty");
        Ok(())
    })();
    let _ = std::fs::remove_dir_all(&folder);
    result
}
