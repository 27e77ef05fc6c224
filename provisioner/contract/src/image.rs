//! Names of images, and patterns of them.
//!
//! A name is compared in full, as the container runtime would read it: `custom/x` is `docker.io/custom/x`, and `x` is
//! `docker.io/library/x`. So a pattern for one registry never lets in an image of another.

use std::fmt;
use std::str::FromStr;

use crate::names::REGISTRY;

const DEFAULT_REGISTRY: &str = "docker.io";

/// The text is no image's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not an image's name: {reason}")]
pub struct BadImage {
    given: String,
    reason: &'static str,
}

/// The text is no pattern of images.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a pattern of images: {reason}")]
pub struct BadPattern {
    given: String,
    reason: &'static str,
}

/// An image's name in full: registry, repository, tag and digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRef {
    /// `registry/repository`.
    name: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl FromStr for ImageRef {
    type Err = BadImage;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let bad = |reason| BadImage {
            given: given.to_owned(),
            reason,
        };
        let (name, tag, digest) = split(given);
        if name.is_empty() {
            return Err(bad("it has no repository"));
        }
        let shaped = name.split('/').enumerate().all(|(index, segment)| {
            let port = u8::from(index == 0 && is_registry(segment));
            !segment.is_empty()
                && segment.bytes().all(|b| {
                    b.is_ascii_lowercase()
                        || b.is_ascii_digit()
                        || matches!(b, b'.' | b'_' | b'-')
                        || (port == 1 && (b == b':' || b.is_ascii_uppercase()))
                })
                && !segment.starts_with(['.', '-', '_'])
        });
        if !shaped {
            return Err(bad(
                "write registry/repository:tag in lower-case letters, digits, '.', '_' and '-', without blanks",
            ));
        }
        let word = |text: &str| {
            !text.is_empty()
                && !text.starts_with(['.', '-'])
                && text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        if tag.is_some_and(|tag| !word(tag) || tag.len() > 128) {
            return Err(bad(
                "its tag must be letters, digits, '.', '_' and '-', and begin with none of '.' and '-'",
            ));
        }
        let is_digest = |digest: &str| {
            digest
                .split_once(':')
                .is_some_and(|(kind, hex)| word(kind) && hex.len() >= 32 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(bad("its digest must look like sha256:<64 hexadecimal digits>"));
        }
        Ok(Self {
            name: full_name(name),
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// A pattern of images: `*` stands for any letters but `/`, `**` for any at all.
///
/// Without a tag or digest it allows any tag and digest. With a tag it allows that tag alone, and no digest: with both
/// given, the runtime goes by the digest and never looks at the tag. With a digest it allows that digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePattern {
    given: String,
    name: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl ImagePattern {
    pub fn matches(&self, image: &ImageRef) -> bool {
        if !glob(self.name.as_bytes(), image.name.as_bytes()) {
            return false;
        }
        if let Some(digest) = &self.digest {
            return image.digest.as_ref() == Some(digest);
        }
        let Some(tag) = &self.tag else { return true };
        image.digest.is_none() && glob(tag.as_bytes(), image.tag.as_deref().unwrap_or("latest").as_bytes())
    }
}

impl FromStr for ImagePattern {
    type Err = BadPattern;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let bad = |reason| BadPattern {
            given: given.to_owned(),
            reason,
        };
        if given.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(bad("it has a blank in it: separate patterns by commas alone"));
        }
        let (name, tag, digest) = split(given);
        if name.is_empty() {
            return Err(bad("it has no repository"));
        }
        if name == "*" {
            return Err(bad(
                "write ** for every image of every registry, or docker.io/library/* for Docker's own",
            ));
        }
        let name = if name.starts_with("**") {
            name.to_owned()
        } else {
            full_name(name)
        };
        Ok(Self {
            given: given.to_owned(),
            name,
            tag: tag.map(str::to_owned),
            digest: digest.map(str::to_owned),
        })
    }
}

impl fmt::Display for ImagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.given)
    }
}

/// The text is no registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a registry: write its name in small letters, with a path if the images have one, and without \
     https:// and a slash at the end, such as registry.example.com/mooring or docker.io/team"
)]
pub struct BadRegistry(String);

