//! The real `lb decap` on a host.

use crate::{agent::binary, netns::Netns, process::Process};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::Command;

/// How often it prints what it has counted.
const INTERVAL: &str = "100ms";

/// A running decapsulator. Dropped, it is killed.
#[derive(Debug)]
pub struct Decap {
    process: Process,
}

impl Decap {
    /// The command `lb decap` on an interface of a host.
    pub fn command(netns: &Netns, interface: &str, args: &[&str]) -> Result<Command> {
        let mut command = netns.command(binary()?);
        command
            .args(["decap", "--interface", interface])
            .args(args)
            .env_remove("LB_SOCKET");
        Ok(command)
    }

    /// Starts it, and waits until it is ready.
    pub fn start(netns: &Netns, interface: &str, args: &[&str]) -> Result<Self> {
        let args = [&["--json", "--stats-interval", INTERVAL], args].concat();
        Ok(Self {
            process: Process::spawn(&mut Self::command(netns, interface, &args)?)?,
        })
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// What it has last printed that it counted: an older state than that of now.
    pub fn counted(&self) -> Result<Value> {
        match self.process.output().lines().last() {
            Some(line) => serde_json::from_str(line).context("no JSON"),
            None => Ok(Value::Null),
        }
    }

    /// One counter in [`counted`](Self::counted).
    pub fn counter(&self, name: &str) -> Result<u64> {
        Ok(self.counted()?["counters"][name].as_u64().unwrap_or(0))
    }

    /// Waits for its end without having asked for it, and returns what it has said.
    pub fn fails(mut self) -> Result<String> {
        let status = self.process.wait()?;
        ensure!(status.code() == Some(1), "lb decap ended with {status}");
        Ok(self.log())
    }

    /// Ends it as an init system does, and returns what it counted in all.
    pub fn stop(mut self) -> Result<Value> {
        self.process.end(Signal::SIGTERM)?;
        self.counted()
    }
}
