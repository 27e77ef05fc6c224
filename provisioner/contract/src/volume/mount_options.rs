//! Mount options that no volume may have, whoever asks for them.

/// An option that a volume may not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "mount option {0:?} is not one that a volume can have, since it changes what is mounted where, or how options \
     after it are read: remove it from the volume's mount-options"
)]
pub struct ForbiddenOption(String);

/// Options that change what `mount` does rather than what it mounts.
pub const FORBIDDEN_OPTIONS: &[&str] = &[
    "bind",
    "rbind",
    "move",
    "remount",
    "loop",
    "offset",
    "sizelimit",
    "helper",
    "uhelper",
    "user",
    "users",
    "owner",
    "group",
    "shared",
    "rshared",
    "slave",
    "rslave",
    "private",
    "rprivate",
    "unbindable",
    "runbindable",
];

/// Checks that no option changes what is mounted where.
pub fn check_mount_options(options: &[String]) -> Result<(), ForbiddenOption> {
    for option in options {
        let name = option.split_once('=').map_or(option.as_str(), |(name, _)| name);
        let long = name.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("x-"));
        // A program gets the options joined by commas, so a comma makes two options. After an open quotation mark or a
        // backslash, `mount` takes the joining comma for a part of this option: the next option, such as `nosuid`,
        // would be lost.
        let parted = option.contains(',');
        let joined = !option.matches('"').count().is_multiple_of(2) || option.ends_with('\\');
        if FORBIDDEN_OPTIONS.contains(&name) || long || parted || joined {
            return Err(ForbiddenOption(option.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_mount_options;

    #[test]
    fn what_would_turn_a_mount_into_something_else_is_refused() {
        for option in [
            "bind",
            "remount",
            "loop=/dev/loop0",
            "X-mount.mkdir",
            "x-systemd.automount",
            "a,bind",
            "context=\"a",
            "a\\",
        ] {
            assert!(check_mount_options(&[option.to_owned()]).is_err(), "{option}");
        }
    }
}
