//! Links the executable without the C library: static, with its own entry point, and a few KiB.
//!
//! A debug build has an unwinder, as all debug builds of the workspace have, and so the standard library and the C
//! library that it takes: the crates that tests and programs share are compiled once.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-nostartfiles");
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "debug") {
        return;
    }
    for argument in [
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,noexecstack",
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
