//! The protocol between the kubelet and a CSI driver: messages and server traits of CSI's services Identity and Node,
//! and of the kubelet's plugin registration.
//!
//! `src/generated` is made from `proto` by the program in `generate`, and checked in:
//!
//! ```sh
//! cargo run --manifest-path mounter/csi-proto/generate/Cargo.toml
//! ```

use std::fmt;

/// CSI (`proto/csi.proto`): what Identity and Node need of it.
#[allow(unused_qualifications, clippy::all, clippy::pedantic)]
pub mod csi {
    include!("generated/csi.v1.rs");
}

/// How a plugin registers itself with the kubelet (`proto/pluginregistration.proto`).
#[allow(unused_qualifications, clippy::all, clippy::pedantic)]
pub mod registration {
    include!("generated/pluginregistration.rs");
}

/// Shows no field: some of these hold secrets (`csi_secret` in `csi.proto`).
macro_rules! without_fields {
    ($($message:ident),+) => {$(
        impl fmt::Debug for csi::$message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($message)).finish_non_exhaustive()
            }
        }
    )+};
}

without_fields!(
    NodeStageVolumeRequest,
    NodePublishVolumeRequest,
    NodeExpandVolumeRequest,
    NodeGetStorageHealthRequest
);

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::PathBuf;

    use sha2::{Digest as _, Sha256};

    use super::csi;

    /// The generator records the digests of its input and its output. After a change of either, run it again.
    #[test]
    fn the_generated_code_is_that_of_these_protos() {
        let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap());
        let sums = std::fs::read_to_string(root.join("src/generated/SHA256SUMS")).unwrap();
        assert_eq!(sums.lines().count(), 4);
        for line in sums.lines() {
            let (sum, file) = line.split_once("  ").unwrap();
            let digest = Sha256::digest(std::fs::read(root.join(file)).unwrap());
            let found = digest.iter().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            });
            assert_eq!(found, sum, "{file} has changed: run mounter/csi-proto/generate");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let request = csi::NodePublishVolumeRequest {
            secrets: [("password".to_owned(), "hunter2".to_owned())].into(),
            ..Default::default()
        };
        assert!(!format!("{request:?}").contains("hunter2"));
    }
}
