//! Second stage of a packet without a flow: is it for a VIP?

use lb_common::{
    abi::{Endpoint, EndpointKey, Service, ServiceKey, ports},
    flow::FlowKey,
};

use crate::{
    family::Family,
    maps::{ENDPOINTS, SERVICES},
};

/// The service to which a packet with this key belongs.
#[inline(always)]
pub fn find<F: Family<N>, const N: usize>(key: &FlowKey<N>) -> Option<&'static Service> {
    let service = ServiceKey {
        addr: F::widen(&key.dst)?,
        port: key.dst_port(),
        proto: key.proto as u8,
        ports: ports::ONE,
    };
    // SAFETY: the agent replaces values whole and deletes them only with the service; the program
    // reads them within one run.
    unsafe { SERVICES.get(&service) }
}

/// The VIP and port that a reply with this key comes from, and the slot of its backend, if its source
/// is a backend of one service alone.
#[inline(always)]
pub fn of_reply<F: Family<N>, const N: usize>(
    key: &FlowKey<N>,
) -> Option<(&'static [u32; N], u16, u32)> {
    let source = EndpointKey {
        addr: F::widen(&key.src)?,
        port: key.src_port(),
        proto: key.proto as u8,
        ports: ports::ONE,
    };
    // SAFETY: as above.
    let endpoint: &'static Endpoint = unsafe { ENDPOINTS.get(&source) }?;
    let vip = F::narrow(&endpoint.service.addr)?;
    Some((vip, endpoint.service.port, endpoint.backend))
}
