//! Signatures, by the program cosign, version 2.6 or 3.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::login::Login;
use super::registry::Connection;
use crate::command::{command, find_program, output};

/// The form of signature that versions 2 and 3 verify, without the public log. By itself, version 3 makes another one,
/// and does not leave out the log.
const FORM: [&str; 3] = [
    "--tlog-upload=false",
    "--use-signing-config=false",
    "--new-bundle-format=false",
];

/// The key's password. If it is not set, cosign asks a terminal, which it does not have here.
const PASSWORD: &str = "COSIGN_PASSWORD";

pub(super) struct Signer {
    program: PathBuf,
    key: PathBuf,
    /// How it reaches the registry.
    flags: Vec<String>,
    /// A folder like Docker's, with the login that the push has: cosign does not look wherever buildah stores logins.
    docker: Option<TempDir>,
}

impl Signer {
    /// Fails if the key can't be used, before anything is built for it.
    pub(super) fn open(key: &Path, connection: &Connection, login: Option<&Login>) -> Result<Self> {
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
        let signer = Self {
            program,
            key: key.to_owned(),
            flags: flags(connection),
            docker: login.map(docker_folder).transpose()?,
        };
        output(&mut signer.command("public-key", &[])).with_context(|| {
            format!(
                "failed to read the key {}: it takes the password in the environment variable {PASSWORD}",
                key.display()
            )
        })?;
        Ok(signer)
    }

    /// Signs what a registry has under a digest, and for an index of platforms also what it lists.
    pub(super) fn sign(&self, reference: &str) -> Result<()> {
        let mut sign = self.command("sign", &FORM);
        sign.arg("--recursive").args(&self.flags).arg(reference);
        output(&mut sign).with_context(|| format!("failed to sign {reference}"))?;
        Ok(())
    }

    /// Writes the signature of a file beside it.
    pub(super) fn sign_file(&self, file: &Path) -> Result<()> {
        let mut signature = file.as_os_str().to_owned();
        signature.push(".sig");
        let mut sign = self.command("sign-blob", &FORM);
        sign.arg("--output-signature").arg(signature).arg(file);
        output(&mut sign).with_context(|| format!("failed to sign {}", file.display()))?;
        Ok(())
    }

    fn command(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut cosign = command(&self.program, [verb]);
        cosign.args(arguments).arg("--key").arg(&self.key);
        cosign.env(PASSWORD, std::env::var_os(PASSWORD).unwrap_or_default());
        if let Some(folder) = &self.docker {
            cosign.env("DOCKER_CONFIG", folder.path());
        }
        cosign
    }
}

fn flags(connection: &Connection) -> Vec<String> {
    let plain = connection.is_plain_http.then(|| "--allow-http-registry".to_owned());
    let authority = |path: &PathBuf| format!("--registry-cacert={}", path.display());
    let authority = connection.authorities.as_ref().map(authority);
    plain.into_iter().chain(authority).collect()
}

fn docker_folder(login: &Login) -> Result<TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("mooring-cosign-")
        .tempdir()
        .context("failed to make a folder for cosign's login")?;
    let there = std::path::absolute(&login.file);
    there
        .and_then(|there| symlink(there, folder.path().join("config.json")))
        .with_context(|| format!("failed to give cosign the login in {}", login.file.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::{docker_folder, flags};
    use crate::release::login::Login;
    use crate::release::registry::Connection;

    #[test]
    fn cosign_reaches_the_registry_as_the_push_does() {
        assert_eq!(flags(&Connection::default()), [""; 0]);
        let own = Connection {
            authorities: Some("certs/ca.crt".into()),
            ..Connection::default()
        };
        assert_eq!(flags(&own), ["--registry-cacert=certs/ca.crt"]);
        let plain = Connection {
            is_plain_http: true,
            ..Connection::default()
        };
        assert_eq!(flags(&plain), ["--allow-http-registry"]);
    }

    #[test]
    fn cosign_has_the_push_s_login_wherever_that_is() {
        let there = tempfile::tempdir().unwrap();
        let file = there.path().join("auth.json");
        std::fs::write(&file, r#"{"auths": {}}"#).unwrap();
        let login = Login {
            value: "dTpw".into(),
            file,
        };
        let folder = docker_folder(&login).unwrap();
        let read = std::fs::read_to_string(folder.path().join("config.json")).unwrap();
        assert_eq!(read, r#"{"auths": {}}"#);
    }
}
