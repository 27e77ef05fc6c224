//! The cluster's certificates, keys and kubeconfigs. They are new for every cluster, and only root can read them.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use serde_json::json;

use crate::layout::{make_folder, write_file};

/// The certificate authority of a running cluster, and the folder with everything that it signed.
pub struct Authority {
    folder: PathBuf,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as files.
#[derive(Debug, Clone)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Makes the authority, or opens the one in the folder.
    pub fn open(folder: &Path) -> Result<Self> {
        make_folder(folder)?;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))
            .with_context(|| format!("failed to close {} to others", folder.display()))?;
        let (certificate_path, key_path) = (folder.join("ca.crt"), folder.join("ca.key"));
        if certificate_path.is_file() && key_path.is_file() {
            let certificate = read(&certificate_path)?;
            let key = KeyPair::from_pem(&read(&key_path)?).context("failed to read the authority's key")?;
            let issuer = Issuer::new(authority_params(), key);
            return Ok(Self {
                folder: folder.to_owned(),
                certificate,
                issuer,
            });
        }
        let key = KeyPair::generate().context("failed to make the authority's key")?;
        let signed = authority_params()
            .self_signed(&key)
            .context("failed to make the authority's certificate")?;
        write_private(&key_path, &key.serialize_pem())?;
        write_private(&certificate_path, &signed.pem())?;
        Ok(Self {
            folder: folder.to_owned(),
            certificate: signed.pem(),
            issuer: Issuer::new(authority_params(), key),
        })
    }

    pub fn certificate(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    pub fn key(&self) -> PathBuf {
        self.folder.join("ca.key")
    }

    /// A client's certificate: the API server sees the client as `user` and `group`.
    pub fn client(&self, file: &str, user: &str, group: Option<&str>) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params)
    }

    pub fn server(&self, file: &str, names: &[&str], addresses: &[Ipv4Addr]) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).with_context(|| format!("failed to name the server {file}"))?;
        params.distinguished_name.push(DnType::CommonName, file);
        params
            .subject_alt_names
            .extend(addresses.iter().map(|&address| SanType::IpAddress(IpAddr::V4(address))));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(file, params)
    }

    fn sign(&self, file: &str, mut params: CertificateParams) -> Result<Identity> {
        let identity = Identity {
            certificate: self.folder.join(format!("{file}.crt")),
            key: self.folder.join(format!("{file}.key")),
        };
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().with_context(|| format!("failed to make the key of {file}"))?;
        let signed = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("failed to sign the certificate of {file}"))?;
        write_private(&identity.key, &key.serialize_pem())?;
        write_private(&identity.certificate, &signed.pem())?;
        Ok(identity)
    }

    /// The key pair that service account tokens are signed with: paths of private and public key.
    pub fn service_account_keys(&self) -> Result<(PathBuf, PathBuf)> {
        let (private, public) = (self.folder.join("sa.key"), self.folder.join("sa.pub"));
        if !(private.is_file() && public.is_file()) {
            let key = KeyPair::generate().context("failed to make the service accounts' key")?;
            write_private(&private, &key.serialize_pem())?;
            write_private(&public, &key.public_key_pem())?;
        }
        Ok((private, public))
    }

    /// Writes a kubeconfig (JSON, which is YAML too) for a client with a certificate.
    pub fn kubeconfig(&self, path: &Path, server: &str, identity: &Identity) -> Result<()> {
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "mooring-testbed",
            "clusters": [{"name": "mooring-testbed", "cluster": {
                "server": server,
                "certificate-authority-data": encode(&self.certificate),
            }}],
            "users": [{"name": "mooring-testbed", "user": {
                "client-certificate-data": encode(&read(&identity.certificate)?),
                "client-key-data": encode(&read(&identity.key)?),
            }}],
            "contexts": [{"name": "mooring-testbed", "context": {
                "cluster": "mooring-testbed",
                "user": "mooring-testbed",
            }}],
        });
        write_private(path, &format!("{config:#}\n"))
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "mooring-testbed");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    params
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}

/// Writes a file that only root may read.
fn write_private(path: &Path, content: &str) -> Result<()> {
    write_file(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("failed to close {} to others", path.display()))
}

#[cfg(test)]
mod tests {
    use super::Authority;

    #[test]
    fn an_authority_is_made_once_and_opened_again() {
        let folder = std::env::temp_dir().join(format!("mooring-pki-{}", std::process::id()));
        let first = Authority::open(&folder).unwrap();
        let identity = first.client("admin", "admin", Some("system:masters")).unwrap();
        let again = Authority::open(&folder).unwrap();
        assert_eq!(first.certificate, again.certificate);
        let path = folder.join("kubeconfig");
        again.kubeconfig(&path, "https://127.0.0.1:6443", &identity).unwrap();
        let config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
