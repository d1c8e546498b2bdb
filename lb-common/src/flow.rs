//! Flow keys, flow states and the keyed hash that places a flow.

/// The 5-tuple of a flow, as its packets carry it.
///
/// `N` is the number of 32-bit words in an address: 1 for IPv4, 4 for IPv6. Every field is in network
/// byte order, so that the packet program copies words from the packet as they lie there. There is no
/// padding: all bytes take part in the kernel's hash.
///
/// A NAT flow has two keys: of the packets to the VIP, and of the backend's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FlowKey<const N: usize> {
    /// Source address.
    pub src: [u32; N],
    /// Destination address.
    pub dst: [u32; N],
    /// Source port, then destination port, as the first word of a TCP or UDP header has them.
    pub ports: u32,
    /// Protocol number, in host byte order.
    pub proto: u32,
}

/// Key of an IPv4 flow.
pub type FlowKey4 = FlowKey<1>;
/// Key of an IPv6 flow.
pub type FlowKey6 = FlowKey<4>;

const _: () = assert!(size_of::<FlowKey4>() == 16 && size_of::<FlowKey6>() == 40);

impl<const N: usize> FlowKey<N> {
    /// The source port, in network byte order.
    #[inline(always)]
    pub const fn src_port(&self) -> u16 {
        let [a, b, _, _] = self.ports.to_ne_bytes();
        u16::from_ne_bytes([a, b])
    }

    /// The destination port, in network byte order.
    #[inline(always)]
    pub const fn dst_port(&self) -> u16 {
        let [_, _, a, b] = self.ports.to_ne_bytes();
        u16::from_ne_bytes([a, b])
    }

    /// The key of the packets that `server` (address and port of the other end) sends back to the
    /// source of this flow.
    #[inline(always)]
    #[must_use]
    pub const fn reply_from(&self, server: [u32; N], port: u16) -> Self {
        Self {
            src: server,
            dst: self.src,
            ports: join_ports(port, self.src_port()),
            proto: self.proto,
        }
    }

    /// The key of the flow to `vip` to which this key's packets are the replies: the inverse of
    /// [`reply_from`](Self::reply_from).
    #[inline(always)]
    #[must_use]
    pub const fn forward_to(&self, vip: [u32; N], port: u16) -> Self {
        Self {
            src: self.dst,
            dst: vip,
            ports: join_ports(self.dst_port(), port),
            proto: self.proto,
        }
    }
}

