//! Flags for the administrator's settings. The mounters have none: what their policies let in is judged by the ConfigMap.

use mooring_contract::image::{ImagePattern, ImageRegistry};
use mooring_program::namespace::parse_namespace;
use mooring_program::settings::Settings;

/// Flags for the settings that the controller goes by.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings that ConfigMap mooring-settings overrides")]
pub struct SettingsArgs {
    /// Registry with Mooring's images, with their path in it: what mooring.dev/ at the beginning of a name stands for
    /// [default: mooring.dev]
    #[arg(long, env = "MOORING_REGISTRY")]
    pub registry: Option<ImageRegistry>,
    /// Secrets with the logins of registries, for every Pod that the controller makes
    #[arg(long, env = "MOORING_PULL_SECRETS", value_delimiter = ',', value_name = "SECRET,…")]
    pub pull_secrets: Option<Vec<String>>,
    /// Namespaces whose provisioner ConfigMaps count [default: Mooring's own]
    ///
    /// All who can write a ConfigMap there can run an allowed image with any service account of that namespace, and
    /// their runs may have the nodes' pools.
    #[arg(
        long,
        env = "MOORING_CONFIG_NAMESPACES",
        value_delimiter = ',',
        value_parser = parse_namespace,
        value_name = "NAMESPACE,…",
    )]
    pub config_namespaces: Option<Vec<String>>,
    /// Images that a provisioner ConfigMap may run [default: those of --registry]
    ///
    /// `*` stands for anything but `/`, `**` for anything. A short name is Docker's: custom/x is docker.io/custom/x. A
    /// pattern without a tag allows every tag and digest; with a tag, that tag alone and no digest.
    #[arg(
        long,
        env = "MOORING_ALLOWED_IMAGES",
        value_delimiter = ',',
        value_name = "PATTERN,…"
    )]
    pub allowed_images: Option<Vec<ImagePattern>>,
}

impl SettingsArgs {
    /// The settings, with these flags where the ConfigMap says nothing.
    pub fn beneath(self, said: &Settings) -> Settings {
        let Self {
            registry,
            pull_secrets,
            config_namespaces,
            allowed_images,
        } = self;
        let said = said.clone();
        Settings {
            registry: said.registry.or(registry),
            pull_secrets: said.pull_secrets.or(pull_secrets),
            config_namespaces: said
                .config_namespaces
                .or_else(|| Some(config_namespaces?.into_iter().collect())),
            allowed_images: said.allowed_images.or(allowed_images),
            ..said
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use mooring_program::settings::Settings;

    use super::SettingsArgs;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: SettingsArgs,
    }

    #[test]
    fn a_key_goes_before_its_flag() {
        let flags = Flags::parse_from([
            "program",
            "--registry=a.example.com",
            "--pull-secrets=a",
            "--config-namespaces=a, b",
            "--allowed-images=flag/*",
        ]);
        let of_flags = flags.args.clone().beneath(&Settings::default());
        assert_eq!(of_flags.registry().to_string(), "a.example.com");
        assert_eq!(of_flags.pull_secrets(), ["a"]);
        assert_eq!(of_flags.config_namespaces("own"), ["a", "b"].map(str::to_owned).into());
        assert_eq!(
            of_flags.allowed(of_flags.allowed_images.as_ref())[0].to_string(),
            "flag/*"
        );
        let said = [
            ("registry", "b.example.com"),
            ("pull-secrets", ""),
            ("config-namespaces", "c"),
            ("allowed-images", "custom/*"),
        ];
        let said = said.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let said = Settings::parse(&said.into()).unwrap();
        assert_eq!(flags.args.beneath(&said), said);
    }
}
