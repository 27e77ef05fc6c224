//! What Cinder and Manila have, by their own lists, asked for without the image's program.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::http::{Message, exchange};
use super::proxy::Servers;

/// The versions of their APIs: with attachments, and with access rules of their own.
const VERSIONS: [(&str, &str); 2] = [
    ("openstack-api-version", "volume 3.59"),
    ("x-openstack-manila-api-version", "2.78"),
];

/// The services, as the catalogue names them.
const KEYSTONE: &str = "keystone.openstack.svc:5000";
const CINDER: &str = "cinder-api.openstack.svc:8776";
const MANILA: &str = "manila-api.openstack.svc:8786";

/// The project of a login.
pub(super) struct Cloud {
    servers: Servers,
    token: String,
    project: String,
}

impl Cloud {
    /// Logs in as a `clouds.yaml` of the services says.
    pub(super) fn open(servers: Servers, clouds: &Value) -> Result<Self> {
        let auth = &clouds["clouds"]["openstack"]["auth"];
        let domain = |key: &str| json!({"name": auth[key]});
        let user = json!({
            "name": auth["username"], "password": auth["password"], "domain": domain("user_domain_name"),
        });
        let login = json!({"auth": {
            "identity": {"methods": ["password"], "password": {"user": user}},
            "scope": {"project": {"name": auth["project_name"], "domain": domain("project_domain_name")}},
        }});
        let mut cloud = Self {
            servers,
            token: String::new(),
            project: String::new(),
        };
        let answer = cloud.call("POST", KEYSTONE, "/v3/auth/tokens", &login)?;
        let token = answer.header("x-subject-token");
        token.context("Keystone gave no token")?.clone_into(&mut cloud.token);
        let read: Value = serde_json::from_slice(&answer.body)?;
        let project = read["token"]["project"]["id"].as_str();
        project
            .context("the token has no project")?
            .clone_into(&mut cloud.project);
        Ok(cloud)
    }

    /// What is there, a line each, sorted. Everything that a volume or share has bears its name.
    pub(super) fn everything(&self) -> Result<Vec<String>> {
        let mut all = self.volumes()?;
        all.extend(self.shares()?);
        all.sort();
        Ok(all)
    }

    pub(super) fn volumes(&self) -> Result<Vec<String>> {
        let volumes = self.list(CINDER, "volumes/detail", "volumes")?;
        let snapshots = self.list(CINDER, "snapshots/detail", "snapshots")?;
        let backups = self.list(CINDER, "backups/detail", "backups")?;
        let attachments = self.list(CINDER, "attachments", "attachments")?;
        let mut all: Vec<_> = volumes.iter().map(|one| sized("volume", one)).collect();
        all.extend(snapshots.iter().map(|one| stated("snapshot", one)));
        all.extend(backups.iter().map(|one| stated("backup", one)));
        for one in &attachments {
            let of = name_of(&volumes, &one["volume_id"]);
            all.push(format!("attachment of {of}, {}", text(&one["status"])));
        }
        Ok(all)
    }

    pub(super) fn shares(&self) -> Result<Vec<String>> {
        let shares = self.list(MANILA, "shares/detail", "shares")?;
        let snapshots = self.list(MANILA, "snapshots/detail", "snapshots")?;
        let mut all: Vec<_> = shares.iter().map(|one| sized("share", one)).collect();
        all.extend(snapshots.iter().map(|one| stated("snapshot", one)));
        for share in &shares {
            let path = format!("share-access-rules?share_id={}", text(&share["id"]));
            for rule in self.list(MANILA, &path, "access_list")? {
                let (of, state) = (text(&share["name"]), text(&rule["state"]));
                all.push(format!("rule of {of} for {}, {state}", text(&rule["access_to"])));
            }
        }
        Ok(all)
    }

    fn list(&self, server: &str, path: &str, key: &str) -> Result<Vec<Value>> {
        let base = if server == CINDER {
            format!("/v3/{}", self.project)
        } else {
            "/v2".to_owned()
        };
        let answer = self.call("GET", server, &format!("{base}/{path}"), &Value::Null)?;
        let mut read: Value = serde_json::from_slice(&answer.body)?;
        match read[key].take() {
            Value::Array(items) => Ok(items),
            other => bail!("{path} was answered {other}, and no list"),
        }
    }

    fn call(&self, method: &str, server: &str, path: &str, body: &Value) -> Result<Message> {
        let mut headers = vec![
            ("host".to_owned(), server.to_owned()),
            ("content-type".to_owned(), "application/json".to_owned()),
            ("x-auth-token".to_owned(), self.token.clone()),
        ];
        headers.extend(VERSIONS.map(|(name, version)| (name.to_owned(), version.to_owned())));
        let request = Message {
            first: [method.to_owned(), path.to_owned(), String::new()],
            headers,
            body: if body.is_null() {
                Vec::new()
            } else {
                body.to_string().into_bytes()
            },
        };
        let answer = exchange(self.address(server)?, &request, || ())?;
        let status = &answer.first[1];
        ensure!(
            status.starts_with('2'),
            "{method} {path} was answered {status}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        Ok(answer)
    }

    fn address(&self, server: &str) -> Result<SocketAddr> {
        let found = self.servers.get(server).copied();
        found.with_context(|| format!("{server} does not run here"))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn sized(what: &str, one: &Value) -> String {
    format!(
        "{what} {} of {} GiB, {}",
        text(&one["name"]),
        one["size"],
        text(&one["status"])
    )
}

fn stated(what: &str, one: &Value) -> String {
    format!("{what} {}, {}", text(&one["name"]), text(&one["status"]))
}

fn name_of<'a>(all: &'a [Value], id: &Value) -> &'a str {
    let found = all.iter().find(|one| one["id"] == *id);
    found.map_or("", |one| text(&one["name"]))
}
