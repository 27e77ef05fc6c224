//! Kubernetes, etcd, containerd and the programs of the tests' servers, built once from the Go modules pinned under
//! `tests/go/`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::command::{command, find_program, output_within, watched};
use crate::hash::short_hex;
use crate::layout::{cache, make_folder, repository};
use crate::progress::Step;

/// A pinned module and the programs built from it.
struct Module {
    /// Folder under `tests/go/`.
    name: &'static str,
    /// Program and the package that it is built from. By Go's own custom, one that ends with `.test` runs the package's
    /// tests.
    programs: &'static [(&'static str, &'static str)],
    /// Flags of `go build` besides the common ones.
    flags: &'static [&'static str],
}

/// The compiler writes no debug data, which `-s -w` would make the linker drop again: this saves a sixth of the time.
const WITHOUT_DEBUG_DATA: &str = "-gcflags=all=-dwarf=false";

/// How far the compiler's heap may grow between collections, in percent: a short-lived process needs none.
const COLLECT_SELDOM: &str = "800";

/// Longest time to fetch a module with all that it needs.
const FETCH_LIMIT: Duration = Duration::from_mins(20);

const KUBERNETES_PROGRAMS: &[(&str, &str)] = &[
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    (
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
    ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
];

/// The programs of a node's own Kubernetes. They may be of another version than the control plane's.
const NODE_PROGRAMS: [&str; 2] = ["kubelet", "kube-proxy"];

/// A Kubernetes. Its programs report their version, which clients compare.
macro_rules! kubernetes {
    ($name:literal, $minor:literal, $version:literal) => {
        Module {
            name: $name,
            programs: KUBERNETES_PROGRAMS,
            flags: &[
                "-ldflags",
                concat!(
                    "-s -w -X k8s.io/component-base/version.gitVersion=",
                    $version,
                    " -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=",
                    $minor,
                    " -X k8s.io/component-base/version.gitTreeState=clean",
                ),
            ],
        }
    };
}

const MODULES: &[Module] = &[
    Module {
        name: "coredns",
        programs: &[("coredns", ".")],
        flags: &["-ldflags", "-s -w"],
    },
    Module {
        name: "etcd",
        programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
        flags: &["-ldflags", "-s -w"],
    },
    Module {
        name: "containerd",
        programs: &[
            ("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
            (
                "containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            ),
            ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ],
        flags: &["-ldflags", "-s -w", "-tags", "no_btrfs,no_devmapper,no_zfs"],
    },
];

/// The peer that `cargo testbed bench` compares Mooring with. It is no part of a cluster, and built only for that.
const PEER: Module = Module {
    name: "local-path-provisioner",
    programs: &[("local-path-provisioner", "github.com/rancher/local-path-provisioner")],
    flags: &["-ldflags", "-s -w -X main.VERSION=v0.0.30"],
};

/// kubernetes-csi's sidecars, and a driver beside them. Only `cargo testbed bench operations` needs them.
const SIDECARS: Module = Module {
    name: "csi-sidecars",
    programs: &[
        ("directory-driver", "."),
        (
            "csi-attacher",
            "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
        ),
        (
            "csi-provisioner",
            "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
        ),
        (
            "csi-resizer",
            "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
        ),
        (
            "csi-snapshotter",
            "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
        ),
    ],
    flags: &["-ldflags", "-s -w"],
};

/// Programs in the tests' images besides Mooring's own. They are no part of a cluster, and built only for such an
/// image.
const FOR_IMAGES: &[Module] = &[
    Module {
        name: "versitygw",
        programs: &[("versitygw", "github.com/versity/versitygw/cmd/versitygw")],
        flags: &["-ldflags", "-s -w"],
    },
    Module {
        name: "opentelemetry-collector",
        programs: &[("otelcol-contrib", ".")],
        flags: &["-ldflags", "-s -w"],
    },
];

/// The controller of the snapshot API, which a cluster has once for all drivers. Only the tests of snapshots
/// need it.
const SNAPSHOT_CONTROLLER: Module = Module {
    name: "external-snapshotter",
    programs: &[(
        "snapshot-controller",
        "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
    )],
    flags: &["-ldflags", "-s -w -X main.version=v8.6.0"],
};

/// The module that has the CRDs of the snapshot API, a dependency of that controller.
const SNAPSHOT_API: &str = "github.com/kubernetes-csi/external-snapshotter/client/v8";

/// Kubernetes' own end-to-end tests. Only `cargo testbed conform` needs them.
const E2E_TEST: Module = Module {
    name: "conformance",
    programs: &[("e2e.test", "k8s.io/kubernetes/test/e2e")],
    flags: &["-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.1"],
};

/// The program in the images of their Pods.
const AGNHOST: Module = Module {
    name: "conformance",
    programs: &[("agnhost", "k8s.io/kubernetes/test/images/agnhost")],
    flags: &["-ldflags", "-s -w"],
};

/// csi-sanity, with what it needs of a driver that has no controller. Only `cargo testbed conform csi` needs it.
const SANITY: Module = Module {
    name: "sanity",
    programs: &[("sanity", ".")],
    flags: &["-ldflags", "-s -w"],
};

/// Helm, for the test that renders the chart.
const HELM: Module = Module {
    name: "helm",
    programs: &[("helm", "helm.sh/helm/v3/cmd/helm")],
    flags: &["-ldflags", "-s -w"],
};

/// A registry, for the tests of releases.
const REGISTRY: Module = Module {
    name: "registry",
    programs: &[("registry", ".")],
    flags: &["-ldflags", "-s -w"],
};

/// What signs releases, for their tests.
const COSIGN: Module = Module {
    name: "cosign",
    programs: &[("cosign", "github.com/sigstore/cosign/v3/cmd/cosign")],
    flags: &["-ldflags", "-s -w"],
};

/// A minor version of Kubernetes that the testbed can bring up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, ValueEnum)]
pub enum Release {
    /// The oldest that Mooring supports.
    #[value(name = "1.33")]
    #[serde(rename = "1.33")]
    Oldest,
    #[value(name = "1.34")]
    #[serde(rename = "1.34")]
    Minor34,
    #[value(name = "1.35")]
    #[serde(rename = "1.35")]
    Minor35,
    #[value(name = "1.36")]
    #[serde(rename = "1.36")]
    Minor36,
    #[default]
    #[value(name = "1.37")]
    #[serde(rename = "1.37")]
    Newest,
}

impl Release {
    fn module(self) -> &'static Module {
        match self {
            Self::Oldest => &kubernetes!("kubernetes-1.33", "33", "v1.33.13"),
            Self::Minor34 => &kubernetes!("kubernetes-1.34", "34", "v1.34.4"),
            Self::Minor35 => &kubernetes!("kubernetes-1.35", "35", "v1.35.4"),
            Self::Minor36 => &kubernetes!("kubernetes-1.36", "36", "v1.36.3"),
            Self::Newest => &kubernetes!("kubernetes", "37", "v1.37.1"),
        }
    }

    /// As its API server says it.
    pub fn version(self) -> &'static str {
        match self {
            Self::Oldest => "v1.33.13",
            Self::Minor34 => "v1.34.4",
            Self::Minor35 => "v1.35.4",
            Self::Minor36 => "v1.36.3",
            Self::Newest => "v1.37.1",
        }
    }

    /// Kinds of objects that Mooring or its tests make, and that the API of the oldest release does not have.
    pub fn later_kinds(self) -> &'static [&'static str] {
        let all = &[
            "volumeattributesclasses",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
        ];
        match self {
            Self::Oldest => &[],
            Self::Minor34 | Self::Minor35 => &all[..1],
            Self::Minor36 | Self::Newest => all,
        }
    }

    /// Whether its API has what claims' stamps and FlexVolume need.
    pub fn is_complete(self) -> bool {
        self >= Self::Minor36
    }

    /// Whether it has Kubernetes' gate by which Pods and `CSINodes` show what drivers report of volumes.
    pub fn has_volume_health(self) -> bool {
        self == Self::Newest
    }
}

