//! The programs of an earlier commit, built once and kept in the cache: for tests that upgrade a cluster to this tree.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::binaries::host_target;
use crate::command::{cargo, command, output, watched};
use crate::layout::{cache, make_folder, repository, write_file};
use crate::lock::Lock;
use crate::progress::Step;

/// The last commit before the tests became crates of their own. Update it with each release.
const COMMIT: &str = "6cd9b6626f003416f11de02ffb50ef3bef731fe4";

/// The last commit before Manila's shares let in the nodes that mount them.
const OPENSTACK: &str = "7778d226d51eca7b92c462faf5127e755f4c8aaa";

/// What these programs are packages of.
const PACKAGES: [&str; 3] = [
    "--package=mooring-mounter",
    "--package=mooring-shim",
    "--package=flex-provisioner",
];

/// Longest for compiling the programs, from nothing and on a busy machine.
const LIMIT_SECONDS: &str = "1500";

/// The manifests of mounters and controllers in that commit, and what they are called in the cache.
const MOUNTERS: (&str, &str) = ("configmaps/install/mounter.yaml", "mounter.yaml");
const CONTROLLERS: (&str, &str) = ("configmaps/install/provisioner.yaml", "provisioner.yaml");

/// The programs of that commit.
#[derive(Debug, Clone)]
pub struct Earlier {
    folder: PathBuf,
}

impl Earlier {
    /// The node daemon, which is also the agent.
    pub fn mounter(&self) -> PathBuf {
        self.folder.join("mounter")
    }

    pub fn shim(&self) -> PathBuf {
        self.folder.join("vcs")
    }

    pub fn controller(&self) -> PathBuf {
        self.folder.join("flex-provisioner")
    }

    /// The manifest that installed the mounters.
    pub fn manifest(&self) -> Result<String> {
        self.read(MOUNTERS.1)
    }

    /// The manifest that installed the controllers.
    pub fn controllers_manifest(&self) -> Result<String> {
        self.read(CONTROLLERS.1)
    }

    fn read(&self, manifest: &str) -> Result<String> {
        let path = self.folder.join(manifest);
        std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    }
}

/// The reason why the programs are unavailable without anyone's fault: a clone without the history lacks that commit.
pub fn missing() -> Option<String> {
    lacks(COMMIT)
}

fn lacks(commit: &str) -> Option<String> {
    let object = format!("{commit}^{{commit}}");
    output(&mut git(&["cat-file", "-e", &object]))
        .is_err()
        .then(|| format!("this clone has no commit {commit}: run `git fetch --unshallow`"))
}

/// As [`missing`], of [`openstack`].
pub fn openstack_missing() -> Option<String> {
    lacks(OPENSTACK)
}

/// A provisioner of Cinder and Manila that is older than this one.
#[derive(Debug)]
pub struct EarlierOpenstack {
    pub program: PathBuf,
    /// The ConfigMap of Manila, with the account that it needed.
    pub manila: String,
}

/// Finds the program in the cache, or builds it.
pub fn openstack() -> Result<EarlierOpenstack> {
    let folder = cache()?.join(format!("earlier-openstack-{}", &OPENSTACK[..12]));
    let program = folder.join("provisioner-openstack");
    let _lock = Lock::images()?;
    if !program.is_file() {
        let mut step = Step::begin(format!(
            "build the OpenStack provisioner of commit {}, once",
            &OPENSTACK[..12]
        ));
        let work = folder.join("work");
        let source = work.join("source");
        let built = unpack(OPENSTACK, &work, &source)
            .and_then(|()| compile(&source, &work, &["--package=provisioner-openstack"], &mut step))
            .and_then(|programs| keep(&programs.join("provisioner-openstack"), &program));
        let _ = std::fs::remove_dir_all(&work);
        built.with_context(|| format!("failed to build the provisioner of commit {OPENSTACK}"))?;
        step.done("");
    }
    let manila = format!("{OPENSTACK}:configmaps/openstack/manila.yaml");
    Ok(EarlierOpenstack {
        program,
        manila: output(&mut git(&["show", &manila]))?,
    })
}

/// Finds the programs in the cache, or builds them.
pub fn ensure() -> Result<Earlier> {
    let folder = cache()?.join(format!("earlier-{}", &COMMIT[..12]));
    let earlier = Earlier { folder };
    if is_whole(&earlier) {
        return Ok(earlier);
    }
    let _lock = Lock::images()?;
    if is_whole(&earlier) {
        return Ok(earlier);
    }
    let mut step = Step::begin(format!("build the programs of commit {}, once", &COMMIT[..12]));
    let work = earlier.folder.join("work");
    let built = build(&work, &earlier, &mut step);
    let _ = std::fs::remove_dir_all(&work);
    built.with_context(|| format!("failed to build the programs of commit {COMMIT}"))?;
    step.done("");
    Ok(earlier)
}

