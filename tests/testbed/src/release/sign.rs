//! Signatures, by the program cosign.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::{command, find_program, output};

pub(super) struct Signer {
    program: PathBuf,
    key: PathBuf,
}

impl Signer {
    pub(super) fn with_key(key: &Path) -> Result<Self> {
        // Also one in a key management service, such as awskms:///…, which is no file.
        let is_service = key.to_string_lossy().contains("://");
        ensure!(
            is_service || key.is_file(),
            "there is no file {}: make a pair of keys with `cosign generate-key-pair`",
            key.display()
        );
        let program = find_program("cosign").context(
            "--cosign-key needs the program cosign, which is not on the PATH: install it \
             (https://docs.sigstore.dev/cosign), or release without signatures",
        )?;
        Ok(Self {
            program,
            key: key.to_owned(),
        })
    }

    /// Signs what a registry has under a digest, and for an index of platforms also what it lists.
    pub(super) fn sign(&self, reference: &str, is_plain_http: bool) -> Result<()> {
        let mut sign = command(&self.program, ["sign", "--recursive", "--tlog-upload=false", "--key"]);
        sign.arg(&self.key);
        if is_plain_http {
            sign.arg("--allow-http-registry");
        }
        output(sign.arg(reference)).with_context(|| format!("failed to sign {reference}"))?;
        Ok(())
    }

    /// Writes the signature of a file beside it.
    pub(super) fn sign_file(&self, file: &Path) -> Result<()> {
        let mut signature = file.as_os_str().to_owned();
        signature.push(".sig");
        let mut sign = command(&self.program, ["sign-blob", "--tlog-upload=false", "--key"]);
        sign.arg(&self.key).arg("--output-signature").arg(signature).arg(file);
        output(&mut sign).with_context(|| format!("failed to sign {}", file.display()))?;
        Ok(())
    }
}
