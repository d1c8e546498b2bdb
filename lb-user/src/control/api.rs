//! What is said on the socket: paths, bodies and replies.
//!
//! | request | does |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/services` | list of [`ServiceView`] |
//! | `POST /v1/services` | adds a [`ServiceSpec`](crate::model::spec::ServiceSpec) |
//! | `GET /v1/services/{protocol}/{address}/{port}` | [`ServiceView`] |
//! | `PATCH /v1/services/{protocol}/{address}/{port}` | changes settings: [`ServicePatch`] |
//! | `DELETE /v1/services/{protocol}/{address}/{port}` | removes it: [`RemoveQuery`] |
//! | `POST .../backends` | adds a [`BackendSpec`](crate::model::spec::BackendSpec) |
//! | `PATCH .../backends/{address}/{port}` | changes it: [`BackendPatch`] |
//! | `POST .../backends/{address}/{port}/drain`, `/resume` | stops and restarts new flows |
//! | `DELETE .../backends/{address}/{port}` | removes it: [`RemoveQuery`] |
//! | `GET /v1/flows` | [`Flows`]: [`FlowsQuery`] |
//!
//! Every change replies with a [`Change`], every refusal with an [`ErrorBody`] and a status that says
//! whose fault it was: 4xx the request's, 5xx the agent's.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::model::{
    addr::{Protocol, ServiceId},
    prefix::Prefix,
    spec::{Draw, LoadView, Mode, choices, weight},
};

/// Where the socket is unless something else is said.
pub const DEFAULT_SOCKET: &str = "/run/lb/lb.sock";

/// Longest request body.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// How long a removal waits for flows to end unless the request says.
pub const DEFAULT_DEADLINE_MS: u64 = 60_000;

/// Longest that a removal can be told to wait: a day.
pub const MAX_DEADLINE_MS: u64 = 24 * 3600 * 1000;

/// Flows listed unless the request says.
pub const DEFAULT_FLOW_LIMIT: usize = 100;

/// Most flows that can be listed at once.
pub const MAX_FLOW_LIMIT: usize = 100_000;

/// The path of a service.
pub fn service_path(id: ServiceId) -> String {
    format!(
        "/v1/services/{}/{}/{}",
        id.protocol,
        id.address.ip(),
        id.address.port()
    )
}

/// The path of a backend.
pub fn backend_path(service: ServiceId, backend: SocketAddr) -> String {
    format!(
        "{}/backends/{}/{}",
        service_path(service),
        backend.ip(),
        backend.port()
    )
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Why.
    pub error: ErrorDetail,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// The field that is wrong, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It is new.
    Created,
    /// It is different now.
    Changed,
    /// It was so already.
    Unchanged,
    /// It takes no new flows and goes when its flows have ended.
    Removing,
    /// It is gone.
    Removed,
}

/// The reply to a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What the change did.
    pub outcome: Outcome,
    /// Flows in flight at what was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// How long the flows that remain have, if it is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// How to remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveQuery {
    /// How long flows have to end; at most [`MAX_DEADLINE_MS`]; [`DEFAULT_DEADLINE_MS`] if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Cut flows now.
    #[serde(default)]
    pub now: bool,
}

/// Which flows to list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowsQuery {
    /// Most flows to list, up to [`MAX_FLOW_LIMIT`]; [`DEFAULT_FLOW_LIMIT`] if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// New settings of a service; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServicePatch {
    /// How packets are sent to its backends. Another mode cuts the flows that are open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Prefixes of the sources of outer headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<Prefix>>,
    /// What selects a new flow's candidates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draw: Option<Draw>,
    /// How many candidates are compared.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_choices"
    )]
    pub choices: Option<u8>,
    /// Which loads are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_view: Option<LoadView>,
}

/// A change of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendPatch {
    /// The new weight; 0 drains.
    #[serde(deserialize_with = "weight")]
    pub weight: u16,
}

fn some_choices<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    choices(deserializer).map(Some)
}

/// A service as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceView {
    /// VIP and port.
    pub address: SocketAddr,
    /// Protocol.
    pub protocol: Protocol,
    /// Whether it takes flows.
    pub state: ServicePhase,
    /// How packets are sent to its backends.
    pub mode: Mode,
    /// What selects a new flow's candidates.
    pub draw: Draw,
    /// How many candidates are compared.
    pub choices: u8,
    /// Which loads are compared.
    pub load_view: LoadView,
    /// Prefixes of the sources of outer headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Prefix>,
    /// Rows of its candidate table.
    pub candidate_rows: u32,
    /// How many candidate tables it has had.
    pub table_version: u32,
    /// Flows in flight at all its backends.
    pub in_flight: u64,
    /// Flows opened since its backends were added.
    pub opened: u64,
    /// Its backends.
    pub backends: Vec<BackendView>,
}

