//! What the decapsulator `decap` and its user side share: settings, map keys, and the one list of what
//! becomes of a packet.

use core::mem::offset_of;

/// What is fixed while the program is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Settings {
    /// UDP port of GUE, network byte order; 0 takes no GUE off.
    pub gue_port: u16,
    /// Not 0: outer sources are not asked for.
    pub any_source: u8,
    /// Not 0: inner destinations are not asked for.
    pub any_destination: u8,
}

/// An address with its family, so that no IPv6 address, and no prefix of some, stands for an IPv4 one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct AddressKey {
    /// 4 or 6.
    pub family: u32,
    /// Network byte order; an IPv4 address is in the first word, and the others are 0.
    pub addr: [u32; 4],
}

impl AddressKey {
    /// Bits of the family, which a prefix in a trie has before those of the address.
    pub const FAMILY_BITS: u32 = 8 * offset_of!(Self, addr) as u32;
    /// Bits of a whole key, to look one up in a trie.
    pub const BITS: u32 = 8 * size_of::<Self>() as u32;

    /// The key of an IPv4 address.
    #[inline(always)]
    #[must_use]
    pub const fn v4(addr: u32) -> Self {
        Self {
            family: 4,
            addr: [addr, 0, 0, 0],
        }
    }

    /// The key of an IPv6 address.
    #[inline(always)]
    #[must_use]
    pub const fn v6(addr: [u32; 4]) -> Self {
        Self { family: 6, addr }
    }
}

const _: () = assert!(size_of::<Settings>() == 4);
const _: () = assert!(size_of::<AddressKey>() == 20 && AddressKey::FAMILY_BITS == 32);

#[cfg(feature = "user")]
// SAFETY: `repr(C)`, integers only, no padding (sizes asserted above).
unsafe impl aya::Pod for Settings {}
#[cfg(feature = "user")]
// SAFETY: as above.
unsafe impl aya::Pod for AddressKey {}

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its outer headers are taken off, and the inner packet goes up the host's stack.
    Decapsulated,
    /// It goes up the host's stack untouched.
    Passed,
    /// It ends here.
    Dropped,
}

macro_rules! counters {
    ($($fate:ident $variant:ident $name:literal $text:literal,)*) => {
        /// What became of a packet, and why. The discriminant is the index into the counter array.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Counter {
            $(#[doc = $text] $variant,)*
        }

        impl Counter {
            /// Every counter, in the order of its index.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The counter's name in JSON and output.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// One line for people.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What is done with the packets that it counts.
            pub const fn fate(self) -> Fate {
                match self { $(Self::$variant => Fate::$fate,)* }
            }
        }
    };
}

counters! {
    Decapsulated Ip4In4 "4in4" "IPv4 in IPv4, protocol 4",
    Decapsulated Ip6In4 "6in4" "IPv6 in IPv4, protocol 41",
    Decapsulated Ip4In6 "4in6" "IPv4 in IPv6, next header 4",
    Decapsulated Ip6In6 "6in6" "IPv6 in IPv6, next header 41",
    Decapsulated Gue0 "gue_0" "GUE of variant 0, with a header of its own",
    Decapsulated Gue1 "gue_1" "GUE of variant 1, IP directly behind UDP",
    Passed NoTunnel "no_tunnel" "no tunnel packet for this host",
    Passed ForeignAddress "foreign_address" "tunnel packet to an address that is not this host's",
    Passed SourceRefused "source_refused" "tunnel packet from a source that is not allowed",
    Passed OtherDestination "other_destination" "the inner packet is for none of the given VIPs",
    Passed OuterOptions "outer_options" "the outer header has IPv4 options or IPv6 extension headers",
    Passed OuterFragment "outer_fragment" "the outer packet is a fragment",
    Passed GueUnknown "gue_unknown" "GUE with a control message, flags, a version or a protocol that is not taken off",
    Passed Malformed "malformed" "headers cut short, lengths that do not fit, or an inner version that is not the announced one",
    Passed NotStripped "not_stripped" "the kernel did not let the outer headers be taken off",
    Dropped Congested "congested" "marked as congested on the way, and the inner packet cannot say so (RFC 6040)",
}

impl Counter {
    /// Number of counters.
    pub const COUNT: u32 = Self::ALL.len() as u32;
}

/// "Not ECN-capable", in the two ECN bits of an IP header (RFC 3168).
pub const NOT_ECT: u8 = 0;
/// "ECN-capable transport (1)".
pub const ECT_1: u8 = 1;
/// "Congestion experienced".
pub const CE: u8 = 3;

/// The ECN bits of a packet that comes out of a tunnel (RFC 6040 section 4.2, figure 4); `None` for one
/// that has to be dropped.
#[inline(always)]
#[must_use]
pub const fn ecn(outer: u8, inner: u8) -> Option<u8> {
    match (outer, inner) {
        (CE, NOT_ECT) => None,
        (_, NOT_ECT | CE) => Some(inner),
        (CE | ECT_1, _) => Some(outer),
        _ => Some(inner),
    }
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

    /// Figure 4 of RFC 6040, row by row.
    #[test]
    fn ecn_is_that_of_the_standard() {
        const ECT_0: u8 = 2;
        let outer = [NOT_ECT, ECT_0, ECT_1, CE];
        let figure = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
        ];
        for (inner, row) in figure {
            for (outer, expected) in outer.into_iter().zip(row) {
                assert_eq!(ecn(outer, inner), expected, "outer {outer}, inner {inner}");
            }
        }
    }
}
