//! A registry that asks for a password, on the machine's address in the cluster's network.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mooring_testbed::binaries::ensure_registry;
use mooring_testbed::cluster::Cluster;
use mooring_testbed::layout::write_file;
use mooring_testbed::pki::Authority;
use mooring_testbed::wait::{Look, wait_for};
use serde_json::json;
use tempfile::TempDir;

use super::children::{start, tied};

pub const USER: &str = "sailor";
pub const PASSWORD: &str = "moored";

/// The password as `htpasswd -B` writes it.
const HASH: &str = "$2b$04$wCs7ZvznpRCoAkqJtZ00EOPyMotVGcHnpDZxZKPCHluHUuEpjS3cW";

/// Longest until it listens.
const LIMIT: Duration = Duration::from_mins(1);

/// It ends, with all that it has, when this is dropped.
pub struct PrivateRegistry {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
    /// The certificate of the authority that its own is of.
    pub authority: PathBuf,
}

impl PrivateRegistry {
    /// Starts one that a cluster's nodes reach and trust.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let program = ensure_registry()?;
        let folder = tempfile::tempdir().context("failed to make a folder")?;
        let ip = cluster.description.block.control_plane();
        let listener = TcpListener::bind((ip, 0)).with_context(|| format!("failed to listen on {ip}"))?;
        let address = listener.local_addr().context("the socket has no address")?;
        drop(listener);
        let authority = Authority::open(&cluster.layout.pki())?;
        let identity = authority.server("registry", &[], &[ip])?;
        let path = |name: &str| folder.path().join(name);
        write_file(&path("htpasswd"), format!("{USER}:{HASH}\n"))?;
        // YAML, of which JSON is a part.
        let config = json!({
            "version": "0.1",
            "log": {"level": "warn", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": path("storage")}},
            "auth": {"htpasswd": {"realm": "tests", "path": path("htpasswd")}},
            "http": {
                "addr": address.to_string(),
                "tls": {"certificate": identity.certificate, "key": identity.key},
            },
        });
        write_file(&path("config.yaml"), config.to_string())?;
        let log = std::fs::File::create(path("log")).context("failed to make the registry's log")?;
        let mut serve = tied(program)?;
        serve
            .arg("serve")
            .arg(path("config.yaml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("failed to share the registry's log")?)
            .stderr(log);
        let child = start(serve).context("failed to start the registry")?;
        let registry = Self {
            child,
            address,
            authority: authority.certificate(),
            folder,
        };
        registry.write_login(&registry.login(), PASSWORD)?;
        wait_for(
            "the registry",
            LIMIT,
            &[registry.folder.path().join("log")],
            || match TcpStream::connect(address) {
                Ok(_) => Look::Ready(()),
                Err(error) => Look::NotYet(error.to_string()),
            },
        )?;
        cluster.trust_registry(&registry.host())?;
        Ok(registry)
    }

    /// Its address and port, as images' names begin.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// A file with the login, in the form of Docker, Podman and Helm.
    pub fn login(&self) -> PathBuf {
        self.folder.path().join("login.json")
    }

    /// Another such file, with a password that may be wrong.
    pub fn write_login(&self, path: &std::path::Path, password: &str) -> Result<()> {
        let login = json!({"auths": {self.host(): {"auth": STANDARD.encode(format!("{USER}:{password}"))}}});
        write_file(path, login.to_string())
    }
}

impl Drop for PrivateRegistry {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
