//! The packet program's clock: ticks of 2^[`TICK_SHIFT`] jiffies.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use lb_common::abi::TICK_SHIFT;
use nix::time::{ClockId, clock_getres};

use super::{Error, bpf};

/// Length of one tick, from the resolution of the coarse clocks, which is one jiffy (time(7)).
pub fn tick() -> Result<Duration, Error> {
    let jiffy = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE).map_err(|cause| Error::Bpf {
        what: "clock_getres(CLOCK_MONOTONIC_COARSE)",
        cause: cause.into(),
    })?;
    Ok(Duration::from(jiffy) * (1 << TICK_SHIFT))
}

/// Reads the time as the packet program sees it.
#[derive(Clone, Debug)]
pub struct Clock {
    program: Arc<OwnedFd>,
    tick: Duration,
}

impl Clock {
    pub(super) fn new(program: OwnedFd) -> Result<Self, Error> {
        Ok(Self {
            program: Arc::new(program),
            tick: tick()?,
        })
    }

    /// Now, in ticks; wraps.
    pub fn now(&self) -> Result<u32, Error> {
        bpf::run(self.program.as_fd()).map_err(|cause| Error::Bpf {
            what: "running the clock program",
            cause,
        })
    }

    /// A duration in ticks, rounded up: at least 1.
    pub fn ticks(&self, duration: Duration) -> u32 {
        let ticks = duration.as_nanos().div_ceil(self.tick.as_nanos().max(1));
        u32::try_from(ticks)
            .unwrap_or(u32::MAX / 2)
            .clamp(1, u32::MAX / 2)
    }

    /// How long before `now` a tick was.
    pub fn since(&self, tick: u32, now: u32) -> Duration {
        self.tick * idle(tick, now)
    }
}

/// Ticks from `tick` to `now`. A tick that is a little ahead (another CPU noted it after `now` was
/// read) counts as now.
pub fn idle(tick: u32, now: u32) -> u32 {
    let passed = now.wrapping_sub(tick);
    if passed > u32::MAX / 2 { 0 } else { passed }
}

#[cfg(test)]
mod tests {
    use super::idle;

    #[test]
    fn idle_across_a_wrap_and_ahead() {
        assert_eq!(idle(5, 9), 4);
        assert_eq!(idle(u32::MAX - 1, 3), 5);
        assert_eq!(idle(9, 8), 0);
    }
}
