//! The storage server of a class, which runs in the cluster: `tests/conformance/NAME.server.yaml` is its Pod.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::command::{output, output_with_input};
use crate::install::apply;
use crate::progress::Step;
use crate::target::Target;

/// The end of the name of a server's file.
const END: &str = ".server.yaml";

/// Longest time for a server to start.
const READY_LIMIT: Duration = Duration::from_mins(5);

/// A server that a class needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// Its name, that of its file.
    name: String,
    /// Its Pod.
    manifest: String,
}

impl Server {
    /// The servers of a folder whose addresses a class names.
    pub(super) fn of_class(folder: &Path, class: &str) -> Result<Vec<Self>> {
        let entries = std::fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
        let mut servers = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(name) = file.strip_suffix(END) else { continue };
            if class.contains(&placeholder(name)) {
                let manifest =
                    std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
                servers.push(Self {
                    name: name.to_owned(),
                    manifest,
                });
            }
        }
        Ok(servers)
    }

    /// Starts the server and waits until it serves. Returns the class with the server's address in it.
    pub(super) fn start(&self, target: &Target, class: &str) -> Result<String> {
        let step = Step::begin(format!("server {}", self.name));
        apply(target, &self.manifest)?;
        let pod = format!("pod/conform-{}", self.name);
        let limit = format!("--timeout={}s", READY_LIMIT.as_secs());
        output(&mut target.kubectl(["wait", "--for=condition=Ready", &limit, &pod]))?;
        let address = output(&mut target.kubectl(["get", &pod, "-o", "jsonpath={.status.podIP}"]))?;
        ensure!(!address.is_empty(), "{pod} has no address");
        step.done(&address);
        Ok(class.replace(&placeholder(&self.name), &address))
    }

    pub(super) fn remove(&self, target: &Target) -> Result<()> {
        let mut delete = target.kubectl(["delete", "--wait=false", "-f", "-"]);
        output_with_input(&mut delete, self.manifest.as_bytes())?;
        Ok(())
    }
}

/// What stands for a server's address in a class.
fn placeholder(server: &str) -> String {
    format!("{}_ADDRESS", server.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::Server;
    use crate::layout::repository;

    #[test]
    fn a_class_has_the_server_that_it_names() {
        let folder = repository().join("tests/conformance");
        let names = |class: &str| -> Vec<_> {
            let servers = Server::of_class(&folder, class).unwrap();
            servers.into_iter().map(|server| server.name).collect()
        };
        assert_eq!(names("monitors: CEPH_ADDRESS"), ["ceph"]);
        assert_eq!(names("source: NFS_ADDRESS:/open"), ["nfs"]);
        assert!(names("backend-volume: client=pool").is_empty());
    }
}
