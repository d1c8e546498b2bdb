//! Layout of every map key and value, shared by the packet program and the agent.
//!
//! Sizes and offsets are asserted at compile time: the two sides are built by different compilers.
//! [`VERSION`] changes with any of them.

use crate::{flow::FlowKey, vlan::Tags};

/// Version of the layouts in this module and of the meaning of their fields.
pub const VERSION: u32 = 2;

/// `last_seen` counts in units of 2^6 jiffies: 64 ms to 0.64 s for kernels of 1000 to 100 Hz.
///
/// A flow's entry is shared by all CPUs, and a write to a shared line costs several times a read; so
/// the time is coarse, and written only when it has changed.
pub const TICK_SHIFT: u32 = 6;

/// Backends in a row of the candidate table.
pub const ROW: usize = 4;

/// One row of the candidate table: backend ids in order of preference, [`NO_BACKEND`] after the last.
pub type Row = [u32; ROW];

/// No backend: fills a [`Row`] of a service that has fewer than [`ROW`] backends.
pub const NO_BACKEND: u32 = u32::MAX;

/// CPUs that the packet program can sum loads over.
pub const MAX_CPUS: u32 = 256;

/// What NAT writes into a packet: another address and port at one end, and what that does to the
/// checksums ([`csum::Delta`](crate::csum::Delta)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Change<const N: usize> {
    /// Address to write, network byte order.
    pub addr: [u32; N],
    /// Port to write, network byte order.
    pub port: u16,
    /// The change of the TCP or UDP checksum by address and port.
    pub l4_delta: u16,
    /// The change of the IPv4 header checksum by the address and one TTL step. IPv6 has none.
    pub ip_delta: u16,
    /// Unused; zero.
    pub reserved: u16,
}

impl<const N: usize> Change<N> {
    /// A change that is still to be filled in.
    pub const EMPTY: Self = Self {
        addr: [0; N],
        port: 0,
        l4_delta: 0,
        ip_delta: 0,
        reserved: 0,
    };
}

/// What the packet program knows of a flow, in one direction.
///
/// A NAT flow has two, made together and ended together: one for the packets to the VIP and one for
/// the backend's replies ([`REPLY_ENTRY`](crate::flow::state::REPLY_ENTRY)). Both say what to write
/// into a packet.
///
/// | mode | entry | `change.addr`, `change.port` |
/// |---|---|---|
/// | nat | forward | the backend: the new destination |
/// | nat | reply | the VIP: the new source |
/// | fullnat | forward | the balancer's address and the allocated port: the new source; the new destination is the backend's, as its slot has it |
/// | fullnat | reply | the client: the new destination; the new source is the VIP, as the backend's slot has it |
/// | dsr, ipip, gue | forward | not used, but for `change.addr[0]`: the flow's hash, which outer headers vary by |
///
/// In fullnat the differences of the checksums are of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FlowEntry<const N: usize> {
    /// Bits of [`flow::state`](crate::flow::state). Changed atomically only.
    pub state: u32,
    /// When the last packet of this direction came, in ticks of 2^[`TICK_SHIFT`] jiffies (wraps).
    pub last_seen: u32,
    /// Index into the backend array.
    pub backend: u32,
    /// Generation of that backend's slot when the flow was made. Another one there: the flow is gone.
    pub generation: u32,
    /// What to write into each packet.
    pub change: Change<N>,
    /// First 12 bytes of the Ethernet header of a reply: the client's last hop as destination, the
    /// balancer's interface as source. In a forward entry the same, to notice a change.
    pub hop: [u32; 3],
    /// Interface on which the client's packets come in, and replies go out.
    pub hop_ifindex: u32,
    /// VLAN tags of the client's last hop.
    pub tags: Tags,
}

/// Entry of an IPv4 flow.
pub type FlowEntry4 = FlowEntry<1>;
/// Entry of an IPv6 flow.
pub type FlowEntry6 = FlowEntry<4>;

const _: () = assert!(size_of::<FlowEntry4>() == 48 && size_of::<FlowEntry6>() == 60);

/// A service: what clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct ServiceKey {
    /// The VIP, network byte order; IPv4 as an IPv4-mapped address.
    pub addr: [u32; 4],
    /// Port, network byte order; of a range its first, of a service of all ports 0.
    pub port: u16,
    /// Protocol number.
    pub proto: u8,
    /// A [`ports`] constant.
    pub ports: u8,
}

const _: () = assert!(size_of::<ServiceKey>() == 20);

/// Which ports a service has.
pub mod ports {
    /// One.
    pub const ONE: u8 = 0;
    /// A range.
    pub const RANGE: u8 = 1;
    /// All of them.
    pub const ALL: u8 = 2;
}

