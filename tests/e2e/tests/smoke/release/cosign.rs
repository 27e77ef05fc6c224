//! cosign with a pair of keys of its own.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use mooring_harness::registry::{PASSWORD, PrivateRegistry, USER};
use mooring_testbed::binaries::ensure_cosign;
use mooring_testbed::command::{command, output};
use tempfile::TempDir;

const KEY_PASSWORD: &str = "anchored";

pub(super) struct Cosign {
    program: PathBuf,
    keys: TempDir,
}

impl Cosign {
    pub(super) fn with_keys() -> Result<Self> {
        let keys = tempfile::tempdir().context("failed to make a folder")?;
        let program = ensure_cosign()?;
        let mut generate = command(&program, ["generate-key-pair"]);
        output(generate.current_dir(keys.path()).env("COSIGN_PASSWORD", KEY_PASSWORD))?;
        Ok(Self { program, keys })
    }

    /// Makes a release sign with the key, where Docker has a login of another registry only.
    pub(super) fn sign(&self, release: &mut Command) -> Result<()> {
        let docker = self.keys.path().join("config.json");
        std::fs::write(docker, r#"{"auths": {"other.example.com": {"auth": "dTpw"}}}"#)
            .context("failed to write another login")?;
        let mut path = OsString::from(self.program.parent().context("cosign is in no folder")?);
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        release.arg("--cosign-key").arg(self.keys.path().join("cosign.key"));
        release.env("PATH", path).env("DOCKER_CONFIG", self.keys.path());
        release.env("COSIGN_PASSWORD", KEY_PASSWORD);
        Ok(())
    }

    /// The command that verifies an image or the chart.
    pub(super) fn verify(&self, registry: &PrivateRegistry, reference: &str) -> Command {
        let mut verify = self.with_public_key("verify");
        verify.arg("--registry-cacert").arg(&registry.authority);
        verify.args(["--registry-username", USER, "--registry-password", PASSWORD, reference]);
        verify
    }

    /// The command that verifies a file by the signature beside it.
    pub(super) fn verify_file(&self, file: &str) -> Command {
        let mut verify = self.with_public_key("verify-blob");
        verify.args(["--signature", &format!("{file}.sig"), file]);
        verify
    }

    fn with_public_key(&self, verb: &str) -> Command {
        let mut verify = command(&self.program, [verb, "--insecure-ignore-tlog", "--key"]);
        verify.arg(self.keys.path().join("cosign.pub"));
        verify
    }
}