/// The versions of Kubernetes in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Releases {
    pub control_plane: Release,
    pub nodes: Release,
}

/// Where the built programs are.
#[derive(Debug, Clone)]
pub struct Binaries {
    pub releases: Releases,
    /// Kubernetes of the nodes, of the control plane, and [`MODULES`].
    folders: Vec<PathBuf>,
}

impl Binaries {
    /// Path of one program. Every name that the crate uses is in one of the modules; others are taken from the `PATH`.
    pub fn path(&self, program: &str) -> PathBuf {
        let has = |programs: &[(&str, &str)]| programs.iter().any(|(name, _)| *name == program);
        let number = if NODE_PROGRAMS.contains(&program) {
            Some(0)
        } else if has(KUBERNETES_PROGRAMS) {
            Some(1)
        } else {
            MODULES.iter().position(|module| has(module.programs)).map(|at| at + 2)
        };
        number.map_or_else(|| PathBuf::from(program), |number| self.folders[number].join(program))
    }

    /// A `PATH` with the built programs first, and with all of the system's own folders. The node's programs come before
    /// the control plane's of the same name.
    pub fn search_path(&self) -> String {
        self.folders
            .iter()
            .map(|folder| folder.to_string_lossy())
            .chain(
                [
                    "/usr/local/sbin",
                    "/usr/local/bin",
                    "/usr/sbin",
                    "/usr/bin",
                    "/sbin",
                    "/bin",
                ]
                .map(Into::into),
            )
            .collect::<Vec<_>>()
            .join(":")
    }
}

