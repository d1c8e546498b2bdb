//! What was counted, for people and as JSON.

use lb_common::decap::{Counter, Fate};
use serde_json::{Map, Value, json};

/// The packets of one fate.
fn total(counters: &[(Counter, u64)], fate: Fate) -> u64 {
    let of_fate = counters.iter().filter(|(c, _)| c.fate() == fate);
    of_fate.map(|(_, packets)| packets).sum()
}

/// The three totals, in one line.
pub fn line(counters: &[(Counter, u64)]) -> String {
    format!(
        "{} decapsulated, {} passed, {} dropped",
        total(counters, Fate::Decapsulated),
        total(counters, Fate::Passed),
        total(counters, Fate::Dropped)
    )
}

/// The totals and every counter, as one JSON object.
pub fn json(counters: &[(Counter, u64)]) -> Value {
    let each: Map<_, _> = counters
        .iter()
        .map(|(counter, packets)| (counter.name().to_owned(), json!(packets)))
        .collect();
    json!({
        "decapsulated": total(counters, Fate::Decapsulated),
        "passed": total(counters, Fate::Passed),
        "dropped": total(counters, Fate::Dropped),
        "counters": each,
    })
}

/// What a fate is called in tables.
pub const fn fate_name(fate: Fate) -> &'static str {
    match fate {
        Fate::Decapsulated => "decapsulated",
        Fate::Passed => "passed",
        Fate::Dropped => "dropped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_of_their_counters() {
        let counters = [
            (Counter::Ip4In4, 3),
            (Counter::Gue1, 4),
            (Counter::NoTunnel, 5),
            (Counter::Congested, 1),
        ];
        assert_eq!(line(&counters), "7 decapsulated, 5 passed, 1 dropped");
        let json = json(&counters);
        assert_eq!(json["decapsulated"], 7);
        assert_eq!(json["counters"]["no_tunnel"], 5);
    }
}
