//! The token that a worker's runs share: a file in the worker's memory, which goes with its Pod. A run in a Pod of its
//! own has none.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::clouds::Cloud;
use crate::keystone::Token;

/// Beside the folder of a run's properties, which goes with the run.
const NAME: &str = "token.json";

#[derive(Debug)]
pub struct KeptToken {
    path: PathBuf,
    /// Of whom the token is: a Secret that was changed has another one.
    login: String,
}

#[derive(Serialize, Deserialize)]
struct Content {
    login: String,
    until: SystemTime,
    token: Token,
}

/// Makes the file, as its worker starts. Its runs look for it.
pub fn make(run_dir: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(run_dir.join(NAME)).map(drop)
}

impl KeptToken {
    /// Of this login; none if this run is not a worker's.
    pub fn of(run_dir: &Path, cloud: &Cloud) -> Option<Self> {
        let path = run_dir.join(NAME);
        let login = digest(&SHA256, format!("{} {}", cloud.auth_url, cloud.login).as_bytes());
        path.exists().then(|| Self {
            path,
            login: format!("{login:?}"),
        })
    }

    /// The token, if it is this login's and not to be replaced yet.
    pub fn read(&self) -> Option<Token> {
        let text = fs::read(&self.path).ok()?;
        // Empty, or cut off with the run that wrote it: another login mends that.
        let content: Content = serde_json::from_slice(&text).ok()?;
        (content.login == self.login && SystemTime::now() < content.until).then_some(content.token)
    }

    /// Keeps a token for half of its life: what a service is asked for with it may go on for long.
    pub fn write(&self, token: &Token, life: Duration) {
        let content = Content {
            login: self.login.clone(),
            until: SystemTime::now() + life / 2,
            token: token.clone(),
        };
        // A token that is not kept costs the next run a login.
        let _ = serde_json::to_vec(&content).map(|text| fs::write(&self.path, text));
    }

    /// After a run that failed: its next try has a login of its own, and a catalogue of then.
    pub fn forget(&self) {
        let _ = fs::write(&self.path, "");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use serde_json::json;

    use super::{KeptToken, NAME, make};
    use crate::clouds::Cloud;
    use crate::keystone::Token;

    const HOUR: Duration = Duration::from_hours(1);

    fn cloud(password: &str) -> Cloud {
        Cloud {
            auth_url: "http://keystone/v3".into(),
            login: json!({"password": password}),
            region: None,
            interface: "public".into(),
            cacert: None,
        }
    }

    #[test]
    fn a_token_is_kept_for_its_login_for_half_of_its_life() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            KeptToken::of(folder.path(), &cloud("a")).is_none(),
            "not a worker's run"
        );
        make(folder.path()).unwrap();
        let path = folder.path().join(NAME);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let kept = KeptToken::of(folder.path(), &cloud("a")).unwrap();
        assert!(kept.read().is_none(), "nothing was kept yet");
        let token = Token::without_services("t");
        kept.write(&token, HOUR);
        assert_eq!(kept.read().unwrap().id, "t");
        assert!(!fs::read_to_string(&path).unwrap().contains("password"));
        assert!(KeptToken::of(folder.path(), &cloud("b")).unwrap().read().is_none());
        kept.write(&token, Duration::ZERO);
        assert!(kept.read().is_none(), "too old");
        kept.write(&token, HOUR);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(kept.read().is_none(), "cut off");
        kept.write(&token, HOUR);
        kept.forget();
        assert!(kept.read().is_none());
    }
}