/// Finds the programs in the cache, and builds those that are missing.
pub fn ensure_binaries(releases: Releases) -> Result<Binaries> {
    let cache = cache()?;
    let kubernetes = [releases.nodes.module(), releases.control_plane.module()];
    let folders = kubernetes.into_iter().chain(MODULES);
    let folders = folders
        .map(|module| ensure_module(&cache, module))
        .collect::<Result<_>>()?;
    Ok(Binaries { releases, folders })
}

/// Finds local-path-provisioner in the cache, or builds it. It is alone in its folder.
pub fn ensure_peer() -> Result<PathBuf> {
    ensure_alone(&PEER)
}

/// Finds kubernetes-csi's sidecars and the driver beside them in the cache, or builds them; the driver is the first.
pub fn ensure_sidecars() -> Result<Vec<PathBuf>> {
    let folder = ensure_module(&cache()?, &SIDECARS)?;
    Ok(SIDECARS
        .programs
        .iter()
        .map(|(program, _)| folder.join(program))
        .collect())
}

/// Finds snapshot-controller in the cache, or builds it.
pub fn ensure_snapshot_controller() -> Result<PathBuf> {
    ensure_alone(&SNAPSHOT_CONTROLLER)
}

/// The CRDs of the snapshot API, as that controller's own module pins them.
pub fn snapshot_crds() -> Result<Vec<PathBuf>> {
    let mut list = go(&repository().join("tests/go").join(SNAPSHOT_CONTROLLER.name))?;
    // Downloads it if the controller was found in the cache.
    list.args(["mod", "download", "-json", SNAPSHOT_API]);
    let said = output_within(&mut list, FETCH_LIMIT)?;
    let said: serde_json::Value = serde_json::from_str(&said).context("go mod download printed no JSON")?;
    let folder = said["Dir"].as_str().context("go mod download named no folder")?;
    let one = ["classes", "contents", "s"];
    // The controller does not start without those of groups.
    let kinds = [("snapshot", "volumesnapshot"), ("groupsnapshot", "volumegroupsnapshot")];
    let files = kinds
        .into_iter()
        .flat_map(|(group, kind)| one.map(|end| format!("config/crd/{group}.storage.k8s.io_{kind}{end}.yaml")));
    Ok(files.map(|file| Path::new(folder).join(file)).collect())
}

/// Finds Kubernetes' own end-to-end tests in the cache, or builds them.
pub fn ensure_e2e_test() -> Result<PathBuf> {
    ensure_alone(&E2E_TEST)
}

