//! The order of the stages.

use aya_ebpf::{
    bindings::xdp_action,
    helpers::generated::{bpf_xdp_adjust_head, bpf_xdp_get_buff_len},
    macros::xdp,
    programs::XdpContext,
};
use lb_common::{
    decap::{Counter, Fate, ecn},
    wire,
};

use crate::{
    ethernet::Ethernet,
    inner::{inner4, inner6, mark4, mark6},
    maps::{COUNTERS, DESTINATIONS, setting},
    outer::{outer4, outer6},
    packet::Packet,
    tunnel::tunnel,
};

/// Takes outer headers off, of frames that lie in one buffer.
#[xdp]
pub fn decap(ctx: XdpContext) -> u32 {
    run(&ctx, (ctx.data_end() - ctx.data()) as u32)
}

/// The same for frames in several buffers, as there are with a large MTU. Headers are in the first.
#[xdp(frags)]
pub fn decap_frags(ctx: XdpContext) -> u32 {
    // SAFETY: the kernel's own context.
    let len = unsafe { bpf_xdp_get_buff_len(ctx.ctx) };
    run(&ctx, len as u32)
}

#[inline(always)]
fn run(ctx: &XdpContext, len: u32) -> u32 {
    let counter = match take_off(ctx, len) {
        Ok(counter) | Err(counter) => counter,
    };
    if let Some(cell) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: a per-CPU cell; XDP programs do not preempt one another on a CPU.
        unsafe { *cell += 1 };
    }
    match counter.fate() {
        Fate::Decapsulated | Fate::Passed => xdp_action::XDP_PASS,
        Fate::Dropped => xdp_action::XDP_DROP,
    }
}

/// Takes the outer headers off a frame of `len` bytes, in all its buffers. Returns what kind of tunnel
/// it came by, or why it is left as it is.
#[inline(always)]
fn take_off(ctx: &XdpContext, len: u32) -> Result<Counter, Counter> {
    let frame = Packet::new(ctx);
    let ethernet = Ethernet::parse(&frame)?;
    let ip = frame.behind(ethernet.len);
    let len = len.saturating_sub(ethernet.len as u32);
    let outer = match ethernet.ether_type {
        wire::ETH_P_IP => outer4(&ip)?,
        wire::ETH_P_IPV6 => outer6(&ip)?,
        _ => return Err(Counter::NoTunnel),
    };
    if outer.end > len {
        return Err(Counter::Malformed);
    }
    let tunnel = tunnel(&ip, &outer)?;
    let packet = ip.behind(tunnel.at);
    let room = tunnel.end.checked_sub(tunnel.at as u32);
    let room = room.ok_or(Counter::Malformed)?;
    let inner = match tunnel.is_v4 {
        true => inner4(&packet, room)?,
        false => inner6(&packet, room)?,
    };
    // SAFETY: only asked whether it is there.
    let is_given = || unsafe { DESTINATIONS.get(&inner.destination) }.is_some();
    if setting().any_destination == 0 && !is_given() {
        return Err(Counter::OtherDestination);
    }
    let ecn = ecn(outer.ecn, inner.ecn).ok_or(Counter::Congested)?;

    let header = ethernet.save(&frame);
    // SAFETY: the kernel's own context. No pointer into the packet is used after this.
    if unsafe { bpf_xdp_adjust_head(ctx.ctx, tunnel.at as i32) } != 0 {
        return Err(Counter::NotStripped);
    }
    let frame = Packet::new(ctx);
    // Never: what is left has been parsed above. But the verifier does not know.
    if !frame.has(ethernet.len + wire::IPV4_LEN) {
        return Err(Counter::NotStripped);
    }
    ethernet.restore(&frame, &header, tunnel.is_v4);
    if ecn != inner.ecn {
        let packet = frame.behind(ethernet.len);
        match tunnel.is_v4 {
            true => mark4(&packet, ecn),
            false => mark6(&packet, ecn),
        }
    }
    Ok(tunnel.kind)
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
