//! Commands in Pods. The API is asked directly: to start kubectl takes more of a processor than most of these commands.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::scope::{Scope, blocking};
use super::waiting::wait_for;
use mooring_testbed::progress::spoken;

/// Why the API says that a command ended with another exit code than 0, and where the code is.
const FAILED: &str = "NonZeroExitCode";
const CODE: &str = "ExitCode";

/// Longest run of a command. One that hangs would block its test's thread, which only the watchdog could end, with all
/// other tests of the program.
const LIMIT: Duration = Duration::from_mins(5);

impl Scope {
    /// Runs a command in a Pod's first container; returns what it printed on standard output.
    pub fn exec<S: AsRef<OsStr>>(&self, pod: &str, args: impl IntoIterator<Item = S>) -> Result<String> {
        self.exec_in(pod, None, args)
    }

    /// The same in a container of this name.
    pub fn exec_in<S: AsRef<OsStr>>(
        &self,
        pod: &str,
        container: Option<&str>,
        args: impl IntoIterator<Item = S>,
    ) -> Result<String> {
        let words: Vec<String> = args
            .into_iter()
            .map(|word| word.as_ref().to_string_lossy().into_owned())
            .collect();
        let what = format!("{} in Pod {}/{pod}", words.join(" "), self.namespace);
        let _waiting = wait_for(&what);
        let params = AttachParams {
            container: container.map(str::to_owned),
            ..AttachParams::default()
        };
        let pods: Api<Pod> = self.api();
        let run = async {
            let command = async { printed(pods.exec(pod, words, &params).await?).await };
            let ended = tokio::time::timeout(LIMIT, command).await;
            ended.with_context(|| format!("it did not end within {}", spoken(LIMIT)))?
        };
        // One message, as a program's: tests look for what a command said.
        blocking(run).map_err(|error| anyhow!("{what} failed: {error:#}"))
    }
}

/// What a command prints until it ends.
async fn printed(mut process: AttachedProcess) -> Result<String> {
    let (output, errors) = tokio::join!(all(process.stdout()), all(process.stderr()));
    let status = match process.take_status() {
        Some(status) => status.await,
        None => None,
    };
    let (output, errors) = (output?, errors?);
    let status = status.with_context(|| format!("the connection ended before the command: {output}{errors}"))?;
    if status.status.as_deref() == Some("Success") {
        return Ok(output);
    }
    match exit_code(&status) {
        Some(code) => bail!("exit code {code}: {output}{errors}"),
        None => bail!("{}: {output}{errors}", status.message.unwrap_or_default()),
    }
}

fn exit_code(status: &Status) -> Option<&str> {
    let details = status
        .details
        .as_ref()
        .filter(|_| status.reason.as_deref() == Some(FAILED))?;
    let causes = details.causes.iter().flatten();
    let mut codes = causes.filter(|cause| cause.reason.as_deref() == Some(CODE));
    codes.next()?.message.as_deref()
}

async fn all(stream: Option<impl AsyncRead + Unpin>) -> Result<String> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        stream.read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
