//! The CSI driver: the kubelet calls it by gRPC over a socket beneath its root, to which this mounter has registered
//! itself. There is no sidecar, and nothing in the control plane.
//!
//! A volume is published only: it is mounted for each Pod on the Pod's own directory, as a `FlexVolume` is, so what
//! looks after volumes needs to know of one kind of directory only.
//!
//! Files: [`endpoint`] (keeps both sockets there), `serve` (gRPC over one), `identity` and `node` (CSI's services),
//! `registration` (the kubelet's), `publish` (a request to mount), `expand` (one to expand), `health` (what is wrong
//! with volumes and their storage), `failure` (what is answered where something failed).

pub mod endpoint;
mod expand;
mod failure;
mod health;
mod identity;
mod node;
mod publish;
mod registration;
mod serve;

use std::path::{Path, PathBuf};

use mooring_contract::names::{CSI_REGISTRATION_SOCKET, CSI_SOCKET};

/// The driver's socket, by the name that the kubelet has for it.
fn socket(kubelet_root: &Path) -> PathBuf {
    kubelet_root.join(CSI_SOCKET.iter().collect::<PathBuf>())
}

/// The socket by which it registers itself.
fn registration_socket(kubelet_root: &Path) -> PathBuf {
    kubelet_root.join(CSI_REGISTRATION_SOCKET.iter().collect::<PathBuf>())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::uri::Authority;

    use super::registration_socket;

    #[test]
    fn the_kubelet_s_name_for_the_registration_socket_is_an_authority_of_http() {
        let path = registration_socket(Path::new("/var/lib/kubelet"));
        let escaped = path.to_str().unwrap().replace('/', "%2F");
        Authority::try_from(escaped.as_str()).unwrap();
        Authority::try_from(escaped.replace('@', "-").as_str()).unwrap_err();
    }
}