/// What a port is looked up by when no service has that port alone: the data of a key of a
/// longest-prefix-match trie, of which a range of ports takes a few prefixes and "all ports" one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct PortKey {
    /// The VIP, network byte order; IPv4 as an IPv4-mapped address.
    pub addr: [u32; 4],
    /// Protocol number.
    pub proto: u8,
    /// Unused; zero.
    pub reserved: u8,
    /// Port, network byte order.
    pub port: u16,
}

impl PortKey {
    /// Bits of a key that matches one port.
    pub const BITS: u32 = 8 * size_of::<Self>() as u32;
}

const _: () = assert!(size_of::<PortKey>() == 20);

/// What is known of an address that has services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Vip {
    /// The address's only TCP service and its only UDP service: [`Vip::NONE`], [`Vip::SEVERAL`], or as
    /// [`Vip::only`] has it. A fragment whose ports are not known yet can be for no other.
    pub only: [u32; 2],
}

impl Vip {
    /// No service of the protocol.
    pub const NONE: u32 = 0;
    /// More than one service of the protocol.
    pub const SEVERAL: u32 = u32::MAX;

    /// An only service, of this port (network byte order) and [`ports`] constant.
    #[inline(always)]
    pub const fn only(port: u16, ports: u8) -> u32 {
        1 << 24 | (ports as u32) << 16 | port as u32
    }

    /// Port and [`ports`] constant of an only service.
    #[inline(always)]
    pub const fn service(only: u32) -> Option<(u16, u8)> {
        if only == Self::NONE || only == Self::SEVERAL {
            None
        } else {
            Some((only as u16, (only >> 16) as u8))
        }
    }
}

const _: () = assert!(size_of::<Vip>() == 8);

/// What is in use, so that what is not costs no lookup. Changes while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Control {
    /// Bits of [`in_use`].
    pub in_use: u32,
}

/// Bits of [`Control::in_use`].
pub mod in_use {
    /// Some service has a range of ports, or all.
    pub const PORT_RANGES: u32 = 1 << 0;
}

/// How a service's new flows are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Service {
    /// First row of the service's candidates in the row array.
    pub rows_offset: u32,
    /// Number of rows; 0: no backend takes new flows.
    pub rows: u32,
    /// Counts the tables that this service has had.
    pub version: u32,
    /// Id of the service, stable while it exists.
    pub id: u32,
    /// A [`draw`] constant.
    pub draw: u8,
    /// How many candidates of the row are compared, 1 to [`ROW`].
    pub choices: u8,
    /// A [`view`] constant.
    pub view: u8,
    /// Bits of [`service_flags`].
    pub flags: u8,
    /// Nanoseconds between two new flows of one source that the rate limit allows.
    pub source_interval_ns: u32,
}

const _: () = assert!(size_of::<Service>() == 24);

/// Bits of [`Service::flags`].
pub mod service_flags {
    /// Sources are looked up in the lists of those allowed and denied.
    pub const SOURCE_LISTS: u8 = 1 << 0;
    /// A source on no list is denied.
    pub const DENY_OTHERS: u8 = 1 << 1;
    /// The rate of new flows of each source is limited.
    pub const RATE_LIMIT: u8 = 1 << 2;
}

/// A source in the list of those that a service allows and denies: the data of a key of a
/// longest-prefix-match trie. The service's id counts to the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SourceKey {
    /// [`Service::id`].
    pub service: u32,
    /// The source, network byte order; IPv4 as an IPv4-mapped address.
    pub addr: [u32; 4],
}

impl SourceKey {
    /// Bits of a key that matches one address.
    pub const BITS: u32 = 8 * size_of::<Self>() as u32;
    /// Value of a source that may open flows.
    pub const ALLOW: u32 = 1;
    /// Value of a source that may not.
    pub const DENY: u32 = 0;
}

const _: () = assert!(size_of::<SourceKey>() == 20);

/// Whose rate of new flows is limited: a source of a service. Of an IPv6 source the first 64 bits, as
/// a host has that many addresses at will.
pub type RateKey = SourceKey;

/// For how many nanoseconds of its rate a source may open flows at once.
pub const RATE_BURST_NS: u64 = 1_000_000_000;

/// Names a fragmented packet, or the flow of which a source last sent one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FragmentKey {
    /// Source, network byte order; IPv4 as an IPv4-mapped address.
    pub src: [u32; 4],
    /// Destination, network byte order; IPv4 as an IPv4-mapped address.
    pub dst: [u32; 4],
    /// Identification, as it lies in the packet; of a source's last flow 0.
    pub id: u32,
    /// Protocol number; of a source's last flow with [`FragmentKey::LAST_FLOW`].
    pub proto: u32,
}

impl FragmentKey {
    /// Bit of [`proto`](Self::proto) that makes a key that of a source's last flow.
    pub const LAST_FLOW: u32 = 1 << 31;
}

