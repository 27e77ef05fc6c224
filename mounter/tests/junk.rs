//! Whatever the kubelet, a peer of a socket or the kernel says is read or refused, and nothing breaks.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use mooring_contract::names::FLEX_DRIVER_DIR;
use mooring_mounter::agent::protocol::{self, AgentAnswer, AgentRequest};
use mooring_mounter::drivers::flexvolume::call::FlexVolumeCall;
use mooring_mounter::volume::mount_table::Table;
use mooring_mounter::volume::target::Target;
use mooring_shim::{MAX_ARGS, MAX_REQUEST, answer, request};
use proptest::collection::vec;
use proptest::prelude::*;

const ROOT: &str = "/var/lib/kubelet";

/// Paths that are nearly those of volumes.
fn path() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("pods".to_owned()),
        Just("volumes".to_owned()),
        Just(FLEX_DRIVER_DIR.to_owned()),
        Just("uid".to_owned()),
        Just("..".to_owned()),
        Just(".".to_owned()),
        Just(String::new()),
        ".{0,8}",
    ];
    let near = vec(part, 0..8).prop_map(|parts| format!("{ROOT}/{}", parts.join("/")));
    let good = "[a-z0-9.-]{1,9}".prop_map(|name| format!("{ROOT}/pods/uid/volumes/{FLEX_DRIVER_DIR}/{name}"));
    prop_oneof![near, good, ".{0,40}"]
}

fn options() -> impl Strategy<Value = String> {
    let pair = ("[a-zA-Z0-9./-]{0,20}", ".{0,20}");
    let object = vec(pair, 0..6).prop_map(|pairs| {
        let object: serde_json::Map<String, serde_json::Value> =
            pairs.into_iter().map(|(key, value)| (key, value.into())).collect();
        serde_json::Value::from(object).to_string()
    });
    prop_oneof![
        object,
        r#"\{"client":"(local|sshfs|[a-z./]{0,9})","source":"[^"\\]{0,20}"\}"#,
        ".{0,60}"
    ]
}

fn call() -> impl Strategy<Value = Vec<String>> {
    let name = prop_oneof!["mount|unmount|expandfs|init|getvolumename|attach", ".{0,10}"];
    let word = prop_oneof![path(), options(), "[0-9]{0,25}", ".{0,20}"];
    (name, vec(word, 0..6)).prop_map(|(name, rest)| [vec![name], rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_call_out_is_read_or_refused_in_words(args in call()) {
        if let Err(error) = FlexVolumeCall::parse(&args, Path::new(ROOT)) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    /// Proves: M3
    #[test]
    fn a_target_is_never_outside_the_kubelet_s_volume_directories(text in path()) {
        if let Ok(target) = Target::parse(Path::new(ROOT), &text) {
            let path = target.path();
            let relative = path.strip_prefix(ROOT).unwrap();
            let parts: Vec<_> = relative.iter().map(|part| part.to_str().unwrap()).collect();
            prop_assert!(matches!(parts.as_slice(), ["pods", _, "volumes", FLEX_DRIVER_DIR, _]), "{path:?}");
            prop_assert!(parts.iter().all(|part| *part != ".." && *part != "."));
        }
    }

    #[test]
    fn a_request_is_whole_or_refused_and_what_is_whole_reads_as_it_was_written(bytes in vec(any::<u8>(), 0..300)) {
        if let Ok(args) = request::decode(&bytes) {
            let args: Vec<&[u8]> = args.collect();
            prop_assert!(args.len() <= MAX_ARGS && bytes.len() <= MAX_REQUEST);
            let mut again = Vec::new();
            request::write(args.into_iter(), |piece| {
                again.extend_from_slice(piece);
                Ok::<_, ()>(())
            }).unwrap();
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn what_the_shim_takes_for_a_success_begins_like_one(text in ".{0,80}", good in any::<bool>()) {
        let text = if good { format!("{{\"status\":\"Success\"{text}") } else { text };
        if answer::read(text.as_bytes()) == answer::AnswerStatus::Success {
            let begins = text.starts_with("{\"status\":\"Success\"");
            prop_assert!(begins, "{}", text);
        }
    }

    #[test]
    fn a_message_between_mounter_and_agent_is_read_or_refused(
        length in prop_oneof![0_u32..400, any::<u32>()],
        bytes in prop_oneof![
            vec(any::<u8>(), 0..200),
            options().prop_map(|text| format!("{{\"version\":1,\"call\":{{\"mount\":{text}}}}}").into_bytes()),
            options().prop_map(|text| format!("{{\"failed\":{text}}}").into_bytes()),
        ],
        honest in any::<bool>(),
    ) {
        let length = if honest { u32::try_from(bytes.len()).unwrap() } else { length };
        let wire = [length.to_le_bytes().to_vec(), bytes].concat();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let _ = protocol::receive::<AgentRequest>(&mut wire.as_slice()).await;
            let _ = protocol::receive::<AgentAnswer>(&mut wire.as_slice()).await;
        });
    }

    #[test]
    fn a_mount_table_of_any_bytes_is_read(bytes in prop_oneof![vec(any::<u8>(), 0..200), "([0-9]{1,3} ){2}7:1 / (/[a-z\\\\0-9]{0,9}){0,3} rw (shared:[0-9]{0,12} )?- [a-z]{0,4} .{0,9} rw\n".prop_map(String::into_bytes)]) {
        if let Ok(table) = Table::try_parse(&bytes) {
            prop_assert!(table.volumes(Path::new(ROOT)).count() <= bytes.len());
        }
    }
}
