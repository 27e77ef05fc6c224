//! How a node reaches a volume that is attached: what Cinder says becomes options and secrets of one of Mooring's
//! clients.

use mooring_contract::volume::address::in_brackets;
use mooring_contract::volume::keys;
use serde_json::Value;

use crate::answer::{VolumeOptions, options};
use crate::error::OpenstackError;

/// A Ceph client's login, of the ConfigMap's Secret: Cinder does not hand out keys.
#[derive(Debug, Default)]
pub(super) struct CephLogin {
    pub(super) user: Option<String>,
    pub(super) key: Option<String>,
}

/// What a node is given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) options: VolumeOptions,
    pub(super) secrets: VolumeOptions,
}

/// Reads `connection_info` of an attachment for `client`.
pub(super) fn read(info: &Value, client: &str, ceph: &CephLogin) -> Result<Connection, OpenstackError> {
    let text = |key: &str| info[key].as_str().unwrap_or_default();
    let kind = text("driver_volume_type");
    if info["encrypted"] == true {
        return Err(OpenstackError::Refused(
            "the volume's type has Cinder's encryption, which no client here can undo: use another volume type"
                .to_owned(),
        ));
    }
    match (kind, client) {
        ("rbd", "rbd") => rbd(info, ceph),
        ("iscsi", "iscsi" | "block") => iscsi(info),
        ("nfs", "block") => nfs(info),
        ("rbd" | "iscsi" | "nfs", _) => Err(OpenstackError::Refused(format!(
            "Cinder serves the volume by {kind}, and client {client} can't mount that: write client: {} into the \
             ConfigMap, or \"volume-types\" with those that {client} can mount",
            if kind == "nfs" { "block" } else { kind }
        ))),
        (kind, _) => Err(OpenstackError::Refused(format!(
            "Cinder serves the volume by {kind:?}, for which there is no client here: use a volume type of RBD, iSCSI \
             or NFS"
        ))),
    }
}

/// An image of Ceph, and who may open it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CephImage {
    /// `POOL/IMAGE`.
    pub(super) name: String,
    /// With commas between them.
    pub(super) monitors: String,
    /// Without `client.`; empty if nobody says it.
    pub(super) user: String,
    pub(super) key: String,
}

fn rbd(info: &Value, ceph: &CephLogin) -> Result<Connection, OpenstackError> {
    let image = ceph_image(info, ceph)?;
    Ok(Connection {
        options: options([(keys::SOURCE, format!("rbd://{}/{}", image.monitors, image.name))]),
        secrets: options([("user", image.user), ("key", image.key)]),
    })
}

/// The image of a connection whose `driver_volume_type` is `rbd`.
pub(super) fn ceph_image(info: &Value, ceph: &CephLogin) -> Result<CephImage, OpenstackError> {
    let lacks = |what: &str| OpenstackError::NotNow(format!("Cinder says of the volume's connection no {what}"));
    let name = info["name"].as_str().filter(|name| name.contains('/'));
    let name = name.ok_or_else(|| lacks("pool and image"))?;
    let texts = |key: &str| -> Vec<String> {
        let list = info[key].as_array().into_iter().flatten();
        list.map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned))
            .collect()
    };
    let (hosts, ports) = (texts("hosts"), texts("ports"));
    if hosts.is_empty() {
        return Err(lacks("monitors"));
    }
    let monitor = |(at, host): (usize, &String)| {
        let host = in_brackets(host);
        match ports.get(at) {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    };
    let monitors: Vec<_> = hosts.iter().enumerate().map(monitor).collect();
    let user = ceph
        .user
        .clone()
        .or_else(|| info["auth_username"].as_str().map(str::to_owned));
    let key = ceph.key.clone().ok_or(OpenstackError::NoProperty {
        name: "ceph-key",
        what: "the key of Cinder's Ceph client (\"ceph auth get-key client.cinder\")",
    })?;
    Ok(CephImage {
        name: name.to_owned(),
        monitors: monitors.join(","),
        user: user.unwrap_or_default(),
        key,
    })
}