/// The registry with Mooring's images, and their path in it.
///
/// Manifests name these images by [`REGISTRY`], and this is the registry that the name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRegistry(String);

impl ImageRegistry {
    /// The name that an image has in this cluster.
    pub fn resolve(&self, image: &str) -> String {
        match image.strip_prefix(REGISTRY).and_then(|rest| rest.strip_prefix('/')) {
            Some(path) => format!("{}/{path}", self.0),
            None => image.to_owned(),
        }
    }

    /// The pattern of all images that are in it, and not deeper.
    pub fn pattern(&self) -> ImagePattern {
        let given = format!("{}/*", self.0);
        ImagePattern {
            name: full_name(&given),
            given,
            tag: None,
            digest: None,
        }
    }
}

impl Default for ImageRegistry {
    fn default() -> Self {
        Self(REGISTRY.to_owned())
    }
}

impl FromStr for ImageRegistry {
    type Err = BadRegistry;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let image = format!("{given}/image");
        // The admission policy compares names as they are written, but for the registry that needs no name.
        let full = full_name(&image);
        let is_as_compared = full == image || full == format!("{DEFAULT_REGISTRY}/{image}");
        if image.parse::<ImageRef>().is_err() || !is_as_compared {
            return Err(BadRegistry(given.to_owned()));
        }
        Ok(Self(given.to_owned()))
    }
}

impl fmt::Display for ImageRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name, tag and digest. A colon before the last slash belongs to the registry's port.
fn split(given: &str) -> (&str, Option<&str>, Option<&str>) {
    let (rest, digest) = match given.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (given, None),
    };
    let path = rest.rfind('/').map_or(0, |slash| slash + 1);
    match rest[path..].find(':') {
        Some(colon) => (&rest[..path + colon], Some(&rest[path + colon + 1..]), digest),
        None => (rest, None, digest),
    }
}

/// Whether the first part of a name is a registry, by the rule that all container runtimes share.
fn is_registry(segment: &str) -> bool {
    segment.contains(['.', ':']) || segment == "localhost" || segment.bytes().any(|b| b.is_ascii_uppercase())
}

fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some(("index.docker.io", path)) => full_name(&format!("{DEFAULT_REGISTRY}/{path}")),
        Some((registry, path)) if registry == DEFAULT_REGISTRY && !path.contains('/') => {
            format!("{DEFAULT_REGISTRY}/library/{path}")
        }
        Some((registry, path)) if is_registry(registry) => format!("{}/{path}", registry.to_ascii_lowercase()),
        Some(_) => format!("{DEFAULT_REGISTRY}/{name}"),
        None => format!("{DEFAULT_REGISTRY}/library/{name}"),
    }
}

