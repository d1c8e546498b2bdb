//! Installing what is missing.

use crate::{
    distro::Distro,
    need::{Need, answer, missing},
};
use anyhow::{Context as _, Result, bail, ensure};
use xshell::{Shell, cmd};

const LLVM: &str = "/usr/lib/llvm-22";
const CORE_PACKAGES: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];
const LINKER_PACKAGES: [&str; 9] = [
    "gcc",
    "g++",
    "pkg-config",
    "llvm-22-dev",
    "libpolly-22-dev",
    "zlib1g-dev",
    "libzstd-dev",
    "libxml2-dev",
    "libffi-dev",
];

/// Says what is there and what is missing; fails if anything is.
pub fn check() -> Result<()> {
    let mut lacking = Vec::new();
    for need in Need::ALL {
        match need.find() {
            Some(found) => println!("  ok       {:26} {found}", need.text()),
            None => {
                println!("  MISSING  {}", need.text());
                lacking.push(need);
            }
        }
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let distro = Distro::detect();
    if distro == Distro::Debian {
        bail!("something is missing: cargo xtask setup installs it");
    }
    println!("\nInstall what is missing:");
    for need in &lacking {
        println!("# {}", need.text());
        println!("{}", distro.advice(*need));
    }
    bail!(
        "{} missing: install as said above, then run this again",
        lacking.len()
    )
}

/// Installs what is missing, or says what to install where we cannot.
pub fn install(shell: &Shell) -> Result<()> {
    let lacking = missing();
    if !lacking.is_empty() && Distro::detect() == Distro::Debian {
        packages(shell, &lacking)?;
        components(shell, &lacking)?;
        if lacking.contains(&Need::BpfLinker) {
            linker(shell)?;
        }
    }
    check()
}

/// Set-up as part of another command: silent and quick when all is there.
pub fn ensure_ready(shell: &Shell) -> Result<()> {
    let lacking = missing();
    if lacking.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = lacking.iter().map(|need| need.text()).collect();
    println!("Missing: {}. Setting up first.", names.join(", "));
    install(shell)
}

fn packages(shell: &Shell, lacking: &[Need]) -> Result<()> {
    let mut wanted = Vec::new();
    if lacking.contains(&Need::BpfCore) {
        wanted.extend(CORE_PACKAGES);
    }
    if lacking.contains(&Need::BpfLinker) {
        wanted.extend(LINKER_PACKAGES);
    }
    if lacking.contains(&Need::Ip) {
        wanted.push("iproute2");
    }
    wanted.retain(|package| !is_installed(package));
    if wanted.is_empty() {
        return Ok(());
    }
    let root = as_root()?;
    println!("Installing packages: {}", wanted.join(" "));
    cmd!(shell, "{root} apt-get update").run()?;
    let (known, unknown): (Vec<_>, Vec<_>) =
        wanted.into_iter().partition(|package| is_known(package));
    if let Some(package) = unknown
        .iter()
        .find(|package| LINKER_PACKAGES.contains(package))
    {
        bail!(
            "this release has no package {package}, which building bpf-linker needs. Add a package \
             source that has LLVM 22, or put a released bpf-linker 0.13 binary on the PATH"
        );
    }
    if !known.is_empty() {
        cmd!(
            shell,
            "{root} env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends {known...}"
        )
        .run()?;
    }
    if !unknown.is_empty() {
        println!(
            "This release has no {}: taking rustup's nightly.",
            unknown.join(", ")
        );
        ensure!(
            answer("rustup", &["--version"]).is_some(),
            "rustup is not installed, and this release has no {}: install rustup first",
            unknown.join(", ")
        );
        cmd!(
            shell,
            "rustup toolchain install nightly --profile minimal --component rust-src"
        )
        .run()?;
    }
    Ok(())
}

fn components(shell: &Shell, lacking: &[Need]) -> Result<()> {
    let mut wanted = Vec::new();
    if lacking.contains(&Need::Rustfmt) {
        wanted.push("rustfmt");
    }
    if lacking.contains(&Need::Clippy) {
        wanted.push("clippy");
    }
    if wanted.is_empty() {
        return Ok(());
    }
    ensure!(
        answer("rustup", &["--version"]).is_some(),
        "{} missing, and rustup is not installed: install them from where your cargo comes from",
        wanted.join(" and ")
    );
    cmd!(shell, "rustup component add {wanted...}").run()?;
    Ok(())
}

fn linker(shell: &Shell) -> Result<()> {
    println!("Building bpf-linker (one to three minutes)");
    let _prefix = shell.push_env("LLVM_PREFIX", LLVM);
    cmd!(
        shell,
        "cargo install bpf-linker --version =0.13.0 --locked --no-default-features --features llvm-22"
    )
    .run()?;
    answer("bpf-linker", &["--version"]).context(
        "bpf-linker was installed but is not on the PATH: add cargo's bin directory (~/.cargo/bin) to it",
    )?;
    Ok(())
}

/// Whether we are root.
pub fn is_root() -> bool {
    answer("id", &["-u"]).as_deref() == Some("0")
}

/// What to put before a command that only root may run; `env` changes nothing.
fn as_root() -> Result<&'static str> {
    if is_root() {
        return Ok("env");
    }
    ensure!(
        answer("sudo", &["-V"]).is_some(),
        "installing packages needs root, and there is no sudo: run `cargo xtask setup` as root"
    );
    println!("Not root: using sudo to install packages.");
    Ok("sudo")
}

fn is_installed(package: &str) -> bool {
    answer("dpkg-query", &["-W", "-f=${db:Status-Status}", package]).as_deref() == Some("installed")
}

/// Whether apt could install it, in any version.
fn is_known(package: &str) -> bool {
    answer("apt-cache", &["show", "--no-all-versions", package]).is_some()
}
