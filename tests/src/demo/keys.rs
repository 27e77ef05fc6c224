//! The keys of the demo's file server and of its user, made anew each time.

use anyhow::{Context, Result};

use crate::command::{command, output};

/// Two key pairs.
#[derive(Debug)]
pub(super) struct Keys {
    /// Private key of the server.
    pub(super) host_private: String,
    /// Public key of the server, one line.
    pub(super) host_public: String,
    /// Private key of the user.
    pub(super) user_private: String,
    /// Public key of the user, one line.
    pub(super) user_public: String,
}

/// Makes the keys.
pub(super) fn make() -> Result<Keys> {
    let folder = std::env::temp_dir().join(format!("mooring-demo-keys-{}", std::process::id()));
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
