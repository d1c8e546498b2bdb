//! Incremental Internet checksums.
//!
//! A header checksum is the one's complement of the one's-complement sum of 16-bit words (RFC 1071).
//! When words of the header change, the new checksum follows from the old one and from the
//! difference, eqn. 3 of RFC 1624: `HC' = ~(~HC + ~m + m')`. A NAT flow always makes the same change,
//! so the difference is computed once, when the flow is made, and each packet pays one addition.
//!
//! Sums are taken over words as they lie in memory. One's-complement addition commutes with a byte
//! swap (RFC 1071 section 2 B), so neither side needs to know the host's byte order.

/// Folds a sum of 16-bit words into 16 bits with end-around carry.
///
/// `sum` may be any value below 2^32: the first step leaves at most 0x1fffe, the second at most 0xffff.
#[inline(always)]
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A difference between two states of a header, ready to be added to its checksum.
///
/// Holds `sum(~m) + sum(m')` of RFC 1624, folded to 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Delta(pub u16);

impl Delta {
    /// The difference that changes nothing.
    pub const NONE: Self = Self(0);

    /// This difference and, on top, the change of one 16-bit word from `old` to `new`.
    #[inline(always)]
    #[must_use]
    pub const fn word(self, old: u16, new: u16) -> Self {
        Self(fold(self.0 as u32 + (!old) as u32 + new as u32))
    }

    /// This difference and, on top, the change of one 32-bit word (two adjacent 16-bit words).
    #[inline(always)]
    #[must_use]
    pub const fn dword(self, old: u32, new: u32) -> Self {
        self.word(old as u16, new as u16)
            .word((old >> 16) as u16, (new >> 16) as u16)
    }

    /// This difference and, on top, the change of an address of one (IPv4) or four (IPv6) 32-bit words.
    #[inline(always)]
    #[must_use]
    pub fn address<const N: usize>(mut self, old: &[u32; N], new: &[u32; N]) -> Self {
        let mut i = 0;
        while i < N {
            self = self.dword(old[i], new[i]);
            i += 1;
        }
        self
    }

    /// This difference and, on top, a TTL that is one less.
    ///
    /// The TTL is the high byte of the word it shares with the protocol, in wire order. `to_be` puts
    /// 0x0100 where that byte lies in memory.
    #[inline(always)]
    #[must_use]
    pub const fn ttl_decremented(self) -> Self {
        Self(fold(self.0 as u32 + (!0x0100_u16.to_be()) as u32))
    }

    /// This difference without the TTL step that it contains.
    #[inline(always)]
    #[must_use]
    pub const fn ttl_incremented(self) -> Self {
        Self(fold(self.0 as u32 + 0x0100_u16.to_be() as u32))
    }

    /// The checksum `old` with this difference applied (eqn. 3 of RFC 1624).
    #[inline(always)]
    #[must_use]
    pub const fn apply(self, old: u16) -> u16 {
        !fold((!old) as u32 + self.0 as u32)
    }

    /// The UDP checksum `old` with this difference applied.
    ///
    /// In UDP over IPv4 the value 0 says "no checksum" and stays 0; a computed 0 is sent as 0xffff
    /// (RFC 768), its other representation in one's complement.
    #[inline(always)]
    #[must_use]
    pub const fn apply_udp(self, old: u16) -> u16 {
        if old == 0 {
            return 0;
        }
        match self.apply(old) {
            0 => 0xffff,
            new => new,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition (RFC 1071), over bytes, in network order: shares nothing with the code above.
    fn full(bytes: &[u8]) -> u16 {
        let mut sum = 0_u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    fn word(bytes: &[u8], at: usize) -> u16 {
        u16::from_ne_bytes([bytes[at], bytes[at + 1]])
    }

    #[test]
    fn example_of_rfc_1624() {
        // Section 4: m = 0x5555 becomes 0x3285, HC = 0xdd2f becomes 0x0000.
        let delta = Delta::NONE.word(0x5555, 0x3285);
        assert_eq!(delta.apply(0xdd2f), 0x0000);
    }

    #[test]
    fn udp_without_a_checksum_stays_without() {
        assert_eq!(Delta::NONE.word(1, 2).apply_udp(0), 0);
    }

    #[test]
    fn udp_never_computes_to_none() {
        let delta = Delta::NONE.word(0x5555, 0x3285);
        assert_eq!(delta.apply_udp(0xdd2f), 0xffff);
    }

    #[test]
    fn fold_of_the_extremes() {
        assert_eq!(fold(0), 0);
        assert_eq!(fold(0xffff), 0xffff);
        assert_eq!(fold(0x1_0000), 1);
        assert_eq!(fold(0xffff_ffff), 0xffff);
    }

    proptest! {
        #[test]
        fn same_as_a_fresh_sum(mut header in prop::collection::vec(any::<u8>(), 40..=40),
                               addr in any::<[u8; 16]>(), port in any::<[u8; 2]>()) {
            // Bytes 0..16 an address, 16..18 a port; the rest is carried along. At least one other
            // word is non-zero, as in every real header: the all-zero sum has two representations.
            header[20] |= 1;
            let before = full(&header).to_be();
            let old_addr: [u32; 4] = core::array::from_fn(|i| {
                u32::from_ne_bytes(header[4 * i..4 * i + 4].try_into().unwrap())
            });
            let new_addr: [u32; 4] = core::array::from_fn(|i| {
                u32::from_ne_bytes(addr[4 * i..4 * i + 4].try_into().unwrap())
            });
            let delta = Delta::NONE
                .address(&old_addr, &new_addr)
                .word(word(&header, 16), u16::from_ne_bytes(port));
            header[..16].copy_from_slice(&addr);
            header[16..18].copy_from_slice(&port);
            prop_assert_eq!(delta.apply(before), full(&header).to_be());
        }

        #[test]
        fn a_ttl_step_taken_back_changes_nothing(delta in 1_u16.., check in 1_u16..) {
            // Not 0: it and 0xffff are two forms of the same sum.
            let back = Delta(delta).ttl_decremented().ttl_incremented();
            let (ours, expected) = (back.apply(check), Delta(delta).apply(check));
            prop_assert!(ours == expected || (ours ^ expected) == 0xffff && (ours == 0 || expected == 0));
        }

        #[test]
        fn ttl(mut header in prop::collection::vec(any::<u8>(), 20..=20), ttl in 1_u8..=255) {
            header[8] = ttl;
            header[0] = 0x45;
            let before = full(&header).to_be();
            header[8] -= 1;
            prop_assert_eq!(
                Delta::NONE.ttl_decremented().apply(before),
                full(&header).to_be()
            );
        }
    }
}
