//! Being told of changes.

use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use super::Error;

/// A socket that becomes readable when links, addresses, neighbours, routes or what these depend on (rules,
/// nexthop objects) change.
pub struct Changes(Socket);

impl Changes {
    /// Subscribes.
    pub fn subscribe() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            for group in [
                libc::RTNLGRP_LINK,
                libc::RTNLGRP_NEIGH,
                libc::RTNLGRP_IPV4_IFADDR,
                libc::RTNLGRP_IPV4_ROUTE,
                libc::RTNLGRP_IPV4_RULE,
                libc::RTNLGRP_IPV6_IFADDR,
                libc::RTNLGRP_IPV6_ROUTE,
                libc::RTNLGRP_IPV6_RULE,
                libc::RTNLGRP_NEXTHOP,
            ] {
                socket.add_membership(group)?;
            }
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        open().map(Self).map_err(|cause| Error::Netlink {
            what: "subscribing to changes".to_owned(),
            cause,
        })
    }

    /// Takes what has come. What exactly changed does not matter: whoever waits looks again at all.
    pub fn drain(&self) {
        // An overflow of the socket's buffer is one more reason to look again; the error is cleared
        // by having been read.
        let mut buffer = bytes::BytesMut::with_capacity(1 << 16);
        for _ in 0..1024 {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

impl std::os::fd::AsFd for Changes {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for Changes {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(self).as_raw_fd()
    }
}
