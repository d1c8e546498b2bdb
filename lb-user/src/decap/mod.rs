//! `lb decap`: takes packets out of tunnels on a backend, until a signal ends it.
//!
//! No agent and no socket: what it needs is on the command line. As with the agent, whatever can be
//! refused is refused before anything is loaded, and the program is attached as long as the process lives.

mod notes;
mod report;

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    net::IpAddr,
    time::Duration,
};

use lb_common::decap::Counter;
use tokio::{
    io::{Interest, unix::AsyncFd},
    signal::unix::{SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval_at},
};
use tracing::{info, warn};

pub use self::report::{fate_name, json, line};
use crate::{
    dataplane::{
        self, XdpMode,
        decap::{self, Decapsulator},
        netlink::{Changes, Layer, Netlink},
    },
    host,
};

/// Events come in bursts; after one, so long until the addresses are read.
const SETTLE: Duration = Duration::from_millis(100);

/// What the command line says.
#[derive(Clone, Debug)]
pub struct Options {
    /// Interface to attach to.
    pub interface: String,
    /// Addresses that tunnels end at; none takes those of the interface.
    pub addresses: Vec<IpAddr>,
    /// What packets to take off.
    pub packets: decap::Options,
    /// How to attach.
    pub xdp_mode: XdpMode,
    /// How often to show what was counted; none does so at the end only.
    pub stats_interval: Option<Duration>,
}

/// Why it could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// The data plane.
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    /// The interface has been removed.
    #[error("interface {0} is gone, and the program with it")]
    Gone(String),
    /// The runtime.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What failed.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Runs until a signal ends it, and returns what was counted. `show` is called with the counts so far,
/// every interval.
pub fn run(
    options: &Options,
    show: impl Fn(&[(Counter, u64)]),
) -> Result<Vec<(Counter, u64)>, Error> {
    host::check_privileges()?;
    host::check_interfaces(std::slice::from_ref(&options.interface))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io_error("start the runtime"))?;
    runtime.block_on(serve(options, show))
}

fn io_error(doing: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { doing, source }
}

async fn serve(
    options: &Options,
    show: impl Fn(&[(Counter, u64)]),
) -> Result<Vec<(Counter, u64)>, Error> {
    // Before anything is set up, so that no signal finds it half done.
    let signals = io_error("handle signals");
    let mut terminate = signal(SignalKind::terminate()).map_err(&signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(&signals)?;

    let interface = &options.interface;
    let mut decapsulator = Decapsulator::for_interface(&options.packets, interface)?;
    // Before the addresses are read for the first time, so that no change is missed.
    // SAFETY: the socket owns its descriptor, and keeps it.
    let changes =
        unsafe { AsyncFd::register_with_interest(Changes::subscribe()?, Interest::READABLE) }
            .map_err(io::Error::from)
            .map_err(io_error("watch for changes of addresses"))?;
    let mut local = Local::new(options)?;
    let devices = local.update(&mut decapsulator)?;

    let attachment = decapsulator.attach(interface, options.xdp_mode)?;
    let mode = attachment.mode.name();
    match &attachment.note {
        Some(note) => info!(interface, mode, "attached; {note}"),
        None => info!(interface, mode, "attached"),
    }
    give_notes(options, local.now.as_ref(), &devices);
    // For scripts to wait for. No one may be reading.
    let _ = writeln!(io::stderr(), "lb: ready");

    let mut ticks = options.stats_interval.map(|period| {
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks
    });
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            ready = changes.readable() => {
                let mut ready = ready.map_err(io_error("watch for changes of addresses"))?;
                ready.clear_ready();
                drop(ready);
                tokio::time::sleep(SETTLE).await;
                changes.get_ref().drain();
                match local.update(&mut decapsulator) {
                    Ok(_) => {}
                    Err(e @ Error::Gone(_)) => return Err(e),
                    // The addresses known so far go on to work.
                    Err(e) => warn!("the addresses that tunnels end at are not brought up to date: {e}"),
                }
            }
            () = tick(ticks.as_mut()) => show(&decapsulator.counters()?),
        }
    }
    let counters = decapsulator.counters()?;
    drop(decapsulator);
    info!("detached");
    Ok(counters)
}

/// The next tick; never, if there are none.
async fn tick(ticks: Option<&mut tokio::time::Interval>) {
    match ticks {
        Some(ticks) => {
            ticks.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// The addresses that tunnels end at.
struct Local<'a> {
    options: &'a Options,
    netlink: Netlink,
    ifindex: u32,
    /// What they are; none before they have been read for the first time.
    now: Option<BTreeSet<IpAddr>>,
}

impl<'a> Local<'a> {
    fn new(options: &'a Options) -> Result<Self, Error> {
        let name = &options.interface;
        let ifindex =
            nix::net::if_::if_nametoindex(name.as_str()).map_err(|_| Error::Gone(name.clone()))?;
        Ok(Self {
            options,
            netlink: Netlink::open()?,
            ifindex,
            now: None,
        })
    }

    /// Brings the program's map up to date. Returns the names of the devices that the interface's frames
    /// reach.
    fn update(&mut self, decapsulator: &mut Decapsulator) -> Result<Vec<String>, Error> {
        let name = &self.options.interface;
        let layers = self.netlink.stack(self.ifindex)?;
        if layers.is_empty() {
            return Err(Error::Gone(name.clone()));
        }
        let addresses = match self.options.addresses.as_slice() {
            [] => self.netlink.addresses_of(&layers)?,
            given => given.iter().copied().collect(),
        };
        if self.now.as_ref() != Some(&addresses) {
            decapsulator.set_local(&addresses)?;
            match addresses.is_empty() {
                true => warn!("{name} has no address: nothing is taken off until it has one"),
                false => info!("tunnels end at {}", list(&addresses)),
            }
            self.now = Some(addresses);
        }
        Ok(layers.into_iter().map(|layer: Layer| layer.name).collect())
    }
}

/// Addresses, as people read them.
fn list(addresses: &BTreeSet<IpAddr>) -> String {
    let list: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    list.join(", ")
}

/// Says what the user should know before traffic comes.
fn give_notes(options: &Options, local: Option<&BTreeSet<IpAddr>>, devices: &[String]) {
    let packets = &options.packets;
    if packets.from.is_empty() {
        let ends = local.filter(|local| !local.is_empty());
        let ends = ends.map_or_else(|| options.interface.clone(), list);
        warn!(
            "no --from: every host that can reach {ends} can send packets into this host under any source \
             address; name the balancers with --from PREFIX"
        );
    }
    for note in notes::missing_vips(&packets.vips, &host::addresses()) {
        warn!("{note}");
    }
    for note in notes::reverse_path(devices) {
        warn!("{note}");
    }
}
