//! How a registry is told who asks: by the logins that `buildah login`, `podman login` and `docker login` have stored.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

/// What a registry asks for, from its header `WWW-Authenticate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// The login itself.
    Basic,
    /// A token, which another server gives for the login.
    Token { realm: String, service: Option<String> },
}

impl Challenge {
    pub(super) fn parse(header: &str) -> Option<Self> {
        let (scheme, parameters) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let value = |name: &str| {
            let (_, after) = parameters.split_once(&format!("{name}=\""))?;
            after.split('"').next().map(str::to_owned)
        };
        Some(Self::Token {
            realm: value("realm")?,
            service: value("service"),
        })
    }
}

/// A registry's login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    /// `user:password` in Base64.
    pub(super) value: String,
    /// The file that has it, in the form of Docker's.
    pub(super) file: PathBuf,
}

/// The stored login for a registry.
pub(super) fn stored(host: &str) -> Result<Option<Login>> {
    for path in files() {
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        let logins = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
        if let Some(value) = login_in(&logins, host) {
            return Ok(Some(Login { value, file: path }));
        }
    }
    Ok(None)
}

fn login_in(logins: &Value, host: &str) -> Option<String> {
    let login = logins["auths"][host]["auth"].as_str()?;
    Some(login.to_owned()).filter(|login| !login.is_empty())
}

/// Where these programs store logins.
fn files() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let user = nix::unistd::getuid();
    [
        variable("REGISTRY_AUTH_FILE"),
        variable("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json")),
        Some(PathBuf::from(format!("/run/containers/{user}/auth.json"))),
        Some(PathBuf::from(format!("/run/user/{user}/containers/auth.json"))),
        variable("DOCKER_CONFIG").map(|folder| folder.join("config.json")),
        variable("HOME").map(|folder| folder.join(".docker/config.json")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Challenge, login_in};

    #[test]
    fn what_a_registry_asks_for_is_read_from_its_header() {
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        let asked = "Bearer realm=\"https://auth.example.com/token\",service=\"example.com\",scope=\"a:b:pull\"";
        let token = Challenge::Token {
            realm: "https://auth.example.com/token".into(),
            service: Some("example.com".into()),
        };
        assert_eq!(Challenge::parse(asked), Some(token));
        assert_eq!(Challenge::parse("Bearer service=\"x\""), None);
        assert_eq!(Challenge::parse("Negotiate"), None);
    }

    #[test]
    fn a_login_is_found_by_the_registry_s_host() {
        let logins = json!({"auths": {"r.example.com:5000": {"auth": "dTpw"}, "empty": {"auth": ""}}});
        assert_eq!(login_in(&logins, "r.example.com:5000").as_deref(), Some("dTpw"));
        assert_eq!(login_in(&logins, "empty"), None);
        assert_eq!(login_in(&logins, "other"), None);
    }
}
