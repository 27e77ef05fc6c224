//! `provisioner-openstack`: carries out the operations of a provisioner image against OpenStack's Cinder and Manila, by
//! their REST APIs.
//!
//! [`run`] reads what is to be done and calls [`cinder`] or [`manila`], which have much in common: [`storage`]. They
//! speak to their service through [`service`], with a token of [`keystone`], over [`http`]. Of runs only a worker's keep
//! something, a token ([`kept_token`]): what an earlier run has made is found again by its name and metadata.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mooring_contract::names::paths;
use mooring_contract::property::{env_name, keys};
use mooring_contract::worker::SERVE;
use pv::args::Serve;

pub mod answer;
pub mod cinder;
pub mod clouds;
pub mod error;
pub mod fault;
pub mod given;
pub mod http;
pub mod kept_token;
pub mod keystone;
pub mod kube_secret;
pub mod manila;
pub mod run;
pub mod service;
pub mod storage;
pub mod wait;

#[cfg(test)]
mod test_cinder;
#[cfg(test)]
mod test_run;
#[cfg(test)]
mod test_server;

/// Where Mooring puts a run's properties.
const RUN_DIR: &str = "/run/mooring";

/// Carries out this run's operation.
#[allow(clippy::print_stderr, clippy::print_stdout)] // the last words of a provisioning container are for an Event
pub fn main() -> ExitCode {
    let folder = |variable: &str, usual: &str| std::env::var_os(variable).map_or_else(|| usual.into(), PathBuf::from);
    let run_dir = folder("MOORING_RUN_DIR", RUN_DIR);
    let answer = folder("MOORING_TERMINATION_LOG", paths::TERMINATION_LOG);
    if std::env::var(env_name(keys::OPERATION)).as_deref() == Ok(SERVE) {
        return serve(&run_dir, answer);
    }
    match run::run(&run_dir, &answer, wait::Pace::usual()) {
        Ok(done) => {
            println!("{done}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}", pv::error::chain(&error));
            u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// Is a worker, whose runs are this program again.
#[allow(clippy::print_stderr)] // see above
fn serve(run_dir: &Path, message: PathBuf) -> ExitCode {
    if let Err(error) = kept_token::make(run_dir) {
        eprintln!(
            "each run logs in: failed to make a file in {}: {error}",
            run_dir.display()
        );
    }
    let program = std::env::current_exe().unwrap_or_else(|_| "/provision".into());
    let worker = Serve {
        command: program.into(),
        args: Vec::new(),
        tmp: "/tmp".into(),
        message,
    };
    match pv::serve::run(worker, run_dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", pv::error::chain(&error));
            u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}
