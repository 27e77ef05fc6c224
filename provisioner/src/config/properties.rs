//! Which property names an image can be given: each must be a file and an environment variable of its own.

use std::collections::BTreeMap;

use mooring_contract::property::{self, env_name};

use super::problem::{ConfigProblem, ProblemKind};

/// Longest value in bytes: Linux gives a single environment variable no more than 128 KiB, its name included.
pub const MAX_VALUE: usize = 120 * 1024;

/// Longest property name in bytes: it is a key of a Secret.
pub const MAX_NAME: usize = 253;

/// Variables that decide how programs in the image run. A property that lands on one would break the image in ways that
/// no log explains.
///
/// Some name a file that is run or read as a program, and a property is a file too: with one of these a ConfigMap would
/// run what it likes in an image that an administrator allowed.
const RESERVED_VARIABLES: &[&str] = &[
    "PATH",
    "HOME",
    "IFS",
    "CDPATH",
    "ENV",
    "SHELL",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "PROMPT_COMMAND",
    "TMPDIR",
    "EDITOR",
    "PAGER",
    "KUBECONFIG",
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "RES_OPTIONS",
    "OPENSSL_CONF",
    "OPENSSL_MODULES",
    "OPENSSL_ENGINES",
    "SSLKEYLOGFILE",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONWARNINGS",
    "PYTHONBREAKPOINT",
    "PERL5LIB",
    "PERL5OPT",
    "PERL5DB",
    "PERLLIB",
    "RUBYOPT",
    "RUBYLIB",
    "NODE_OPTIONS",
    "NODE_PATH",
    "LUA_INIT",
    "LUA_PATH",
    "LUA_CPATH",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "CLASSPATH",
    "DOTNET_STARTUP_HOOKS",
    "COR_PROFILER",
    "CORECLR_PROFILER",
    "ERL_FLAGS",
    "ERL_AFLAGS",
    "ERL_ZFLAGS",
    "ELIXIR_ERL_OPTIONS",
    "R_PROFILE",
    "R_PROFILE_USER",
    "R_ENVIRON",
    "ZDOTDIR",
    "VISUAL",
    "BROWSER",
    "LESSOPEN",
    "LESSCLOSE",
    "TAR_OPTIONS",
    "RSYNC_RSH",
    "RSYNC_CONNECT_PROG",
    "SSH_SK_HELPER",
    "WGETRC",
    "CURL_HOME",
    "AWS_CONFIG_FILE",
    "CEPH_ARGS",
    "CEPH_CONF",
    "KRB5_CONFIG",
];

/// Prefixes of such variables. Kubernetes sets `KUBERNETES_…` for its clients, and an image states with
/// `MOORING_WORKERS` that it can be a worker.
const RESERVED_PREFIXES: &[&str] = &["LD_", "KUBERNETES_", "BASH_", "GIT_", "SSH_ASKPASS", "MOORING_WORKER"];

/// What is wrong with properties that come from a ConfigMap, a class or a Secret, as problems of their keys.
///
/// `names` are the keys; Mooring's own properties count as taken.
pub fn check<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<ConfigProblem> {
    let mut problems = Vec::new();
    let mut taken: BTreeMap<String, &str> = property::keys::ALL.iter().map(|&key| (env_name(key), key)).collect();
    for name in names {
        if let Some(problem) = check_name(name) {
            problems.push(problem);
            continue;
        }
        if property::keys::ALL.contains(&name) {
            problems.push(ConfigProblem::error(
                ProblemKind::Collision,
                name,
                "is a property that Mooring sets itself: give yours another name",
            ));
            continue;
        }
        let variable = env_name(name);
        match taken.get(&variable) {
            Some(other) if *other != name => problems.push(ConfigProblem::error(
                ProblemKind::Collision,
                name,
                format!("would be the environment variable {variable}, and so would {other:?}: rename one of them"),
            )),
            _ => {
                taken.insert(variable, name);
            }
        }
    }
    problems
}

