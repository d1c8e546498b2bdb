//! When a flow is over for want of packets.

use std::time::Duration;

use lb_common::flow::state;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::dataplane::Clock;

/// How long a flow may be idle, by how far it has come. In the configuration written with a unit:
/// `"10s"`, `"1h"`; from 2 seconds to 7 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// TCP: the handshake is not complete.
    #[serde(deserialize_with = "timeout")]
    pub embryonic: Duration,
    /// TCP: established.
    #[serde(deserialize_with = "timeout")]
    pub established: Duration,
    /// TCP: one side has sent FIN; the other may still be sending.
    #[serde(deserialize_with = "timeout")]
    pub half_closed: Duration,
    /// TCP: ended. The entry stays this long for the last packets of both sides.
    #[serde(deserialize_with = "timeout")]
    pub closing: Duration,
    /// UDP.
    #[serde(deserialize_with = "timeout")]
    pub udp: Duration,
}

/// The shortest and the longest timeout: sweeps come about once a second, and ticks wrap after years.
const RANGE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(7 * 24 * 3600));

fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let value = humantime::parse_duration(&text).map_err(|e| {
        D::Error::custom(format_args!(
            "\"{text}\" is no time: {e}; write it with a unit, as \"10s\" or \"1h\""
        ))
    })?;
    if (RANGE.0..=RANGE.1).contains(&value) {
        Ok(value)
    } else {
        Err(D::Error::custom(format_args!(
            "{text} is not in the range 2s to 7days"
        )))
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            embryonic: Duration::from_secs(10),
            established: Duration::from_secs(3600),
            half_closed: Duration::from_secs(60),
            closing: Duration::from_secs(10),
            udp: Duration::from_secs(60),
        }
    }
}

/// [`Timeouts`] in the packet program's ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickTimeouts {
    embryonic: u32,
    established: u32,
    half_closed: u32,
    closing: u32,
    udp: u32,
}

/// A flow that is over by the client's FIN, with the backend not seen: it may still be sending, and the client
/// acknowledge that.
const CLIENT_CLOSED: u32 = state::CLOSED | state::ONE_WAY | state::FIN_CLIENT;

impl TickTimeouts {
    pub fn new(timeouts: &Timeouts, clock: &Clock) -> Self {
        Self {
            embryonic: clock.ticks(timeouts.embryonic),
            established: clock.ticks(timeouts.established),
            half_closed: clock.ticks(timeouts.half_closed),
            closing: clock.ticks(timeouts.closing),
            udp: clock.ticks(timeouts.udp),
        }
    }

    /// How many ticks a flow of this protocol with these state bits may be idle.
    pub fn of(&self, proto: u32, bits: u32) -> u32 {
        if proto != u32::from(lb_common::wire::TCP) {
            self.udp
        } else if bits & CLIENT_CLOSED == CLIENT_CLOSED {
            self.half_closed
        } else if bits & state::CLOSED != 0 {
            self.closing
        } else if bits & state::FIN_BOTH != 0 {
            self.half_closed
        } else if bits & state::ESTABLISHED != 0 {
            self.established
        } else {
            self.embryonic
        }
    }

    /// The longest of them: a reply entry that is idle for longer is no flow's any more.
    pub fn longest(&self) -> u32 {
        self.embryonic
            .max(self.established)
            .max(self.half_closed)
            .max(self.closing)
            .max(self.udp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: TickTimeouts = TickTimeouts {
        embryonic: 10,
        established: 3600,
        half_closed: 60,
        closing: 11,
        udp: 61,
    };

    #[test]
    fn by_how_far_the_flow_has_come() {
        let tcp = |bits| TICKS.of(6, bits);
        assert_eq!(tcp(0), 10);
        assert_eq!(tcp(state::REPLIED), 10);
        assert_eq!(tcp(state::REPLIED | state::ESTABLISHED), 3600);
        assert_eq!(tcp(state::ESTABLISHED | state::FIN_CLIENT), 60);
        assert_eq!(tcp(state::ESTABLISHED | state::FIN_BACKEND), 60);
        assert_eq!(tcp(state::FIN_BOTH | state::CLOSED), 11);
        assert_eq!(tcp(state::CLOSED), 11);
        let client_closed = state::ONE_WAY | state::FIN_CLIENT | state::CLOSED;
        assert_eq!(tcp(state::ESTABLISHED | client_closed), 60);
        assert_eq!(tcp(state::ONE_WAY | state::CLOSED), 11);
        assert_eq!(TICKS.of(17, state::ESTABLISHED), 61);
        assert_eq!(TICKS.longest(), 3600);
    }
}