fn iscsi(info: &Value) -> Result<Connection, OpenstackError> {
    let lacks = |what: &str| OpenstackError::NotNow(format!("Cinder says of the volume's connection no {what}"));
    let text = |key: &str| info[key].as_str().unwrap_or_default();
    let ways = ways(info);
    let first = ways.first().ok_or_else(|| lacks("portal, target and LUN"))?;
    // A client has one name for the device, and several portals.
    let same = ways
        .iter()
        .filter(|way| (way.target, way.lun) == (first.target, first.lun));
    let mut portals: Vec<_> = same.map(|way| way.portal).collect();
    // The usual one is in the lists, too.
    if let Some(again) = (1..portals.len()).find(|at| portals[*at] == portals[0]) {
        portals.remove(again);
    }
    let chap = |key: &str| match text("auth_method") {
        "CHAP" => text(key).to_owned(),
        _ => String::new(),
    };
    Ok(Connection {
        options: options([(
            keys::SOURCE,
            format!("iscsi://{}/{}/{}", portals.join(","), first.target, first.lun),
        )]),
        secrets: options([
            ("chap-username", chap("auth_username")),
            ("chap-password", chap("auth_password")),
        ]),
    })
}

/// A file of an export. The client reads and writes it without mounting the export, which has other volumes too.
fn nfs(info: &Value) -> Result<Connection, OpenstackError> {
    let text = |key: &str| info[key].as_str().unwrap_or_default();
    let format = text("format");
    if !["", "raw"].contains(&format) {
        return Err(OpenstackError::NotNow(format!(
            "Cinder has the volume as a file of format {format}, as it does where the volume has snapshots, and client \
             block reads raw files: delete the volume's snapshots, or have Cinder make raw files \
             (nfs_qcow2_volumes = false)"
        )));
    }
    let lacks = || OpenstackError::NotNow("Cinder says of the volume's connection no export and file".to_owned());
    let (host, folder) = text("export").split_once(":/").ok_or_else(lacks)?;
    let name = text("name");
    if host.is_empty() || name.is_empty() {
        return Err(lacks());
    }
    let parts: Vec<_> = folder
        .split('/')
        .filter(|part| !part.is_empty())
        .chain([name])
        .collect();
    let path = parts.join("/");
    Ok(Connection {
        options: options([(keys::SOURCE, format!("nfs://{}/{path}", in_brackets(host)))]),
        secrets: VolumeOptions::new(),
    })
}

/// One of the ways to a device of iSCSI.
struct Way<'a> {
    portal: &'a str,
    target: &'a str,
    lun: u64,
}

