//! What the class of something discovered is called: `<class of the ConfigMap>-<its name>` where that can be an
//! object's name as it is, else the same with what can't be in one replaced, and a hash behind it.
//!
//! A name depends on nothing else that the image lists, so it stays the same whatever comes and goes. A plain name
//! never ends like one with a hash, so the two kinds can't meet. What exists already keeps its name: it says itself
//! what it is the class of.

use crate::config::ConfigRef;
use crate::config::values::object_name;
use crate::text::digest;

/// Longest name: it is a label's value as well.
pub const LONGEST: usize = 63;

/// Hexadecimal digits of a hash.
const DIGITS: usize = 10;

/// The name of a new class; `None` if both possible names are taken.
pub fn choose(prefix: &str, thing: &str, config: &ConfigRef, taken: impl Fn(&str) -> bool) -> Option<String> {
    let plain = plain(prefix, thing).filter(|name| !taken(name));
    plain.or_else(|| Some(hashed(prefix, thing, config)).filter(|name| !taken(name)))
}

/// The two names put together, if nothing has to be changed for it.
fn plain(prefix: &str, thing: &str) -> Option<String> {
    let name = format!("{prefix}-{thing}");
    let fits = name.len() <= LONGEST && object_name(&name).is_ok() && !ends_like_a_hash(&name);
    fits.then_some(name)
}

fn ends_like_a_hash(name: &str) -> bool {
    let end = name.rsplit_once('-').map_or("", |(_, end)| end);
    end.len() == DIGITS && end.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A readable part, and a hash of all that tells it from others.
fn hashed(prefix: &str, thing: &str, config: &ConfigRef) -> String {
    let mut readable = String::new();
    for c in format!("{prefix}-{thing}").chars() {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            readable.push(c);
        } else if !readable.ends_with('-') {
            readable.push('-');
        }
    }
    readable.truncate(LONGEST - DIGITS - 1);
    let readable = readable.trim_matches('-');
    format!("{readable}-{}", digest(format!("{config}\0{thing}"), DIGITS / 2))
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, choose};
    use crate::config::ConfigRef;
    use crate::config::values::object_name;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn config() -> ConfigRef {
        ConfigRef::new("mooring", "cinder")
    }

    #[test]
    fn a_name_is_readable_and_tells_things_apart() {
        let name = |thing: &str| choose("cinder", thing, &config(), |_| false).unwrap();
        assert_eq!(name("ssd"), "cinder-ssd");
        assert_eq!(name("ssd.fast"), "cinder-ssd.fast");
        for (thing, begin) in [
            ("SSD", "cinder-ssd-"),
            ("ssd fast", "cinder-ssd-fast-"),
            ("ssd_fast", "cinder-ssd-fast-"),
            ("-", "cinder-"),
            ("schnäppchen", "cinder-schn-ppchen-"),
            ("x-0123456789", "cinder-x-0123456789-"),
        ] {
            let name = name(thing);
            let hash = name.strip_prefix(begin).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(hash.len(), 10, "{name}");
        }
        assert_ne!(name("ssd fast"), name("ssd_fast"));
        let other = ConfigRef::new("admin", "cinder");
        assert_ne!(name("SSD"), choose("cinder", "SSD", &other, |_| false).unwrap());
    }

    #[test]
    fn what_is_taken_is_gone_round_once() {
        let taken = |name: &str| name == "cinder-ssd";
        let name = choose("cinder", "ssd", &config(), taken).unwrap();
        assert!(name.starts_with("cinder-ssd-") && name != "cinder-ssd");
        assert_eq!(choose("cinder", "ssd", &config(), |_| true), None);
    }

    proptest! {
        #[test]
        fn names_are_valid_and_no_two_collide(
            prefix in "[a-z]([a-z0-9-]{0,20}[a-z0-9])?",
            things in prop::collection::btree_set("(\\PC{1,80}|[a-cA-C._ -]{1,4}|[a-b]-[0-9a-f]{10})", 1..30),
        ) {
            let mut names = BTreeSet::new();
            for thing in &things {
                let name = choose(&prefix, thing, &config(), |_| false).unwrap();
                prop_assert!(object_name(&name).is_ok() && name.len() <= LONGEST, "{}", name);
                prop_assert_eq!(&name, &choose(&prefix, thing, &config(), |_| false).unwrap());
                prop_assert!(names.insert(name));
            }
        }
    }
}
