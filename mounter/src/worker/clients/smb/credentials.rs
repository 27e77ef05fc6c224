//! The user, the password and the domain of a mount, from the volume's Secret.

use crate::volume::job::Secrets;
use crate::worker::clients::remote::source::LONGEST;

/// Keys of the Secret, and of the kernel's options.
const USERNAME: &str = "username";
const PASSWORD: &str = "password";
const DOMAIN: &str = "domain";

/// What is wrong with a Secret; the message says what to do, and contains no value of the Secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadCredentials {
    #[error(
        "the volume has no {0}: name a Secret of type mooring.dev/vcs with the keys username and password in the \
         volume's secretRef; for a share that is open to everybody, add mount option sec=none"
    )]
    Missing(&'static str),
    #[error(
        "key {0} of the volume's Secret has a line break or another control character in it: create the Secret again \
         without it (kubectl create secret --from-literal adds none)"
    )]
    ControlCharacter(&'static str),
    #[error("key {0} of the volume's Secret is not UTF-8 text: encode it as UTF-8")]
    NotText(&'static str),
    #[error(
        "key {0} of the volume's Secret is longer than the {LONGEST} bytes that the kernel takes: choose a shorter one"
    )]
    TooLong(&'static str),
    #[error("key username of the volume's Secret has a backslash in it: write the domain under the key domain")]
    DomainInName,
}

/// What the kernel gets of a volume's Secret. Other keys are ignored.
pub(super) fn of(secrets: &Secrets) -> Result<Secrets, BadCredentials> {
    let name = value(secrets, USERNAME)?.filter(|name| !name.is_empty());
    let name = name.ok_or(BadCredentials::Missing(USERNAME))?;
    if name.contains('\\') {
        return Err(BadCredentials::DomainInName);
    }
    let password = value(secrets, PASSWORD)?.ok_or(BadCredentials::Missing(PASSWORD))?;
    let domain = value(secrets, DOMAIN)?.filter(|domain| !domain.is_empty());
    let all = [(USERNAME, Some(name)), (PASSWORD, Some(password)), (DOMAIN, domain)];
    let given = all.into_iter().filter_map(|(key, value)| Some((key, value?)));
    Ok(Secrets(
        given
            .map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
            .collect(),
    ))
}

fn value<'a>(secrets: &'a Secrets, key: &'static str) -> Result<Option<&'a str>, BadCredentials> {
    let Some(value) = secrets.0.get(key) else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value).map_err(|_| BadCredentials::NotText(key))?;
    if text.chars().any(char::is_control) {
        return Err(BadCredentials::ControlCharacter(key));
    }
    if text.len() > LONGEST {
        return Err(BadCredentials::TooLong(key));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::{BadCredentials, of};
    use crate::volume::job::Secrets;

    fn secrets(entries: &[(&str, &[u8])]) -> Secrets {
        let entries = entries.iter();
        Secrets(
            entries
                .map(|(key, value)| ((*key).to_owned(), value.to_vec()))
                .collect(),
        )
    }

    #[test]
    fn what_the_kernel_needs_is_taken_as_it_is_and_nothing_else() {
        let given = secrets(&[
            ("username", b"tom"),
            ("password", b"a,b=c \"'\\"),
            ("domain", b""),
            ("seal", b"x"),
        ]);
        let taken = of(&given).unwrap();
        assert_eq!(taken, secrets(&[("username", b"tom"), ("password", b"a,b=c \"'\\")]));
        let given = secrets(&[("username", b"tom"), ("password", b""), ("domain", b"WORK")]);
        assert_eq!(of(&given).unwrap(), given);
    }

    #[test]
    fn the_message_about_a_bad_secret_contains_none_of_its_values() {
        let long = [b'x'; 256];
        for (entries, error) in [
            (&[][..], BadCredentials::Missing("username")),
            (&[("password", &b"hunter2"[..])], BadCredentials::Missing("username")),
            (
                &[("username", b""), ("password", b"hunter2")],
                BadCredentials::Missing("username"),
            ),
            (&[("username", b"tom")], BadCredentials::Missing("password")),
            (
                &[("username", b"tom"), ("password", b"hunter2\n")],
                BadCredentials::ControlCharacter("password"),
            ),
            (
                &[("username", b"tom"), ("password", b"hunter2\0")],
                BadCredentials::ControlCharacter("password"),
            ),
            (
                &[("username", b"tom"), ("password", b"\xff")],
                BadCredentials::NotText("password"),
            ),
            (
                &[("username", b"tom"), ("password", &long)],
                BadCredentials::TooLong("password"),
            ),
            (
                &[("username", b"WORK\\tom"), ("password", b"hunter2")],
                BadCredentials::DomainInName,
            ),
        ] {
            let found = of(&secrets(entries)).unwrap_err();
            assert_eq!(found, error);
            assert!(!found.to_string().contains("hunter2"), "{found}");
        }
    }
}
