//! Writes to the maps, in the order in which they must be made.

use lb_common::abi::{Endpoint, EndpointKey, Row, Service, ServiceKey};

/// One write. The packet program reads at any time, so a list of writes is ordered: what is pointed
/// to comes before what points to it, and is cleared after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapWrite {
    /// Fills a backend's slot, or changes its weight or flags; the next hop is the data plane's own
    /// knowledge and is kept.
    Backend(BackendSlot),
    /// Empties a backend's slot: its flows are no longer known.
    ClearBackend {
        /// The slot.
        id: u32,
    },
    /// Writes rows of candidates into a region that no service points to yet.
    Rows {
        /// First row.
        offset: u32,
        /// The rows.
        rows: Vec<Row>,
    },
    /// Creates a service or points it to other candidates, at once.
    Service {
        /// VIP, port and protocol.
        key: ServiceKey,
        /// The new value.
        value: Service,
    },
    /// Removes a service: its packets pass to the host from then on.
    RemoveService {
        /// VIP, port and protocol.
        key: ServiceKey,
    },
    /// Takes an address for a VIP: pings of it are answered.
    Vip {
        /// The address, network byte order; IPv4 mapped.
        addr: [u32; 4],
    },
    /// Takes that back: no service has the address any more.
    RemoveVip {
        /// The address.
        addr: [u32; 4],
    },
    /// Says where replies from a backend belong when no flow entry does.
    Endpoint {
        /// Address, port and protocol of the backend.
        key: EndpointKey,
        /// The service.
        value: Endpoint,
    },
    /// Takes that back.
    RemoveEndpoint {
        /// Address, port and protocol of the backend.
        key: EndpointKey,
    },
}

/// A backend as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendSlot {
    /// Index into the backend array.
    pub id: u32,
    /// Tells the slot's owners apart; never 0.
    pub generation: u32,
    /// Address, network byte order; IPv4 mapped.
    pub addr: [u32; 4],
    /// Port, network byte order.
    pub port: u16,
    /// Weight, 1 to 65,535.
    pub weight: u32,
    /// No other service has a backend at this address, port and protocol
    /// ([`STATELESS`](lb_common::abi::backend_flags::STATELESS)).
    pub stateless: bool,
    /// The bits of [`backend_flags`](lb_common::abi::backend_flags) that say how packets go to the
    /// backend: its service's mode, whether it is down or this host, and what becomes of its flows.
    pub manner: u32,
    /// The VIP, network byte order; IPv4 mapped.
    pub vip: [u32; 4],
    /// Port of the service, network byte order; 0 if it has several.
    pub vip_port: u16,
    /// The balancer's own address towards the backend, network byte order, IPv4 mapped; `None`: as the
    /// route to the backend has it.
    pub source: Option<[u32; 4]>,
    /// How many of its last bits outer headers fill with the flow's hash.
    pub source_bits: u32,
}

impl BackendSlot {
    /// A backend of weight 1 in nat, of no service yet. Address and port in network byte order.
    pub const fn new(id: u32, generation: u32, addr: [u32; 4], port: u16) -> Self {
        Self {
            id,
            generation,
            addr,
            port,
            weight: 1,
            stateless: false,
            manner: 0,
            vip: [0; 4],
            vip_port: 0,
            source: None,
            source_bits: 0,
        }
    }
}