const _: () = assert!(size_of::<FragmentKey>() == 40);

/// Where the fragments of a packet belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Fragment {
    /// Ports of the flow, as its first fragment has them. Not known while `backend` is one.
    pub ports: u32,
    /// When it was noted, in ticks.
    pub tick: u32,
    /// The slot where fragments that came before the first were sent, or [`NO_BACKEND`].
    pub backend: u32,
    /// The generation of that slot.
    pub generation: u32,
}

const _: () = assert!(size_of::<Fragment>() == 16);

/// What selects a flow's row of candidates.
pub mod draw {
    /// The keyed hash of the 5-tuple: the same packet has the same candidates at every balancer.
    pub const FLOW: u8 = 0;
    /// A random number for every new flow.
    pub const RANDOM: u8 = 1;
}

/// Which loads a CPU compares.
pub mod view {
    /// Each candidate's counts summed over all CPUs, at the time of the choice.
    pub const EXACT: u8 = 0;
    /// Own counts and what the agent last published of all CPUs.
    pub const PUBLISHED: u8 = 1;
}

/// A backend, one slot of the backend array.
///
/// A slot belongs to one service, and says how that service's packets go to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Backend {
    /// Tells the slot's owners apart; 0: the slot is empty.
    pub generation: u32,
    /// Bits of [`backend_flags`].
    pub flags: u32,
    /// First 12 bytes of the Ethernet header of a packet to this backend.
    pub hop: [u32; 3],
    /// Interface to send on.
    pub hop_ifindex: u32,
    /// Longest IP packet that the way to the backend takes, in bytes; 0: not known.
    pub mtu: u32,
    /// VLAN tags of the next hop. None: a packet keeps its own if it leaves where it came in.
    pub tags: Tags,
    /// Address, network byte order; IPv4 as an IPv4-mapped address.
    pub addr: [u32; 4],
    /// Port, network byte order; 0: the one that the client's packet has.
    pub port: u16,
    /// Port of the service, network byte order; 0: the one that the backend's packet has.
    pub vip_port: u16,
    /// Share relative to the service's other backends, 1 to 65,535.
    pub weight: u32,
    /// The balancer's own address in fullnat and in outer headers, in the backend's family; network
    /// byte order, IPv4 as an IPv4-mapped address. All zeros: none is known.
    pub source: [u32; 4],
    /// How many of the last bits of `source` outer headers fill with the flow's hash, 0 to 32.
    pub source_bits: u32,
    /// The VIP, network byte order; IPv4 as an IPv4-mapped address.
    pub vip: [u32; 4],
}

impl Backend {
    /// An empty slot.
    pub const EMPTY: Self = Self {
        generation: 0,
        flags: 0,
        hop: [0; 3],
        hop_ifindex: 0,
        mtu: 0,
        tags: Tags::NONE,
        addr: [0; 4],
        port: 0,
        vip_port: 0,
        weight: 0,
        source: [0; 4],
        source_bits: 0,
        vip: [0; 4],
    };
}

const _: () = assert!(size_of::<Backend>() == 92);

/// Bits of [`Backend::flags`].
pub mod backend_flags {
    /// `hop` and `hop_ifindex` are known. Without it the kernel's FIB is asked for each packet.
    pub const RESOLVED: u32 = 1 << 0;
    /// No other service has a backend of this address, port and protocol: a reply without a flow
    /// entry can be told from its source alone, so flows may be placed without one.
    pub const STATELESS: u32 = 1 << 1;
    /// The backend is down: its UDP flows are placed afresh.
    pub const DOWN: u32 = 1 << 2;
    /// With [`DOWN`]: TCP flows are reset.
    pub const RESET: u32 = 1 << 3;
    /// With [`DOWN`]: TCP flows are placed afresh.
    pub const REPLACE: u32 = 1 << 4;
    /// The backend is this host: its stack gets the packet as it came.
    pub const LOCAL: u32 = 1 << 5;
    /// `tags` are not [`Tags::NONE`](crate::vlan::Tags::NONE).
    pub const TAGGED: u32 = 1 << 6;
    /// Mode fullnat. None of the four: nat.
    pub const FULLNAT: u32 = 1 << 8;
    /// Mode dsr: only the MAC header changes.
    pub const DSR: u32 = 1 << 9;
    /// Modes ipip and gue: the packet gets an outer header of the backend's family.
    pub const TUNNEL: u32 = 1 << 10;
    /// With [`TUNNEL`]: the outer header has UDP in it.
    pub const GUE: u32 = 1 << 11;

    /// The bits that say the mode.
    pub const MODE: u32 = FULLNAT | DSR | TUNNEL | GUE;
    /// Modes in which replies do not come back through the balancer.
    pub const ONE_WAY: u32 = DSR | TUNNEL;
    /// All that asks for more of a packet to the backend than nat to a known next hop.
    pub const UNUSUAL: u32 = DOWN | LOCAL | TAGGED | FULLNAT | DSR | TUNNEL;
}

