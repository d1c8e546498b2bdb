//! A whole set-up: a network, servers in it, and `lb` with services on them.

use crate::{
    agent::Agent,
    client::get,
    scratch::Scratch,
    server::{Config, Server},
    topology::{Shape, Topology, VIPS},
    traffic::{self, Outcome, Outcomes},
};
use anyhow::{Context as _, Result, ensure};
use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    panic::resume_unwind,
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

/// Port of the VIPs.
pub const VIP_PORT: u16 = 8080;
/// Port of the backends' servers: another, so that ports are rewritten too.
pub const BACKEND_PORT: u16 = 80;
/// Longer than anything that is waited for takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A network with servers and `lb`.
pub struct World {
    // In the order in which they must end.
    /// The agent.
    pub agent: Agent,
    /// A server for each backend.
    pub servers: Vec<Server>,
    /// Where the agent's socket and config are.
    pub scratch: Scratch,
    /// The network.
    pub bed: Topology,
}

impl World {
    /// TCP and UDP services on both VIPs, all with the first `used` of the `backends`. Closed flows are
    /// forgotten as soon as `lb` allows, so that removals are not waited for.
    pub fn new(shape: Shape, backends: usize, used: usize) -> Result<Self> {
        Self::with(shape, backends, |bed| {
            let services = ["tcp", "udp"]
                .iter()
                .flat_map(|protocol| VIPS.map(|vip| service(bed, vip, protocol, "", used)))
                .collect::<String>();
            format!("[timeouts]\nclosing = \"2s\"\n{services}")
        })
    }

    /// With a config that is written for the network.
    pub fn with(
        shape: Shape,
        backends: usize,
        config: impl FnOnce(&Topology) -> String,
    ) -> Result<Self> {
        let bed = Topology::new(shape, backends)?;
        let servers = start_servers(&bed)?;
        let scratch = Scratch::new()?;
        let agent = Agent::start(&scratch, &bed.balancer, &bed.interfaces, &config(&bed))?;
        Ok(Self {
            agent,
            servers,
            scratch,
            bed,
        })
    }

    /// Runs a future in the client's namespace.
    pub fn client<T: Send>(&self, future: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.bed.client.netns.block_on(future)
    }

    /// A backend's address, as `lb` takes it.
    pub fn backend(&self, index: usize, family: IpAddr) -> String {
        self.bed.backends[index]
            .address(family, BACKEND_PORT)
            .to_string()
    }

    /// Checks that a connection to each VIP works.
    pub fn works(&self) -> Result<()> {
        for vip in VIPS {
            self.client(get(vip_address(vip), "/"))
                .with_context(|| format!("{vip} does not work"))?;
        }
        Ok(())
    }

    /// Offers connections to both VIPs for a while, does something meanwhile, and checks that none
    /// of the connections failed.
    pub fn under_traffic<T>(
        &self,
        length: Duration,
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<(Vec<Outcome>, T)> {
        let work = Duration::from_millis(5);
        let plan = traffic::plan(7, 500.0, length, work, &VIPS.map(vip_address));
        let outcomes = Outcomes::default();
        let done = thread::scope(|scope| {
            let client = scope.spawn(|| {
                self.client(async {
                    traffic::offer(&plan, &outcomes).await;
                    Ok(())
                })
            });
            let done = meanwhile();
            client.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            done
        })?;
        let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        let outcomes = std::mem::take(&mut *outcomes);
        ensure!(outcomes.len() == plan.len());
        let failed: Vec<_> = outcomes
            .iter()
            .filter_map(|o| o.backend.as_ref().err())
            .collect();
        ensure!(
            failed.is_empty(),
            "{} of {} connections failed: {}",
            failed.len(),
            outcomes.len(),
            failed[0]
        );
        Ok((outcomes, done))
    }
}

/// A VIP with its port.
pub fn vip_address(vip: IpAddr) -> SocketAddr {
    SocketAddr::new(vip, VIP_PORT)
}

/// A server for each backend of a network.
pub fn start_servers(bed: &Topology) -> Result<Vec<Server>> {
    bed.backends
        .iter()
        .enumerate()
        .map(|(index, host)| {
            let name = Topology::backend_name(index);
            Server::start(&host.netns, Config::new(&name, BACKEND_PORT))
        })
        .collect()
}

/// One service in the config, with the first `used` backends. `settings` are further lines.
pub fn service(bed: &Topology, vip: IpAddr, protocol: &str, settings: &str, used: usize) -> String {
    let mut text = format!(
        "[[service]]\naddress = \"{}\"\nprotocol = \"{protocol}\"\n{settings}\n",
        vip_address(vip)
    );
    for host in &bed.backends[..used] {
        let address = host.address(vip, BACKEND_PORT);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "[[service.backend]]\naddress = \"{address}\"");
    }
    text
}

/// Asks again and again until the answer is true.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "{what}: not after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
