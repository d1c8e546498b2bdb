//! From the command line to a serving agent, and back to nothing.
//!
//! The order matters: whatever can be refused is refused before anything is loaded, the socket is
//! taken before that too, and the interfaces are attached last. What fails on the way takes the rest
//! down with it: links and maps live as long as this process holds them.

use std::{
    hash::{BuildHasher as _, RandomState},
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::info;
use tracing_subscriber::{EnvFilter, util::SubscriberInitExt as _};

use super::{Agent, refusal::Refusal, removal, upkeep};
use crate::{
    config::{self, Config, LogLevel, XdpMode},
    control::{server, socket::Socket},
    dataplane::{self, Dataplane},
    host,
};

/// What the command line says; what it does not say is in the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Interfaces to attach to.
    pub interfaces: Vec<String>,
    /// Configuration file.
    pub config: Option<PathBuf>,
    /// How to attach.
    pub xdp_mode: Option<XdpMode>,
    /// Path of the control socket.
    pub socket: Option<PathBuf>,
    /// What to log.
    pub log_level: Option<LogLevel>,
}

/// Why the agent could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The host.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// The control socket.
    #[error(transparent)]
    Socket(#[from] crate::control::socket::Error),
    /// The data plane.
    #[error(transparent)]
    Dataplane(#[from] dataplane::Error),
    /// The services of the configuration were not accepted.
    #[error("the services of the configuration cannot be set up: {0}")]
    Apply(Refusal),
    /// The runtime.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What failed.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A background task ended, which it never should.
    #[error("a background task of the agent has ended{0}: this is a fault of lb; please report it")]
    Task(String),
}

/// Runs the agent until a signal ends it.
pub fn run(options: Options) -> Result<(), Error> {
    let config = configuration(options)?;
    log_to_stderr(config.balancer.log_level);
    host::check_privileges()?;
    host::check_interfaces(&config.balancer.interfaces)?;
    let socket = Socket::claim(&config.balancer.socket)?;
    let runtime = Runtime::new().map_err(io_error("start the runtime"))?;
    let result = runtime.block_on(serve(&config, &socket));
    // Connections and tasks hold the data plane: only when they are gone is the program detached.
    runtime.shutdown_timeout(Duration::from_secs(5));
    if result.is_ok() {
        info!("detached");
    }
    drop(socket);
    result
}

fn io_error(doing: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { doing, source }
}

/// The configuration, with what the command line says in place of what the file says.
fn configuration(options: Options) -> Result<Config, Error> {
    let mut config = match options.config {
        Some(path) => Config::read(path, &host::addresses())?,
        None => Config::default(),
    };
    let balancer = &mut config.balancer;
    if !options.interfaces.is_empty() {
        balancer.interfaces = options.interfaces;
    }
    balancer.xdp_mode = options.xdp_mode.unwrap_or(balancer.xdp_mode);
    balancer.socket = options.socket.unwrap_or_else(|| balancer.socket.clone());
    balancer.log_level = options.log_level.unwrap_or(balancer.log_level);
    Ok(config)
}

/// Logs to standard error.
pub(crate) fn log_to_stderr(level: LogLevel) {
    let others = match level {
        LogLevel::Error => "error",
        _ => "warn",
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(format!(
            "{others},lb_user={level},lb={level}"
        )))
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_target(false)
        .finish();
    // There is a subscriber already only in tests.
    let _ = subscriber.try_init();
}

async fn serve(config: &Config, socket: &Socket) -> Result<(), Error> {
    // From here on a signal ends the agent in order.
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;

    let balancer = &config.balancer;
    let seed = balancer
        .hash_seed
        .unwrap_or_else(|| RandomState::new().hash_one("seed"));
    let dataplane = Dataplane::load(&dataplane::Options {
        flow_table_size: balancer.flow_table_size,
        max_backends: balancer.max_backends,
        max_services: balancer.max_services,
        candidate_rows: balancer.candidate_rows,
        seed,
        max_new_flows: balancer.max_new_flows_per_second,
        source_ports: dataplane::SOURCE_PORTS,
        gue_port: balancer.gue_port,
        debug: balancer.log_level == LogLevel::Debug,
    })?;
    let agent = Arc::new(Agent::new(config.limits(), seed, dataplane));
    agent.apply(config.spec()).await.map_err(Error::Apply)?;
    next_hops(&agent).await;
    attach(&agent, balancer).await?;
    let serves = |v4: bool| {
        let mut services = config.services.iter();
        services.any(|service| service.id().address.is_ipv4() == v4)
    };
    for note in host::forwarding_notes(serves(true), serves(false)) {
        info!("{note}");
    }

    let listener = socket
        .listener()
        .map_err(io_error("listen on the control socket"))?;
    let mut tasks = background(&agent, config).await?;
    tasks.spawn(server::serve(listener, Arc::clone(&agent)));
    info!(socket = %socket.path().display(), services = config.services.len(), "serving");
    // For scripts to wait for. No one may be reading.
    let _ = writeln!(io::stderr(), "lb: ready");

    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM: stopping"),
        _ = interrupt.recv() => info!("SIGINT: stopping"),
        ended = tasks.join_next() => {
            let why = match ended {
                Some(Err(e)) => format!(" ({e})"),
                _ => String::new(),
            };
            return Err(Error::Task(why));
        }
    }
    tasks.shutdown().await;
    Ok(())
}

fn on(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(io_error("handle signals"))
}

/// Waits until the way to each backend is known, as long as neighbours need to answer, so that the first
/// packets find it.
async fn next_hops(agent: &Agent<Dataplane>) {
    const LONGEST: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(5);
    let known = async {
        while agent.lock().await.dataplane.are_ways_open() {
            sleep(PAUSE).await;
        }
    };
    // Those that are not known by then are of no use to wait for.
    let _ = timeout(LONGEST, known).await;
}

async fn attach(agent: &Agent<Dataplane>, balancer: &config::Balancer) -> Result<(), Error> {
    let mode = match balancer.xdp_mode {
        XdpMode::Native => dataplane::XdpMode::Native,
        XdpMode::Generic => dataplane::XdpMode::Generic,
        XdpMode::Auto => dataplane::XdpMode::Auto,
    };
    let dataplane = &mut agent.lock().await.dataplane;
    for interface in &balancer.interfaces {
        let attachment = dataplane.attach(interface, mode)?;
        let mode = attachment.mode.name();
        match &attachment.note {
            Some(note) => info!(interface, mode, "attached; {note}"),
            None => info!(interface, mode, "attached"),
        }
    }
    Ok(())
}

/// Starts what goes on in the background for as long as the agent runs.
async fn background(agent: &Arc<Agent<Dataplane>>, config: &Config) -> Result<JoinSet<()>, Error> {
    let mut tasks = JoinSet::new();
    upkeep::start(agent, config.timeouts, &mut tasks).await?;
    tasks.spawn(removal::task(Arc::clone(agent), config.timeouts.closing));
    Ok(tasks)
}