/// Joins two ports (network byte order) as they lie in a TCP or UDP header.
#[inline(always)]
pub const fn join_ports(src: u16, dst: u16) -> u32 {
    let [a, b] = src.to_ne_bytes();
    let [c, d] = dst.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// An IPv4 address (network byte order) as an IPv4-mapped IPv6 address (RFC 4291 section 2.5.5.2).
#[inline(always)]
pub const fn mapped(v4: u32) -> [u32; 4] {
    [0, 0, 0xffff_u32.to_be(), v4]
}

/// The IPv4 address in an IPv4-mapped IPv6 address, if it is one.
#[inline(always)]
pub const fn unmapped(addr: &[u32; 4]) -> Option<u32> {
    if addr[0] == 0 && addr[1] == 0 && addr[2] == 0xffff_u32.to_be() {
        Some(addr[3])
    } else {
        None
    }
}

/// What is known of a flow, as bits of one word, so that whatever must happen once is claimed by one
/// atomic `or`: of all CPUs that set a bit, one sees it unset before.
///
/// The word of the *forward* entry is the flow's; the reply entry's own word only says whether there
/// is anything left to tell the forward entry.
pub mod state {
    /// The backend has answered.
    pub const REPLIED: u32 = 1 << 0;
    /// TCP: the client has acknowledged an answer. UDP: the backend has answered.
    pub const ESTABLISHED: u32 = 1 << 1;
    /// TCP: the client has sent FIN.
    pub const FIN_CLIENT: u32 = 1 << 2;
    /// TCP: the backend has sent FIN.
    pub const FIN_BACKEND: u32 = 1 << 3;
    /// The flow has ended and the backend's in-flight count has been given back.
    pub const CLOSED: u32 = 1 << 4;
    /// This entry is of the replies.
    pub const REPLY_ENTRY: u32 = 1 << 8;
    /// The flow's packets get another source and another destination, in both directions.
    pub const FULLNAT: u32 = 1 << 9;
    /// The flow's replies do not come back through the balancer: this entry is its only one.
    pub const ONE_WAY: u32 = 1 << 10;

    /// Both sides have sent FIN.
    pub const FIN_BOTH: u32 = FIN_CLIENT | FIN_BACKEND;
}

/// Secret keys of the placement hash: one base and two for each pair of 32-bit words in the longest
/// key (IPv6: 10 words).
pub const HASH_KEYS: usize = 11;

/// Derives the keys of [`placement`] from a seed.
///
/// Balancers with the same seed place the same packet alike.
pub const fn hash_keys(seed: u64) -> [u64; HASH_KEYS] {
    let mut keys = [0; HASH_KEYS];
    let mut state = seed;
    let mut i = 0;
    while i < HASH_KEYS {
        // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        keys[i] = mix64(state);
        i += 1;
    }
    keys
}

/// The finalizer of SplitMix64: a bijection on 64 bits in which each input bit flips each output bit
/// with probability close to one half.
#[inline(always)]
pub const fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The keyed hash of a flow: 32 uniform bits.
///
/// Multilinear-HM over 32-bit words (Lemire and Kaser, "Strongly universal string hashing is fast",
/// 2014): one multiplication for two words, and no choice of packets made without knowing the keys
/// collides more often than chance. It is linear in each word, so consecutive ports would step
/// through the rows in a line; [`mix64`] breaks the line.
///
/// `secret(i)` is number i of the [`hash_keys`]; only as many as the key needs are asked for.
#[inline(always)]
pub fn placement<const N: usize>(key: &FlowKey<N>, secret: impl Fn(usize) -> u64) -> u32 {
    let mut sum = secret(0);
    let mut k = 1;
    let mut i = 0;
    // The addresses pair up word by word: (src, dst) for each of the N words.
    while i < N {
        sum = sum.wrapping_add(pair(key.src[i], key.dst[i], secret(k), secret(k + 1)));
        k += 2;
        i += 1;
    }
    sum = sum.wrapping_add(pair(key.ports, key.proto, secret(k), secret(k + 1)));
    (mix64(sum) >> 32) as u32
}

#[inline(always)]
const fn pair(a: u32, b: u32, ka: u64, kb: u64) -> u64 {
    ka.wrapping_add(a as u64)
        .wrapping_mul(kb.wrapping_add(b as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key4(src: u32, port: u16) -> FlowKey4 {
        FlowKey {
            src: [src],
            dst: [0x0a00_0001_u32.to_be()],
            ports: join_ports(port.to_be(), 80_u16.to_be()),
            proto: 6,
        }
    }

    #[test]
    fn ports_lie_as_in_a_header() {
        let key = key4(1, 0x1234);
        assert_eq!(key.ports.to_ne_bytes(), [0x12, 0x34, 0, 80]);
        assert_eq!(u16::from_be(key.src_port()), 0x1234);
        assert_eq!(u16::from_be(key.dst_port()), 80);
    }

    #[test]
    fn mapped_is_the_standards_form() {
        let addr = mapped(u32::from_ne_bytes([192, 0, 2, 1]));
        let mut bytes = [0; 16];
        for (to, word) in bytes.chunks_mut(4).zip(addr) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(
            core::net::Ipv6Addr::from(bytes),
            core::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped()
        );
        assert_eq!(unmapped(&addr), Some(u32::from_ne_bytes([192, 0, 2, 1])));
        assert_eq!(unmapped(&[1, 0, 0xffff_u32.to_be(), 1]), None);
    }

    #[test]
    fn seeds_differ_and_repeat() {
        assert_eq!(hash_keys(7), hash_keys(7));
        assert_ne!(hash_keys(7), hash_keys(8));
    }

    /// Consecutive ports of one client, the commonest structured input, against a uniform spread:
    /// chi-squared over 64 cells stays within what chance gives (63 degrees of freedom: mean 63,
    /// standard deviation 11.2; 130 is six deviations away), for each of 200 seeds.
    #[test]
    fn consecutive_ports_spread_evenly() {
        for seed in 0..200 {
            let keys = hash_keys(seed);
            let mut cells = [0_u32; 64];
            for port in 0..6400_u16 {
                let h = placement(&key4(0x0101_a8c0, 1024 + port), |i| keys[i]);
                cells[((u64::from(h) * 64) >> 32) as usize] += 1;
            }
            let chi: f64 = cells
                .iter()
                .map(|&c| (f64::from(c) - 100.0).powi(2) / 100.0)
                .sum();
            assert!(chi < 130.0, "seed {seed}: chi-squared {chi}");
        }
    }

    proptest! {
        #[test]
        fn reply_and_forward_are_inverse(src in any::<[u32; 4]>(), vip in any::<[u32; 4]>(),
                                         backend in any::<[u32; 4]>(), ports in any::<u32>(),
                                         bport in any::<u16>()) {
            let forward = FlowKey { src, dst: vip, ports, proto: 17 };
            let reply = forward.reply_from(backend, bport);
            prop_assert_eq!(reply.src, backend);
            prop_assert_eq!(reply.dst, src);
            prop_assert_eq!(reply.src_port(), bport);
            prop_assert_eq!(reply.dst_port(), forward.src_port());
            prop_assert_eq!(reply.forward_to(vip, forward.dst_port()), forward);
        }

        #[test]
        fn every_word_of_the_key_counts(mut words in any::<[u32; 10]>(), at in 0_usize..10, flip in 1_u32..) {
            let keys = hash_keys(3);
            let key = |w: &[u32; 10]| FlowKey::<4> {
                src: w[..4].try_into().unwrap(),
                dst: w[4..8].try_into().unwrap(),
                ports: w[8],
                proto: w[9],
            };
            let before = placement(&key(&words), |i| keys[i]);
            words[at] ^= flip;
            // A collision of one pair has probability 2^-32.
            prop_assert_ne!(before, placement(&key(&words), |i| keys[i]));
        }
    }
}
