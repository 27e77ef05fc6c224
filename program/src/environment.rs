//! Environment variables with a name like Mooring's own that a program does not read: a misspelt name would have no
//! effect, and nobody would notice.

use clap::Command;
use mooring_contract::near_miss::nearest;
use tracing::warn;

/// How the names of Mooring's variables begin.
const PREFIX: &str = "MOORING_";

/// How the name ends of the variable that Kubernetes sets for each Service in the Pod's namespace, beside others.
const SERVICE_HOST: &str = "_SERVICE_HOST";

/// Logs a warning of each variable of this process that none of the program's flags reads. A later version's manifest
/// may set one, so it is no failure.
pub fn warn_of_unknown(program: &Command) {
    let set: Vec<_> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .collect();
    for (name, meant) in unknown(program, &set) {
        let cure = meant.map_or_else(
            || "correct or remove it".to_owned(),
            |meant| format!("did you mean {meant}?"),
        );
        warn!(
            "no setting of this version of {} is called {name}: {cure}",
            program.get_name()
        );
    }
}

/// The variables among these that none of the program's flags reads, each with the one that is probably meant.
pub fn unknown<'a>(program: &Command, set: &'a [String]) -> Vec<(&'a str, Option<String>)> {
    let known = read_by(program);
    let services: Vec<_> = set.iter().filter_map(|name| name.strip_suffix(SERVICE_HOST)).collect();
    let is_of_service = |name: &str| {
        let mut rests = services.iter().filter_map(|service| name.strip_prefix(service));
        rests.any(|rest| rest == "_PORT" || rest.starts_with("_PORT_") || rest.starts_with("_SERVICE_"))
    };
    set.iter()
        .filter(|name| name.starts_with(PREFIX) && !known.contains(name) && !is_of_service(name))
        .map(|name| {
            (
                name.as_str(),
                nearest(name, known.iter().map(String::as_str)).map(str::to_owned),
            )
        })
        .collect()
}

/// The variables that flags of the program read, and of its subcommands.
fn read_by(program: &Command) -> Vec<String> {
    let own = program.get_arguments().filter_map(|flag| flag.get_env()?.to_str());
    let own = own.map(str::to_owned);
    own.chain(program.get_subcommands().flat_map(read_by)).collect()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::unknown;

    #[test]
    fn a_variable_that_no_flag_reads_is_named_with_the_one_that_is_meant() {
        let flag = |name: &'static str| Arg::new(name).long(name).env(name);
        let program = Command::new("mounter")
            .arg(flag("MOORING_LOG"))
            .subcommand(Command::new("serve").arg(flag("MOORING_CLIENT_IDLE")));
        let unknown = |set: &[&str]| {
            let set: Vec<_> = set.iter().map(ToString::to_string).collect();
            let found = unknown(&program, &set).into_iter();
            found.map(|(name, meant)| (name.to_owned(), meant)).collect::<Vec<_>>()
        };
        let (slip, meant) = ("MOORING_CLIENT_IDEL", "MOORING_CLIENT_IDLE");
        assert_eq!(unknown(&[slip]), [(slip.to_owned(), Some(meant.to_owned()))]);
        let new = "MOORING_OF_A_LATER_VERSION";
        assert_eq!(unknown(&[new]), [(new.to_owned(), None)]);
        assert_eq!(unknown(&["MOORING_LOG", meant, "PATH", "NODE_NAME"]), []);
        // Of Services mooring and mooring-web, as Kubernetes gives them to each Pod of their namespace.
        let of_services = [
            "MOORING_SERVICE_HOST",
            "MOORING_SERVICE_PORT",
            "MOORING_PORT",
            "MOORING_PORT_80_TCP",
            "MOORING_WEB_SERVICE_HOST",
            "MOORING_WEB_SERVICE_PORT_HTTP",
            "MOORING_WEB_PORT",
            "MOORING_WEB_PORT_80_TCP_ADDR",
        ];
        assert_eq!(unknown(&of_services), []);
        assert_eq!(unknown(&["MOORING_PORT"]).len(), 1);
    }
}
