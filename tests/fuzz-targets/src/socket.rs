//! What the shim sends to the mounter, and what the mounter answers.

use std::path::Path;
use std::time::{Duration, Instant};

use mooring_contract::volume::Volume;
use mooring_mounter::drivers::flexvolume::answer::FlexVolumeAnswer;
use mooring_mounter::drivers::flexvolume::call::{CallError, FlexVolumeCall};
use mooring_mounter::volume::target::Target;
use mooring_shim::answer::{self, Answer as Seen};
use mooring_shim::request::{self, RequestError};
use serde_json::Value;

const ROOT: &str = "/var/lib/kubelet";

/// Takes an input, and panics if it leads to what it may not.
pub fn run(bytes: &[u8]) {
    read_as_an_answer(bytes);
    read_as_a_request(bytes);
    // Without the frame, so that the fuzzer gets at the options sooner: call-out, directory and options, a line each.
    if let Ok(text) = str::from_utf8(bytes) {
        let args: Vec<String> = text.splitn(3, '\n').map(str::to_owned).collect();
        call(&args);
    }
}

/// The shim takes every JSON object for an answer, cut ones never, and nothing that does not at least begin and end like one.
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

/// Whatever was fed, what is read of it is written the same again; a part of it is never a whole request.
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
            matches!(request::decode(&bytes[..end]), Err(RequestError::Short)),
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
        Ok(FlexVolumeCall::Mount(call)) => {
            let job = call.into_job(Instant::now() + Duration::from_secs(1));
            target(&job.target, &args[1]);
            assert_eq!(job.pod.uid, job.target.pod_uid());
            volume(&job.volume);
        }
        Ok(FlexVolumeCall::Unmount { target: it }) => target(&it, &args[1]),
        Ok(FlexVolumeCall::ExpandFs {
            volume: it, target: on, ..
        }) => {
            target(&on, &args[3]);
            volume(&it);
        }
        Err(CallError::NotSupported(_)) => answered(&FlexVolumeAnswer::NotSupported, Seen::Other),
        Err(error) => answered(&FlexVolumeAnswer::failure(error.to_string()), Seen::Other),
    }
}

/// What the kubelet gets is one JSON object with a status that it knows, and the shim takes it for what it is.
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

/// A target is a directory of one of our volumes, whatever was asked, and is asked for by its own name.
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
    // Nothing is left out of what was asked but slashes and dots of no meaning.
    let plain = |path: &str| {
        path.split('/')
            .filter(|part| !["", "."].contains(part))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(plain(text), plain(asked));
    assert_eq!(&Target::parse(Path::new(ROOT), text).expect("its own name"), target);
}

/// The kubelet's own options are none of the volume's, and its options read back to the same volume.
fn volume(volume: &Volume) {
    let options = volume.to_options();
    for (key, value) in &options {
        assert!(
            !key.starts_with("kubernetes.io/") && !key.contains(char::is_control) && !value.contains(char::is_control)
        );
    }
    assert_eq!(&Volume::from_options(&options).expect("its own options"), volume);
}
