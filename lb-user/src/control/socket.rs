//! The Unix socket itself: taken before anything else, given up last.

use std::{
    fs::{self, File},
    io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::stat::{Mode, umask},
    unistd::Group,
};
use tracing::warn;

use super::api::DEFAULT_SOCKET;

/// The group that may use the socket, if there is such a one.
const GROUP: &str = "lb";

/// Owner and group may connect, and no one else.
const MODE: u32 = 0o660;

/// Why the socket cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another agent has it.
    #[error(
        "{}: another agent is listening there; stop it first, or give this one its own with --socket", .0.display()
    )]
    Live(PathBuf),
    /// Something else is at its path.
    #[error("{}: there is something else than a socket at this path; it is left alone: remove it, or give another \
             --socket", .0.display())]
    NotASocket(PathBuf),
    /// Its directory is not there.
    #[error("cannot listen on {}: its directory does not exist; create it, or give another --socket", .0.display())]
    NoDirectory(PathBuf),
    /// Another agent is about to take it.
    #[error("{}: another agent is starting in the same directory; try again", .0.display())]
    Busy(PathBuf),
    /// Anything else.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What failed.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A socket that this process listens on. Dropping it removes it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode: the file at the path may be another's by the time this is dropped.
    file: (u64, u64),
}

impl Socket {
    /// Takes the socket at `path`. One that no one listens on any more is replaced.
    pub fn claim(path: &Path) -> Result<Self, Error> {
        let io = |doing| {
            move |source| Error::Io {
                doing,
                path: path.to_owned(),
                source,
            }
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if path == Path::new(DEFAULT_SOCKET) {
            fs::create_dir_all(parent).map_err(io("create the directory of"))?;
        }
        let directory = File::open(parent).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Error::NoDirectory(path.to_owned()),
            _ => io("open the directory of")(e),
        })?;
        // Two agents that both find a stale socket must not remove each other's new one.
        let _lock = lock(directory, path)?;
        remove_stale(path)?;

        // The mode counts from the first moment on.
        let before = umask(Mode::from_bits_truncate(0o777 & !MODE));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener.map_err(io("listen on"))?;
        let metadata = fs::symlink_metadata(path).map_err(io("look at"))?;
        let socket = Self {
            listener,
            path: path.to_owned(),
            file: (metadata.dev(), metadata.ino()),
        };
        fs::set_permissions(path, fs::Permissions::from_mode(MODE))
            .map_err(io("set the mode of"))?;
        match Group::from_name(GROUP) {
            Ok(Some(group)) => {
                if let Err(e) = chown(path, None, Some(group.gid.as_raw())) {
                    warn!("cannot give {} to group {GROUP}: {e}", path.display());
                }
            }
            Ok(None) => {}
            Err(e) => warn!("cannot look up group {GROUP}: {e}"),
        }
        Ok(socket)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A listener to accept connections with, in a runtime.
    pub fn listener(&self) -> io::Result<tokio::net::UnixListener> {
        let listener = self.listener.try_clone()?;
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file);
        if ours && let Err(e) = fs::remove_file(&self.path) {
            warn!("cannot remove {}: {e}", self.path.display());
        }
    }
}

/// Locks the directory, for as long as it takes to claim a socket.
fn lock(directory: File, path: &Path) -> Result<Flock<File>, Error> {
    let mut directory = directory;
    for _ in 0..40 {
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) => directory = file,
            Err((_, e)) => {
                return Err(Error::Io {
                    doing: "lock the directory of",
                    path: path.to_owned(),
                    source: e.into(),
                });
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err(Error::Busy(path.to_owned()))
}

/// Removes a socket that no one listens on; refuses one that someone does.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let io = |doing, source| Error::Io {
        doing,
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io("look at", e)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(Error::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(Error::Live(path.to_owned())),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|e| io("remove the stale", e))
        }
        // A full backlog is a sign of life.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(Error::Live(path.to_owned())),
        Err(e) => Err(io("connect to", e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lb.sock");
        (dir, path)
    }

    #[test]
    fn mode_and_removal() {
        let (_dir, path) = place();
        let socket = Socket::claim(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, MODE);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_one_is_refused_and_unharmed() {
        let (_dir, path) = place();
        let _socket = Socket::claim(&path).unwrap();
        assert!(matches!(Socket::claim(&path), Err(Error::Live(_))));
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_stale_one_is_replaced() {
        let (_dir, path) = place();
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _socket = Socket::claim(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn another_ones_is_not_removed() {
        let (_dir, path) = place();
        let socket = Socket::claim(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(socket);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_stays() {
        let (dir, path) = place();
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Socket::claim(&path), Err(Error::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let nowhere = dir.path().join("no/lb.sock");
        assert!(matches!(
            Socket::claim(&nowhere),
            Err(Error::NoDirectory(_))
        ));
    }
}