/// Finds the program in the images of those tests in the cache, or builds it.
pub fn ensure_agnhost() -> Result<PathBuf> {
    ensure_alone(&AGNHOST)
}

/// Finds csi-sanity in the cache, or builds it.
pub fn ensure_sanity() -> Result<PathBuf> {
    ensure_alone(&SANITY)
}

/// Finds Helm in the cache, or builds it.
pub fn ensure_helm() -> Result<PathBuf> {
    ensure_alone(&HELM)
}

/// Finds the registry in the cache, or builds it.
pub fn ensure_registry() -> Result<PathBuf> {
    ensure_alone(&REGISTRY)
}

/// Finds cosign in the cache, or builds it.
pub fn ensure_cosign() -> Result<PathBuf> {
    ensure_alone(&COSIGN)
}

/// The program of a module that has no other.
fn ensure_alone(module: &Module) -> Result<PathBuf> {
    Ok(ensure_module(&cache()?, module)?.join(module.programs[0].0))
}

/// Names of the programs that [`ensure_for_image`] can build.
pub fn names_for_images() -> impl Iterator<Item = &'static str> {
    FOR_IMAGES
        .iter()
        .flat_map(|module| module.programs)
        .map(|(name, _)| *name)
}

/// Finds a program for an image in the cache, or builds it.
pub fn ensure_for_image(program: &str) -> Result<PathBuf> {
    let module = FOR_IMAGES
        .iter()
        .find(|module| module.programs.iter().any(|(name, _)| *name == program))
        .with_context(|| format!("no Go module of the repository has {program}"))?;
    Ok(ensure_module(&cache()?, module)?.join(program))
}

fn ensure_module(cache: &Path, module: &Module) -> Result<PathBuf> {
    let source = repository().join("tests/go").join(module.name);
    let folder = cache.join(format!("{}-{}", module.name, pins_hash(&source, module)?));
    if module
        .programs
        .iter()
        .all(|(program, _)| folder.join(program).is_file())
    {
        return Ok(folder);
    }
    let mut step = Step::begin(format!("build {} from its Go module, once", module.name));
    let building = folder.with_extension(format!("building-{}", std::process::id()));
    make_folder(&building)?;
    let result = build(module, &source, &building, &mut step).and_then(|()| {
        make_folder(&folder)?;
        for (program, _) in module.programs {
            // Renamed one by one. The folder counts as complete only with the last program, so a half-built one never
            // does.
            std::fs::rename(building.join(program), folder.join(program))
                .with_context(|| format!("failed to move {program} into {}", folder.display()))?;
        }
        Ok(())
    });
    let _ = std::fs::remove_dir_all(&building);
    result.with_context(|| {
        format!(
            "failed to build {}; the source is pinned in {}",
            module.name,
            source.display()
        )
    })?;
    step.done(&folder.to_string_lossy());
    Ok(folder)
}

fn build(module: &Module, source: &Path, into: &Path, step: &mut Step) -> Result<()> {
    let packages = module.programs.iter().map(|(_, package)| *package);
    step.update("fetching modules");
    let mut list = go(source)?;
    list.args(["list", "-mod=readonly", "-deps"]).args(packages.clone());
    let total = output_within(&mut list, FETCH_LIMIT)?.lines().count();
    let mut build = go(source)?;
    match module.programs {
        [(program, _)] if Path::new(program).extension().is_some_and(|end| end == "test") => build.args(["test", "-c"]),
        _ => build.arg("build"),
    };
    build
        .args(["-v", "-mod=readonly", "-trimpath", WITHOUT_DEBUG_DATA])
        .args(module.flags)
        .env("GOGC", COLLECT_SELDOM);
    match module.programs {
        // With a single package, the output can be named. etcd needs that: its package is called "server".
        [(program, _)] => build.arg("-o").arg(into.join(program)),
        _ => build.arg("-o").arg(into.join("")),
    };
    build.args(packages);
    let mut compiled = 0_usize;
    watched(&mut build, |line| {
        compiled += 1;
        step.update(&format!("{compiled} of at most {total} packages: {line}"));
    })?;
    Ok(())
}

