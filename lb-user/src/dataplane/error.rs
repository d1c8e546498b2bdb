//! What can go wrong between the agent and the kernel, said so that one knows what to do.

use std::io;

/// An error of the data plane.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The BPF object could not be loaded.
    #[error("cannot load the packet program: {0}")]
    Load(String),
    /// The verifier refused the program.
    #[error(
        "the kernel's verifier refused the program {program}: {cause}. Its last lines:\n{tail}\n{rest}"
    )]
    Verifier {
        /// Which program.
        program: &'static str,
        /// The kernel's error.
        cause: io::Error,
        /// The last lines of the verifier's log.
        tail: String,
        /// Where the whole log is.
        rest: String,
    },
    /// A map that the object should have is not there or of another kind.
    #[error("map {map}: {cause}")]
    Map {
        /// The map.
        map: &'static str,
        /// What the kernel or the loader said.
        cause: String,
    },
    /// A map has no room.
    #[error(
        "map {map} is full: it holds at most {limit} entries; raise `{setting}` in the configuration"
    )]
    Full {
        /// The map.
        map: &'static str,
        /// Its size.
        limit: u32,
        /// What to raise.
        setting: &'static str,
    },
    /// There is no interface of that name.
    #[error("no interface {name:?} here; there are: {}", there.join(", "))]
    NoInterface {
        /// What was asked for.
        name: String,
        /// The interfaces that there are.
        there: Vec<String>,
    },
    /// Another XDP program is attached.
    #[error(
        "interface {interface} already has an XDP program: {program} (id {id}, {mode} mode). It was left \
         alone; stop what attached it, or if it was attached with ip(8): `ip link set dev {interface} xdp off`"
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// Name of the program.
        program: String,
        /// Id of the program.
        id: u32,
        /// Mode it is attached in.
        mode: &'static str,
    },
    /// The kernel refused to attach.
    #[error("cannot attach to {interface} in {mode} mode: {cause}. {hint}")]
    Attach {
        /// The interface.
        interface: String,
        /// The mode asked for.
        mode: &'static str,
        /// The kernel's error.
        cause: String,
        /// What to do.
        hint: String,
    },
    /// A netlink request failed.
    #[error("netlink: {what}: {cause}")]
    Netlink {
        /// The request.
        what: String,
        /// The error.
        cause: io::Error,
    },
    /// A bpf(2) call failed.
    #[error("bpf: {what}: {cause}")]
    Bpf {
        /// The call.
        what: &'static str,
        /// The error.
        cause: io::Error,
    },
}

impl Error {
    pub(super) fn map(map: &'static str, cause: impl std::fmt::Display) -> Self {
        Self::Map {
            map,
            cause: cause.to_string(),
        }
    }
}
