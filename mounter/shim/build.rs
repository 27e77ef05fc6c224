//! Links the executable without the C library: static, with its own entry point, and a few KiB.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,noexecstack",
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
