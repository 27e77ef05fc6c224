//! Who serves which type of volume: the administrator decides, by ConfigMap and by flags, and else [`mod@stock`] says it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use mooring_contract::image::{ImageRef, ImageRegistry};
use mooring_contract::volume::{ClientName, Volume, VolumeError};
use tokio::sync::Notify;

use crate::volume::job::MountError;
use crate::volume::stock::{self, STOCK, Stock, stock};

/// Who serves a type of volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serving {
    /// The mounter's own code for `local`.
    Local,
    /// The mounter's own code for `pool`.
    Pool,
    /// The kernel, by system call.
    Kernel,
    /// The host's own `mount`.
    Host,
    /// A client container of this image.
    Container(String),
}

impl Serving {
    /// The mode, from a fixed set, for metrics and the log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Pool => "pool",
            Self::Kernel => "self",
            Self::Host => "host",
            Self::Container(_) => "container",
        }
    }

    /// Whether the volume is on a server elsewhere, which may be dead.
    pub fn is_remote(&self) -> bool {
        !matches!(self, Self::Local | Self::Pool)
    }
}

impl From<Stock> for Serving {
    fn from(stock: Stock) -> Self {
        match stock {
            Stock::Image(name) => Self::Container(stock::image(name)),
            Stock::Kernel => Self::Kernel,
        }
    }
}

impl FromStr for Serving {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "" => Err(BadRule::NoServer),
            "host" => Ok(Self::Host),
            "self" => Ok(Self::Kernel),
            image => {
                let _: ImageRef = image.parse().map_err(|_| BadRule::NotAnImage(image.to_owned()))?;
                Ok(Self::Container(image.to_owned()))
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRule {
    #[error("{0:?} is not of the form TYPE=IMAGE, TYPE=host or TYPE=self")]
    NoEquals(String),
    #[error("nothing says who serves the type: give a client image, host or self")]
    NoServer,
    #[error(transparent)]
    BadType(#[from] VolumeError),
    /// A type that the mounter serves itself.
    #[error("{0} volumes are always served by the mounter itself: remove this rule")]
    OwnType(String),
    #[error("{0:?} is neither host nor self nor an image's name")]
    NotAnImage(String),
}

/// One type and who serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub client: ClientName,
    pub serving: Serving,
}

impl Rule {
    /// A rule from its two halves.
    pub fn new(client: &str, serving: &str) -> Result<Self, BadRule> {
        if [ClientName::LOCAL, ClientName::POOL].contains(&client) {
            return Err(BadRule::OwnType(client.to_owned()));
        }
        Ok(Self {
            client: client.parse()?,
            serving: serving.parse()?,
        })
    }
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (client, serving) = text.split_once('=').ok_or_else(|| BadRule::NoEquals(text.to_owned()))?;
        Self::new(client.trim(), serving)
    }
}

/// A ConfigMap with a bad entry; the rules before it stay in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key {key}: {error}")]
pub struct BadConfig {
    /// The first bad key.
    pub key: String,
    pub error: BadRule,
}

/// Who serves which type, by ConfigMap, by flags, or by default.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    flags: BTreeMap<ClientName, Serving>,
    config: Arc<RwLock<Config>>,
    news: Arc<Notify>,
}

/// What can change while the mounter runs.
#[derive(Debug, Default)]
struct Config {
    rules: BTreeMap<ClientName, Serving>,
    /// Where Mooring's images are.
    images: ImageRegistry,
}

impl Config {
    /// A rule with the image's name in this cluster.
    fn placed(&self, serving: Serving) -> Serving {
        match serving {
            Serving::Container(image) => Serving::Container(self.images.resolve(&image)),
            other => other,
        }
    }
}

impl Registry {
    /// With the rules that the flags give; of two for one type the last counts.
    pub fn new(flags: Vec<Rule>) -> Self {
        Self {
            flags: flags.into_iter().map(|rule| (rule.client, rule.serving)).collect(),
            config: Arc::default(),
            news: Arc::default(),
        }
    }

    /// Applies a ConfigMap, all of it or, if an entry is bad, nothing. Whether that changed a rule.
    pub fn configure(&self, data: &BTreeMap<String, String>) -> Result<bool, BadConfig> {
        let rules = data
            .iter()
            .map(|(key, value)| {
                Rule::new(key, value)
                    .map(|rule| (rule.client, rule.serving))
                    .map_err(|error| BadConfig {
                        key: key.clone(),
                        error,
                    })
            })
            .collect::<Result<BTreeMap<_, _>, _>>()?;
        let mut config = self.config.write().unwrap_or_else(PoisonError::into_inner);
        let news = config.rules != rules;
        config.rules = rules;
        if news {
            self.news.notify_one();
        }
        Ok(news)
    }

    /// Looks for Mooring's images in this registry from now on.
    pub fn place_images(&self, images: ImageRegistry) {
        let mut config = self.config.write().unwrap_or_else(PoisonError::into_inner);
        if config.images != images {
            config.images = images;
            self.news.notify_one();
        }
    }

    /// Waits until a ConfigMap has changed a rule since the last wait.
    pub async fn changed(&self) {
        self.news.notified().await;
    }

