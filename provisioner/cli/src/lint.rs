//! `mooring lint`: checks provisioner ConfigMaps in files, without a cluster.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use flex_provisioner::config::trust::{ImagePattern, Trust};
use flex_provisioner::config::{ProvisionerConfig, Severity};
use mooring_program::namespace::parse_namespace;

pub mod check;
pub mod text;

use crate::NOT_TRIED;
use check::{Checked, check};

/// Settings of `lint`.
#[derive(Debug, Args)]
pub struct LintArgs {
    /// Files to check; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Images that the cluster's controller allows
    #[arg(
        long,
        value_delimiter = ',',
        env = "MOORING_ALLOWED_IMAGES",
        value_name = "PATTERN,…"
    )]
    pub allowed_images: Option<Vec<ImagePattern>>,
    /// Namespaces in which the cluster's controller honours ConfigMaps
    #[arg(
        long,
        value_delimiter = ',',
        env = "MOORING_CONFIG_NAMESPACES",
        value_parser = parse_namespace,
        value_name = "NAMESPACE,…"
    )]
    pub config_namespaces: Option<Vec<String>>,
}

/// Checks the files and writes what was found. Exits with 1 on errors in them, with 2 if one can't be read.
pub fn run(args: LintArgs, stdin: &mut impl Read, out: &mut impl Write) -> ExitCode {
    let LintArgs {
        files,
        allowed_images,
        config_namespaces,
    } = args;
    let trust = Trust::offline(config_namespaces.map(|all| all.into_iter().collect()), allowed_images);
    let mut report = Report::default();
    let mut unreadable = false;
    for file in &files {
        match read(file, stdin) {
            Ok(text) => report.file(&name(file), &text, &trust),
            Err(error) => {
                unreadable = true;
                report.line(format!("{}: error: can't be read: {error}", name(file)));
            }
        }
    }
    let errors = report.end(unreadable);
    // That nobody reads it to its end (`| head`) is not an error.
    let _ = out.write_all(report.text.as_bytes()).and_then(|()| out.flush());
    match (unreadable, errors) {
        (true, _) => ExitCode::from(NOT_TRIED),
        (false, true) => ExitCode::FAILURE,
        (false, false) => ExitCode::SUCCESS,
    }
}

fn read(file: &Path, stdin: &mut impl Read) -> std::io::Result<String> {
    if file == Path::new("-") {
        std::io::read_to_string(stdin)
    } else {
        std::fs::read_to_string(file)
    }
}

fn name(file: &Path) -> String {
    if file == Path::new("-") {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    }
}

/// What is written, and the sums.
#[derive(Debug, Default)]
struct Report {
    text: String,
    configs: usize,
    errors: usize,
    warnings: usize,
    classes: BTreeMap<String, String>,
}

impl Report {
    fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    fn file(&mut self, file: &str, text: &str, trust: &Trust) {
        for document in text::documents(text) {
            let Checked {
                findings,
                is_config,
                config,
            } = check(&document, trust);
            self.configs += usize::from(is_config);
            for finding in findings {
                let word = match finding.severity {
                    Severity::Error => {
                        self.errors += 1;
                        "error"
                    }
                    Severity::Warning => {
                        self.warnings += 1;
                        "warning"
                    }
                };
                self.line(format!("{file}:{}: {word}: {}", finding.line, finding.message));
            }
            if let Some(config) = config {
                self.line(format!("{file}:{}: ok: {}", document.first_line, summary(&config)));
                self.claims(file, document.first_line, &config);
            }
        }
    }

    fn claims(&mut self, file: &str, line: usize, config: &ProvisionerConfig) {
        let Some(class) = &config.class_name else { return };
        let here = format!("{file}:{line}");
        if let Some(there) = self.classes.insert(class.clone(), here.clone()) {
            self.warnings += 1;
            self.line(format!(
                "{here}: warning: storage-class: {there} claims {class} too, and the older ConfigMap gets it: rename \
                 one"
            ));
        }
    }

    /// Writes the sums; whether there were errors.
    fn end(&mut self, unreadable: bool) -> bool {
        if self.configs == 0 && !unreadable {
            self.errors += 1;
            self.line(
                "error: found no provisioner ConfigMap: one has kind ConfigMap and the label type: provisioner-config",
            );
        } else {
            let sums = format!(
                "{} checked: {}, {}",
                count(self.configs, "provisioner ConfigMap"),
                count(self.errors, "error"),
                count(self.warnings, "warning")
            );
            self.line(sums);
        }
        self.errors > 0
    }
}

fn count(number: usize, what: &str) -> String {
    match number {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

fn summary(config: &ProvisionerConfig) -> String {
    let class = config.class_name.as_ref().map_or_else(
        || "for storage classes that name it".to_owned(),
        |class| format!("storage class {class}"),
    );
    let properties = if config.pass_through.is_empty() {
        "no properties of its own".to_owned()
    } else {
        let keys: Vec<_> = config.pass_through.keys().map(String::as_str).collect();
        format!("properties {}", keys.join(", "))
    };
    format!(
        "{}: {class}, image {}, {properties}",
        config.reference.name, config.image
    )
}

#[cfg(test)]
mod tests;
