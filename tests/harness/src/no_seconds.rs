//! No test asserts how many seconds something took: a busy machine would fail it. A wait has one generous limit
//! ([`super::wait_until`]) and sees every error, deadlines of the product are tested with a paused clock, and numbers
//! belong to the bench.

use std::path::{Path, PathBuf};

use mooring_testbed::layout::repository;

/// Where such assertions are searched for.
const SOURCES: [&str; 6] = [
    "tests/e2e",
    "tests/harness",
    "tests/cli",
    "tests/testbed",
    "tests/fuzz-targets",
    "tests/openstack-trials",
];

/// Sources whose constants and decisions have times that are asserted. There only upper bounds of what something took are
/// searched for.
const WITH_TIMES: [&str; 2] = ["mounter", "images"];
const UPPER_BOUND: [&str; 1] = ["elapsed() <"];

/// Where waits are that must not keep an error from [`super::wait_until`], which is patient with it and reports it:
/// `Ok(….ok())` where the wait needs `.map(Some)`.
const WAITS: [&str; 2] = ["tests/e2e", "tests/harness"];

/// What a condition on time has in it.
const TIMES: [&str; 6] = [
    "elapsed",
    "as_secs",
    "as_millis",
    "as_micros",
    "as_nanos",
    "duration_since",
];

/// Assertions, with the number of their arguments that are compared; the rest is the message.
const ASSERTIONS: [(&str, usize); 8] = [
    ("assert!(", 1),
    ("assert_eq!(", 2),
    ("assert_ne!(", 2),
    ("assert_matches!(", 1),
    ("ensure!(", 1),
    ("prop_assert!(", 1),
    ("prop_assert_eq!(", 2),
    ("prop_assert_ne!(", 2),
];

/// A source without its comments, and with nothing in its literals; line breaks stay.
fn bare(source: &str) -> String {
    let mut bare = String::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let hashes = rest
            .strip_prefix('r')
            .map(|raw| raw.len() - raw.trim_start_matches('#').len());
        let is_raw = hashes.is_some_and(|hashes| rest[1 + hashes..].starts_with('"')) && !bare.ends_with(is_of_a_name);
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let (true, Some(hashes)) = (is_raw, hashes) {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = 2 + hashes;
            rest[begin..].find(&end).map_or(rest.len(), |at| begin + at + end.len())
        } else if first == '"' {
            literal(rest, '"').unwrap_or(rest.len())
        } else if first == '\'' {
            // Otherwise it is a lifetime.
            literal(rest, '\'')
                .filter(|length| *length <= 4 || rest.starts_with("'\\"))
                .unwrap_or(1)
        } else {
            bare.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        bare.extend(rest[..length].chars().filter(|c| *c == '\n'));
        rest = &rest[length..];
    }
    bare
}

fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a literal that begins and ends with this quote.
fn literal(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let is_end = *c == quote && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    });
    end.map(|(at, _)| at + 1)
}

/// The first arguments of a call, whose opening bracket is left out.
fn arguments(call: &str, count: usize) -> &str {
    let (mut depth, mut commas) = (0_usize, 0);
    for (at, c) in call.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return &call[..at],
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => commas += 1,
            _ => {}
        }
        if commas == count {
            return &call[..at];
        }
    }
    call
}

/// The lines of a source where an assertion's condition is about time.
fn timed(source: &str) -> Vec<usize> {
    asserted(source, &TIMES)
}

/// The lines where an assertion's condition is an upper bound of what something took.
fn bounded(source: &str) -> Vec<usize> {
    asserted(source, &UPPER_BOUND)
}

/// The lines where an assertion's condition has one of these in it.
fn asserted(source: &str, times: &[&str]) -> Vec<usize> {
    let source = bare(source);
    let mut lines = Vec::new();
    for (name, count) in ASSERTIONS {
        for (at, _) in source.match_indices(name) {
            let condition = arguments(&source[at + name.len()..], count);
            if !source[..at].ends_with(is_of_a_name) && times.iter().any(|time| condition.contains(time)) {
                lines.push(source[..at].matches('\n').count() + 1);
            }
        }
    }
    lines
}

