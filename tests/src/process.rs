//! A running `lb`, whatever its verb, that says when it is ready.

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// Longer than starting or stopping takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
const READY: &str = "lb: ready";

/// A process of `lb`. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// What it has said so far, on standard error and on standard output.
    log: Arc<Mutex<String>>,
    output: Arc<Mutex<String>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Process {
    /// Starts it, and waits until it is ready.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run lb")?;
        let stderr = child.stderr.take().context("no stderr")?;
        let stdout = child.stdout.take().context("no stdout")?;
        let (line_sender, lines) = mpsc::channel();
        let (log, output) = (Arc::default(), Arc::default());
        let readers = vec![
            keep(stderr, Arc::clone(&log), Some(line_sender)),
            keep(stdout, Arc::clone(&output), None),
        ];
        let mut process = Self {
            child,
            log,
            output,
            readers,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(READY) => return Ok(process),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("lb did not get ready. It said:\n{}", process.log())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = process.child.wait()?;
                    bail!("lb ended with {status}. It said:\n{}", process.log())
                }
            }
        }
    }

    /// What it has said so far, on standard error.
    pub fn log(&self) -> String {
        lock(&self.log).clone()
    }

    /// What it has printed so far, on standard output.
    pub fn output(&self) -> String {
        lock(&self.output).clone()
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(self.pid(), signal)?)
    }

    /// Waits for its end, and until all is read that it has said.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                for reader in self.readers.drain(..) {
                    drop(reader.join());
                }
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("lb did not end. It said:\n{}", self.log());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it by a signal, and checks that it ends well.
    pub fn end(&mut self, signal: Signal) -> Result<()> {
        self.signal(signal)?;
        let status = self.wait()?;
        ensure!(
            status.success(),
            "lb ended with {status} on {signal}. It said:\n{}",
            self.log()
        );
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors: it has ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            eprintln!("lb said:\n{}", self.log());
        }
    }
}

/// Collects what comes by a pipe, and passes it on line by line.
fn keep(
    pipe: impl Read + Send + 'static,
    kept: Arc<Mutex<String>>,
    lines: Option<mpsc::Sender<String>>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            lock(&kept).push_str(&format!("{line}\n"));
            if let Some(lines) = &lines {
                // Nobody listens once it is ready.
                drop(lines.send(line));
            }
        }
    })
}

fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}
