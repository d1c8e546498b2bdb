//! Layout of every map key and value, shared by the packet program and the agent.
//!
//! Sizes and offsets are asserted at compile time: the two sides are built by different compilers.
//! [`VERSION`] changes with any of them.

use crate::flow::FlowKey;

/// Version of the layouts in this module and of the meaning of their fields.
pub const VERSION: u32 = 1;

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
/// into a packet: the forward entry the backend's address as the new destination, the reply entry the
/// VIP as the new source.
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
}

/// Entry of an IPv4 flow.
pub type FlowEntry4 = FlowEntry<1>;
/// Entry of an IPv6 flow.
pub type FlowEntry6 = FlowEntry<4>;

const _: () = assert!(size_of::<FlowEntry4>() == 44 && size_of::<FlowEntry6>() == 56);

/// A service: what clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct ServiceKey {
    /// The VIP, network byte order; IPv4 as an IPv4-mapped address.
    pub addr: [u32; 4],
    /// Port, network byte order.
    pub port: u16,
    /// Protocol number.
    pub proto: u8,
    /// Unused; zero.
    pub reserved: u8,
}

const _: () = assert!(size_of::<ServiceKey>() == 20);

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
    /// Unused; zero.
    pub reserved: u8,
}

const _: () = assert!(size_of::<Service>() == 20);

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
    /// Address, network byte order; IPv4 as an IPv4-mapped address.
    pub addr: [u32; 4],
    /// Share relative to the service's other backends, 1 to 65,535.
    pub weight: u32,
    /// Port, network byte order.
    pub port: u16,
    /// Unused; zero.
    pub reserved: u16,
}

const _: () = assert!(size_of::<Backend>() == 48);

/// Bits of [`Backend::flags`].
pub mod backend_flags {
    /// `hop` and `hop_ifindex` are known. Without it the kernel's FIB is asked for each packet.
    pub const RESOLVED: u32 = 1 << 0;
    /// No other service has a backend of this address, port and protocol: a reply without a flow
    /// entry can be told from its source alone, so flows may be placed without one.
    pub const STATELESS: u32 = 1 << 1;
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

/// One CPU's allowance of new flow entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct InsertBudget {
    /// The tick in which `used` was counted.
    pub tick: u32,
    /// Flows entered in that tick.
    pub used: u32,
}

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
    /// Unused; zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Settings>() == 104);

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
        Service,
        Backend,
        Endpoint,
        LoadCell,
        Correction,
        Published,
        InsertBudget,
        Settings,
    );
}
#[cfg(not(feature = "user"))]
const _: usize = size_of::<FlowKey<1>>();