/// Glob match: `*` is any run without `/`, `**` any run.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', b'*', rest @ ..] => (0..=text.len()).any(|skip| glob(rest, &text[skip..])),
        [b'*', rest @ ..] => (0..=text.len())
            .take_while(|&skip| skip == 0 || text[skip - 1] != b'/')
            .any(|skip| glob(rest, &text[skip..])),
        [first, rest @ ..] => text.first() == Some(first) && glob(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::{ImagePattern, ImageRef, ImageRegistry};

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn names_are_read_as_a_runtime_reads_them() {
        for (given, full) in [
            ("custom/iscsi-provision", "docker.io/custom/iscsi-provision"),
            ("busybox", "docker.io/library/busybox"),
            ("busybox:1", "docker.io/library/busybox:1"),
            ("docker.io/busybox", "docker.io/library/busybox"),
            ("index.docker.io/busybox", "docker.io/library/busybox"),
            ("localhost/x", "localhost/x"),
            ("localhost:5000/x:y", "localhost:5000/x:y"),
            ("mooring.dev/mounter:0.1.0", "mooring.dev/mounter:0.1.0"),
            ("Registry.Example.com/x", "registry.example.com/x"),
        ] {
            assert_eq!(given.parse::<ImageRef>().unwrap().to_string(), full, "{given}");
        }
        for given in [
            "",
            ":x",
            "a b",
            "a//b",
            "/a",
            "a/",
            "Custom/Iscsi",
            "../x",
            "x:",
            "x@sha256:12",
            "x\n",
            "a/-b",
            "http://a/b",
        ] {
            assert!(given.parse::<ImageRef>().is_err(), "{given:?}");
        }
    }

    #[test]
    fn patterns_let_in_what_they_say_and_no_more() {
        let pinned = format!("mooring.dev/x@{DIGEST}");
        let both = format!("mooring.dev/x:1@{DIGEST}");
        for (pattern, image, expected) in [
            ("mooring.dev/*", "mooring.dev/provisioner-local:0.1.0", true),
            ("mooring.dev/*", pinned.as_str(), true),
            ("mooring.dev/*", "mooring.dev/a/b", false),
            ("mooring.dev/**", "mooring.dev/a/b", true),
            ("mooring.dev/*", "mooring.dev.evil.com/x", false),
            ("mooring.dev/*", "evil.com/mooring.dev/x", false),
            ("mooring.dev/*", "mooring/x", false),
            ("custom/*", "docker.io/custom/x", true),
            ("custom/*", "custom.io/custom/x", false),
            ("docker.io/custom/*", "custom/x", true),
            ("busybox", "busybox:1", true),
            ("busybox", "evil/busybox", false),
            ("busybox:1", "busybox:1", true),
            ("busybox:1", "busybox", false),
            ("busybox:latest", "busybox", true),
            ("mooring.dev/x:1", both.as_str(), false),
            ("mooring.dev/x:1.*", "mooring.dev/x:1.2", true),
            (pinned.as_str(), both.as_str(), true),
            (pinned.as_str(), "mooring.dev/x:1", false),
            ("**", "evil.com/a/b/c:x", true),
            ("*.example.com/**", "eu.example.com/a/b", true),
            ("*.example.com/**", "evil.com/eu.example.com/a", false),
            ("localhost:5000/*", "localhost:5000/x:y", true),
            ("localhost:5000/*", "localhost:5001/x", false),
        ] {
            let matched = pattern
                .parse::<ImagePattern>()
                .unwrap()
                .matches(&image.parse().unwrap());
            assert_eq!(matched, expected, "{pattern} against {image}");
        }
    }

    #[test]
    fn mooring_s_images_are_in_the_registry_of_the_cluster_and_all_others_where_they_say() {
        for (registry, image, expected) in [
            ("mooring.dev", "mooring.dev/x:1", "mooring.dev/x:1"),
            (
                "r.example.com:5000/a/b",
                "mooring.dev/x:1",
                "r.example.com:5000/a/b/x:1",
            ),
            ("team", "mooring.dev/x", "team/x"),
            ("team", "mooring.dev.example.com/x", "mooring.dev.example.com/x"),
            ("team", "custom/x", "custom/x"),
        ] {
            let registry: ImageRegistry = registry.parse().unwrap();
            assert_eq!(registry.resolve(image), expected);
            let own: ImageRef = registry.resolve("mooring.dev/x:1").parse().unwrap();
            assert!(registry.pattern().matches(&own), "{registry}");
            assert!(
                !registry.pattern().matches(&"example.com/x".parse().unwrap()),
                "{registry}"
            );
        }
        for bad in [
            "",
            "a/",
            "/a",
            "https://a",
            "a/b:1",
            "a@b",
            "**",
            "a/*",
            "a b",
            "a,b",
            "Registry.example.com/a",
            "index.docker.io/a",
            "docker.io",
        ] {
            assert!(bad.parse::<ImageRegistry>().is_err(), "{bad:?}");
        }
        assert_eq!(ImageRegistry::default().to_string(), "mooring.dev");
    }

    #[test]
    fn a_lone_star_is_refused_since_it_would_mean_docker_s_library_only() {
        let error = "*".parse::<ImagePattern>().unwrap_err().to_string();
        assert!(error.contains("**"), "{error}");
        assert!("a b".parse::<ImagePattern>().is_err());
        assert!("".parse::<ImagePattern>().is_err());
    }
}
