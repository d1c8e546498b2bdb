//! Keeps each backend's next hop in step with the kernel's routes and neighbours.
//!
//! A thread waits for netlink to say that something has changed, or for the agent to say that there
//! is a new backend, and then looks at all of them again: what must never happen is that one is
//! missed, and a look costs a few requests.

use std::{
    collections::{HashMap, HashSet},
    io::{Read, Write},
    net::IpAddr,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use aya::maps::{MapData, xdp::DevMapHash};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{debug, info, warn};

use super::{
    Error,
    backends::{Backends, NextHop, ip},
    netlink::{Changes, Link, Neighbour, Netlink},
};

/// How often neighbours are confirmed although nothing changed: packets that bypass the kernel's
/// stack leave its entries unused, and unused ones go stale.
const CONFIRM: Duration = Duration::from_secs(20);
/// How long to wait for a neighbour that is being resolved before asking again.
const RETRY: Duration = Duration::from_secs(1);
/// Changes come in bursts: they are waited out for this long.
const SETTLE: Duration = Duration::from_millis(20);

/// The thread, and how to wake and end it.
pub struct NextHops {
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl NextHops {
    /// Starts the thread, in the network namespace of the caller.
    pub fn start(
        backends: Arc<Mutex<Backends>>,
        devices: DevMapHash<MapData>,
    ) -> Result<Self, Error> {
        let netlink = Netlink::open()?;
        let changes = Changes::subscribe()?;
        let failed = |cause| Error::Netlink {
            what: "starting the next-hop thread".to_owned(),
            cause,
        };
        let (wake, woken) = UnixStream::pair().map_err(failed)?;
        woken.set_nonblocking(true).map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let mut follower = Follower {
            netlink,
            backends,
            devices,
            redirectable: HashSet::new(),
            confirmed: HashMap::new(),
            failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("next-hops".to_owned())
            .spawn(move || follower.run(&changes, woken))
            .map_err(failed)?;
        Ok(Self {
            wake,
            thread: Some(thread),
        })
    }

    /// Has the thread look at all backends now.
    pub fn wake(&self) {
        // A full pipe means that the thread has been woken already.
        let _ = (&self.wake).write(&[1]);
    }
}

impl Drop for NextHops {
    fn drop(&mut self) {
        // The thread ends when it reads the end of the stream.
        let _ = self.wake.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Locks, also after another thread has panicked while it held the lock: each change of the table
/// leaves it consistent.
pub fn lock(backends: &Mutex<Backends>) -> MutexGuard<'_, Backends> {
    backends.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Follower {
    netlink: Netlink,
    backends: Arc<Mutex<Backends>>,
    devices: DevMapHash<MapData>,
    redirectable: HashSet<u32>,
    /// When each neighbour was last asked for.
    confirmed: HashMap<(u32, IpAddr), Instant>,
    failing: bool,
}

impl Follower {
    fn run(&mut self, changes: &Changes, mut woken: UnixStream) {
        let mut wait = Duration::ZERO;
        loop {
            let mut fds = [
                PollFd::new(changes.as_fd(), PollFlags::POLLIN),
                PollFd::new(woken.as_fd(), PollFlags::POLLIN),
            ];
            let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
            if poll(&mut fds, timeout).is_err() {
                continue;
            }
            if fds[0].any().unwrap_or(false) && !fds[1].any().unwrap_or(false) {
                std::thread::sleep(SETTLE);
            }
            changes.drain();
            let mut buffer = [0; 64];
            while let Ok(n) = woken.read(&mut buffer) {
                if n == 0 {
                    return;
                }
            }
            wait = match self.look() {
                Ok(true) => {
                    self.failing = false;
                    CONFIRM
                }
                Ok(false) => RETRY,
                Err(e) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        warn!("next hops cannot be followed: {e}; trying again every second");
                    }
                    RETRY
                }
            };
        }
    }

    /// Looks at every backend; returns whether all next hops are known.
    fn look(&mut self) -> Result<bool, Error> {
        let slots: Vec<_> = lock(&self.backends)
            .iter()
            .map(|(slot, _)| (slot.id, slot.generation, ip(&slot.addr)))
            .collect();
        if slots.is_empty() {
            return Ok(true);
        }
        let links: HashMap<u32, Link> = self
            .netlink
            .links()?
            .into_iter()
            .map(|link| (link.ifindex, link))
            .collect();
        // The kernel takes an interface that goes away out of the map.
        self.redirectable
            .retain(|ifindex| links.contains_key(ifindex));
        let neighbours: HashMap<(u32, IpAddr), Neighbour> = self
            .netlink
            .neighbours()?
            .into_iter()
            .map(|n| ((n.ifindex, n.addr), n))
            .collect();
        let mut complete = true;
        let now = Instant::now();
        for (id, generation, addr) in slots {
            let route = self.netlink.route(addr)?;
            let mut hop = None;
            // To this host itself, or out on a device that takes no redirected frames, the packet goes
            // up the stack, which the FIB says as well.
            let by_stack = route.is_some_and(|route| {
                let link = links.get(&route.ifindex);
                route.local || link.is_some_and(|link| !link.takes_redirects)
            });
            if let Some(route) = route
                && !by_stack
            {
                let key = (route.ifindex, route.next);
                let neighbour = neighbours.get(&key);
                hop = neighbour
                    .zip(links.get(&route.ifindex))
                    .map(|(neighbour, link)| NextHop {
                        ifindex: route.ifindex,
                        destination: neighbour.mac,
                        source: link.mac,
                    });
                let every = if hop.is_some() { CONFIRM } else { RETRY };
                let due = self
                    .confirmed
                    .get(&key)
                    .is_none_or(|&asked| now.duration_since(asked) + SETTLE >= every);
                if due && !neighbour.is_some_and(|neighbour| neighbour.fixed) {
                    self.confirmed.insert(key, now);
                    if let Err(e) = self.netlink.resolve(key.0, key.1) {
                        debug!("{e}");
                    }
                }
                self.allow_redirect(route.ifindex)?;
            }
            complete &= hop.is_some() || by_stack;
            if lock(&self.backends).set_hop(id, generation, hop)? {
                match hop {
                    Some(hop) => debug!(backend = %addr, ifindex = hop.ifindex, "next hop known"),
                    None => info!(backend = %addr, "next hop not known; asking the kernel's FIB"),
                }
            }
        }
        self.confirmed
            .retain(|_, asked| now.duration_since(*asked) < 10 * CONFIRM);
        Ok(complete)
    }

    fn allow_redirect(&mut self, ifindex: u32) -> Result<(), Error> {
        if self.redirectable.insert(ifindex) {
            self.devices
                .insert(ifindex, ifindex, None, 0)
                .map_err(|e| Error::map("DEVICES", e))?;
        }
        Ok(())
    }
}