/// Where a backend's replies belong when no flow entry says so: address and port of the backend.
pub type EndpointKey = ServiceKey;

/// The service to which an endpoint's replies belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Endpoint {
    /// The service.
    pub service: ServiceKey,
    /// The backend's slot.
    pub backend: u32,
}

const _: () = assert!(size_of::<Endpoint>() == 24);

/// What one CPU has counted for one backend. Only that CPU writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct LoadCell {
    /// Generation of the slot that the counts are of; of any other, they count as 0.
    pub generation: u32,
    /// Unused; zero.
    pub reserved: u32,
    /// Flows opened.
    pub opened: u64,
    /// Flows closed. A flow may close on another CPU than it was opened on, so on one CPU this can
    /// exceed `opened`; only the sum over CPUs makes sense.
    pub closed: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Bytes from clients, from the Ethernet header on.
    pub bytes_in: u64,
    /// Packets to clients.
    pub packets_out: u64,
    /// Bytes to clients, from the Ethernet header on.
    pub bytes_out: u64,
}

const _: () = assert!(size_of::<LoadCell>() == 56);

/// What the agent adds to a backend's in-flight count: expired flows, and what the audit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Correction {
    /// Generation of the slot that the correction is of.
    pub generation: u32,
    /// To be added to the sum over CPUs.
    pub delta: i32,
}

const _: () = assert!(size_of::<Correction>() == 8 && align_of::<Correction>() == 4);

/// What the agent last published to one CPU about one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Published {
    /// In-flight flows on all CPUs, corrections included.
    pub total: i32,
    /// What this CPU itself had counted then.
    pub own: i32,
}

const _: () = assert!(size_of::<Published>() == 8);

/// One CPU's allowance of what it may do in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Budget {
    /// The tick in which the others were counted.
    pub tick: u32,
    /// Flows entered in that tick.
    pub inserts: u32,
    /// ICMP errors and resets sent in that tick.
    pub answers: u32,
}

/// ICMP errors and resets that one CPU sends in a tick, at most.
pub const ANSWERS_PER_TICK: u32 = 64;

/// Values that the agent sets when it loads the program, constant from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Settings {
    /// Keys of the placement hash.
    pub hash_keys: [u64; crate::flow::HASH_KEYS],
    /// Possible CPUs, at most [`MAX_CPUS`].
    pub cpus: u32,
    /// New flow entries a CPU may make in one tick.
    pub inserts_per_tick: u32,
    /// For how many ticks after the last packet placed without an entry a reply without one may be
    /// told by its source.
    pub stateless_ticks: u32,
    /// For how many ticks the fragments of a packet are waited for.
    pub fragment_ticks: u32,
    /// First port, host byte order, that fullnat allocates.
    pub source_port_first: u32,
    /// How many ports fullnat allocates from there on.
    pub source_port_count: u32,
    /// UDP port of GUE, network byte order.
    pub gue_port: u32,
    /// Bits of [`settings_flags`].
    pub flags: u32,
}

const _: () = assert!(size_of::<Settings>() == 120);

/// Bits of [`Settings::flags`].
pub mod settings_flags {
    /// The program was loaded to take frames in several buffers (XDP frags, kernel 5.18), so the length
    /// of a frame is asked for.
    pub const FRAGS: u32 = 1 << 0;
}

/// Programs that others end in, by their index in the program array `STAGES`.
pub mod stage {
    /// Frames of any layout, and packets of no known flow.
    pub const PLACE: u32 = 0;
    /// ICMP.
    pub const ICMP: u32 = 1;
    /// Answers that refuse a packet.
    pub const REFUSE: u32 = 2;
    /// The programs, in the order of their index.
    pub const PROGRAMS: [&str; 3] = ["place", "icmp", "refuse"];
}

#[cfg(feature = "user")]
mod pod {
    use super::*;

    macro_rules! pod {
        ($($t:ty),* $(,)?) => {$(
            // SAFETY: `repr(C)` of integers without padding (the sizes asserted above are the sums of
            // the fields' sizes); every bit pattern is a value.
            unsafe impl aya::Pod for $t {}
        )*};
    }
    pod!(
        FlowKey<1>,
        FlowKey<4>,
        FlowEntry4,
        FlowEntry6,
        ServiceKey,
        PortKey,
        Vip,
        Control,
        Service,
        SourceKey,
        FragmentKey,
        Fragment,
        Backend,
        Endpoint,
        LoadCell,
        Correction,
        Published,
        Budget,
        Settings,
    );
}
#[cfg(not(feature = "user"))]
const _: usize = size_of::<FlowKey<1>>();
