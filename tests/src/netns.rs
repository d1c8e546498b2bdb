//! Network namespaces that only a file descriptor holds, and work done inside them.

use anyhow::{Context as _, Result, bail, ensure};
use nix::sched::{CloneFlags, setns, unshare};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::{fd::AsRawFd as _, unix::process::CommandExt as _},
    panic::resume_unwind,
    process::{self, Command, Stdio},
    sync::Arc,
    thread,
};

/// A network namespace. It is gone when the last clone and the last process in it are.
#[derive(Clone, Debug)]
pub struct Netns {
    name: String,
    file: Arc<File>,
}

impl Netns {
    /// A new namespace with its loopback up and no address made up by the kernel: what is in it, and
    /// when, is up to the test bed alone. `name` is for messages.
    pub fn new(name: &str) -> Result<Self> {
        let made = thread::spawn(|| -> Result<File> {
            unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
            File::open("/proc/thread-self/ns/net").context("cannot open the namespace")
        });
        let file = made.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        let netns = Self {
            name: name.to_owned(),
            file: Arc::new(file),
        };
        // No duplicate address detection: addresses can be used as soon as they are there.
        for (key, value) in [
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/all/accept_ra", "0"),
            ("ipv6/conf/default/accept_ra", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
        ] {
            netns.sysctl(key, value)?;
        }
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// The name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path by which other programs can open the namespace while it lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", process::id(), self.file.as_raw_fd())
    }

    /// Moves the calling thread into the namespace, for good.
    pub fn enter(&self) -> Result<()> {
        setns(&*self.file, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("cannot enter the namespace of {}", self.name))
    }

    /// Does something in the namespace, on a thread of its own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter()?;
                    work()
                })
                .join()
                .unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Runs a future in the namespace: sockets that it makes belong there.
    pub fn block_on<T: Send>(&self, future: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.run(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("cannot start a runtime")?
                .block_on(future)
        })
    }

    /// A command that will run in the namespace, and be killed when the thread that starts it ends.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let file = Arc::clone(&self.file);
        let parent = process::id();
        let mut command = Command::new(program);
        // SAFETY: only system calls between fork and exec, no allocation and no lock.
        unsafe {
            command.pre_exec(move || {
                setns(&*file, CloneFlags::CLONE_NEWNET)?;
                nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
                // The parent may have died before the line above.
                if nix::unistd::getppid().as_raw().cast_unsigned() != parent {
                    return Err(io::Error::from(io::ErrorKind::BrokenPipe));
                }
                Ok(())
            });
        }
        command
    }

    /// Runs `ip` commands in the namespace, one a line.
    pub fn ip(&self, lines: &str) -> Result<()> {
        let mut child = self
            .command("ip")
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run ip (iproute2)")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(lines.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "ip failed in the namespace of {}: {}\n{lines}",
            self.name,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// What a command in the namespace prints, if it succeeds.
    pub fn output(&self, program: &str, args: &[&str]) -> Result<String> {
        let output = self
            .command(program)
            .args(args)
            .output()
            .with_context(|| format!("cannot run {program}"))?;
        if !output.status.success() {
            bail!(
                "{program} {} failed in the namespace of {}: {}",
                args.join(" "),
                self.name,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Sets a value under `/proc/sys/net`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.run(|| {
            fs::write(format!("/proc/sys/net/{key}"), value)
                .with_context(|| format!("cannot set net/{key} of {}", self.name))
        })
    }
}