    /// Who serves a volume. Its own `client-image` comes first: that image is checked against those that are allowed
    /// where it is started.
    pub fn serving(&self, volume: &Volume) -> Result<Serving, MountError> {
        match volume.client.as_str() {
            ClientName::LOCAL => return Ok(Serving::Local),
            ClientName::POOL => return Ok(Serving::Pool),
            _ => {}
        }
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        let by_image = volume.client_image.clone().map(Serving::Container);
        let serving = by_image
            .or_else(|| config.rules.get(&volume.client).cloned())
            .or_else(|| self.flags.get(&volume.client).cloned())
            .or_else(|| stock(volume.client.as_str()).map(Serving::from));
        let serving = serving.ok_or_else(|| MountError::NotServed {
            client: volume.client.to_string(),
        })?;
        Ok(config.placed(serving))
    }

    /// Whether any type is served by the host's own `mount`.
    pub fn has_host(&self) -> bool {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        config
            .rules
            .values()
            .chain(self.flags.values())
            .any(|serving| *serving == Serving::Host)
    }

    /// Who serves each type, by all rules in force.
    pub fn servings(&self) -> BTreeMap<String, Serving> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        let own = [(ClientName::LOCAL, Serving::Local), (ClientName::POOL, Serving::Pool)];
        let rules = self.flags.iter().chain(config.rules.iter());
        own.into_iter()
            .chain(STOCK.map(|(client, stock)| (client, stock.into())))
            .map(|(client, serving)| (client.to_owned(), serving))
            .chain(rules.map(|(client, serving)| (client.to_string(), serving.clone())))
            .map(|(client, serving)| (client, config.placed(serving)))
            .collect()
    }

    /// The same, for the status page.
    pub fn rules(&self) -> BTreeMap<String, String> {
        let text = |serving| match serving {
            Serving::Local | Serving::Pool => "the mounter".to_owned(),
            Serving::Container(image) => image,
            other => other.as_str().to_owned(),
        };
        let servings = self.servings().into_iter();
        servings.map(|(client, serving)| (client, text(serving))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Registry, Rule, Serving};
    use mooring_contract::volume::Volume;
    use std::collections::BTreeMap;

    fn serving(registry: &Registry, line: &str) -> Option<Serving> {
        registry.serving(&Volume::from_line(line).unwrap()).ok()
    }

    fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn the_volume_s_own_image_goes_before_the_config_map_and_that_before_the_flags() {
        let registry = Registry::new(vec!["nfs=host".parse().unwrap(), "smb=self".parse().unwrap()]);
        assert_eq!(serving(&registry, "client=nfs"), Some(Serving::Host));
        registry.configure(&data(&[("nfs", "self")])).unwrap();
        assert_eq!(serving(&registry, "client=nfs"), Some(Serving::Kernel));
        assert_eq!(serving(&registry, "client=smb"), Some(Serving::Kernel));
        assert_eq!(
            serving(&registry, "client=nfs,client-image=a/b:1"),
            Some(Serving::Container("a/b:1".into()))
        );
        assert_eq!(
            serving(&registry, "client=local,client-image=a/b:1"),
            Some(Serving::Local)
        );
        assert_eq!(serving(&registry, "client=ceph"), None);
        assert!(registry.has_host() && !Registry::default().has_host());
        registry.configure(&data(&[])).unwrap();
        assert_eq!(serving(&registry, "client=nfs"), Some(Serving::Host));
    }

    #[test]
    fn mooring_s_own_clients_need_no_rule_and_their_images_are_in_the_registry_of_the_cluster() {
        let registry = Registry::new(vec![
            "smb=host".parse().unwrap(),
            "own=mooring.dev/own:1".parse().unwrap(),
        ]);
        let version = env!("CARGO_PKG_VERSION");
        let stock = |place: &str| Some(Serving::Container(format!("{place}/client-block:{version}")));
        assert_eq!(serving(&registry, "client=rbd"), stock("mooring.dev"));
        assert_eq!(serving(&registry, "client=nfs"), Some(Serving::Kernel));
        assert_eq!(serving(&registry, "client=smb"), Some(Serving::Host));
        registry.place_images("a.example.com/b".parse().unwrap());
        assert_eq!(serving(&registry, "client=rbd"), stock("a.example.com/b"));
        assert_eq!(registry.servings().remove("rbd"), stock("a.example.com/b"));
        for line in ["client=own", "client=nfs,client-image=mooring.dev/own:1"] {
            let own = Serving::Container("a.example.com/b/own:1".into());
            assert_eq!(serving(&registry, line), Some(own), "{line}");
        }
        registry.configure(&data(&[("rbd", "custom/x:2")])).unwrap();
        assert_eq!(
            serving(&registry, "client=rbd"),
            Some(Serving::Container("custom/x:2".into()))
        );
    }

    #[test]
    fn a_config_map_with_a_bad_entry_changes_nothing() {
        let registry = Registry::default();
        assert_eq!(registry.configure(&data(&[("nfs", "host")])), Ok(true));
        assert_eq!(registry.configure(&data(&[("nfs", "host")])), Ok(false));
        let error = registry.configure(&data(&[("nfs", "self"), ("smb", "")])).unwrap_err();
        assert_eq!(error.key, "smb");
        assert_eq!(serving(&registry, "client=nfs"), Some(Serving::Host));
    }

    #[test]
    fn bad_rules_say_what_is_wrong() {
        for rule in ["nfs", "nfs=", "local=host", "pool=self", "NFS=host", "nfs=a b", "=host"] {
            assert!(rule.parse::<Rule>().is_err(), "{rule}");
        }
        assert!("sshfs=mooring.dev/client-sshfs:0.1.0".parse::<Rule>().is_ok());
    }
}
