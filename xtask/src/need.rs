//! What building and testing needs, and whether it is there. Asks programs, never the network.

use std::{env, path::Path, process::Command};

/// One thing that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// `core` for the BPF target, with a compiler that can use it.
    BpfCore,
    /// The linker that makes BPF objects.
    BpfLinker,
    /// iproute2, by which test beds are laid out.
    Ip,
    /// `cargo fmt`.
    Rustfmt,
    /// `cargo clippy`.
    Clippy,
}

impl Need {
    /// Everything, in the order in which it is installed.
    pub const ALL: [Self; 5] = [
        Self::BpfCore,
        Self::BpfLinker,
        Self::Ip,
        Self::Rustfmt,
        Self::Clippy,
    ];

    /// What it is, for people.
    pub const fn text(self) -> &'static str {
        match self {
            Self::BpfCore => "Rust core library for BPF",
            Self::BpfLinker => "bpf-linker",
            Self::Ip => "ip (iproute2)",
            Self::Rustfmt => "rustfmt",
            Self::Clippy => "clippy",
        }
    }

    /// Where it was found, or `None` if it is missing.
    pub fn find(self) -> Option<String> {
        match self {
            // Objects built elsewhere need no BPF toolchain here.
            Self::BpfCore | Self::BpfLinker if env::var_os("LB_EBPF_OBJECT").is_some() => {
                Some("not needed, LB_EBPF_OBJECT is set".to_owned())
            }
            Self::BpfCore => bpf_core(),
            Self::BpfLinker => answer("bpf-linker", &["--version"]),
            Self::Ip => answer("ip", &["-Version"]),
            Self::Rustfmt => answer("cargo", &["fmt", "--version"]),
            Self::Clippy => answer("cargo", &["clippy", "--version"]),
        }
    }
}

/// Everything that is missing.
pub fn missing() -> Vec<Need> {
    Need::ALL
        .into_iter()
        .filter(|need| need.find().is_none())
        .collect()
}

/// The routes of `lb-user/build.rs`, in its order.
fn bpf_core() -> Option<String> {
    let asked = env::var("LB_EBPF_TOOLCHAIN").ok();
    match asked.as_deref() {
        Some("debian") => debian_core(),
        Some(name) => rustup_core(name),
        None => debian_core().or_else(|| rustup_core("nightly")),
    }
}

fn debian_core() -> Option<String> {
    let rustc = "/usr/bin/rustc";
    let sysroot = answer(rustc, &["--print", "sysroot"])?;
    let core = Path::new(&sysroot).join("lib/rustlib/bpfel-unknown-none/lib");
    let version = answer(rustc, &["--version"])?;
    core.is_dir().then(|| format!("{rustc}, {version}"))
}

fn rustup_core(toolchain: &str) -> Option<String> {
    let sysroot = answer("rustup", &["run", toolchain, "rustc", "--print", "sysroot"])?;
    let source = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core");
    source
        .is_dir()
        .then(|| format!("rust-src of rustup's {toolchain}"))
}

/// The first line that a command prints, or `None` if it cannot be run or fails.
pub fn answer(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    output.status.success().then_some(line)
}