/// What is wrong with one property's name by itself.
fn check_name(name: &str) -> Option<ConfigProblem> {
    let shaped = !name.is_empty()
        && name.len() <= MAX_NAME
        && name != "."
        && !name.starts_with("..")
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if !shaped {
        return Some(ConfigProblem::error(
            ProblemKind::BadValue,
            name,
            format!(
                "can't be a property: use at most {MAX_NAME} letters, digits, '-', '_' and '.', and no leading '..'"
            ),
        ));
    }
    let variable = env_name(name);
    let reserved = RESERVED_VARIABLES.contains(&variable.as_str())
        || RESERVED_PREFIXES.iter().any(|prefix| variable.starts_with(prefix));
    reserved.then(|| {
        ConfigProblem::error(
            ProblemKind::Collision,
            name,
            format!(
                "would be the environment variable {variable}, which decides how programs in the image run: \
                 rename it (such as \"storage-{name}\")"
            ),
        )
    })
}

/// What is wrong with a property's value.
pub fn check_value(name: &str, value: &str) -> Option<ConfigProblem> {
    if value.contains('\0') {
        Some(ConfigProblem::error(
            ProblemKind::BadValue,
            name,
            "has a NUL character in its value, which no environment variable can hold: remove it",
        ))
    } else if value.len() > MAX_VALUE {
        Some(ConfigProblem::error(
            ProblemKind::BadValue,
            name,
            format!(
                "is {} KiB long, and an environment variable holds at most {} KiB: shorten it, or put it into the \
                 image",
                value.len().div_ceil(1024),
                MAX_VALUE / 1024
            ),
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mooring_contract::property::{env_name, keys};
    use proptest::prelude::*;

    use super::{MAX_VALUE, check, check_value};

    #[test]
    fn names_that_an_image_could_not_tell_apart_are_errors() {
        for (names, bad) in [
            (vec!["zone", "use-nfs-server"], vec![]),
            (vec!["a-b", "a.b"], vec!["a.b"]),
            (vec!["A-B", "a_b", "a.b"], vec!["a.b", "a_b"]),
            (vec!["PV-NAME"], vec!["PV-NAME"]),
            (vec!["pv-name"], vec!["pv-name"]),
            (vec!["size"], vec!["size"]),
            (vec!["path"], vec!["path"]),
            (
                vec!["home", "bash-env", "git.ssh-command"],
                vec!["home", "bash-env", "git.ssh-command"],
            ),
            (vec!["perl5opt", "node-options"], vec!["perl5opt", "node-options"]),
            (vec!["home-server", "path-prefix"], vec![]),
            (vec!["ld-library-path"], vec!["ld-library-path"]),
            (
                vec!["mooring-workers", "mooring.workers-asked"],
                vec!["mooring-workers", "mooring.workers-asked"],
            ),
            (vec!["kubernetes.service.host"], vec!["kubernetes.service.host"]),
            (vec!["..data"], vec!["..data"]),
            (vec!["a/b"], vec!["a/b"]),
            (vec![""], vec![""]),
        ] {
            let found: BTreeSet<_> = check(names.iter().copied()).into_iter().map(|p| p.key).collect();
            assert_eq!(found, bad.iter().map(|&s| s.to_owned()).collect(), "{names:?}");
        }
    }

    #[test]
    fn values_that_no_variable_holds_are_errors() {
        assert!(check_value("a", "b").is_none());
        assert!(check_value("a", "b\0").is_some());
        assert!(check_value("a", &"x".repeat(MAX_VALUE + 1)).is_some());
    }

    proptest! {
        #[test]
        fn without_a_problem_every_variable_is_its_own(names in prop::collection::btree_set("[aAbB._-]{1,4}", 0..8)) {
            if check(names.iter().map(String::as_str)).is_empty() {
                let variables: BTreeSet<_> = names.iter().map(String::as_str).chain(keys::ALL.iter().copied()).map(env_name).collect();
                prop_assert_eq!(variables.len(), names.len() + keys::ALL.len());
            }
        }
    }
}
