//! Generates `mounter/csi-proto/src/generated` from `mounter/csi-proto/proto`.
//!
//! Of CSI only the services of a node are kept, and the messages that these need: the controller's, snapshots' and the
//! like are two thirds of it.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};
use sha2::{Digest as _, Sha256};

/// The protos, and the services that are kept of each.
const PROTOS: [(&str, &[&str]); 2] = [
    ("csi.proto", &["Identity", "Node"]),
    ("pluginregistration.proto", &["Registration"]),
];

/// Messages with secrets in them: their `Debug` is in `src/lib.rs`.
const SECRET: [&str; 4] = [
    "csi.v1.NodeStageVolumeRequest",
    "csi.v1.NodePublishVolumeRequest",
    "csi.v1.NodeExpandVolumeRequest",
    "csi.v1.NodeGetStorageHealthRequest",
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let out = root.join("src/generated");
    let compiled = protox::compile(PROTOS.map(|(file, _)| file), [root.join("proto")])?;
    let kept = compiled.file.into_iter().map(|file| {
        match PROTOS.iter().find(|(name, _)| *name == file.name()) {
            Some((_, services)) => pruned(file, services),
            // Google's own, which are types of Rust's.
            None => file,
        }
    });
    let kept = FileDescriptorSet { file: kept.collect() };
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .generate_default_stubs(true)
        .skip_debug(SECRET)
        .out_dir(&out)
        .compile_fds(kept)?;
    let mut sums = String::new();
    for file in [
        "proto/csi.proto",
        "proto/pluginregistration.proto",
        "src/generated/csi.v1.rs",
        "src/generated/pluginregistration.rs",
    ] {
        let digest = Sha256::digest(fs::read(root.join(file))?);
        for byte in digest {
            write!(sums, "{byte:02x}")?;
        }
        writeln!(sums, "  {file}")?;
    }
    fs::write(out.join("SHA256SUMS"), sums)?;
    Ok(())
}

/// A file with these services alone, and what they need.
fn pruned(mut file: FileDescriptorProto, services: &[&str]) -> FileDescriptorProto {
    let prefix = format!(".{}.", file.package());
    let top = |type_name: &str| -> Option<String> {
        let name = type_name.strip_prefix(&prefix)?;
        Some(name.split('.').next().unwrap_or(name).to_owned())
    };
    file.service.retain(|service| services.contains(&service.name()));
    let methods = file.service.iter().flat_map(|service| &service.method);
    let mut next: Vec<String> = methods
        .flat_map(|method| [method.input_type(), method.output_type()])
        .filter_map(top)
        .collect();
    let mut needed = BTreeSet::new();
    while let Some(name) = next.pop() {
        if let Some(message) = file.message_type.iter().find(|message| message.name() == name) {
            let mut types = Vec::new();
            named_types(message, &mut types);
            let types = types.into_iter().filter_map(top);
            next.extend(types.filter(|found| *found != name && !needed.contains(found)));
        }
        needed.insert(name);
    }
    file.message_type.retain(|message| needed.contains(message.name()));
    file.enum_type.retain(|kind| needed.contains(kind.name()));
    file.extension.clear();
    // It counts what was there before.
    file.source_code_info = None;
    file
}

/// The messages and enumerations that a message's fields are of.
fn named_types<'a>(message: &'a DescriptorProto, found: &mut Vec<&'a str>) {
    let named = message
        .field
        .iter()
        .filter(|field| matches!(field.r#type(), Type::Message | Type::Enum));
    found.extend(named.map(|field| field.type_name()));
    for nested in &message.nested_type {
        named_types(nested, found);
    }
}
