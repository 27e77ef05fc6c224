//! What the shim sends to the mounter, and what the mounter answers.

use std::path::Path;

use mooring_contract::volume::Volume;
use mooring_mounter::drivers::flexvolume::answer::FlexVolumeAnswer;
use mooring_mounter::drivers::flexvolume::call::{CallOutError, FlexVolumeCall};
use mooring_mounter::volume::target::Target;
use mooring_shim::answer::{self, AnswerStatus as Seen};
use mooring_shim::request::{self, MalformedRequest};
use serde_json::Value;

const ROOT: &str = "/var/lib/kubelet";

/// Runs an input; panics if an invariant is broken.
pub fn run(bytes: &[u8]) {
    read_as_an_answer(bytes);
    read_as_a_request(bytes);
    // Without the frame, so that the fuzzer reaches the options sooner: call, directory and options, one per line.
    if let Ok(text) = str::from_utf8(bytes) {
        let args: Vec<String> = text.splitn(3, '\n').map(str::to_owned).collect();
        call(&args);
    }
}

/// The shim accepts every JSON object as an answer, never a cut one, and nothing that does not at least begin and end
/// like one.
fn read_as_an_answer(bytes: &[u8]) {
    let seen = answer::read(bytes);
    let text = bytes.trim_ascii_end();
    if seen != Seen::Broken {
        assert!(text.starts_with(b"{") && text.ends_with(b"}"));
    }
    if text.starts_with(b"{") && serde_json::from_slice::<Value>(bytes).is_ok() {
        assert_ne!(seen, Seen::Broken);
        for end in (0..text.len()).rev().take(64) {
            assert_eq!(answer::read(&bytes[..end]), Seen::Broken, "cut at {end}");
        }
    }
}

/// Whatever the input, what is read from it is written the same again; a part of it is never a complete request.
fn read_as_a_request(bytes: &[u8]) {
    let Ok(args) = request::decode(bytes) else {
        return;
    };
    assert!(request::check(args.clone()).is_ok());
    let mut again = Vec::new();
    let written = request::write(args.clone(), |piece| {
        again.extend_from_slice(piece);
        Ok::<_, ()>(())
    });
    assert!(written.is_ok() && again == bytes);
    for end in (0..bytes.len()).rev().take(64) {
        assert!(
            matches!(request::decode(&bytes[..end]), Err(MalformedRequest::Short)),
            "cut at {end}"
        );
    }
    again.push(0);
    assert!(request::decode(&again).is_err());
    let text: Option<Vec<String>> = args.map(|arg| String::from_utf8(arg.to_vec()).ok()).collect();
    if let Some(text) = text {
        call(&text);
    }
}

fn call(args: &[String]) {
    match FlexVolumeCall::parse(args, Path::new(ROOT)) {
        Ok(FlexVolumeCall::Init) => answered(&FlexVolumeAnswer::Init, Seen::Success),
        Ok(FlexVolumeCall::GetVolumeName { name }) => answered(&FlexVolumeAnswer::VolumeName(name), Seen::Success),
        Ok(FlexVolumeCall::Mount(request)) => {
            target(&request.target, &args[1]);
            assert_eq!(request.pod.uid, request.target.pod_uid());
            volume(&request.volume);
        }
        Ok(FlexVolumeCall::Unmount { target: it }) => target(&it, &args[1]),
        Ok(FlexVolumeCall::ExpandFs {
            volume: it, target: on, ..
        }) => {
            target(&on, &args[3]);
            volume(&it);
        }
        Err(CallOutError::NotSupported(_)) => answered(&FlexVolumeAnswer::NotSupported, Seen::Other),
        Err(error) => answered(&FlexVolumeAnswer::failure(error.to_string()), Seen::Other),
    }
}

/// The kubelet gets one JSON object with a status that it knows, and the shim reads the same status from it.
fn answered(answer: &FlexVolumeAnswer, seen: Seen) {
    let json = answer.to_json();
    assert_eq!(answer::read(json.as_bytes()), seen, "{json}");
    let Ok(Value::Object(object)) = serde_json::from_str(&json) else {
        panic!("not an object: {json}");
    };
    let status = object.get("status").and_then(Value::as_str);
    assert!(
        matches!(status, Some("Success" | "Failure" | "Not supported")),
        "{json}"
    );
    assert!(json.is_ascii() || json.len() < 1 << 20);
}

/// A target is a directory of one of our volumes, whatever was requested, and was requested by its own name.
fn target(target: &Target, asked: &str) {
    let path = target.path();
    let text = path.to_str().expect("made of text");
    let beneath = text.strip_prefix(ROOT).expect("beneath the kubelet's root");
    let parts: Vec<&str> = beneath.split('/').collect();
    let ["", "pods", uid, "volumes", "mooring.dev~vcs", name] = parts[..] else {
        panic!("{text}");
    };
    for part in [uid, name] {
        assert!(
            !["", ".", ".."].contains(&part) && !part.contains(char::is_control),
            "{text}"
        );
    }
    // Only redundant slashes and dots are dropped from the requested path.
    let plain = |path: &str| {
        path.split('/')
            .filter(|part| !["", "."].contains(part))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(plain(text), plain(asked));
    assert_eq!(&Target::parse(Path::new(ROOT), text).expect("its own name"), target);
}

/// The kubelet's own options are not among the volume's, and reading its options again gives the same volume.
fn volume(volume: &Volume) {
    let options = volume.to_options();
    for (key, value) in &options {
        assert!(
            !key.starts_with("kubernetes.io/") && !key.contains(char::is_control) && !value.contains(char::is_control)
        );
    }
    assert_eq!(&Volume::from_options(&options).expect("its own options"), volume);
}