/// The lines of a source where a wait's look swallows an error.
fn swallowed(source: &str) -> Vec<usize> {
    let source = bare(source);
    let calls = source.match_indices("Ok(").filter(|(at, call)| {
        let inside = arguments(&source[at + call.len()..], usize::MAX);
        !source[..*at].ends_with(is_of_a_name) && inside.contains(".ok()")
    });
    calls.map(|(at, _)| source[..at].matches('\n').count() + 1).collect()
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}

/// The places below these folders that a search of a source finds.
fn found(folders: &[&str], search: fn(&str) -> Vec<usize>) -> Vec<String> {
    let files: Vec<_> = folders
        .iter()
        .flat_map(|folder| sources(&repository().join(folder)))
        .collect();
    assert!(files.len() > 100, "only {} sources were found", files.len());
    let places = files.iter().flat_map(|file| {
        let lines = search(&std::fs::read_to_string(file).unwrap());
        lines.into_iter().map(|line| format!("{}:{line}", file.display()))
    });
    places.collect()
}

#[test]
fn no_test_asserts_how_long_something_took() {
    let timed_at = [found(&SOURCES, timed), found(&WITH_TIMES, bounded)].concat();
    assert!(
        timed_at.is_empty(),
        "assert an order, an Event or a state, or wait with wait_until: {timed_at:#?}"
    );
}

#[test]
fn no_wait_swallows_an_error() {
    let swallowed_at = found(&WAITS, swallowed);
    assert!(
        swallowed_at.is_empty(),
        "give the error to wait_until, with .map(Some) or ?: {swallowed_at:#?}"
    );
}

#[test]
fn an_error_that_a_look_swallows_is_found_and_one_that_it_returns_is_not() {
    for bad in [
        "async || Ok(scope.exec(\"a\", [\"b\"]).ok())",
        "Ok(pods.create(&x, &f(&y)?).await.ok())",
        "Ok(scope\n    .exec(a)\n    .ok())",
        "Ok(f(a).ok().filter(|text| text == b))",
    ] {
        assert_eq!(swallowed(bad).len(), 1, "{bad}");
    }
    for good in [
        "scope.exec(a).map(Some)",
        "Ok(Some(f(a).await?))",
        "let x = f(a).ok(); Ok(x)",
        "book(f(a).ok())",
        "// Ok(f(a).ok())",
    ] {
        assert_eq!(swallowed(good), Vec::<usize>::new(), "{good}");
    }
}

#[test]
fn a_condition_on_time_is_found_and_a_message_about_time_is_not() {
    for bad in [
        "assert!(late.as_millis() < 3000, \"x\");",
        "ensure!(\n    after.as_secs_f64() < LIMIT,\n);",
        "assert_eq!(1, a.elapsed().as_secs());",
        "let c = ')'; assert!(f(&[1, 2], \"(\") && start.elapsed() < x);",
        "let r = r#\"a\"b\"#; anyhow::ensure!(now.duration_since(then) < x)",
    ] {
        assert_eq!(timed(bad).len(), 1, "{bad}");
    }
    for good in [
        "assert!(all.is_empty(), \"after {:?}\", start.elapsed());",
        "ensure!(said.contains(\"elapsed\"));",
        "// assert!(start.elapsed() < x);",
        "let limit = LIMIT.as_secs(); assert_eq!(a, b, \"{}\", limit.as_secs());",
        "fn f<'a>(x: &'a str) { assert!(x == \"\", \"{:?}\", t.elapsed()) }",
    ] {
        assert_eq!(timed(good), Vec::<usize>::new(), "{good}");
    }
    assert_eq!(timed("\n\nassert!(a.elapsed() < b);"), [3]);
}
