//! Whether a spec can be served: all that is wrong with it, each with its place, the limit and what
//! to do.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, SocketAddr},
};

use lb_common::p2c;

use super::{
    addr::ServiceId,
    prefix::Prefix,
    spec::{MAX_CHOICES, ServiceSpec, Spec},
};

/// How much the maps hold, fixed when the program is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Services.
    pub services: u32,
    /// Backends of all services.
    pub backends: u32,
    /// Rows of candidates of all services.
    pub candidate_rows: u32,
}

/// Where in a spec something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the service; none: the spec as a whole.
    pub service: Option<usize>,
    /// Index of the backend in that service.
    pub backend: Option<usize>,
    /// The field, empty if the thing as a whole is meant.
    pub field: &'static str,
}

impl Place {
    /// The place as a path, `service[0].backend[1].weight`.
    pub fn path(&self) -> String {
        let mut path = String::new();
        if let Some(service) = self.service {
            path = format!("service[{service}]");
        }
        if let Some(backend) = self.backend {
            path += &format!(".backend[{backend}]");
        }
        if !self.field.is_empty() {
            if !path.is_empty() {
                path.push('.');
            }
            path += self.field;
        }
        path
    }
}

/// One thing that is wrong with a spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}; {hint}", place.path())]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// Checks a spec against limits and the balancer's own addresses; returns every problem, none if the
/// spec can be served.
pub fn check(spec: &Spec, limits: &Limits, own: &[IpAddr]) -> Vec<Problem> {
    let mut check = Check {
        vips: HashMap::new(),
        own,
        problems: Vec::new(),
    };
    check.totals(spec, limits);
    for (at, service) in spec.services.iter().enumerate() {
        check.service(at, service);
    }
    for (at, service) in spec.services.iter().enumerate() {
        check.backends(at, service);
    }
    check.problems
}

struct Check<'a> {
    vips: HashMap<ServiceId, usize>,
    own: &'a [IpAddr],
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn report(&mut self, place: Place, message: impl fmt::Display, hint: impl fmt::Display) {
        self.problems.push(Problem {
            place,
            message: message.to_string(),
            hint: hint.to_string(),
        });
    }

    fn totals(&mut self, spec: &Spec, limits: &Limits) {
        let place = |field| Place {
            service: None,
            backend: None,
            field,
        };
        let services = spec.services.len();
        if exceeds(services, limits.services) {
            self.report(
                place("service"),
                format_args!("{services} services, but the limit is {}", limits.services),
                "raise max_services in [balancer] and restart",
            );
        }
        let backends: usize = spec.services.iter().map(|s| s.backends.len()).sum();
        if exceeds(backends, limits.backends) {
            self.report(
                place("backend"),
                format_args!(
                    "{backends} backends in all, but the limit is {}",
                    limits.backends
                ),
                "raise max_backends in [balancer] and restart",
            );
        }
        let rows: u64 = spec.services.iter().map(|s| u64::from(rows(s))).sum();
        if rows > u64::from(limits.candidate_rows) {
            self.report(
                place("backend"),
                format_args!(
                    "the candidate tables need {rows} rows, but the limit is {}",
                    limits.candidate_rows
                ),
                "raise candidate_rows in [balancer] (twice the need leaves room for changes) and restart",
            );
        }
    }

    fn service(&mut self, at: usize, service: &ServiceSpec) {
        let place = |field| Place {
            service: Some(at),
            backend: None,
            field,
        };
        let id = service.id();
        if let Some((message, hint)) = unusable(service.address, "VIP") {
            self.report(place("address"), message, hint);
        }
        if let Some(first) = self.vips.insert(id, at) {
            self.report(
                place("address"),
                format_args!("{id} is a service already (service[{first}])"),
                "give each service its own VIP, port or protocol",
            );
        }
        if !(1..=MAX_CHOICES).contains(&service.choices) {
            self.report(
                place("choices"),
                format_args!("choices is 1 to {MAX_CHOICES}, not {}", service.choices),
                "2 balances well; 1 is a random choice",
            );
        }
        for (index, source) in service.sources.iter().enumerate() {
            if let Some((message, hint)) = unsuitable(service, index, source) {
                self.report(place("sources"), message, hint);
            }
        }
    }

    fn backends(&mut self, at: usize, service: &ServiceSpec) {
        let mode = service.mode;
        let mut seen = HashMap::new();
        for (index, backend) in service.backends.iter().enumerate() {
            let place = Place {
                service: Some(at),
                backend: Some(index),
                field: "address",
            };
            let address = backend.address;
            if let Some((message, hint)) = unusable(address, "backend") {
                self.report(place, message, hint);
            } else if address.is_ipv4() != service.address.is_ipv4() && !mode.tunnels() {
                self.report(
                    place,
                    format_args!(
                        "backend {address} and VIP {} are of different families",
                        service.address
                    ),
                    format_args!(
                        "mode {mode} needs IPv4 backends for an IPv4 VIP and IPv6 for IPv6; ipip and gue \
                         take both"
                    ),
                );
            } else if address.port() != service.address.port() && mode.one_way() {
                self.report(
                    place,
                    format_args!(
                        "backend {address} has another port than VIP {}",
                        service.address
                    ),
                    format_args!(
                        "in mode {mode} packets keep the VIP's port; give the backend that port, or use \
                         mode nat"
                    ),
                );
            }
            if let Some(first) = seen.insert(address, index) {
                self.report(
                    place,
                    format_args!(
                        "backend {address} of service {} is there twice (also backend[{first}])",
                        service.id()
                    ),
                    "list each backend once; its weight sets its share",
                );
            }
            let as_vip = ServiceId {
                address,
                protocol: service.protocol,
            };
            if self.vips.contains_key(&as_vip) {
                self.report(
                    place,
                    format_args!("backend {address} is the VIP of service {as_vip}"),
                    "packets would go round in a circle; give the server's own address",
                );
            } else if self.own.contains(&address.ip()) && !mode.one_way() {
                self.report(
                    place,
                    format_args!(
                        "backend {address} has an address of this host, the balancer itself"
                    ),
                    "replies would not come back through the packet program; give another server's \
                     address, or use mode dsr, ipip or gue with the VIP on this host",
                );
            }
        }
    }
}

