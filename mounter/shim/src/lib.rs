//! What passes between the shim and the mounter.
//!
//! A request is a `u32` count of arguments, then for each its `u32` length and its bytes; all numbers little-endian.
//! They are the arguments that the kubelet gave, without the executable's own name. The mounter answers with one JSON
//! object that begins with `{"status":"…"`, and closes.
//!
//! The shim knows nothing about storage. It lives without the standard library, so that it starts in no time.
#![no_std]
#![forbid(unsafe_code)]

pub mod answer;
pub mod failure;
pub mod request;

/// How long the shim waits for the mounter, in seconds. The kubelet itself would wait for ever; the mounter's own limit
/// is shorter, so that it is the mounter that says what took so long.
pub const DEADLINE_SECONDS: u64 = 120;

/// Most arguments of a request.
pub const MAX_ARGS: usize = 64;

/// Longest request in bytes, numbers included.
pub const MAX_REQUEST: usize = 1 << 20;

/// Longest answer in bytes. The kubelet puts the message into an Event, which holds 1 KiB.
pub const MAX_ANSWER: usize = 16 << 10;

/// The mounter's socket, in the shim's own directory.
pub const SOCKET: &str = ".mounter.sock";

/// The answer to `init`, from the mounter and also from a shim without one: the kubelet asks once, at its own start or
/// when the shim is installed, and a driver that fails then does not exist until one of the two happens again.
///
/// Nothing is attached; the mounter gives files to the Pod's `fsGroup`, and the kubelet measures how full a volume is.
pub const INIT_ANSWER: &str = concat!(
    r#"{"status":"Success","capabilities":{"attach":false,"selinuxRelabel":false,"#,
    r#""supportsMetrics":true,"fsGroup":false,"requiresFSResize":true}}"#
);
