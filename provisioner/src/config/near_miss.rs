//! Keys that all but spell a known one: passing them on to the image in silence would be a setting lost.

use mooring_contract::near_miss::{fold, nearest};
use mooring_contract::property;

use super::keys;

/// The known key that `key` was probably meant to be; `None` for a known key and for one of the image's own.
pub fn near_miss(key: &str) -> Option<&'static str> {
    if keys::is_known(key) {
        return None;
    }
    nearest(key, keys::KNOWN.iter().copied())
}

/// Whether a key, of a ConfigMap or of a class, asks for a file system, however it is spelt.
pub fn asks_for_fs_type(key: &str) -> bool {
    fold(key.rsplit('/').next().unwrap_or(key)) == fold(property::keys::FS_TYPE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::near_miss;
    use crate::config::keys;

    #[test]
    fn slips_of_the_finger_are_near_misses() {
        for (key, meant) in [
            ("sevice-account-name", keys::SERVICE_ACCOUNT_NAME),
            ("service-acount-nam", keys::SERVICE_ACCOUNT_NAME),
            ("serviceAccountName", keys::SERVICE_ACCOUNT_NAME),
            ("service_token", keys::SERVICE_TOKEN),
            ("Image", keys::IMAGE),
            ("iamge", keys::IMAGE),
            ("images", keys::IMAGE),
            ("timeuot", keys::TIMEOUT),
            ("toleration", keys::TOLERATIONS),
            ("operation", keys::OPERATIONS),
            ("nodeSelector", keys::NODE_SELECTOR),
            ("client-imge", keys::CLIENT_IMAGE),
        ] {
            assert_eq!(near_miss(key), Some(meant), "{key}");
        }
    }

    #[test]
    fn an_image_s_own_properties_are_left_alone() {
        for key in [
            "zone",
            "use-nfs-server",
            "server",
            "pool",
            "path",
            "secret",
            "user",
            "client",
            "host",
            "size-limit",
            "mode",
            "portal",
            "iqn",
            "name",
            "page",
            "age",
            "volume",
            "backend",
            "nova",
        ] {
            assert_eq!(near_miss(key), None, "{key}");
        }
    }

    proptest! {
        #[test]
        fn one_slip_in_any_known_key_is_found(index in 0..keys::KNOWN.len(), at in 0_usize..32, letter in "[a-z]") {
            let known = keys::KNOWN[index];
            let at = at % known.len();
            let mut left_out = known.to_owned();
            left_out.remove(at);
            let mut put_in = known.to_owned();
            put_in.insert_str(at, &letter);
            for typo in [left_out, put_in] {
                if !keys::is_known(&typo) {
                    prop_assert!(near_miss(&typo).is_some(), "{typo}");
                }
            }
        }
    }
}
