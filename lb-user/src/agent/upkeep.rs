//! What goes on in the background: expired flows are collected and counts audited, loads are
//! published, the packet program's log is passed on.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::unix::AsyncFd,
    task::{JoinSet, block_in_place},
    time::{Instant, sleep},
};
use tracing::{debug, info, warn};

use super::{Agent, datapath::Datapath};
use crate::{
    dataplane::{self, Dataplane, PacketLog},
    load::{Publisher, Slot, Sweeper, Timeouts},
};

/// Time between two sweeps, if they are quick.
const SWEEP: Duration = Duration::from_secs(1);
/// A sweep takes at most one in this many parts of the time.
const SWEEP_SHARE: u32 = 10;
/// How often to look whether there is anything to publish, while there is not.
const IDLE: Duration = Duration::from_millis(100);

/// Starts all of it.
pub async fn start(
    agent: &Arc<Agent<Dataplane>>,
    timeouts: Timeouts,
    tasks: &mut JoinSet<()>,
) -> Result<(), dataplane::Error> {
    let (tables, sweeper_loads, publisher_loads, log) = {
        let dataplane = &mut agent.lock().await.dataplane;
        (
            dataplane.flow_tables()?,
            dataplane.load_maps()?,
            dataplane.load_maps()?,
            dataplane.take_log()?,
        )
    };
    let sweeper = Sweeper::new(tables, sweeper_loads);
    tasks.spawn(sweep(Arc::clone(agent), sweeper, timeouts));
    let publisher = Publisher::new(publisher_loads);
    tasks.spawn(publish(Arc::clone(agent), publisher));
    if let Some(log) = log {
        tasks.spawn(pass_on(log));
    }
    Ok(())
}

impl<D: Datapath> Agent<D> {
    /// The slots in use, as the load maps' keepers want them.
    async fn load_slots(&self) -> Vec<Slot> {
        let inner = self.lock().await;
        inner
            .state
            .services()
            .flat_map(|(_, service)| {
                let published = service
                    .value
                    .is_some_and(|value| value.view == lb_common::abi::view::PUBLISHED);
                service.backends.values().map(move |backend| Slot {
                    id: backend.slot.id,
                    generation: backend.slot.generation,
                    published,
                })
            })
            .collect()
    }
}

/// Reports an error once, until what failed works again.
#[derive(Default)]
struct Once(bool);

impl Once {
    fn report<T>(&mut self, what: &str, result: Result<T, dataplane::Error>) -> Option<T> {
        match result {
            Ok(value) => {
                self.0 = false;
                Some(value)
            }
            Err(e) => {
                if !std::mem::replace(&mut self.0, true) {
                    warn!("{what}: {e}; tried again");
                }
                None
            }
        }
    }
}

async fn sweep(agent: Arc<Agent<Dataplane>>, mut sweeper: Sweeper, timeouts: Timeouts) {
    let mut once = Once::default();
    loop {
        let slots = agent.load_slots().await;
        let start = Instant::now();
        let result = block_in_place(|| sweeper.sweep(&slots, &timeouts));
        if let Some(swept) = once.report("flows were not collected", result)
            && (swept.collected > 0 || swept.drift > 0)
        {
            debug!(
                flows = swept.flows,
                collected = swept.collected,
                drift = swept.drift,
                "swept"
            );
        }
        sleep(SWEEP.max(start.elapsed() * SWEEP_SHARE)).await;
    }
}

async fn publish(agent: Arc<Agent<Dataplane>>, mut publisher: Publisher) {
    let mut once = Once::default();
    let mut behind = false;
    loop {
        let slots = agent.load_slots().await;
        if !slots.iter().any(|slot| slot.published) {
            sleep(IDLE).await;
            continue;
        }
        let result = block_in_place(|| publisher.publish(&slots));
        let Some(pace) = once.report("loads were not published", result) else {
            sleep(IDLE).await;
            continue;
        };
        if pace.behind != behind {
            behind = pace.behind;
            if behind {
                warn!(
                    interval_ms = pace.interval.as_secs_f64() * 1e3,
                    "loads cannot be published often enough for connections this short; \
                     use `load_view = \"exact\"`"
                );
            } else {
                info!("loads are published often enough again");
            }
        }
        sleep(pace.interval).await;
    }
}

async fn pass_on(log: PacketLog) {
    // SAFETY: the log owns its ring buffer's descriptor until it is dropped, and always gives that one.
    let mut log = match unsafe { AsyncFd::register(log) } {
        Ok(log) => log,
        Err(e) => {
            warn!("the packet program's log cannot be read: {e}");
            return std::future::pending().await;
        }
    };
    loop {
        match log.readable_mut().await {
            Ok(mut ready) => {
                ready.get_inner_mut().flush();
                ready.clear_ready();
            }
            Err(e) => {
                warn!("the packet program's log cannot be read any more: {e}");
                return std::future::pending().await;
            }
        }
    }
}
