//! What happens in the demo, and when.

use super::{
    measure::{Phase, Watch, count},
    report::{Change, Report},
    screen::{Screen, bar},
};
use crate::{
    agent::Agent,
    scratch::Scratch,
    server::{Config, Server, Stats},
    topology::{Shape, Topology, VIPS},
    traffic::{self, Outcome, Outcomes},
};
use anyhow::{Context as _, Result, ensure};
use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// What the demo takes from its command line.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Seconds of traffic, all phases together.
    pub seconds: u64,
    /// Backends at the start.
    pub backends: usize,
}

/// Services of the demo: they differ in port and in how many choices they have.
const ONE_CHOICE: Service = Service {
    port: 8001,
    choices: 1,
};
const TWO_CHOICES: Service = Service {
    port: 8002,
    choices: 2,
};
const BACKEND_PORT: u16 = 80;

/// Work of a request on the fastest backend, and requests that a backend works on at once.
const MEAN_WORK: Duration = Duration::from_millis(20);
const WORKERS: usize = 4;
/// How much longer the backends take for the same work, in turn.
const SLOWNESS: [f64; 8] = [1.0, 1.0, 1.0, 1.5, 1.0, 1.5, 2.0, 2.5];
/// With one random choice the slowest backend is this busy: overloaded it would only show that.
const BUSY: f64 = 0.9;
const SEED: u64 = 1;
const SAMPLE: Duration = Duration::from_millis(10);
const DRAW: Duration = Duration::from_millis(100);

#[derive(Clone, Copy)]
struct Service {
    port: u16,
    choices: u8,
}

impl Service {
    fn address(self, vip: IpAddr) -> SocketAddr {
        SocketAddr::new(vip, self.port)
    }
}

/// Runs the demo.
pub fn run(options: Options) -> Result<Report> {
    ensure!(
        options.backends >= 2 && options.seconds >= 5,
        "the demo needs at least 2 backends and 5 seconds"
    );
    let mut screen = Screen::new();
    let demo = Demo::set_up(options, &mut screen)?;
    let length = Duration::from_secs(options.seconds);

    let one_choice = demo.phase(ONE_CHOICE, length.mul_f64(0.4), &mut screen)?;
    let two_choices = demo.phase(TWO_CHOICES, length.mul_f64(0.4), &mut screen)?;
    let change = demo.change(length.mul_f64(0.2), &mut screen)?;
    screen.clear();
    demo.agent.stop()?;
    Ok(Report {
        slowness: demo.slowness[..options.backends].to_vec(),
        rate_per_second: demo.rate_per_second,
        one_choice,
        two_choices,
        change,
    })
}

struct Demo {
    bed: Topology,
    servers: Vec<Server>,
    slowness: Vec<f64>,
    agent: Agent,
    rate_per_second: f64,
    // Holds the agent's socket.
    _scratch: Scratch,
}

impl Demo {
    fn set_up(options: Options, screen: &mut Screen) -> Result<Self> {
        let count = options.backends;
        screen.say(&format!(
            "Setting up a client, a balancer and {} backends in network namespaces",
            count + 1
        ));
        // One more than the services start with, to be added later.
        let bed = Topology::new(Shape::Routed, count + 1)?;
        let slowness: Vec<_> = SLOWNESS.iter().copied().cycle().take(count + 1).collect();
        let servers = bed
            .backends
            .iter()
            .zip(&slowness)
            .enumerate()
            .map(|(index, (host, slowness))| {
                let mut config = Config::new(&Topology::backend_name(index), BACKEND_PORT);
                config.workers = WORKERS;
                config.slowness = *slowness;
                Server::start(&host.netns, config)
            })
            .collect::<Result<Vec<_>>>()?;
        let scratch = Scratch::new()?;
        let agent = Agent::start(
            &scratch,
            &bed.balancer,
            &bed.interfaces,
            &config(&bed, count)?,
        )?;
        let slowest = slowness[..count].iter().copied().fold(1.0, f64::max);
        let slowest_rate = WORKERS as f64 / (MEAN_WORK.as_secs_f64() * slowest);
        let rate_per_second = slowest_rate * BUSY * count as f64;
        screen.say(&format!(
            "lb runs on {} interfaces, XDP native. {rate_per_second:.0} new connections a second, IPv4 and IPv6 \
             in turn.",
            bed.interfaces.len(),
        ));
        Ok(Self {
            bed,
            servers,
            slowness,
            agent,
            rate_per_second,
            _scratch: scratch,
        })
    }

    /// Backends by name, the first `count`.
    fn named(&self, count: usize) -> Vec<(String, Arc<Stats>)> {
        let names = (0..count).map(Topology::backend_name);
        let stats = self.servers.iter().map(|s| Arc::clone(s.stats()));
        names.zip(stats).collect()
    }

    fn phase(&self, service: Service, length: Duration, screen: &mut Screen) -> Result<Phase> {
        let mut watch = Watch::new(&self.named(self.servers.len() - 1));
        let title = match service.choices {
            1 => "one random choice",
            _ => "the better of two choices",
        };
        let outcomes = self.offer(service, length, title, &mut watch, screen, |_, _| Ok(()))?;
        let phase = watch.phase(service.choices, &outcomes);
        screen.say(&format!(
            "{title}: {} connections, {} failed, p50 {:.1} ms, p99 {:.1} ms",
            phase.connections, phase.failed, phase.p50_ms, phase.p99_ms
        ));
        Ok(phase)
    }

