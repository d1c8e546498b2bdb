//! What becomes of a packet, and the one list of reasons and events that both sides count by.

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes up the host's own stack, untouched: it is not for a VIP.
    Pass,
    /// Goes up the host's own stack rewritten, because the next hop is not known yet: the stack
    /// resolves it and forwards the packet.
    PassForward,
    /// Leaves by the interface on which it came.
    Tx,
    /// Leaves by the interface of this index.
    Redirect(u32),
    /// Ends here; the reason is counted.
    Drop(Counter),
}

macro_rules! counters {
    ($($kind:ident $variant:ident $name:literal $text:literal,)*) => {
        /// What the packet program counts, per CPU: why a packet was dropped, and what else is worth
        /// knowing. The discriminant is the index into the counter array.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Counter {
            $(#[doc = $text] $variant,)*
        }

        impl Counter {
            /// Every counter, in the order of its index.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The counter's name in metrics and JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One line for people.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Whether it counts dropped packets.
            pub const fn is_drop(self) -> bool {
                match self { $(Self::$variant => counters!(@ $kind),)* }
            }
        }
    };
    (@ drop) => { true };
    (@ event) => { false };
}

counters! {
    drop Malformed "malformed" "packet for a VIP whose TCP or UDP header is cut short or contradicts itself",
    drop TtlExpired "ttl_expired" "TTL or hop limit of a packet for a VIP ran out here",
    drop NoBackend "no_backend" "the service has no backend that takes new flows",
    drop TupleTaken "tuple_taken" "every candidate already talks to this client address and port through another VIP",
    drop NoEntry "no_entry" "no room for a flow entry, and the backend serves several VIPs so none can be told without one",
    drop NoRoute "no_route" "no usable route to the backend, forwarding is off where the packet came in, or the interface to send on is gone",
    drop TooBig "too_big" "packet longer than the way to the backend takes, outer header included",
    drop SourcePortsExhausted "source_ports_exhausted" "fullnat: no source port is free towards the backend",
    drop FragmentUnknown "fragment_unknown" "later fragment of which nothing is known, for a VIP with several services of the protocol",
    drop HeadersTooLong "headers_too_long" "packet for a VIP with more extension headers than are looked through",
    drop SourceDenied "source_denied" "new flow of a source that the service's lists do not allow",
    drop RateLimited "rate_limited" "new flow of a source over the service's rate limit",
    drop Unresolved "unresolved" "the backend's next hop is not known, in a mode in which the host's stack cannot forward the packet",
    drop NoHeadroom "no_headroom" "the driver leaves no room before the packet for an outer header",
    event PlacedTableFull "placed_table_full" "new flow placed without an entry: the flow table is full",
    event PlacedInsertCap "placed_insert_cap" "new flow placed without an entry: over the cap of new entries a second",
    event StatelessReply "stateless_reply" "reply of a flow without an entry, told by its source",
    event AskedFib "asked_fib" "packet sent by the kernel's FIB because the backend's next hop was not known",
    event NoNeighbour "no_neighbour" "packet handed to the stack to resolve its next hop",
    event Stale "stale" "packet of a flow whose backend is gone: placed afresh",
    event EchoReply "echo_reply" "echo request to a VIP, answered here",
    event IcmpError "icmp_error" "ICMP error about a packet of a flow, passed on to the end that sent it",
    event IcmpSent "icmp_sent" "ICMP error sent to a client: packet too big, or TTL run out",
    event ResetSent "reset_sent" "TCP reset sent to a client whose backend is down",
    event AnswersLimited "answers_limited" "ICMP error or reset not sent: over the limit in a tick",
    event Replaced "replaced" "packet of a flow whose backend is down: placed afresh",
    event Local "local" "packet handed to this host as one of the backends",
    event SourcePortReused "source_port_reused" "fullnat: a closed flow's source port used again, because none was free",
    event FragmentSplit "fragment_split" "later fragment that came before the first, and went to another backend than that",
}

impl Counter {
    /// Number of counters.
    pub const COUNT: u32 = Self::ALL.len() as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_and_names_are_unique_and_in_order() {
        let mut names = Vec::new();
        for (i, &counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(counter as usize, i);
            assert!(!names.contains(&counter.name()), "{}", counter.name());
            assert!(!counter.text().is_empty());
            names.push(counter.name());
        }
        assert_eq!(Counter::COUNT as usize, names.len());
    }
}
