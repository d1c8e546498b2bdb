//! Last stage: the way out.

use aya_ebpf::{
    EbpfContext,
    bindings::{
        BPF_FIB_LKUP_RET_BLACKHOLE, BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NO_NEIGH,
        BPF_FIB_LKUP_RET_PROHIBIT, BPF_FIB_LKUP_RET_SUCCESS, BPF_FIB_LKUP_RET_UNREACHABLE,
        bpf_fib_lookup as FibLookup,
    },
    helpers::bpf_fib_lookup,
    programs::XdpContext,
};
use lb_common::{
    abi::{Backend, backend_flags},
    verdict::{Counter, Verdict},
};

use crate::{family::Family, maps::DEVICES, packet::Packet, stats::count};

/// Where a packet goes.
#[derive(Clone, Copy)]
pub enum Way {
    /// Out on an interface, behind these first 12 bytes of Ethernet header.
    Out { hop: [u32; 3], ifindex: u32 },
    /// Up the stack, which forwards it: it resolves the next hop, or reaches an interface that packets
    /// cannot be redirected to yet.
    Forward,
    /// Up the stack, to this host or whatever else the stack knows.
    Stack,
    /// There is none.
    Nowhere,
}

/// The way to a backend: as the agent keeps it, else as the FIB has it.
#[inline(always)]
pub fn to_backend<F: Family<N>, const N: usize>(
    ctx: &XdpContext,
    backend: &Backend,
    src: &[u32; N],
    dst: &[u32; N],
) -> Way {
    if backend.flags & backend_flags::RESOLVED != 0 {
        return Way::Out {
            hop: backend.hop,
            ifindex: backend.hop_ifindex,
        };
    }
    count(Counter::AskedFib);
    by_fib::<F, N>(ctx, src, dst)
}

/// The way to `dst` by the kernel's FIB and neighbour table.
#[inline(never)]
pub fn by_fib<F: Family<N>, const N: usize>(
    ctx: &XdpContext,
    src: &[u32; N],
    dst: &[u32; N],
) -> Way {
    // SAFETY: plain integers and unions of them; a total length of 0 asks for no MTU check.
    let mut fib: FibLookup = unsafe { core::mem::zeroed() };
    fib.family = F::AF;
    fib.ifindex = ctx.ingress_ifindex() as u32;
    F::fib_addresses(&mut fib, src, dst);
    // SAFETY: the context of this run, and a structure of the size given.
    let result =
        unsafe { bpf_fib_lookup(ctx.as_ptr(), &raw mut fib, size_of::<FibLookup>() as i32, 0) };
    match result as u32 {
        BPF_FIB_LKUP_RET_SUCCESS => {
            // Once its Ethernet header is rewritten the stack takes a packet for somebody else's.
            if fib.ifindex != ctx.ingress_ifindex() as u32 && DEVICES.get(fib.ifindex).is_none() {
                return Way::Forward;
            }
            let (d, s) = (fib.dmac, fib.smac);
            Way::Out {
                hop: [
                    u32::from_ne_bytes([d[0], d[1], d[2], d[3]]),
                    u32::from_ne_bytes([d[4], d[5], s[0], s[1]]),
                    u32::from_ne_bytes([s[2], s[3], s[4], s[5]]),
                ],
                ifindex: fib.ifindex,
            }
        }
        BPF_FIB_LKUP_RET_NO_NEIGH => {
            count(Counter::NoNeighbour);
            Way::Forward
        }
        BPF_FIB_LKUP_RET_BLACKHOLE
        | BPF_FIB_LKUP_RET_UNREACHABLE
        | BPF_FIB_LKUP_RET_PROHIBIT
        | BPF_FIB_LKUP_RET_FWD_DISABLED => Way::Nowhere,
        // Local destinations, lightweight tunnels, and what newer kernels may add.
        _ => Way::Stack,
    }
}

/// Puts the Ethernet header in place and sends the packet.
#[inline(always)]
pub fn send(ctx: &XdpContext, packet: &Packet, hop: [u32; 3], ifindex: u32) -> Verdict {
    packet.set_words(0, &hop);
    if ifindex == ctx.ingress_ifindex() as u32 {
        Verdict::Tx
    } else {
        Verdict::Redirect(ifindex)
    }
}

/// The Ethernet header that a packet to the sender of this one has: its addresses, exchanged.
#[inline(always)]
pub fn hop_back(packet: &Packet) -> [u32; 3] {
    [
        packet.get(6),
        u32::from(packet.get::<u16>(10)) | u32::from(packet.get::<u16>(0)) << 16,
        packet.get(2),
    ]
}