fn go(source: &Path) -> Result<std::process::Command> {
    let program = find_program("go").context("go is not on the PATH: install it from https://go.dev/dl/")?;
    let mut go = command(program, [] as [&str; 0]);
    go.current_dir(source).env("CGO_ENABLED", "0").env_remove("GOFLAGS");
    Ok(go)
}

/// A short hash of everything that the programs are built from.
fn pins_hash(source: &Path, module: &Module) -> Result<String> {
    let mut hash = Sha256::new();
    // The source of our own program, or the list of other projects' programs.
    let code = ["main.go", "tools.go"]
        .into_iter()
        .find(|file| source.join(file).exists());
    for file in ["go.mod", "go.sum"].into_iter().chain(code) {
        let path = source.join(file);
        let content = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        hash.update(&content);
    }
    for flag in module.flags {
        hash.update(flag.as_bytes());
    }
    Ok(short_hex(&hash.finalize()))
}

/// The Rust target that images are built for: this machine's.
pub fn host_target() -> Result<&'static str> {
    let target = match std::env::consts::ARCH {
        "x86_64" => "x86_64-unknown-linux-gnu",
        "aarch64" => "aarch64-unknown-linux-gnu",
        _ => "",
    };
    ensure!(
        !target.is_empty(),
        "no image can be built on {}: use an x86_64 or aarch64 machine",
        std::env::consts::ARCH
    );
    Ok(target)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::ValueEnum as _;

    use super::{
        AGNHOST, COSIGN, E2E_TEST, FOR_IMAGES, HELM, MODULES, PEER, REGISTRY, Release, SIDECARS, SNAPSHOT_CONTROLLER,
        pins_hash,
    };
    use crate::layout::repository;

    /// The modules that share many packages with Kubernetes' programs, in versions that suit both.
    const LIKE_KUBERNETES: [&str; 5] = [
        "conformance",
        "coredns",
        "etcd",
        "external-snapshotter",
        "local-path-provisioner",
    ];

    fn required(module: &str) -> BTreeMap<String, String> {
        let path = repository().join("tests/go").join(module).join("go.mod");
        let text = std::fs::read_to_string(path).unwrap();
        let words = text.lines().filter_map(|line| {
            let mut words = line.strip_prefix("require ").unwrap_or(line).split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        });
        words.filter(|(_, version)| version.starts_with('v')).collect()
    }

    #[test]
    fn packages_shared_with_kubernetes_are_compiled_once() {
        let there = required("kubernetes");
        assert!(there.len() > 100);
        for module in LIKE_KUBERNETES {
            let here = required(module);
            let shared: Vec<_> = here.iter().filter(|(name, _)| there.contains_key(*name)).collect();
            assert!(shared.len() > 20, "{module}");
            for (name, version) in shared {
                assert_eq!(there.get(name), Some(version), "{name} in {module}");
            }
        }
    }

    #[test]
    fn a_release_of_kubernetes_says_the_version_that_its_module_pins() {
        for release in Release::value_variants() {
            let module = release.module();
            let version = release.version();
            assert_eq!(required(module.name)["k8s.io/kubernetes"], version);
            assert!(module.flags[1].contains(&format!("gitVersion={version} ")));
        }
    }

    #[test]
    fn every_program_is_pinned_by_its_module() {
        for module in MODULES
            .iter()
            .chain(FOR_IMAGES)
            .chain(Release::value_variants().iter().map(|release| release.module()))
            .chain([
                &PEER,
                &E2E_TEST,
                &AGNHOST,
                &HELM,
                &REGISTRY,
                &COSIGN,
                &SIDECARS,
                &SNAPSHOT_CONTROLLER,
            ])
        {
            let source = repository().join("tests/go").join(module.name);
            for (program, package) in module.programs.iter().filter(|(_, package)| *package != ".") {
                let tools = std::fs::read_to_string(source.join("tools.go")).unwrap();
                assert!(
                    tools.contains(&format!("\"{package}\"")),
                    "{program} is not in tools.go"
                );
            }
            assert_eq!(pins_hash(&source, module).unwrap().len(), 12);
        }
    }
}
