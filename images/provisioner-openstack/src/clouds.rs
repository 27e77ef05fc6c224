//! `clouds.yaml`, as all of OpenStack's clients read it: where Keystone is, and who asks.

use serde::Deserialize;
use serde_json::{Value, json};

/// The cloud that is taken if there are several and nothing says which.
const USUAL: &str = "openstack";

/// Why the file does not say how to log in.
#[derive(Debug, thiserror::Error)]
pub enum CloudsError {
    #[error("it is not YAML of the form of a clouds.yaml, {}: {source}", place(source))]
    NotYaml { source: mooring_yaml::YamlError },
    #[error("it has no clouds: put one under \"clouds\"")]
    Empty,
    #[error("it has no cloud {0:?}: correct \"cloud\" in the ConfigMap; there are {1}")]
    NoCloud(String, String),
    #[error("it has the clouds {0}: say with \"cloud\" in the ConfigMap which one is meant")]
    Which(String),
    #[error("cloud {cloud:?} has no {key}: add it")]
    Missing { cloud: String, key: &'static str },
    #[error("cloud {cloud:?} logs in by {kind:?}, which is not supported: use a password or an application credential")]
    Kind { cloud: String, kind: String },
    #[error("cloud {cloud:?} has \"verify: false\": put your authority's certificate into the Secret as \"cacert\"")]
    NoVerify { cloud: String },
    #[error("cloud {cloud:?} has interface {interface:?}: write public, internal or admin")]
    Interface { cloud: String, interface: String },
}

fn place(error: &mooring_yaml::YamlError) -> String {
    error.line.map_or_else(String::new, |line| format!("see line {line}"))
}

#[derive(Debug, Clone, PartialEq)]
pub struct Cloud {
    /// Address of Keystone's API 3, without a slash at its end.
    pub auth_url: String,
    /// What a token is asked for with.
    pub login: Value,
    /// Any, if the file does not say.
    pub region: Option<String>,
    pub interface: String,
    /// The property that has the certificates of the cloud's authority, if it is none that all know.
    pub cacert: Option<String>,
}

#[derive(Debug, Deserialize)]
struct File {
    #[serde(default)]
    clouds: std::collections::BTreeMap<String, Entry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Auth,
    auth_type: Option<String>,
    region_name: Option<String>,
    interface: Option<String>,
    endpoint_type: Option<String>,
    cacert: Option<String>,
    verify: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Auth {
    #[serde(rename = "auth_url")]
    url: Option<String>,
    username: Option<String>,
    user_id: Option<String>,
    password: Option<String>,
    user_domain_name: Option<String>,
    user_domain_id: Option<String>,
    project_name: Option<String>,
    project_id: Option<String>,
    project_domain_name: Option<String>,
    project_domain_id: Option<String>,
    domain_name: Option<String>,
    domain_id: Option<String>,
    default_domain: Option<String>,
    application_credential_id: Option<String>,
    application_credential_name: Option<String>,
    application_credential_secret: Option<String>,
}

/// Reads the cloud `wanted`, or the only one.
pub fn read(text: &str, wanted: Option<&str>) -> Result<Cloud, CloudsError> {
    let file: File = mooring_yaml::from_str(text).map_err(|source| CloudsError::NotYaml { source })?;
    let names = file.clouds.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let name = match (wanted, file.clouds.len()) {
        (_, 0) => return Err(CloudsError::Empty),
        (Some(name), _) => name.to_owned(),
        (None, 1) => names.clone(),
        (None, _) if file.clouds.contains_key(USUAL) => USUAL.to_owned(),
        (None, _) => return Err(CloudsError::Which(names)),
    };
    match file.clouds.get(&name) {
        Some(entry) => cloud(&name, entry),
        None => Err(CloudsError::NoCloud(name, names)),
    }
}

fn cloud(name: &str, entry: &Entry) -> Result<Cloud, CloudsError> {
    let cloud = || name.to_owned();
    if entry.verify == Some(false) {
        return Err(CloudsError::NoVerify { cloud: cloud() });
    }
    let interface = entry.interface.as_deref().or(entry.endpoint_type.as_deref());
    let interface = interface.unwrap_or("public").trim_end_matches("URL");
    if !["public", "internal", "admin"].contains(&interface) {
        return Err(CloudsError::Interface {
            cloud: cloud(),
            interface: interface.to_owned(),
        });
    }
    let url = entry.auth.url.as_deref().unwrap_or_default().trim_end_matches('/');
    if url.is_empty() {
        return Err(CloudsError::Missing {
            cloud: cloud(),
            key: "auth.auth_url",
        });
    }
    let root = url
        .strip_suffix("/v3")
        .or_else(|| url.strip_suffix("/v2.0"))
        .unwrap_or(url);
    // A path on the machine where the file was written. In the Secret it is a key of that name.
    let file_name = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
    Ok(Cloud {
        auth_url: format!("{root}/v3"),
        login: login(name, entry)?,
        region: entry.region_name.clone().filter(|region| !region.is_empty()),
        interface: interface.to_owned(),
        cacert: entry.cacert.as_ref().map(file_name).filter(|name| !name.is_empty()),
    })
}

fn login(name: &str, entry: &Entry) -> Result<Value, CloudsError> {
    let auth = &entry.auth;
    let by_credential = auth.application_credential_id.is_some() || auth.application_credential_name.is_some();
    let kind = entry.auth_type.as_deref().map(|kind| kind.trim_start_matches("v3"));
    match kind {
        None if by_credential => credential(name, auth),
        Some("applicationcredential" | "application_credential") => credential(name, auth),
        None | Some("password") => password(name, auth),
        Some(_) => Err(CloudsError::Kind {
            cloud: name.to_owned(),
            kind: entry.auth_type.clone().unwrap_or_default(),
        }),
    }
}

/// An application credential has its project in itself.
fn credential(name: &str, auth: &Auth) -> Result<Value, CloudsError> {
    let secret = needed(
        name,
        auth.application_credential_secret.as_ref(),
        "auth.application_credential_secret",
    )?;
    let who = match &auth.application_credential_id {
        Some(id) => json!({"id": id, "secret": secret}),
        None => json!({
            "name": auth.application_credential_name, "secret": secret, "user": user(name, auth)?,
        }),
    };
    let identity = json!({"methods": ["application_credential"], "application_credential": who});
    Ok(json!({"auth": {"identity": identity}}))
}

fn password(name: &str, auth: &Auth) -> Result<Value, CloudsError> {
    let mut user = user(name, auth)?;
    user["password"] = json!(needed(name, auth.password.as_ref(), "auth.password")?);
    let project = match (&auth.project_id, &auth.project_name) {
        (Some(id), _) => json!({"id": id}),
        (None, Some(project)) => json!({
            "name": project,
            "domain": domain(auth, auth.project_domain_id.as_ref(), auth.project_domain_name.as_ref()),
        }),
        (None, None) => {
            return Err(CloudsError::Missing {
                cloud: name.to_owned(),
                key: "auth.project_name",
            });
        }
    };
    let identity = json!({"methods": ["password"], "password": {"user": user}});
    Ok(json!({"auth": {"identity": identity, "scope": {"project": project}}}))
}

fn user(name: &str, auth: &Auth) -> Result<Value, CloudsError> {
    if let Some(id) = &auth.user_id {
        return Ok(json!({"id": id}));
    }
    let user = needed(name, auth.username.as_ref(), "auth.username")?;
    let domain = domain(auth, auth.user_domain_id.as_ref(), auth.user_domain_name.as_ref());
    Ok(json!({"name": user, "domain": domain}))
}

fn domain(auth: &Auth, id: Option<&String>, name: Option<&String>) -> Value {
    let id = id.or(auth.domain_id.as_ref());
    let name = name.or(auth.domain_name.as_ref());
    match (id, name) {
        (Some(id), _) => json!({"id": id}),
        (None, Some(name)) => json!({"name": name}),
        (None, None) => json!({"id": auth.default_domain.as_deref().unwrap_or("default")}),
    }
}

fn needed<'a>(cloud: &str, value: Option<&'a String>, key: &'static str) -> Result<&'a str, CloudsError> {
    let missing = || CloudsError::Missing {
        cloud: cloud.to_owned(),
        key,
    };
    value
        .map(String::as_str)
        .filter(|value| !value.is_empty())
        .ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::read;
    use serde_json::json;

    const PASSWORD: &str = "
clouds:
  one:
    auth: {auth_url: 'https://keystone:5000/', username: tom, password: x, project_name: shop,
           user_domain_name: Default, project_domain_id: d2}
    region_name: RegionOne
    interface: internalURL
    cacert: /etc/ssl/cloud.pem
";

    #[test]
    fn a_password_is_for_one_project() {
        let cloud = read(PASSWORD, None).unwrap();
        assert_eq!(cloud.auth_url, "https://keystone:5000/v3");
        assert_eq!(cloud.interface, "internal");
        assert_eq!(cloud.cacert.as_deref(), Some("cloud.pem"));
        assert_eq!(
            cloud.login["auth"],
            json!({
                "identity": {"methods": ["password"], "password": {
                    "user": {"name": "tom", "domain": {"name": "Default"}, "password": "x"}}},
                "scope": {"project": {"name": "shop", "domain": {"id": "d2"}}},
            })
        );
    }

    #[test]
    fn an_application_credential_needs_neither_project_nor_type() {
        let text = "clouds: {one: {auth: {auth_url: 'http://k/v3', application_credential_id: a, \
                    application_credential_secret: s}}}";
        let cloud = read(text, Some("one")).unwrap();
        assert_eq!(cloud.auth_url, "http://k/v3");
        assert_eq!(
            cloud.login["auth"]["identity"]["application_credential"],
            json!({"id": "a", "secret": "s"})
        );
        assert!(cloud.login["auth"].get("scope").is_none());
    }

    #[test]
    fn what_can_t_be_used_is_said() {
        let entry = |text: &str| format!("clouds: {{one: {text}}}");
        let auth = "auth: {auth_url: 'http://k', username: u, password: p, project_name: x}";
        for (text, wanted, says) in [
            ("clouds: [".to_owned(), None, "YAML"),
            ("clouds: {}".to_owned(), None, "has no clouds"),
            (entry("{}"), None, "auth.auth_url"),
            (entry(&format!("{{{auth}}}")), Some("two"), "no cloud \"two\""),
            (entry(&format!("{{{auth}, verify: false}}")), None, "cacert"),
            (entry(&format!("{{{auth}, interface: private}}")), None, "private"),
            (
                entry(&format!("{{{auth}, auth_type: v3oidcpassword}}")),
                None,
                "v3oidcpassword",
            ),
            (
                entry("{auth: {auth_url: 'http://k', username: u, password: p}}"),
                None,
                "project_name",
            ),
            (
                entry("{auth: {auth_url: 'http://k', application_credential_id: a}}"),
                None,
                "credential_secret",
            ),
            ("clouds: {a: {}, b: {}}".to_owned(), None, "a, b"),
        ] {
            let error = read(&text, wanted).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
