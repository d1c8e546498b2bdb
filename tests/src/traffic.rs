//! Traffic on a plan: when each connection is made and what it asks for is settled beforehand, so that
//! the same traffic can be offered twice.

use crate::client;
use lb_common::flow::mix64;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// One connection with one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// When, after the start.
    pub at: Duration,
    /// Where to.
    pub to: SocketAddr,
    /// How much work the server has with it.
    pub work: Duration,
}

/// What came of a connection.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// When it was made.
    pub started: Instant,
    /// From the SYN to the end of the answer.
    pub latency: Duration,
    /// The backend that answered, or why none did.
    pub backend: Result<String, String>,
}

/// A Poisson stream of connections, as of many independent clients, each to one of `to` in turn. Their
/// work is half a fixed amount, half exponential. The same arguments give the same plan.
pub fn plan(
    seed: u64,
    rate_per_second: f64,
    length: Duration,
    mean_work: Duration,
    to: &[SocketAddr],
) -> Vec<Arrival> {
    let mut random = Random(seed);
    let mut at = Duration::ZERO;
    let mut arrivals = Vec::new();
    for target in to.iter().cycle() {
        at += Duration::from_secs_f64(random.exponential() / rate_per_second);
        if at >= length {
            break;
        }
        arrivals.push(Arrival {
            at,
            to: *target,
            work: mean_work.mul_f64(0.5 + 0.5 * random.exponential()),
        });
    }
    arrivals
}

/// What has come of a plan so far.
pub type Outcomes = Arc<Mutex<Vec<Outcome>>>;

/// Carries out a plan in the namespace that the calling thread is in, and returns when the last
/// connection has ended. Outcomes are added to `outcomes` as they come.
pub async fn offer(plan: &[Arrival], outcomes: &Outcomes) {
    let start = tokio::time::Instant::now();
    let mut connections = JoinSet::new();
    for arrival in plan.iter().copied() {
        tokio::time::sleep_until(start + arrival.at).await;
        let outcomes = Arc::clone(outcomes);
        connections.spawn(async move {
            let started = Instant::now();
            let path = format!("/busy/{}", arrival.work.as_micros());
            let reply = client::get(arrival.to, &path).await;
            let outcome = Outcome {
                started,
                latency: started.elapsed(),
                backend: reply.map(|r| r.backend).map_err(|e| format!("{e:#}")),
            };
            outcomes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(outcome);
        });
        while connections.try_join_next().is_some() {}
    }
    connections.join_all().await;
}

/// Latency that a share `p` (0 to 1) of the outcomes stays within; `None` of nothing.
pub fn percentile(outcomes: &[Outcome], p: f64) -> Option<Duration> {
    let mut latencies: Vec<_> = outcomes.iter().map(|o| o.latency).collect();
    latencies.sort_unstable();
    let rank = (p * latencies.len() as f64).ceil() as usize;
    latencies.get(rank.max(1) - 1).copied()
}

/// A small generator, good enough for plans.
struct Random(u64);

impl Random {
    /// Above 0, up to 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((mix64(self.0) >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential with mean 1.
    fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_repeats_and_has_its_rate() {
        let to = ["192.0.2.1:80".parse().unwrap(), "[::1]:80".parse().unwrap()];
        let make = |seed| {
            let second = Duration::from_secs(1);
            plan(seed, 1000.0, 10 * second, second, &to)
        };
        let plan = make(1);
        assert_eq!(plan, make(1));
        assert_ne!(plan, make(2));
        // Five standard deviations of a Poisson count of mean 10,000.
        assert!((9_500..10_500).contains(&plan.len()), "{}", plan.len());
        assert!(plan.is_sorted_by_key(|arrival| arrival.at));
        let work: f64 = plan.iter().map(|a| a.work.as_secs_f64()).sum();
        assert!((0.95..1.05).contains(&(work / plan.len() as f64)));
    }

    #[test]
    fn percentiles_are_of_the_sorted_latencies() {
        let outcome = |ms| Outcome {
            started: Instant::now(),
            latency: Duration::from_millis(ms),
            backend: Ok(String::new()),
        };
        let outcomes: Vec<_> = (1..=100).rev().map(outcome).collect();
        assert_eq!(percentile(&outcomes, 0.5), Some(Duration::from_millis(50)));
        assert_eq!(percentile(&outcomes, 0.99), Some(Duration::from_millis(99)));
        assert_eq!(percentile(&outcomes, 1.0), Some(Duration::from_millis(100)));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
