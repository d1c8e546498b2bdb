//! The real `lb` in a namespace: the agent, and the command line against its socket.

use crate::{netns::Netns, process::Process, scratch::Scratch};
use anyhow::{Context as _, Result, ensure};
use nix::{sys::signal::Signal, unistd::Pid};
use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Output, Stdio},
    sync::OnceLock,
};

/// The `lb` binary of this build.
///
/// Under cargo it is built first, which takes no time when it is up to date: a test package's build
/// alone does not include it. Otherwise it is `LB_BIN`, or stands beside this executable.
pub fn binary() -> Result<&'static Path> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY
        .get_or_init(|| find_binary().map_err(|e| format!("{e:#}")))
        .as_deref()
        .map_err(|e| anyhow::anyhow!("{e}"))
}

fn find_binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os("LB_BIN") {
        return Ok(path.into());
    }
    let executable = env::current_exe().context("cannot tell where this executable is")?;
    // target/PROFILE/demo or target/PROFILE/deps/e2e-HASH
    let profile = executable
        .ancestors()
        .skip(1)
        .find(|directory| !directory.ends_with("deps"))
        .context("this executable is in no directory")?;
    let binary = profile.join("lb");
    if let Some(cargo) = env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        // With this package, so that features are as in its own build and nothing is built twice.
        build
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args([
                "build",
                "--quiet",
                "--package",
                "lb-user",
                "--package",
                "lb-tests",
            ])
            .args(["--bin", "lb"]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        if let Some(target) = profile.parent() {
            build.arg("--target-dir").arg(target);
        }
        let status = build.status().context("cannot run cargo to build lb")?;
        ensure!(status.success(), "cargo could not build lb: see above");
    }
    ensure!(
        binary.is_file(),
        "there is no {}: build it with `cargo build --package lb-user`, or set LB_BIN",
        binary.display()
    );
    Ok(binary)
}

/// A running agent. Dropped, it is killed.
#[derive(Debug)]
pub struct Agent {
    netns: Netns,
    socket: PathBuf,
    process: Process,
}

/// How to start an agent.
#[derive(Clone, Debug)]
pub struct Start<'a> {
    /// Where.
    pub netns: &'a Netns,
    /// Interfaces to attach to.
    pub interfaces: &'a [String],
    /// The control socket.
    pub socket: PathBuf,
    /// The config file, if any.
    pub config: Option<PathBuf>,
    /// What to give as `--xdp-mode`.
    pub xdp_mode: &'a str,
}

impl<'a> Start<'a> {
    /// Natively, without a config.
    pub fn new(netns: &'a Netns, interfaces: &'a [String], scratch: &Scratch) -> Self {
        Self {
            netns,
            interfaces,
            socket: scratch.path("lb.sock"),
            config: None,
            xdp_mode: "native",
        }
    }

    /// The command `lb run`.
    pub fn command(&self) -> Result<Command> {
        let mut command = self.netns.command(binary()?);
        command.arg("run").arg("--socket").arg(&self.socket);
        for interface in self.interfaces {
            command.args(["--interface", interface]);
        }
        command.args(["--xdp-mode", self.xdp_mode]);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.env_remove("LB_SOCKET").stdin(Stdio::null());
        Ok(command)
    }

    /// Runs an agent that is expected not to start, and returns what it said.
    pub fn expect_refusal(&self) -> Result<String> {
        refusal(&mut self.command()?)
    }
}

/// Runs `lb run`, which is expected to be refused, and returns what it said.
pub fn refusal(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot run lb")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.code() == Some(1),
        "lb run was to be refused, but ended with {}: {said}",
        output.status
    );
    Ok(said)
}

impl Agent {
    /// Starts an agent with a config, and waits until it is ready.
    pub fn start(
        scratch: &Scratch,
        netns: &Netns,
        interfaces: &[String],
        config: &str,
    ) -> Result<Self> {
        Self::spawn(&Start {
            config: Some(scratch.write("lb.toml", config)?),
            ..Start::new(netns, interfaces, scratch)
        })
    }

    /// Starts an agent, and waits until it is ready.
    pub fn spawn(start: &Start<'_>) -> Result<Self> {
        Ok(Self {
            netns: start.netns.clone(),
            socket: start.socket.clone(),
            process: Process::spawn(&mut start.command()?)?,
        })
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Its control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Runs `lb` with these arguments against the agent's socket.
    pub fn lb(&self, args: &[&str]) -> Result<Output> {
        self.netns
            .command(binary()?)
            .args(args)
            .arg("--socket")
            .arg(&self.socket)
            .stdin(Stdio::null())
            .output()
            .context("cannot run lb")
    }

    /// Runs `lb`, which is to succeed, and returns what it prints.
    pub fn ok(&self, args: &[&str]) -> Result<String> {
        let output = self.lb(args)?;
        ensure!(
            output.status.success(),
            "lb {} failed ({}): {}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `lb` with `--json`, and returns what it prints.
    pub fn json(&self, args: &[&str]) -> Result<serde_json::Value> {
        let text = self.ok(&[args, &["--json"]].concat())?;
        serde_json::from_str(&text)
            .with_context(|| format!("lb {} --json printed no JSON: {text}", args.join(" ")))
    }

    /// Runs `lb`, which is to be refused, and returns what it says.
    pub fn refused(&self, args: &[&str]) -> Result<String> {
        let output = self.lb(args)?;
        ensure!(
            output.status.code() == Some(1),
            "lb {} was to be refused, but ended with {}",
            args.join(" "),
            output.status
        );
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.process.wait()
    }

    /// Stops it as an init system does, and checks that it ends well.
    pub fn stop(mut self) -> Result<()> {
        self.process.end(Signal::SIGTERM)
    }
}