    fn change(&self, length: Duration, screen: &mut Screen) -> Result<Change> {
        let last = self.servers.len() - 1;
        let (added, drained) = (Topology::backend_name(last), Topology::backend_name(0));
        let mut watch = Watch::new(&self.named(self.servers.len()));
        let mut steps = vec![
            (length.mul_f64(0.5), "drain", 0),
            (length.mul_f64(0.2), "add", last),
        ];
        let mut drained_at = None;
        let outcomes = self.offer(
            TWO_CHOICES,
            length,
            "two choices, backends changing",
            &mut watch,
            screen,
            |elapsed, screen| {
                if let Some((_, verb, index)) = steps.pop_if(|(at, _, _)| elapsed >= *at) {
                    self.backend(verb, index, screen)?;
                    if verb == "drain" {
                        drained_at = Some(Instant::now());
                    }
                }
                Ok(())
            },
        )?;
        let drained_at = drained_at.context("nothing was drained: the demo is too short")?;
        let answered = |o: &Outcome, name: &String| o.backend.as_ref() == Ok(name);
        Ok(Change {
            connections: outcomes.len() as u64,
            failed: count(&outcomes, |o| o.backend.is_err()),
            first_error: outcomes.iter().find_map(|o| o.backend.clone().err()),
            added_connections: count(&outcomes, |o| answered(o, &added)),
            drained_connections_after: count(&outcomes, |o| {
                o.started > drained_at && answered(o, &drained)
            }),
            added,
            drained,
        })
    }

    /// `lb backend VERB` for both families, shown as typed.
    fn backend(&self, verb: &str, index: usize, screen: &mut Screen) -> Result<()> {
        for vip in VIPS {
            let service = TWO_CHOICES.address(vip).to_string();
            let backend = self.bed.backends[index].address(vip, BACKEND_PORT);
            let args = ["backend", verb, &service, &backend.to_string()];
            screen.say(&format!("$ lb {}", args.join(" ")));
            screen.say(self.agent.ok(&args)?.trim_end());
        }
        Ok(())
    }

    /// Offers traffic to a service, showing what goes on; `step` is called again and again meanwhile.
    fn offer(
        &self,
        service: Service,
        length: Duration,
        title: &str,
        watch: &mut Watch,
        screen: &mut Screen,
        mut step: impl FnMut(Duration, &mut Screen) -> Result<()>,
    ) -> Result<Vec<Outcome>> {
        let targets = VIPS.map(|vip| service.address(vip));
        let plan = traffic::plan(SEED, self.rate_per_second, length, MEAN_WORK, &targets);
        let outcomes = Outcomes::default();
        let done = || {
            let outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes.len()
        };
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                self.bed.client.netns.block_on(async {
                    traffic::offer(&plan, &outcomes).await;
                    Ok(())
                })
            });
            let start = Instant::now();
            let mut drawn = None;
            while !client.is_finished() {
                thread::sleep(SAMPLE);
                let elapsed = start.elapsed();
                if elapsed >= length {
                    // The tail: no more arrivals to sample by.
                    continue;
                }
                step(elapsed, screen)?;
                let open = watch.sample();
                if drawn.is_none_or(|drawn: Instant| drawn.elapsed() >= DRAW) {
                    drawn = Some(Instant::now());
                    screen.state(
                        || self.block(title, elapsed, done(), &open),
                        || sparse(title, elapsed, done(), &open),
                    );
                }
            }
            client
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        screen.clear();
        let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *outcomes))
    }

    fn block(&self, title: &str, elapsed: Duration, done: usize, open: &[u64]) -> Vec<String> {
        let mut lines = vec![format!(
            "{title}   {:4.1} s   {done} connections done   in flight:",
            elapsed.as_secs_f64()
        )];
        let backends = open.iter().zip(&self.slowness).enumerate();
        lines.extend(backends.map(|(index, (open, slowness))| {
            format!(
                "  {:5} speed {:6} {} {open}",
                Topology::backend_name(index),
                format!("1/{slowness}"),
                bar(*open as f64, 40.0, 40)
            )
        }));
        lines
    }
}

fn sparse(title: &str, elapsed: Duration, done: usize, open: &[u64]) -> String {
    let open: Vec<_> = open.iter().map(u64::to_string).collect();
    format!(
        "{title}: {:.0} s, {done} connections done, in flight {}",
        elapsed.as_secs_f64(),
        open.join(" ")
    )
}

/// Both services in both families, on the first `count` backends.
fn config(bed: &Topology, count: usize) -> Result<String> {
    let mut text = String::new();
    for service in [ONE_CHOICE, TWO_CHOICES] {
        for vip in VIPS {
            writeln!(
                text,
                "[[service]]\naddress = \"{}\"\nprotocol = \"tcp\"\nchoices = {}",
                service.address(vip),
                service.choices
            )?;
            for host in &bed.backends[..count] {
                let address = host.address(vip, BACKEND_PORT);
                writeln!(text, "[[service.backend]]\naddress = \"{address}\"")?;
            }
        }
    }
    Ok(text)
}
