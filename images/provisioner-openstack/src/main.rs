//! The program of the image `provisioner-openstack`.
use std::process::ExitCode;

fn main() -> ExitCode {
    provisioner_openstack::main()
}