/// All of them, the usual one first. With several, some back ends say only the lists.
fn ways(info: &Value) -> Vec<Way<'_>> {
    let list = |key: &str| info[key].as_array().map_or(&[][..], Vec::as_slice);
    let others = list("target_portals")
        .iter()
        .zip(list("target_iqns"))
        .zip(list("target_luns"))
        .map(|((portal, target), lun)| (portal, target, lun));
    std::iter::once((&info["target_portal"], &info["target_iqn"], &info["target_lun"]))
        .chain(others)
        .filter_map(|(portal, target, lun)| {
            Some(Way {
                portal: portal.as_str().filter(|portal| !portal.is_empty())?,
                target: target.as_str().filter(|target| !target.is_empty())?,
                lun: lun.as_u64()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{CephLogin, read};
    use serde_json::{Value, json};

    fn ceph() -> CephLogin {
        CephLogin {
            user: None,
            key: Some("K==".into()),
        }
    }

    fn rbd() -> Value {
        json!({
            "driver_volume_type": "rbd", "name": "volumes/volume-1", "hosts": ["10.0.0.1", "fd00::1"],
            "ports": ["6789", "6789"], "auth_enabled": true, "auth_username": "cinder", "encrypted": false,
        })
    }

    #[test]
    fn an_image_of_ceph_is_reached_by_its_monitors_with_the_secret_s_key() {
        let connection = read(&rbd(), "rbd", &ceph()).unwrap();
        assert_eq!(
            connection.options["source"],
            "rbd://10.0.0.1:6789,[fd00::1]:6789/volumes/volume-1"
        );
        assert_eq!(connection.options.len(), 1);
        assert_eq!(connection.secrets["user"], "cinder");
        assert_eq!(connection.secrets["key"], "K==");
        let none = read(&rbd(), "rbd", &CephLogin::default()).unwrap_err();
        assert!(none.to_string().contains("ceph-key"), "{none}");
    }

    #[test]
    fn an_iscsi_device_comes_with_its_login() {
        let info = json!({
            "driver_volume_type": "iscsi", "target_portal": "10.0.0.2:3260", "target_lun": 1,
            "target_iqn": "iqn.2010-10.org.openstack:volume-1", "auth_method": "CHAP", "auth_username": "u",
            "auth_password": "p",
        });
        for client in ["iscsi", "block"] {
            let connection = read(&info, client, &ceph()).unwrap();
            let source = "iscsi://10.0.0.2:3260/iqn.2010-10.org.openstack:volume-1/1";
            assert_eq!(connection.options["source"], source);
            assert_eq!(connection.secrets["chap-username"], "u");
            assert_eq!(connection.secrets["chap-password"], "p");
        }
        let mut open = info;
        open["auth_method"] = Value::Null;
        assert!(read(&open, "iscsi", &ceph()).unwrap().secrets.is_empty());
    }

    #[test]
    fn a_device_is_reached_by_each_portal_that_has_it() {
        let (a, b) = ("iqn.2010-10.org.openstack:a", "iqn.2010-10.org.openstack:b");
        let mut info = json!({
            "driver_volume_type": "iscsi", "target_portal": "10.0.0.2:3260", "target_lun": 1, "target_iqn": a,
            "target_portals": ["10.0.0.2:3260", "10.0.1.2:3260", "10.0.2.2:3260", "10.0.3.2:3260"],
            "target_iqns": [a, a, b, a], "target_luns": [1, 1, 1, 2],
        });
        let connection = read(&info, "block", &ceph()).unwrap();
        let source = format!("iscsi://10.0.0.2:3260,10.0.1.2:3260/{a}/1");
        assert_eq!(connection.options["source"], source);
        for key in ["target_portal", "target_iqn", "target_lun"] {
            info[key].take();
        }
        assert_eq!(read(&info, "block", &ceph()).unwrap(), connection);
    }

    #[test]
    fn a_file_of_an_export_is_reached_without_the_export() {
        let file = |export: &str, format: &str| {
            json!({"driver_volume_type": "nfs", "export": export, "name": "volume-1", "format": format,
                   "options": null, "encrypted": false})
        };
        for (export, source) in [
            ("10.0.0.4:/srv/volumes/", "nfs://10.0.0.4/srv/volumes/volume-1"),
            ("10.0.0.4://srv//volumes", "nfs://10.0.0.4/srv/volumes/volume-1"),
            ("fd00::1:/srv", "nfs://[fd00::1]/srv/volume-1"),
            ("nas.example:/", "nfs://nas.example/volume-1"),
        ] {
            let connection = read(&file(export, "raw"), "block", &ceph()).unwrap();
            assert_eq!(connection.options["source"], source);
            assert!(connection.secrets.is_empty());
        }
        let with_snapshots = read(&file("h:/srv", "qcow2"), "block", &ceph()).unwrap_err();
        assert!(with_snapshots.to_string().contains("format qcow2"), "{with_snapshots}");
        assert_eq!(with_snapshots.exit_code(), 75);
    }

    #[test]
    fn what_no_client_can_mount_is_refused_by_name() {
        let of = |kind: &str| json!({"driver_volume_type": kind, "target_lun": 0});
        let mut encrypted = rbd();
        encrypted["encrypted"] = json!(true);
        for (info, client, code, says) in [
            (of("nfs"), "rbd", 78, "write client: block"),
            (of("nfs"), "block", 75, "no export and file"),
            (of("fibre_channel"), "rbd", 78, "\"fibre_channel\""),
            (rbd(), "iscsi", 78, "client: rbd"),
            (encrypted, "rbd", 78, "encryption"),
            (of("iscsi"), "iscsi", 75, "no portal"),
        ] {
            let error = read(&info, client, &ceph()).unwrap_err();
            assert_eq!(error.exit_code(), code);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
