//! The demo's result, for people and as JSON.

use super::{
    measure::{Phase, Spread},
    screen::bar,
};
use serde::Serialize;
use std::fmt;

/// All that the demo found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// How many times longer each backend takes for the same work.
    pub slowness: Vec<f64>,
    /// Connections offered in a second.
    pub rate_per_second: f64,
    /// The traffic with one random choice.
    pub one_choice: Phase,
    /// The same traffic with the better of two.
    pub two_choices: Phase,
    /// Adding and draining under that traffic.
    pub change: Change,
}

/// Adding one backend and draining another under traffic.
#[derive(Debug, Serialize)]
pub struct Change {
    /// Connections made meanwhile.
    pub connections: u64,
    /// Those that failed.
    pub failed: u64,
    /// Why, of the first that failed.
    pub first_error: Option<String>,
    /// The backend that was added.
    pub added: String,
    /// Connections that it answered.
    pub added_connections: u64,
    /// The backend that was drained.
    pub drained: String,
    /// Connections made after the drain command returned that it still answered.
    pub drained_connections_after: u64,
}

impl Report {
    /// Whether lb did what it promises.
    pub fn ok(&self) -> bool {
        self.one_choice.failed == 0
            && self.two_choices.failed == 0
            && self.change.failed == 0
            && self.change.added_connections > 0
            && self.change.drained_connections_after == 0
    }
}

const BAR: usize = 12;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phases = [&self.one_choice, &self.two_choices];
        let full = |of: fn(&super::BackendShare) -> f64| {
            phases
                .iter()
                .flat_map(|phase| phase.backends.iter().map(of))
                .fold(0.0, f64::max)
        };
        let most_connections = full(|b| b.connections as f64);
        let most_in_flight = full(|b| b.in_flight_mean);
        writeln!(f, "{:15}{:38}IN FLIGHT (mean)", "", "CONNECTIONS")?;
        let [one, two] = ["one random choice", "two choices"];
        writeln!(f, "{:15}{one:19}{two:19}{one:19}{two}", "backend, speed")?;
        let rows = self
            .one_choice
            .backends
            .iter()
            .zip(&self.two_choices.backends);
        for ((one, two), slowness) in rows.zip(&self.slowness) {
            write!(f, "{:6}{:<9}", one.name, format!("1/{slowness}"))?;
            for share in [one, two] {
                let bar = bar(share.connections as f64, most_connections, BAR);
                write!(f, "{bar}{:>5}  ", share.connections)?;
            }
            for share in [one, two] {
                let bar = bar(share.in_flight_mean, most_in_flight, BAR);
                write!(f, "{bar}{:>5.1}  ", share.in_flight_mean)?;
            }
            writeln!(f)?;
        }
        let [one, two] = phases;
        writeln!(
            f,
            "\n{:34}{:>19}{:>14}",
            "", "one random choice", "two choices"
        )?;
        let mut row = |name: &str, of: &dyn Fn(&Phase) -> String| {
            writeln!(f, "{name:34}{:>19}{:>14}", of(one), of(two))
        };
        row("connections", &|p| p.connections.to_string())?;
        row("failed", &|p| p.failed.to_string())?;
        row("latency p50", &|p| format!("{:.1} ms", p.p50_ms))?;
        row("latency p99", &|p| format!("{:.1} ms", p.p99_ms))?;
        let spread = |s: Spread| format!("{:.2} / {:.2}", s.max_over_mean, s.cv);
        row("in flight, max/mean and CV", &|p| {
            spread(p.in_flight_spread)
        })?;
        row("connections, max/mean and CV", &|p| {
            spread(p.connections_spread)
        })?;
        row("most in flight on one backend", &|p| {
            let most = p.backends.iter().map(|b| b.in_flight_max).max();
            most.unwrap_or(0).to_string()
        })?;
        writeln!(f, "\n{}", self.plainly())?;
        let change = &self.change;
        writeln!(
            f,
            "Under the same traffic {} was added and {} drained: {} connections, {} failed;\n\
             {} answered {} of them, {} got {} after its drain command had returned.",
            change.added,
            change.drained,
            change.connections,
            change.failed,
            change.added,
            change.added_connections,
            change.drained,
            change.drained_connections_after
        )?;
        let errors = [
            &self.one_choice.first_error,
            &self.two_choices.first_error,
            &change.first_error,
        ];
        for error in errors.into_iter().flatten() {
            writeln!(f, "A connection failed: {error}")?;
        }
        Ok(())
    }
}

impl Report {
    /// What the figures say, and only that.
    fn plainly(&self) -> String {
        let (one, two) = (&self.one_choice, &self.two_choices);
        let verb = |a: f64, b: f64| if a < b { "fell" } else { "rose" };
        format!(
            "A random choice gives all backends about as many connections: they pile up on slow ones.\n\
             The better of two gives a slow one fewer: with it the in-flight max/mean {} from {:.2} to {:.2},\n\
             and the p99 latency {} from {:.0} to {:.0} ms.",
            verb(
                two.in_flight_spread.max_over_mean,
                one.in_flight_spread.max_over_mean
            ),
            one.in_flight_spread.max_over_mean,
            two.in_flight_spread.max_over_mean,
            verb(two.p99_ms, one.p99_ms),
            one.p99_ms,
            two.p99_ms
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::BackendShare;

    fn phase(choices: u8, connections: [u64; 2], in_flight: [f64; 2]) -> Phase {
        let backends = (0..2)
            .map(|i| BackendShare {
                name: format!("b{i}"),
                connections: connections[i],
                in_flight_mean: in_flight[i],
                in_flight_max: 40,
            })
            .collect();
        Phase {
            choices,
            connections: connections.iter().sum(),
            failed: 0,
            first_error: None,
            p50_ms: 20.0,
            p99_ms: 300.0 / f64::from(choices),
            connections_spread: Spread::of(&connections.map(|c| c as f64)),
            in_flight_spread: Spread::of(&in_flight),
            backends,
        }
    }

    fn report() -> Report {
        Report {
            slowness: vec![1.0, 2.5],
            rate_per_second: 100.0,
            one_choice: phase(1, [1000, 1010], [3.0, 9.0]),
            two_choices: phase(2, [1500, 510], [4.0, 5.0]),
            change: Change {
                connections: 500,
                failed: 0,
                first_error: None,
                added: "b2".to_owned(),
                added_connections: 100,
                drained: "b0".to_owned(),
                drained_connections_after: 0,
            },
        }
    }

    #[test]
    fn says_what_the_figures_say() {
        let mut report = report();
        let text = report.to_string();

        assert!(text.contains("fell from 1.50 to 1.11"), "{text}");
        assert!(text.contains("fell from 300 to 150 ms"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 110),
            "{text}"
        );
        report.two_choices.p99_ms = 301.0;
        assert!(report.to_string().contains("rose from 300 to 301 ms"));
    }

    #[test]
    fn any_broken_promise_is_a_failure() {
        assert!(report().ok());
        let breaks: [fn(&mut Report); 5] = [
            |r| r.one_choice.failed = 1,
            |r| r.two_choices.failed = 1,
            |r| r.change.failed = 1,
            |r| r.change.added_connections = 0,
            |r| r.change.drained_connections_after = 1,
        ];
        for break_it in breaks {
            let mut report = report();
            break_it(&mut report);
            assert!(!report.ok(), "{report:?}");
        }
    }
}
