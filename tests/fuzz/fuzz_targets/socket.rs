//! What the shim sends to the mounter, and what the mounter answers.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mooring_mounter::flex::call::Call;
use mooring_shim::{answer, request};

fuzz_target!(|bytes: &[u8]| {
    let _ = answer::read(bytes);
    // Whatever was fed, what is read of it is written the same again.
    if let Ok(args) = request::decode(bytes) {
        let mut again = Vec::new();
        let written = request::write(args.clone(), |piece| {
            again.extend_from_slice(piece);
            Ok::<_, ()>(())
        });
        assert!(written.is_ok() && again == bytes);
        let text: Option<Vec<String>> = args.map(|arg| String::from_utf8(arg.to_vec()).ok()).collect();
        if let Some(text) = text {
            let _ = Call::parse(&text, Path::new("/var/lib/kubelet"));
        }
    }
    // Without the frame, so that the fuzzer gets at the options sooner: call-out, directory and options, a line each.
    if let Ok(text) = str::from_utf8(bytes) {
        let args: Vec<String> = text.splitn(3, '\n').map(str::to_owned).collect();
        let _ = Call::parse(&args, Path::new("/var/lib/kubelet"));
    }
});
