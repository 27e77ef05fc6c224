//! A short run of each target: its seeds, and as many inputs derived from them as `PROPTEST_CASES` says.

use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof};
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

/// A change of an input, at a place that exists for any length.
#[derive(Debug, Clone)]
enum Edit {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, u8),
    Repeat(Index, u8),
}

fn edit() -> impl Strategy<Value = Edit> {
    // Characters with a meaning in one of the formats are more frequent than others.
    let byte = || prop_oneof![any::<u8>(), proptest::sample::select(b"\0\n\"\\{}[]:=,/.|@- ".to_vec())];
    prop_oneof![
        (any::<Index>(), byte()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (any::<Index>(), vec(byte(), 1..8)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (any::<Index>(), 1_u8..32).prop_map(|(at, length)| Edit::Remove(at, length)),
        (any::<Index>(), 1_u8..32).prop_map(|(at, length)| Edit::Repeat(at, length)),
    ]
}

fn apply(mut bytes: Vec<u8>, edits: &[Edit]) -> Vec<u8> {
    for edit in edits {
        let end = bytes.len();
        let range = |at: &Index, length: u8| {
            let at = at.index(end + 1);
            at..end.min(at + usize::from(length))
        };
        match edit {
            Edit::Set(at, byte) if end > 0 => bytes[at.index(end)] = *byte,
            Edit::Set(..) => {}
            Edit::Insert(at, more) => drop(bytes.splice(range(at, 0), more.iter().copied())),
            Edit::Remove(at, length) => drop(bytes.drain(range(at, *length))),
            Edit::Repeat(at, length) => {
                let range = range(at, *length);
                let piece = bytes[range.clone()].to_vec();
                bytes.splice(range.end..range.end, piece);
            }
        }
    }
    bytes
}

fn run(target: &str, take: impl Fn(&[u8])) {
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap())
        .join("../fuzz/seeds")
        .join(target);
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let seeds: Vec<_> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert!(seeds.len() > 1);
    for seed in &seeds {
        take(seed);
    }
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let inputs = (any::<Index>(), vec(edit(), 1..6)).prop_map(|(seed, edits)| apply(seed.get(&seeds).clone(), &edits));
    TestRunner::new(config)
        .run(&inputs, |input| {
            take(&input);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn requests_answers_and_call_outs_keep_their_invariants() {
    run("socket", crate::socket::run);
}

#[test]
fn messages_to_an_agent_keep_their_invariants() {
    run("agent", crate::agent::run);
}

#[test]
fn any_config_map_makes_a_harmless_pod_or_none() {
    run("config_map", |bytes| {
        crate::config_map::run(&String::from_utf8_lossy(bytes));
    });
}
