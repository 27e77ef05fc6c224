//! What a failed test shows.

use std::fmt::Write;

use mooring_contract::names::NAMESPACE;

use super::Scope;
use super::provisioner::CONFIG_NAMESPACE;
use crate::command::output;

impl Scope {
    /// Pods, claims, volumes, Events and logs of the test's namespace, and Pods, Events and logs of Mooring's own and of its provisioning Pods.
    pub fn dump(&self) -> String {
        let mut text = format!("======== state of namespace {} after the failure\n", self.namespace);
        let mut add = |args: &[&str]| {
            let said = output(&mut self.target.kubectl(args)).unwrap_or_else(|error| error.to_string());
            let _ = writeln!(text, "-------- kubectl {}\n{}", args.join(" "), said.trim_end());
        };
        add(&["get", "persistentvolumes,storageclasses,nodes", "-o", "wide"]);
        for namespace in [self.namespace.as_str(), CONFIG_NAMESPACE, NAMESPACE] {
            add(&[
                "-n",
                namespace,
                "get",
                "pods,configmaps,persistentvolumeclaims",
                "-o",
                "wide",
            ]);
            add(&[
                "-n",
                namespace,
                "get",
                "events",
                "--sort-by=.metadata.creationTimestamp",
            ]);
            let pods = output(&mut self.target.kubectl(["-n", namespace, "get", "pods", "-o", "name"]));
            for pod in pods.unwrap_or_default().lines() {
                add(&[
                    "-n",
                    namespace,
                    "logs",
                    "--all-containers",
                    "--prefix",
                    "--tail=60",
                    pod,
                ]);
            }
        }
        add(&["-n", &self.namespace, "describe", "pods,persistentvolumeclaims"]);
        text
    }
}
