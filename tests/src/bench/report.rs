//! The results, for people and as JSON.

use std::fmt;

use serde::Serialize;

use super::{cost::Cost, memory::Memory, spread::Spread};

/// What was measured; what was not is left out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Packets of known flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit: Option<Vec<Cost>>,
    /// Packets of new flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Vec<Cost>>,
    /// The spread of flows over backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Vec<Spread>>,
    /// Memory and program size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(costs) = &self.hit {
            writeln!(
                f,
                "Packets of known flows, in nanoseconds, against the floor"
            )?;
            table(f, costs)?;
        }
        if let Some(costs) = &self.new {
            writeln!(f, "New TCP flows over IPv4, in nanoseconds, against a hit")?;
            table(f, costs)?;
        }
        if let Some(spread) = &self.spread {
            writeln!(f, "10,000 flows over 100 equal backends: max/mean (worst)")?;
            spreads(f, spread)?;
        }
        if let Some(memory) = &self.memory {
            memory_table(f, memory)?;
        }
        Ok(())
    }
}

fn table(f: &mut fmt::Formatter<'_>, costs: &[Cost]) -> fmt::Result {
    let over_empty = costs.iter().any(|cost| cost.over_empty_ns.is_some());
    write!(
        f,
        "  {:24} {:>6} {:>7} {:>8} {:>6}",
        "", "min", "median", "middle", "ratio"
    )?;
    if over_empty {
        write!(f, " {:>11}", "over empty")?;
    }
    for cost in costs {
        write!(
            f,
            "\n  {:24} {:>6} {:>7} {:>8.1} {:>6.2}",
            cost.path, cost.min_ns, cost.median_ns, cost.middle_ns, cost.ratio
        )?;
        if let Some(ns) = cost.over_empty_ns {
            write!(f, " {ns:>11.1}")?;
        }
    }
    writeln!(f, "\n")
}

fn spreads(f: &mut fmt::Formatter<'_>, spreads: &[Spread]) -> fmt::Result {
    write!(f, "  {:18}", "choices")?;
    for choices in 1..=4 {
        write!(f, " {choices:>15}")?;
    }
    for (i, spread) in spreads.iter().enumerate() {
        if i % 4 == 0 {
            write!(f, "\n  {:18}", format!("{}, {}", spread.draw, spread.view))?;
        }
        let cell = format!("{:.3} ({:.3})", spread.max_over_mean, spread.worst);
        write!(f, " {cell:>15}")?;
    }
    writeln!(f, "\n")
}

fn memory_table(f: &mut fmt::Formatter<'_>, memory: &Memory) -> fmt::Result {
    writeln!(f, "Maps at the default sizes, {} CPUs", memory.cpus)?;
    writeln!(f, "  {:16} {:>10} {:>12}", "", "entries", "bytes")?;
    for map in &memory.maps {
        writeln!(
            f,
            "  {:16} {:>10} {:>12}",
            map.name, map.max_entries, map.bytes
        )?;
    }
    writeln!(f, "  {:16} {:>10} {:>12}\n", "all", "", memory.total_bytes)?;
    let mut line = |what: String, value: String| writeln!(f, "  {what:44} {value:>10}");
    line(
        "bytes of an IPv4 flow".into(),
        format!("{:.0}", memory.flow4_bytes),
    )?;
    line(
        "bytes of an IPv6 flow".into(),
        format!("{:.0}", memory.flow6_bytes),
    )?;
    line(
        "bytes of a backend".into(),
        format!("{:.0}", memory.backend_bytes),
    )?;
    line(
        "bytes of a candidate row".into(),
        memory.row_bytes.to_string(),
    )?;
    line(
        format!("bytes of a table of {} backends", memory.example_backends),
        memory.example_table_bytes.to_string(),
    )?;
    line(
        "bytes of the program".into(),
        memory.jited_bytes.to_string(),
    )?;
    let verified = memory
        .verified_instructions
        .map_or("unknown".into(), |n| n.to_string());
    line("instructions that the verifier walked".into(), verified)
}
