//! Keys of an ssh server and of its user, for the demo and the tests. They are new each time.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::command::{command, output};

/// Two key pairs.
#[derive(Debug)]
pub struct Keys {
    pub host_private: String,
    /// Public key of the server, one line.
    pub host_public: String,
    pub user_private: String,
    /// Public key of the user, one line.
    pub user_public: String,
}

pub fn make() -> Result<Keys> {
    // Tests of one program may make keys at the same time.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("mooring-keys-{}-{count}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("failed to make the folder {}", folder.display()))?;
    let made = (|| {
        let pair = |name: &str| -> Result<(String, String)> {
            let path = folder.join(name);
            output(command("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(&path))?;
            let read = |path: &std::path::Path| {
                std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
            };
            Ok((read(&path)?, read(&path.with_extension("pub"))?))
        };
        let ((host_private, host_public), (user_private, user_public)) = (pair("host")?, pair("user")?);
        Ok(Keys {
            host_private,
            host_public: host_public.trim().to_owned(),
            user_private,
            user_public: user_public.trim().to_owned(),
        })
    })();
    let _ = std::fs::remove_dir_all(&folder);
    made
}