impl ServiceView {
    /// What names the service.
    pub fn id(&self) -> ServiceId {
        ServiceId {
            address: self.address,
            protocol: self.protocol,
        }
    }
}

/// Whether a service takes flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServicePhase {
    /// It takes flows.
    Up,
    /// It is removed; flows that it had go on until they end.
    Removing,
}

/// A backend as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackendView {
    /// Address and port.
    pub address: SocketAddr,
    /// Weight.
    pub weight: u16,
    /// Whether it takes new flows.
    pub state: BackendPhase,
    /// Slot in the backend array.
    pub id: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// What it carries.
    pub load: Load,
    /// Its part of the flows that its service has opened, 0 to 1.
    pub share: f64,
    /// The way to it.
    #[serde(flatten)]
    pub way: Way,
    /// How long the flows that remain have, if it is being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// Whether a backend takes new flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendPhase {
    /// It takes new flows.
    Up,
    /// It keeps the flows it has and takes no new ones.
    Drain,
    /// As `drain`, and then it goes.
    Removing,
}

/// What a backend carries. Counted since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Flows in flight.
    pub in_flight: u64,
    /// Flows opened.
    pub opened: u64,
    /// Flows closed, expired ones aside.
    pub closed: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Packets to clients.
    pub packets_out: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
}

/// The way to a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Where its packets are sent; none: the kernel is asked for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<NextHop>,
    /// Why there is no next hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unresolved: Option<String>,
    /// Longest IP packet that the way takes, in bytes, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The address of the balancer that the route to it suggests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_source: Option<IpAddr>,
}

/// Where a backend's packets are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHop {
    /// Interface.
    pub interface: String,
    /// MAC address.
    pub mac: String,
    /// Ids of the VLAN tags that are put on, the outer one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vlans: Vec<u16>,
}

/// The agent and its data plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the agent.
    pub version: String,
    /// Process id of the agent.
    pub pid: u32,
    /// How long it has run.
    pub uptime_ms: u64,
    /// Where the packet program is attached.
    pub attachments: Vec<Attachment>,
    /// The packet program.
    pub program: Program,
    /// The flow tables.
    pub flow_tables: Vec<FlowTable>,
    /// The maps and their memory.
    pub maps: Vec<Map>,
    /// The services.
    pub services: Vec<ServiceView>,
    /// What the packet program has counted.
    pub counters: Vec<CounterValue>,
    /// What stands in the way of good service.
    pub notes: Vec<String>,
}

/// Where the packet program is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Interface.
    pub interface: String,
    /// Its index.
    pub ifindex: u32,
    /// `native` or `generic`.
    pub mode: String,
    /// Why it is not as good as it could be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The packet program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Id in the kernel.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Size of its machine code.
    pub jited_bytes: u64,
    /// Instructions that the verifier has looked at, if the kernel tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_instructions: Option<u32>,
}

/// How full a flow table is. A flow has two entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTable {
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Entries in use.
    pub entries: u64,
    /// Entries it has room for.
    pub limit: u64,
}

/// A map and its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// Name.
    pub name: String,
    /// Entries it has room for.
    pub max_entries: u32,
    /// Size of a key.
    pub key_bytes: u32,
    /// Size of a value.
    pub value_bytes: u32,
    /// Memory that it takes.
    pub bytes: u64,
}

/// What the packet program has counted of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterValue {
    /// Name.
    pub name: String,
    /// One line for people.
    pub text: String,
    /// Whether it counts dropped packets.
    pub drop: bool,
    /// The count.
    pub value: u64,
}

/// Flows of the flow tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// The flows, in no order.
    pub flows: Vec<Flow>,
    /// There are more.
    pub more: bool,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Protocol.
    pub protocol: Protocol,
    /// The client.
    pub client: SocketAddr,
    /// What the client talks to.
    pub vip: SocketAddr,
    /// Where its packets go; none if the backend is gone.
    pub backend: Option<SocketAddr>,
    /// How far it is.
    pub state: String,
    /// How long it has had no packet.
    pub idle_ms: u64,
}
