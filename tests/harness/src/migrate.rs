//! `mooring migrate`, as an administrator runs it.

use std::fs::File;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mooring_testbed::images;
use mooring_testbed::layout::repository;

use super::Scope;
use super::children::{start, tied};
use super::waiting::wait_for;
use super::waits::wait_until;
use super::workplace::Workplace;

/// The file with what it prints.
const OUTPUT: &str = "output";

/// A run of it that goes on.
#[derive(Debug)]
pub struct Migration {
    child: Child,
    workplace: Workplace,
}

impl Migration {
    pub fn said(&self) -> Result<String> {
        std::fs::read_to_string(self.workplace.file(OUTPUT)).context("no output of the migration")
    }

    /// Kills it at once.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("failed to kill the migration")?;
        self.child.wait().context("failed to wait for the migration")?;
        Ok(())
    }

    /// Waits for its end; its exit code, and what it has printed.
    pub async fn end(mut self, limit: Duration) -> Result<(i32, String)> {
        let status = wait_until("the migration to end", limit, async || Ok(self.child.try_wait()?)).await;
        let said = self.said()?;
        match status {
            Ok(status) => Ok((status.code().unwrap_or(-1), said)),
            Err(error) => {
                let _ = self.child.kill();
                bail!("{error:#}; it has said: {said}")
            }
        }
    }
}

impl Scope {
    /// Begins to move volumes of this test's namespace.
    pub fn migration(&self, flags: &[&str]) -> Result<Migration> {
        let workplace = self.workplace()?;
        let file =
            File::create(workplace.file(OUTPUT)).context("failed to create a file for the migration's output")?;
        let program = repository().join(images::program_folder()?).join("mooring");
        let mut command = tied(&program)?;
        command
            .arg("migrate")
            .arg(workplace.kubeconfig_flag())
            .arg(format!("--namespace={}", self.namespace))
            .args(flags)
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = start(command).context("failed to start the migration")?;
        Ok(Migration { child, workplace })
    }

    /// Moves volumes of this test's namespace; the exit code, and what was printed.
    pub async fn migrate(&self, flags: &[&str]) -> Result<(i32, String)> {
        let _waiting = wait_for(format!("migrate {flags:?}"));
        self.migration(flags)?.end(Duration::from_mins(2)).await
    }
}
