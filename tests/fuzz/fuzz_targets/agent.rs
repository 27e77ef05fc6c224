//! What mounter and agent say to each other.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use mooring_mounter::agent::program;
use mooring_mounter::agent::protocol::{Answer, Call, Request, receive};

fuzz_target!(|bytes: &[u8]| {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else {
        return;
    };
    let length = u32::try_from(bytes.len()).unwrap_or_default();
    let framed = [&length.to_le_bytes()[..], bytes].concat();
    runtime.block_on(async {
        for wire in [bytes, &framed] {
            let _ = receive::<Answer>(&mut &*wire).await;
            if let Ok(Request { call: Call::Mount(call), .. }) = receive::<Request>(&mut &*wire).await {
                for overridden in [false, true] {
                    let _ = program::mount(&call, overridden, Path::new("/stage"), Path::new("/secrets"));
                }
            }
        }
    });
});