/// The manifests are written last.
fn is_whole(earlier: &Earlier) -> bool {
    let programs = [earlier.mounter(), earlier.shim(), earlier.controller()];
    let manifests = [earlier.manifest(), earlier.controllers_manifest()];
    manifests.iter().all(Result::is_ok) && programs.iter().all(|program| program.is_file())
}

fn git(args: &[&str]) -> Command {
    let mut git = command("git", ["-C"]);
    git.arg(repository()).args(args);
    git
}

fn build(work: &Path, earlier: &Earlier, step: &mut Step) -> Result<()> {
    step.update("unpacking its source");
    let source = work.join("source");
    unpack(COMMIT, work, &source)?;
    let programs = compile(&source, work, &PACKAGES, step)?;
    // The same source would make the same shim, and a test that looks at a node must be able to tell them apart.
    let mut shim = OpenOptions::new()
        .append(true)
        .open(programs.join("vcs"))
        .context("failed to open the earlier shim")?;
    shim.write_all(b"\n").context("failed to mark the earlier shim")?;
    drop(shim);
    for (name, place) in [
        ("mounter", earlier.mounter()),
        ("vcs", earlier.shim()),
        ("flex-provisioner", earlier.controller()),
    ] {
        keep(&programs.join(name), &place)?;
    }
    for (manifest, name) in [MOUNTERS, CONTROLLERS] {
        let text = std::fs::read(source.join(manifest)).with_context(|| format!("the commit has no {manifest}"))?;
        ensure!(!text.is_empty(), "{manifest} of the commit is empty");
        write_file(&earlier.folder.join(name), text)?;
    }
    Ok(())
}

/// Unpacks what the repository had in that commit.
fn unpack(commit: &str, work: &Path, source: &Path) -> Result<()> {
    let _ = std::fs::remove_dir_all(work);
    make_folder(source)?;
    let archive = work.join("source.tar");
    let to = format!("--output={}", archive.display());
    output(&mut git(&["archive", "--format=tar", &to, commit]))?;
    let file = std::fs::File::open(&archive).with_context(|| format!("failed to open {}", archive.display()))?;
    tar::Archive::new(file)
        .unpack(source)
        .with_context(|| format!("failed to unpack {}", archive.display()))
}

/// The folder with the programs of these packages.
fn compile(source: &Path, work: &Path, packages: &[&str], step: &mut Step) -> Result<PathBuf> {
    // Not beside the images' programs: cargo would take this commit's crates for that one's, as it would those of
    // another work tree.
    let (target, compiled) = (host_target()?, work.join("target"));
    watched(&mut build_command(source, target, &compiled, packages)?, |line| {
        step.update(line.trim());
    })?;
    Ok(compiled.join(target).join("dist"))
}

/// In one step: a suite of another work tree may read the program that was there.
fn keep(program: &Path, place: &Path) -> Result<()> {
    let copy = place.with_extension("new");
    std::fs::copy(program, &copy)
        .and_then(|_| std::fs::rename(&copy, place))
        .with_context(|| format!("failed to keep {}", place.display()))
}

/// Static, as the images' programs are.
fn flags_of_programs(target: &str) -> String {
    format!("target.{target}.rustflags=[\"-Ctarget-feature=+crt-static\",\"-Crelocation-model=static\"]")
}

/// Like the images' programs, whatever that commit says about the profile.
fn build_command(source: &Path, target: &str, compiled: &Path, packages: &[&str]) -> Result<Command> {
    let flags = flags_of_programs(target);
    let mut cargo = cargo([
        "build",
        "--locked",
        "--profile=dist",
        "--target",
        target,
        "--config",
        &flags,
        "--bins",
    ])?;
    cargo.args(packages);
    let mut limited = command("timeout", ["--kill-after=10", LIMIT_SECONDS]);
    limited.arg(cargo.get_program()).args(cargo.get_args());
    for (name, value) in cargo.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
        .current_dir(source)
        .env("CARGO_TARGET_DIR", compiled)
        .env("CARGO_PROFILE_DIST_LTO", "false")
        .env("CARGO_PROFILE_DIST_OPT_LEVEL", "s")
        .env("CARGO_PROFILE_DIST_CODEGEN_UNITS", "16");
    Ok(limited)
}
