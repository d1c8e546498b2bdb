//! Programs of test beds and benches: never part of the balancer.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {}

#[cfg(target_arch = "bpf")]
mod program {
    use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};
    use lb_common::wire;

    /// Passes every packet. veth delivers XDP_TX and redirected frames only to a peer that has an XDP
    /// program of its own.
    #[xdp]
    pub fn pass(_ctx: XdpContext) -> u32 {
        xdp_action::XDP_PASS
    }

    /// The floor of a benchmark: parses Ethernet and IPv4, swaps the MACs and sends the frame back.
    #[xdp]
    pub fn floor(ctx: XdpContext) -> u32 {
        let data = ctx.data();
        if data + wire::ETH_LEN + wire::IPV4_LEN > ctx.data_end() {
            return xdp_action::XDP_DROP;
        }
        let eth = data as *mut u32;
        // SAFETY: the bound above covers all offsets; the packet is this program's alone.
        unsafe {
            let half = data as *mut u16;
            if half.add(wire::ETH_TYPE / 2).read() != wire::ETH_P_IP
                || (data as *const u8).add(wire::ETH_LEN).read() != wire::IPV4_VERSION_IHL
            {
                return xdp_action::XDP_PASS;
            }
            let (dst_low, dst_high) = (eth.read(), half.add(2).read());
            let (src_low, src_high) = ((data + 6) as *mut u32, half.add(5).read());
            eth.write(src_low.read());
            half.add(2).write(src_high);
            src_low.write(dst_low);
            half.add(5).write(dst_high);
        }
        xdp_action::XDP_TX
    }

    #[panic_handler]
    fn panic(_info: &core::panic::PanicInfo) -> ! {
        loop {}
    }
}
