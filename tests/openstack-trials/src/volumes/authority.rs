//! A Keystone whose certificate is of an authority that nobody knows: in front of the usual one, for one project.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{TRIAL, Trial};
use mooring_testbed::pki::Authority;

/// Its Pod and its Service.
const NAME: &str = "front";
const PORT: u16 = 5443;

/// Passes on what comes in. Arguments: the port to listen on, and the address of the usual one.
const PASS_ON: &str = r#"
import asyncio, ssl, sys
async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def serve(reader, writer):
    other = await asyncio.open_connection(*sys.argv[2].rsplit(":", 1))
    await asyncio.gather(pump(reader, other[1]), pump(other[0], writer))
async def main():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
    await (await asyncio.start_server(serve, "0.0.0.0", int(sys.argv[1]), ssl=context)).serve_forever()
asyncio.run(main())
"#;

/// Certificates and a key, in PEM.
struct Signed {
    authority: String,
    server: String,
    key: String,
}

fn sign(folder: &Path, host: &str) -> Result<Signed> {
    let read =
        |path: &Path| std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()));
    let authority = Authority::open(folder)?;
    let server = authority.server(NAME, &[host], &[])?;
    Ok(Signed {
        authority: read(&authority.certificate())?,
        server: read(&server.certificate)?,
        key: read(&server.key)?,
    })
}

/// Starts it, and has a login go by it: `login` is a Secret's content, with `clouds.yaml`.
pub(super) fn put_before(trial: &Trial<'_>, login: &mut Value) -> Result<()> {
    let host = format!("{NAME}.{TRIAL}.svc");
    let folder = std::env::temp_dir().join(format!("mooring-authority-{}", std::process::id()));
    let signed = sign(&folder, &host);
    std::fs::remove_dir_all(&folder).with_context(|| format!("failed to remove {}", folder.display()))?;
    let Signed { authority, server, key } = signed?;
    let mut clouds: Value = serde_json::from_str(login["clouds.yaml"].as_str().context("no clouds.yaml")?)?;
    let cloud = clouds["clouds"].as_object_mut().and_then(|all| all.values_mut().next());
    let url = &mut cloud.context("clouds.yaml has no cloud")?["auth"]["auth_url"];
    let usual = url.as_str().and_then(|url| url.strip_prefix("http://"));
    let usual = usual.context("clouds.yaml has no auth_url of http")?.to_owned();
    let (address, path) = usual.split_once('/').unwrap_or((&usual, ""));
    *url = format!("https://{host}:{PORT}/{path}").into();
    login["clouds.yaml"] = clouds.to_string().into();
    login["cacert"] = authority.into();
    let keystone = concat!("mooring.dev/openstack-keystone:", env!("CARGO_PKG_VERSION"));
    trial.put(&json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME, "namespace": TRIAL},
            "stringData": {"tls.crt": server, "tls.key": key},
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME, "namespace": TRIAL},
            "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]},
        },
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": NAME, "namespace": TRIAL, "labels": {"app": NAME}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main", "image": keystone, "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", PASS_ON, PORT.to_string(), address],
                    "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
                    "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
                }],
                "volumes": [{"name": "tls", "secret": {"secretName": NAME}}],
            },
        },
    ]}))?;
    trial.ready(NAME)
}
