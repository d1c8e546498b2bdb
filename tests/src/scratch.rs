//! A file system for the sockets and config files of one test bed, mounted nowhere.
//!
//! It is a tmpfs that only a file descriptor holds, reached through `/proc`: when the process ends,
//! in whatever way, it is gone with all that is in it.

use anyhow::{Context as _, Result};
use std::{
    fs, io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::PathBuf,
    process,
};

/// A directory that vanishes with this value, or with the process.
#[derive(Debug)]
pub struct Scratch {
    mount: OwnedFd,
}

impl Scratch {
    /// An empty directory.
    pub fn new() -> Result<Self> {
        mount_detached_tmpfs()
            .map(|mount| Self { mount })
            .context("cannot make a detached tmpfs (needs root and kernel 5.2)")
    }

    /// Path of a name in it, valid for every process of the same PID namespace.
    pub fn path(&self, name: &str) -> PathBuf {
        let directory = format!("/proc/{}/fd/{}", process::id(), self.mount.as_raw_fd());
        PathBuf::from(directory).join(name)
    }

    /// Writes a file, and returns its path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

fn mount_detached_tmpfs() -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_long = 1;
    const FSCONFIG_CMD_CREATE: libc::c_long = 6;
    const FSMOUNT_CLOEXEC: libc::c_long = 1;
    const NULL: libc::c_long = 0;
    let owned = |fd: libc::c_long| {
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
        let fd = fd.ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just returned this descriptor to us alone.
        Ok::<_, io::Error>(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // SAFETY: the name is a NUL-terminated string.
    let context =
        owned(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FSOPEN_CLOEXEC) })?;
    let context_fd = libc::c_long::from(context.as_raw_fd());
    // SAFETY: this command takes neither key nor value.
    let created = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context_fd,
            FSCONFIG_CMD_CREATE,
            NULL,
            NULL,
            NULL,
        )
    };
    if created != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no pointers.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context_fd, FSMOUNT_CLOEXEC, NULL) })
}
