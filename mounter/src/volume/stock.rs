//! Who serves the clients that Mooring comes with, unless an administrator says otherwise.

use mooring_contract::names::REGISTRY;

/// How Mooring serves a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stock {
    /// A client container of this image.
    Image(&'static str),
    /// The node's own kernel, without a program.
    Kernel,
}

/// All of them but `local` and `pool`, which the mounter always serves itself.
pub const STOCK: [(&str, Stock); 10] = [
    ("block", Stock::Image("client-block")),
    ("cephfs", Stock::Image("client-cephfs")),
    ("glusterfs", Stock::Image("client-glusterfs")),
    ("iscsi", Stock::Image("client-iscsi")),
    ("nfs", Stock::Kernel),
    ("node-disk", Stock::Image("client-block")),
    ("rbd", Stock::Image("client-block")),
    ("s3", Stock::Image("client-s3")),
    ("smb", Stock::Kernel),
    ("sshfs", Stock::Image("client-sshfs")),
];

/// How Mooring serves this client, if it comes with it.
pub fn stock(client: &str) -> Option<Stock> {
    STOCK.iter().find(|(name, _)| *name == client).map(|(_, stock)| *stock)
}

/// The name of an image of this version.
pub fn image(name: &str) -> String {
    format!("{REGISTRY}/{name}:{}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mooring_contract::volume::clients::{ClientRecord, RECORDS};

    use super::{STOCK, Stock};

    #[test]
    fn there_is_an_image_for_each_client_that_needs_one_and_for_no_other() {
        let of = |needs: fn(&ClientRecord) -> bool| {
            let records = RECORDS.iter().filter(|record| needs(record));
            records.map(|record| record.names[0]).collect::<BTreeSet<_>>()
        };
        let (own, images): (Vec<_>, Vec<_>) = STOCK.iter().partition(|(_, stock)| *stock == Stock::Kernel);
        let names = |all: Vec<&(&'static str, Stock)>| all.into_iter().map(|(name, _)| *name).collect::<BTreeSet<_>>();
        assert_eq!(names(images), of(|record| !record.image_needs.is_empty()));
        let kernel = |record: &ClientRecord| record.kernel_types.contains(record.fs_types.last().unwrap_or(&""));
        assert_eq!(names(own), of(kernel));
    }
}
