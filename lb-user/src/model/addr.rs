//! Names of services and endpoints, and their form in the maps.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use lb_common::{
    abi::{ServiceKey, ports},
    flow, wire,
};
use serde::{Deserialize, Serialize};

/// A transport protocol that `lb` balances.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// The protocol number in an IP header.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => wire::TCP,
            Self::Udp => wire::UDP,
        }
    }

    /// The protocol of that number, if `lb` balances it.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            wire::TCP => Some(Self::Tcp),
            wire::UDP => Some(Self::Udp),
            _ => None,
        }
    }

    /// The name in configuration, JSON and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Protocol {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Tcp, Self::Udp]
            .into_iter()
            .find(|protocol| protocol.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| ParseError::Protocol(text.to_owned()))
    }
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not a protocol.
    #[error("unknown protocol \"{0}\": write tcp or udp")]
    Protocol(String),
    /// Not an address with a port.
    #[error("\"{0}\" is no address with a port: write 192.0.2.10:80 or [2001:db8::1]:80")]
    Address(String),
}

/// Parses an address with a port.
pub fn parse_address(text: &str) -> Result<SocketAddr, ParseError> {
    text.parse()
        .map_err(|_| ParseError::Address(text.to_owned()))
}

/// What names a service: VIP, port and protocol. Written `192.0.2.10:80/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId {
    /// VIP and port.
    pub address: SocketAddr,
    /// Protocol.
    pub protocol: Protocol,
}

impl ServiceId {
    /// The key in the service map.
    pub fn key(&self) -> ServiceKey {
        endpoint_key(self.address, self.protocol)
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.protocol)
    }
}

impl FromStr for ServiceId {
    type Err = ParseError;

    /// `ADDRESS:PORT` or `ADDRESS:PORT/PROTOCOL`; TCP if no protocol is given.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, protocol) = match text.split_once('/') {
            Some((address, protocol)) => (address, protocol.parse()?),
            None => (text, Protocol::Tcp),
        };
        Ok(Self {
            address: parse_address(address)?,
            protocol,
        })
    }
}

/// Address and port as a key of the service and endpoint maps.
pub fn endpoint_key(address: SocketAddr, protocol: Protocol) -> ServiceKey {
    ServiceKey {
        addr: address_words(address.ip()),
        port: address.port().to_be(),
        proto: protocol.number(),
        ports: ports::ONE,
    }
}

/// An address as four words in network byte order; IPv4 as an IPv4-mapped address.
pub fn address_words(ip: IpAddr) -> [u32; 4] {
    match ip {
        IpAddr::V4(v4) => flow::mapped(u32::from_ne_bytes(v4.octets())),
        IpAddr::V6(v6) => {
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(v6.octets().chunks_exact(4)) {
                *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            words
        }
    }
}

/// The address that [`address_words`] turned into `words`.
pub fn words_address(words: &[u32; 4]) -> IpAddr {
    match flow::unmapped(words) {
        Some(v4) => Ipv4Addr::from(v4.to_ne_bytes()).into(),
        None => {
            let mut octets = [0; 16];
            for (bytes, word) in octets.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            Ipv6Addr::from(octets).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn services_are_named_as_they_are_written() {
        for text in ["192.0.2.10:80/tcp", "[2001:db8::1]:53/udp"] {
            assert_eq!(text.parse::<ServiceId>().unwrap().to_string(), text);
        }
        let short: ServiceId = "192.0.2.10:80".parse().unwrap();
        assert_eq!(short.to_string(), "192.0.2.10:80/tcp");
        for bad in [
            "192.0.2.10",
            "192.0.2.10:80/sctp",
            "2001:db8::1:80",
            "",
            "a:80",
            "192.0.2.10:70000",
        ] {
            assert!(bad.parse::<ServiceId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn words_are_in_network_order() {
        let words = address_words("192.0.2.10".parse().unwrap());
        assert_eq!(words[3].to_ne_bytes(), [192, 0, 2, 10]);
        assert_eq!(words[2].to_ne_bytes(), [0, 0, 0xff, 0xff]);
        let key = endpoint_key("[2001:db8::1]:80".parse().unwrap(), Protocol::Udp);
        assert_eq!(key.addr[0].to_ne_bytes(), [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(key.port.to_ne_bytes(), [0, 80]);
        assert_eq!(key.proto, 17);
    }

    proptest! {
        #[test]
        fn words_and_back(v4 in any::<[u8; 4]>(), v6 in any::<[u8; 16]>()) {
            let v4 = IpAddr::from(v4);
            prop_assert_eq!(words_address(&address_words(v4)), v4);
            let v6 = IpAddr::from(v6).to_canonical();
            prop_assert_eq!(words_address(&address_words(v6)), v6);
        }
    }
}