/// Shortest IPv6 prefix for outer sources: the flow fills one word.
const SHORTEST_SOURCE6: u8 = 96;

/// Why outer headers cannot have their sources from a prefix, the service's `index`-th: message and hint.
fn unsuitable(service: &ServiceSpec, index: usize, source: &Prefix) -> Option<(String, String)> {
    let mode = service.mode;
    let address = source.address();
    let v4 = address.is_ipv4();
    let (message, hint) = if !mode.tunnels() {
        (
            format!("mode {mode} has no outer header to write source {source} into"),
            "leave sources out (`lb service set --no-source`), or use mode ipip or gue",
        )
    } else if service.sources[..index]
        .iter()
        .any(|other| other.address().is_ipv4() == v4)
    {
        let family = if v4 { "IPv4" } else { "IPv6" };
        (
            format!("source {source} is the second {family} prefix"),
            "give one for IPv4 and one for IPv6 backends; a shorter one has more addresses",
        )
    } else if !v4 && source.bits() < SHORTEST_SOURCE6 {
        (
            format!("source {source} is shorter than {SHORTEST_SOURCE6} bits"),
            "the flow fills at most 32 bits; give a longer prefix",
        )
    } else {
        // With a port that is one.
        let (message, hint) = unusable(SocketAddr::new(address, 1), "source")?;
        return Some((message.replacen(":1 ", " ", 1), hint));
    };
    Some((message, hint.to_owned()))
}

/// Rows that a service's table needs.
fn rows(service: &ServiceSpec) -> u32 {
    let takers = service.backends.iter().filter(|b| b.takes_flows()).count();
    p2c::rows_for(u32::try_from(takers).unwrap_or(u32::MAX))
}

fn exceeds(count: usize, limit: u32) -> bool {
    u32::try_from(count).map_or(true, |count| count > limit)
}

/// Why an address cannot be that of a VIP or a backend: message and hint.
fn unusable(address: SocketAddr, what: &str) -> Option<(String, String)> {
    let ip = address.ip();
    let (kind, hint) = match ip {
        _ if address.port() == 0 => ("has port 0", "give a port from 1 to 65535"),
        _ if ip.is_unspecified() => ("is the unspecified address", UNICAST),
        _ if ip.is_multicast() => ("is a multicast address", UNICAST),
        _ if ip.is_loopback() => (
            "is a loopback address",
            "loopback never leaves its host; give an address on a network",
        ),
        IpAddr::V4(v4) if v4.is_broadcast() => ("is the broadcast address", UNICAST),
        IpAddr::V4(v4) if v4.octets()[0] == 0 => ("is in 0.0.0.0/8", UNICAST),
        IpAddr::V4(v4) if v4.is_link_local() => ("is a link-local address", UNICAST),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => ("is a link-local address", UNICAST),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            ("is an IPv4-mapped address", "write it as an IPv4 address")
        }
        _ => match address {
            SocketAddr::V6(v6) if v6.scope_id() != 0 || v6.flowinfo() != 0 => {
                ("has a zone", "write the address without a % part")
            }
            _ => return None,
        },
    };
    Some((format!("{what} {address} {kind}"), hint.to_owned()))
}

const UNICAST: &str = "give a routable unicast address";

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
