//! Mount options of file servers: values that are passed on, numbers within bounds and words of a list, and what is
//! wrong with an option.

use std::ops::RangeInclusive;

use mooring_contract::volume::ForbiddenOption;

/// Options with a number, and which.
pub(in crate::worker::clients) type Numbers = [(&'static str, RangeInclusive<u32>)];

/// Options with a choice of words, and which.
pub(in crate::worker::clients) type Choices = [(&'static str, &'static [&'static str])];

/// What is wrong with a mount option of any file server; the message says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::worker::clients) enum RemoteOptionError {
    #[error(transparent)]
    Forbidden(#[from] ForbiddenOption),
    #[error(
        "mount option {option:?} is not one that an {kind} volume can have when the mounter itself mounts it: leave \
         it out (see docs/clients/{}.md for those that it can)", .kind.to_ascii_lowercase()
    )]
    Unknown { option: String, kind: &'static str },
    #[error("mount option {0:?} would replace the server that the volume's source names: leave it out")]
    Server(String),
    #[error("mount option {option:?}: {name} must be {wanted}")]
    Value {
        option: String,
        name: String,
        wanted: String,
    },
    #[error(
        "mount option {option:?} needs {program} on the node, which the kernel alone does not have: leave it out, or \
         have type {} served by host or by a client image that brings it", .kind.to_ascii_lowercase()
    )]
    Program {
        option: String,
        program: &'static str,
        kind: &'static str,
    },
}

/// A mount option, for what is wrong with it.
#[derive(Debug, Clone, Copy)]
pub(in crate::worker::clients) struct Asked<'a> {
    /// `NFS` or `SMB`.
    pub(in crate::worker::clients) kind: &'static str,
    /// The option as the volume has it.
    pub(in crate::worker::clients) option: &'a str,
}

impl Asked<'_> {
    pub(in crate::worker::clients) fn unknown(self) -> RemoteOptionError {
        RemoteOptionError::Unknown {
            option: self.option.to_owned(),
            kind: self.kind,
        }
    }

    /// The option `name` has a wrong value; `wanted` is what it should be.
    pub(in crate::worker::clients) fn wrong(self, name: &str, wanted: String) -> RemoteOptionError {
        RemoteOptionError::Value {
            option: self.option.to_owned(),
            name: name.to_owned(),
            wanted,
        }
    }

    pub(in crate::worker::clients) fn needs(self, program: &'static str) -> RemoteOptionError {
        RemoteOptionError::Program {
            option: self.option.to_owned(),
            program,
            kind: self.kind,
        }
    }
}

/// An option as a volume has it.
pub(in crate::worker::clients) fn text_of(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"))
}

/// Checks an option with a number; the error is what it should be. `None` if there is no such option.
pub(in crate::worker::clients) fn check_number(
    known: &Numbers,
    key: &str,
    value: Option<&str>,
) -> Option<Result<(), String>> {
    let (_, range) = known.iter().find(|(name, _)| *name == key)?;
    // Digits alone: the kernel may read a number in another form differently.
    let number = value
        .filter(|value| value.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|value| value.parse().ok());
    Some(match number {
        Some(number) if range.contains(&number) => Ok(()),
        _ => Err(format!("a number from {} to {}", range.start(), range.end())),
    })
}

/// The words that an option may have; `None` if there is no such option.
pub(in crate::worker::clients) fn words_of(known: &Choices, key: &str) -> Option<&'static [&'static str]> {
    known.iter().find(|(name, _)| *name == key).map(|(_, words)| *words)
}

/// What is common to the tests of mount options.
#[cfg(test)]
pub(in crate::worker::clients) mod tests {
    use std::fmt::Display;

    use super::text_of;

    /// What goes to the kernel, as one text.
    pub(in crate::worker::clients) fn joined(options: &[(String, Option<String>)]) -> String {
        let texts = options.iter().map(|(key, value)| text_of(key, value.as_deref()));
        texts.collect::<Vec<_>>().join(",")
    }

    /// Each option is refused with these words in the message.
    pub(in crate::worker::clients) fn assert_refused<T, E: Display>(
        read: impl Fn(&str) -> Result<T, E>,
        refused: &[(&str, &str)],
    ) {
        for (options, words) in refused {
            let Err(error) = read(options) else {
                panic!("{options} is taken");
            };
            let error = error.to_string();
            assert!(error.contains(words), "{options}: {error}");
        }
    }
}
