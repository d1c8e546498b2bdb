//! The desired state: services and their backends, as configuration and socket both write them.

use std::{fmt, net::SocketAddr};

use lb_common::abi::{self, backend_flags};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::{
    addr::{Protocol, ServiceId, parse_address},
    prefix::Prefix,
};

/// Most choices a service may compare: the length of a row of candidates.
pub const MAX_CHOICES: u8 = abi::ROW as u8;

/// All that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// The services.
    pub services: Vec<ServiceSpec>,
}

impl Spec {
    /// The place of a service in [`services`](Self::services).
    pub fn position(&self, id: ServiceId) -> Option<usize> {
        self.services.iter().position(|service| service.id() == id)
    }

    /// A service by its name.
    pub fn service(&self, id: ServiceId) -> Option<&ServiceSpec> {
        self.services.iter().find(|service| service.id() == id)
    }

    /// A service by its name, to be changed.
    pub fn service_mut(&mut self, id: ServiceId) -> Option<&mut ServiceSpec> {
        self.services.iter_mut().find(|service| service.id() == id)
    }
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    /// VIP and port.
    #[serde(deserialize_with = "address")]
    pub address: SocketAddr,
    /// Protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// How packets are sent to its backends.
    #[serde(default)]
    pub mode: Mode,
    /// What selects a new flow's candidates.
    #[serde(default)]
    pub draw: Draw,
    /// How many candidates are compared; 1 is a random choice.
    #[serde(default = "two", deserialize_with = "choices")]
    pub choices: u8,
    /// Which loads are compared.
    #[serde(default)]
    pub load_view: LoadView,
    /// Where the source addresses of outer headers are taken from, one prefix for each family of
    /// backends: the bits behind its length are the flow's, so that a backend's NIC spreads flows over its
    /// queues. None: the address that the route to the backend suggests.
    #[serde(default)]
    pub sources: Vec<Prefix>,
    /// The backends; written `[[service.backend]]` in TOML.
    #[serde(default, alias = "backend")]
    pub backends: Vec<BackendSpec>,
}

impl ServiceSpec {
    /// A service with default settings and no backends.
    pub fn new(id: ServiceId) -> Self {
        Self {
            address: id.address,
            protocol: id.protocol,
            mode: Mode::default(),
            draw: Draw::default(),
            choices: two(),
            load_view: LoadView::default(),
            sources: Vec::new(),
            backends: Vec::new(),
        }
    }

    /// What names the service.
    pub fn id(&self) -> ServiceId {
        ServiceId {
            address: self.address,
            protocol: self.protocol,
        }
    }

    /// A backend by its address.
    pub fn backend(&self, address: SocketAddr) -> Option<&BackendSpec> {
        self.backends.iter().find(|b| b.address == address)
    }

    /// A backend by its address, to be changed.
    pub fn backend_mut(&mut self, address: SocketAddr) -> Option<&mut BackendSpec> {
        self.backends.iter_mut().find(|b| b.address == address)
    }

    /// Whether both have the same settings, backends aside.
    pub fn same_settings(&self, other: &Self) -> bool {
        (
            self.id(),
            self.mode,
            self.draw,
            self.choices,
            self.load_view,
            &self.sources,
        ) == (
            other.id(),
            other.mode,
            other.draw,
            other.choices,
            other.load_view,
            &other.sources,
        )
    }

    /// The prefix for outer headers to backends of the family of an address.
    pub fn source(&self, like: SocketAddr) -> Option<&Prefix> {
        self.sources
            .iter()
            .find(|prefix| prefix.address().is_ipv4() == like.is_ipv4())
    }
}

/// One backend of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendSpec {
    /// Address and port.
    #[serde(deserialize_with = "address")]
    pub address: SocketAddr,
    /// Share of the service's flows relative to the other backends; 0 drains.
    #[serde(default = "one", deserialize_with = "weight")]
    pub weight: u16,
    /// Whether it is to take new flows.
    #[serde(default)]
    pub state: AdminState,
}

impl BackendSpec {
    /// A backend of weight 1 that takes flows.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            weight: one(),
            state: AdminState::Up,
        }
    }

    /// Whether it is to take new flows: up, and of a weight.
    pub fn takes_flows(&self) -> bool {
        self.state == AdminState::Up && self.weight > 0
    }
}

macro_rules! setting {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
        #[serde(rename_all = "lowercase")]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$variant => $text,)* })
            }
        }
    };
}

setting! {
    /// How packets are sent to backends.
    Mode {
        /// The destination is rewritten, the client's address kept; replies come back through the
        /// balancer.
        #[default]
        Nat = "nat",
        /// Only the MAC address is rewritten, so backends are on the balancer's LAN and have the VIP;
        /// replies go straight to the client.
        Dsr = "dsr",
        /// The packet is sent in an IP packet (IP in IP) to backends that have the VIP; replies go
        /// straight to the client.
        Ipip = "ipip",
        /// As ipip, in UDP (GUE version 1).
        Gue = "gue",
    }
}

impl Mode {
    /// The bits in a backend's slot.
    pub const fn manner(self) -> u32 {
        match self {
            Self::Nat => 0,
            Self::Dsr => backend_flags::DSR,
            Self::Ipip => backend_flags::TUNNEL,
            Self::Gue => backend_flags::TUNNEL | backend_flags::GUE,
        }
    }

    /// Whether packets get an outer header: backends may be of the other family.
    pub const fn tunnels(self) -> bool {
        self.manner() & backend_flags::TUNNEL != 0
    }

    /// Whether replies go straight to the client. Packets keep their address and port, so backends have
    /// both.
    pub const fn one_way(self) -> bool {
        self.manner() & backend_flags::ONE_WAY != 0
    }
}

setting! {
    /// What selects a new flow's candidates.
    Draw {
        /// A keyed hash of the 5-tuple: the same packet has the same candidates at every balancer.
        #[default]
        Flow = "flow",
        /// A random number.
        Random = "random",
    }
}

impl Draw {
    /// The value in the service map.
    pub const fn abi(self) -> u8 {
        match self {
            Self::Flow => abi::draw::FLOW,
            Self::Random => abi::draw::RANDOM,
        }
    }
}

setting! {
    /// Which loads of the candidates are compared.
    LoadView {
        /// Summed over all CPUs when the flow is placed.
        #[default]
        Exact = "exact",
        /// This CPU's own, and what the agent last published of the others.
        Published = "published",
    }
}

impl LoadView {
    /// The value in the service map.
    pub const fn abi(self) -> u8 {
        match self {
            Self::Exact => abi::view::EXACT,
            Self::Published => abi::view::PUBLISHED,
        }
    }
}

setting! {
    /// Whether a backend is to take new flows.
    AdminState {
        /// It takes new flows.
        #[default]
        Up = "up",
        /// It keeps the flows it has and takes no new ones.
        Drain = "drain",
    }
}

const fn one() -> u16 {
    1
}

const fn two() -> u8 {
    2
}

/// Deserializes an address with a port.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    parse_address(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Deserializes a weight.
pub fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let value = i64::deserialize(deserializer)?;
    u16::try_from(value)
        .map_err(|_| D::Error::custom(format_args!("weight is 0 to {}, not {value}", u16::MAX)))
}

/// Deserializes a number of choices.
pub fn choices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let value = i64::deserialize(deserializer)?;
    u8::try_from(value)
        .ok()
        .filter(|value| (1..=MAX_CHOICES).contains(value))
        .ok_or_else(|| D::Error::custom(format_args!("choices is 1 to {MAX_CHOICES}, not {value}")))
}
