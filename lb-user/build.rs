//! Builds the BPF objects with whichever BPF toolchain there is, and puts them where
//! `dataplane::object` includes them from.
//!
//! Tried in this order:
//! 1. `LB_EBPF_OBJECT`: a directory with the objects `lb`, `decap` and `testbed`, built elsewhere;
//! 2. `LB_EBPF_TOOLCHAIN`: a rustup toolchain with `rust-src`, or `debian`;
//! 3. Debian's `rustc-web`, whose package `libstd-rust-web-dev-bpf` has a prebuilt `core` for BPF;
//! 4. rustup's nightly with `rust-src`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

const TARGET: &str = "bpfel-unknown-none";
const OBJECTS: [&str; 3] = ["lb", "decap", "testbed"];
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";

enum Toolchain {
    /// Debian's compiler, with a prebuilt core.
    Debian,
    /// A rustup toolchain that builds core from source.
    Rustup(String),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nerror: the BPF objects were not built\n{message}\n");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: run by cargo only")?);
    let manifest = env::var("CARGO_MANIFEST_DIR").map_err(|e| e.to_string())?;
    let root = Path::new(&manifest)
        .parent()
        .ok_or("no workspace around lb-user")?;
    for path in ["lb-ebpf", "lb-common", "Cargo.lock", "lb-user/build.rs"] {
        println!("cargo:rerun-if-changed={}", root.join(path).display());
    }
    for var in ["LB_EBPF_OBJECT", "LB_EBPF_TOOLCHAIN", "PATH"] {
        println!("cargo:rerun-if-env-changed={var}");
    }

    if let Some(dir) = env::var_os("LB_EBPF_OBJECT") {
        let dir = PathBuf::from(dir);
        for object in OBJECTS {
            copy(&dir.join(object), &out.join(object))?;
        }
        return Ok(());
    }
    let toolchain = find_toolchain()?;
    let target_dir = out.join("bpf-target");
    build(root, &toolchain, &target_dir)?;
    for object in OBJECTS {
        copy(
            &target_dir.join(TARGET).join("release").join(object),
            &out.join(object),
        )?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to)
        .map(|_| ())
        .map_err(|e| format!("cannot copy {} to {}: {e}", from.display(), to.display()))
}

fn find_toolchain() -> Result<Toolchain, String> {
    let mut tried = Vec::new();
    let asked = env::var("LB_EBPF_TOOLCHAIN").ok();
    let found = match asked.as_deref() {
        Some("debian") => debian().map(|()| Toolchain::Debian),
        Some(name) => rustup(name).map(|()| Toolchain::Rustup(name.to_owned())),
        None => {
            tried.push("LB_EBPF_OBJECT and LB_EBPF_TOOLCHAIN: not set".to_owned());
            debian().map(|()| Toolchain::Debian).or_else(|why| {
                tried.push(why);
                rustup("nightly").map(|()| Toolchain::Rustup("nightly".to_owned()))
            })
        }
    };
    let linker = probe(Command::new("bpf-linker").arg("--version"));
    match (found, linker) {
        (Ok(toolchain), Ok(_)) => Ok(toolchain),
        (found, linker) => {
            if let Err(why) = found {
                tried.push(why);
            }
            if let Err(why) = linker {
                tried.push(format!("bpf-linker: {why}"));
            }
            Err(format!(
                "no BPF toolchain is complete. Tried:\n  - {}\nInstall what is missing with one of\n  \
                 - cargo xtask setup (Debian, Ubuntu: installs all of it)\n  \
                 - apt-get install rustc-web libstd-rust-web-dev-bpf, and cargo install bpf-linker\n  \
                 - rustup toolchain install nightly --component rust-src, and cargo install bpf-linker\n\
                 or point LB_EBPF_OBJECT to a directory with objects built elsewhere.",
                tried.join("\n  - ")
            ))
        }
    }
}

/// Runs a command and returns what it printed, or why that failed in one line.
fn probe(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr)
            .lines()
            .next()
            .unwrap_or("failed and said nothing")
            .to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

fn debian() -> Result<(), String> {
    let sysroot = probe(Command::new(DEBIAN_RUSTC).args(["--print", "sysroot"]))
        .map_err(|why| format!("{DEBIAN_RUSTC} (Debian's rustc-web): {why}"))?;
    let core = Path::new(&sysroot)
        .join("lib/rustlib")
        .join(TARGET)
        .join("lib");
    if core.is_dir() {
        Ok(())
    } else {
        Err(format!(
            "{DEBIAN_RUSTC}: no core for {TARGET} in {} (Debian's libstd-rust-web-dev-bpf)",
            core.display()
        ))
    }
}

fn rustup(name: &str) -> Result<(), String> {
    let sysroot = probe(Command::new("rustup").args(["run", name, "rustc", "--print", "sysroot"]))
        .map_err(|why| format!("rustup toolchain {name}: {why}"))?;
    let source = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core");
    if source.is_dir() {
        Ok(())
    } else {
        Err(format!(
            "rustup toolchain {name}: component rust-src is missing"
        ))
    }
}

fn build(root: &Path, toolchain: &Toolchain, target_dir: &Path) -> Result<(), String> {
    let mut cargo;
    match toolchain {
        Toolchain::Debian => {
            cargo = Command::new(env::var_os("CARGO").ok_or("CARGO is not set")?);
            cargo.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
        }
        Toolchain::Rustup(name) => {
            cargo = Command::new("rustup");
            cargo
                .args(["run", name, "cargo"])
                .env_remove("RUSTC")
                .env_remove("CARGO");
        }
    }
    cargo
        .current_dir(root)
        .args([
            "build",
            "--package",
            "lb-ebpf",
            "--bins",
            "--release",
            "--locked",
        ])
        .args(["--target", TARGET])
        .arg("--target-dir")
        .arg(target_dir);
    if matches!(toolchain, Toolchain::Rustup(_)) {
        cargo.args(["-Z", "build-std=core"]);
    }
    // What the outer build sets for its own target does not fit this one.
    for var in [
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTFLAGS",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET",
        "CARGO_MAKEFLAGS",
    ] {
        cargo.env_remove(var);
    }
    let flags = [
        // aya-ebpf picks the layout of pt_regs by it; XDP uses none.
        "--cfg=bpf_target_arch=\"x86_64\"",
        // Kernel types for the maps.
        "-Cdebuginfo=2",
        "-Clink-arg=--btf",
        // v4 is not accepted by kernel 6.1.
        "-Ctarget-cpu=v3",
    ];
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    let status = cargo
        .status()
        .map_err(|e| format!("cannot run {cargo:?}: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!(
            "{cargo:?} failed ({status}); its messages are above"
        ))
    }
}
