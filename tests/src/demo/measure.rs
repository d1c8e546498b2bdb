//! What is measured of a phase of traffic.

use crate::{
    server::Stats,
    traffic::{Outcome, percentile},
};
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// How evenly something is spread over backends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The largest over the mean: 1 is even.
    pub max_over_mean: f64,
    /// Coefficient of variation, standard deviation over mean: 0 is even.
    pub cv: f64,
}

impl Spread {
    /// Of these amounts; even if there is nothing.
    pub fn of(amounts: &[f64]) -> Self {
        let n = amounts.len() as f64;
        let mean = amounts.iter().sum::<f64>() / n;
        if amounts.is_empty() || mean == 0.0 {
            return Self {
                max_over_mean: 1.0,
                cv: 0.0,
            };
        }
        let max = amounts.iter().copied().fold(0.0, f64::max);
        let variance = amounts.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / n;
        Self {
            max_over_mean: max / mean,
            cv: variance.sqrt() / mean,
        }
    }
}

/// One backend's part in a phase.
#[derive(Clone, Debug, Serialize)]
pub struct BackendShare {
    /// Its name.
    pub name: String,
    /// Connections that it answered.
    pub connections: u64,
    /// Connections open at once, on average over time.
    pub in_flight_mean: f64,
    /// Most connections open at once.
    pub in_flight_max: u64,
}

/// A phase of traffic.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// How many candidates were compared for each connection.
    pub choices: u8,
    /// Connections made.
    pub connections: u64,
    /// Connections that failed.
    pub failed: u64,
    /// Why, of the first that failed.
    pub first_error: Option<String>,
    /// Half of the connections took no longer, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100 connections took no longer, in milliseconds.
    pub p99_ms: f64,
    /// Spread of the connections over the backends.
    pub connections_spread: Spread,
    /// Spread of the time averages of connections in flight.
    pub in_flight_spread: Spread,
    /// The backends.
    pub backends: Vec<BackendShare>,
}

/// Watches how many connections each backend has open.
#[derive(Debug)]
pub struct Watch {
    names: Vec<String>,
    stats: Vec<Arc<Stats>>,
    samples: u64,
    sums: Vec<u64>,
    maxima: Vec<u64>,
}

impl Watch {
    /// Of these backends.
    pub fn new(backends: &[(String, Arc<Stats>)]) -> Self {
        let (names, stats): (Vec<_>, Vec<_>) = backends.iter().cloned().unzip();
        Self {
            samples: 0,
            sums: vec![0; stats.len()],
            maxima: vec![0; stats.len()],
            names,
            stats,
        }
    }

    /// Takes a sample: connections open now, by backend.
    pub fn sample(&mut self) -> Vec<u64> {
        let now: Vec<_> = self.stats.iter().map(|stats| stats.open()).collect();
        self.samples += 1;
        for (index, open) in now.iter().enumerate() {
            self.sums[index] += open;
            self.maxima[index] = self.maxima[index].max(*open);
        }
        now
    }

    /// Sums up a phase.
    pub fn phase(&self, choices: u8, outcomes: &[Outcome]) -> Phase {
        let backends: Vec<_> = self
            .names
            .iter()
            .enumerate()
            .map(|(index, name)| BackendShare {
                name: name.clone(),
                connections: count(outcomes, |o| o.backend.as_ref() == Ok(name)),
                in_flight_mean: self.sums[index] as f64 / self.samples.max(1) as f64,
                in_flight_max: self.maxima[index],
            })
            .collect();
        let connections: Vec<_> = backends.iter().map(|b| b.connections as f64).collect();
        let in_flight: Vec<_> = backends.iter().map(|b| b.in_flight_mean).collect();
        let ms = |p| {
            let latency = percentile(outcomes, p).unwrap_or(Duration::ZERO);
            latency.as_secs_f64() * 1e3
        };
        Phase {
            choices,
            connections: outcomes.len() as u64,
            failed: count(outcomes, |o| o.backend.is_err()),
            first_error: outcomes.iter().find_map(|o| o.backend.clone().err()),
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            connections_spread: Spread::of(&connections),
            in_flight_spread: Spread::of(&in_flight),
            backends,
        }
    }
}

/// How many outcomes are such.
pub fn count(outcomes: &[Outcome], such: impl Fn(&Outcome) -> bool) -> u64 {
    outcomes.iter().filter(|o| such(o)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_by_hand() {
        let even = Spread {
            max_over_mean: 1.0,
            cv: 0.0,
        };
        assert_eq!(Spread::of(&[5.0, 5.0]), even);
        assert_eq!(Spread::of(&[]), even);
        assert_eq!(Spread::of(&[0.0, 0.0]), even);
        assert_eq!(
            Spread::of(&[0.0, 10.0]),
            Spread {
                max_over_mean: 2.0,
                cv: 1.0
            }
        );
    }
}
