//! The input of this run: the request, the property files, and the access to the API.

use std::path::{Path, PathBuf};
use std::{fs, io};

use mooring_contract::property::keys;
use mooring_contract::request::Request;

use crate::error::Error;

/// Where Kubernetes mounts a service account's certificate and token.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Key of a ConfigMap with the API's certificate, for runs without a service account.
pub(crate) const KUBE_CA: &str = "kube-ca";

#[derive(Debug, Clone)]
pub struct RunInput {
    run_dir: PathBuf,
    service_account: PathBuf,
    token_file: Option<PathBuf>,
}

impl RunInput {
    /// The folder where Mooring mounts it (`/run/mooring`), and the file of the only token to use, if one is named.
    pub fn at(run_dir: &Path, token_file: Option<PathBuf>) -> Self {
        Self {
            run_dir: run_dir.to_owned(),
            service_account: SERVICE_ACCOUNT.into(),
            token_file,
        }
    }

    /// The request, from `request.json`.
    pub fn request(&self) -> Result<Request, Error> {
        let path = self.run_dir.join("request.json");
        let text = fs::read(&path).map_err(|source| Error::Given {
            path: path.clone(),
            source,
        })?;
        serde_json::from_slice(&text).map_err(|source| Error::Request { path, source })
    }

    /// One property, unchanged, without a newline added or removed; `None` if no property has that name.
    pub fn property(&self, name: &str) -> Result<Option<String>, Error> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.starts_with("..") || !name.chars().all(plain) {
            return Err(Error::PropertyName(name.to_owned()));
        }
        let folder = self.run_dir.join("properties");
        if !folder.is_dir() {
            let source = io::ErrorKind::NotFound.into();
            return Err(Error::Given { path: folder, source });
        }
        read_if_there(&folder.join(name))
    }

    /// The token: from the named file, else from the property, else the one that Kubernetes mounts.
    pub fn token(&self) -> Result<String, Error> {
        if let Some(path) = &self.token_file {
            let token = fs::read_to_string(path).map_err(|source| Error::TokenFile {
                path: path.clone(),
                source,
            })?;
            return Ok(token.trim().to_owned());
        }
        let token = match self
            .property(keys::SERVICE_TOKEN)?
            .filter(|token| !token.trim().is_empty())
        {
            Some(token) => token,
            None => read_if_there(&self.service_account.join("token"))?.ok_or(Error::NoToken)?,
        };
        Ok(token.trim().to_owned())
    }

    /// The API's certificate authority, PEM: the key `kube-ca`, else the one that Kubernetes mounts.
    pub fn certificate(&self) -> Result<String, Error> {
        let path = self.service_account.join("ca.crt");
        match self.property(KUBE_CA)? {
            Some(pem) => Ok(pem),
            None => read_if_there(&path)?.ok_or(Error::NoCa { path }),
        }
    }
}

fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Given {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::RunInput;
    use crate::error::Error;
    use std::fs;

    fn given() -> (tempfile::TempDir, RunInput) {
        let folder = tempfile::tempdir().unwrap();
        let properties = folder.path().join("properties");
        fs::create_dir(&properties).unwrap();
        fs::write(properties.join("zone"), "west\n").unwrap();
        fs::write(folder.path().join("secret"), "x").unwrap();
        let mut given = RunInput::at(folder.path(), None);
        given.service_account = folder.path().join("serviceaccount");
        (folder, given)
    }

    #[test]
    fn a_property_is_read_unchanged() {
        let (_folder, given) = given();
        assert_eq!(given.property("zone").unwrap().as_deref(), Some("west\n"));
        assert_eq!(given.property("region").unwrap(), None);
    }

    #[test]
    fn a_property_s_name_cannot_lead_out_of_the_folder() {
        let (_folder, given) = given();
        for name in ["../secret", "..", "", "a/b", "..data"] {
            assert!(matches!(given.property(name), Err(Error::PropertyName(_))), "{name}");
        }
    }

    #[test]
    fn the_configmap_s_token_wins_over_the_mounted_one_unless_told_otherwise() {
        let (folder, mut given) = given();
        assert!(matches!(given.token(), Err(Error::NoToken)));
        fs::create_dir(folder.path().join("serviceaccount")).unwrap();
        fs::write(folder.path().join("serviceaccount/token"), "mounted").unwrap();
        assert_eq!(given.token().unwrap(), "mounted");
        fs::write(folder.path().join("properties/service-token"), "literal\n").unwrap();
        assert_eq!(given.token().unwrap(), "literal");
        given.token_file = Some(folder.path().join("serviceaccount/token"));
        assert_eq!(given.token().unwrap(), "mounted");
    }

    #[test]
    fn without_a_certificate_the_error_says_where_to_put_one() {
        let (folder, given) = given();
        assert!(given.certificate().unwrap_err().to_string().contains("kube-ca"));
        fs::write(folder.path().join("properties/kube-ca"), "PEM").unwrap();
        assert_eq!(given.certificate().unwrap(), "PEM");
    }
}
