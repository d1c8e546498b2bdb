//! Keeps the way to each backend in step with the kernel's links, routes and neighbours.
//!
//! A thread waits for netlink to say that something has changed, or for the agent to say that there
//! is a new backend, and then looks at all of them again: what must never happen is that one is
//! missed, and a look costs a few requests. Between looks it has the kernel resolve the neighbours that are
//! not known, and confirm those that are.

mod devices;
mod notes;
mod probe;
mod way;

use std::{
    collections::HashMap,
    io::{Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use aya::maps::{MapData, xdp::DevMapHash};
use lb_common::abi::backend_flags;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tracing::{debug, warn};

use self::{
    devices::{Attached, Devices},
    notes::Notes,
    probe::{CONFIRM, Probes, RETRY},
    way::{Key, Network, Senders},
};
use super::{
    Error,
    backends::{Backends, ip},
    netlink::{Changes, Netlink, Resolution, Route, XdpFeatures},
};

/// Changes come in bursts: they are waited out for this long.
const SETTLE: Duration = Duration::from_millis(20);
/// After a look that took long, changes are waited out for this many times as long as it took, so that a
/// network that never rests leaves the CPU to others.
const REST: u32 = 4;
/// But no longer than this.
const LONGEST_REST: Duration = Duration::from_millis(400);

/// The thread, and how to wake and end it.
pub struct NextHops {
    attached: Arc<Attached>,
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
        let features = XdpFeatures::open()?;
        let changes = Changes::subscribe()?;
        let failed = |cause| Error::Netlink {
            what: "starting the next-hop thread".to_owned(),
            cause,
        };
        let (wake, woken) = UnixStream::pair().map_err(failed)?;
        woken.set_nonblocking(true).map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let attached = Arc::new(Attached::default());
        let follower = Follower {
            netlink,
            features,
            backends,
            attached: Arc::clone(&attached),
            devices: Devices::new(devices),
            neighbours: HashMap::new(),
            probes: Probes::new(Instant::now()),
            notes: Notes::default(),
            failing: false,
        };
        let thread = std::thread::Builder::new()
            .name("next-hops".to_owned())
            .spawn(move || follower.run(&changes, woken))
            .map_err(failed)?;
        Ok(Self {
            attached,
            wake,
            thread: Some(thread),
        })
    }

    /// Tells the thread of an interface that the packet program is attached to, and has it look again: what
    /// XDP can do on interfaces changes with that.
    pub fn attached(&self, ifindex: u32, native: bool) {
        self.attached.add(ifindex, native);
        self.wake();
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
    features: XdpFeatures,
    backends: Arc<Mutex<Backends>>,
    attached: Arc<Attached>,
    devices: Devices,
    /// The neighbours on the ways to backends, and whether they are known; fixed ones are not among them.
    neighbours: HashMap<Key, bool>,
    probes: Probes,
    notes: Notes,
    failing: bool,
}

impl Follower {
    fn run(mut self, changes: &Changes, mut woken: UnixStream) {
        let mut look_at = Instant::now();
        let mut rest = SETTLE;
        loop {
            let now = Instant::now();
            let wait = look_at
                .saturating_duration_since(now)
                .min(self.probes.next(&self.neighbours, now));
            // Rounded up, or the last millisecond is spent in a loop.
            let wait = PollTimeout::try_from(wait + Duration::from_millis(1));
            let mut fds = [
                PollFd::new(changes.as_fd(), PollFlags::POLLIN),
                PollFd::new(woken.as_fd(), PollFlags::POLLIN),
            ];
            if poll(&mut fds, wait.unwrap_or(PollTimeout::MAX)).is_err() {
                continue;
            }
            let [changed, called] = fds.map(|fd| fd.any().unwrap_or(false));
            if changed && !called {
                std::thread::sleep(rest);
            }
            changes.drain();
            let mut buffer = [0; 64];
            while let Ok(n) = woken.read(&mut buffer) {
                if n == 0 {
                    return;
                }
            }
            let start = Instant::now();
            if changed || called || start >= look_at {
                look_at = start + self.look_or_warn();
                rest = (start.elapsed() * REST).clamp(SETTLE, LONGEST_REST);
            }
            self.probe();
        }
    }

    /// Looks; returns when to look again if nothing changes.
    fn look_or_warn(&mut self) -> Duration {
        match self.look() {
            Ok(()) => {
                self.failing = false;
                CONFIRM
            }
            Err(e) => {
                if !std::mem::replace(&mut self.failing, true) {
                    warn!("next hops cannot be followed: {e}; trying again every second");
                }
                RETRY
            }
        }
    }

    /// Looks at every backend.
    fn look(&mut self) -> Result<(), Error> {
        self.neighbours.clear();
        let slots: Vec<_> = lock(&self.backends).iter().copied().collect();
        if slots.is_empty() {
            return Ok(());
        }
        let senders = self.senders()?;
        let network = Network::read(&mut self.netlink, senders)?;
        self.notes.forget_devices(&network);
        // Services share backends.
        let mut routes: HashMap<_, Option<Route>> = HashMap::new();
        for (slot, before) in slots {
            let addr = ip(&slot.addr);
            let route = match routes.get(&addr) {
                Some(route) => *route,
                None => {
                    let route = self.netlink.route(addr)?;
                    routes.insert(addr, route);
                    route
                }
            };
            // The packet keeps the VIP as its destination, which a gateway would send back here.
            let direct = slot.manner & backend_flags::DSR != 0;
            let mut found = network.way(route, direct);
            found.way.hop = found.way.hop.map_err(|missing| missing.after(before.hop));
            if let Some(key) = found.neighbour {
                match network.resolution(&key) {
                    Some(Resolution::Fixed(_)) => {}
                    other => {
                        let known = other.and_then(Resolution::mac).is_some();
                        self.neighbours.insert(key, known);
                    }
                }
            }
            if let Some(ifindex) = found.device {
                self.devices.allow(ifindex)?;
            }
            let before = lock(&self.backends).set_way(slot.id, slot.generation, found.way)?;
            if let Some(before) = before {
                self.notes.changed(addr, &before, &found.way, &network);
            }
        }
        let attached = self.attached.indices();
        for &ifindex in &attached {
            self.notes.attached(ifindex, &network);
        }
        self.devices.revise(&network, &attached)
    }

    fn senders(&mut self) -> Result<Senders, Error> {
        if !self.attached.is_native() {
            return Ok(Senders::All);
        }
        let known = self.features.redirect_targets()?;
        Ok(known.map_or(Senders::ByKind, Senders::These))
    }

    /// Has the kernel resolve and confirm the neighbours whose time has come.
    fn probe(&mut self) {
        for key in self.probes.due(&self.neighbours, Instant::now()) {
            let (ifindex, addr) = key;
            let known = self.neighbours.get(&key).copied().unwrap_or_default();
            let asked = if known {
                self.netlink.confirm(ifindex, addr)
            } else {
                self.netlink.resolve(ifindex, addr)
            };
            if let Err(e) = asked {
                // One that cannot be confirmed has failed meanwhile, of which netlink tells.
                debug!("{e}");
                if !known {
                    self.notes.unresolvable(&e);
                }
            }
        }
    }
}
