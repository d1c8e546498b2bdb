//! The configuration file: TOML, every key known, every error with its line.

use std::{fmt, fs, net::IpAddr, path::PathBuf};

use serde::{Deserialize, Deserializer, de::Error as _};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    control::api,
    dataplane,
    load::Timeouts,
    model::{
        check::{Limits, check},
        spec::{ServiceSpec, Spec},
    },
};

/// All of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The balancer itself.
    #[serde(default)]
    pub balancer: Balancer,
    /// When flows end that say nothing.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// The services.
    #[serde(default, rename = "service")]
    pub services: Vec<ServiceSpec>,
}

/// Settings of the balancer, fixed while it runs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Balancer {
    /// Interfaces to attach to.
    pub interfaces: Vec<String>,
    /// How to attach.
    pub xdp_mode: XdpMode,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Entries in the flow table of each address family; a flow takes two.
    #[serde(deserialize_with = "range::<1024, { 1 << 26 }, _>")]
    pub flow_table_size: u32,
    /// Backends of all services.
    #[serde(deserialize_with = "range::<1, { 1 << 16 }, _>")]
    pub max_backends: u32,
    /// Services.
    #[serde(deserialize_with = "range::<1, { 1 << 16 }, _>")]
    pub max_services: u32,
    /// Candidate rows of all services, 16 bytes each.
    #[serde(deserialize_with = "range::<1024, { 1 << 24 }, _>")]
    pub candidate_rows: u32,
    /// Seed of the hash that places flows, the same on all balancers of a fleet; a random one if not
    /// given.
    #[serde(deserialize_with = "seed")]
    pub hash_seed: Option<u64>,
    /// New flow entries that each CPU may make in a second; over it flows are placed without one.
    #[serde(deserialize_with = "range::<100, 10_000_000, _>")]
    pub max_new_flows_per_second: u32,
    /// UDP port that packets of services in mode gue are sent to.
    #[serde(deserialize_with = "port")]
    pub gue_port: u16,
    /// What to log.
    pub log_level: LogLevel,
}

impl Default for Balancer {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            xdp_mode: XdpMode::default(),
            socket: api::DEFAULT_SOCKET.into(),
            flow_table_size: 1 << 20,
            max_backends: 4096,
            max_services: 1024,
            candidate_rows: 1 << 20,
            hash_seed: None,
            max_new_flows_per_second: 100_000,
            gue_port: dataplane::GUE_PORT,
            log_level: LogLevel::default(),
        }
    }
}

/// How to attach the packet program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// In the driver, or not at all.
    #[default]
    Native,
    /// In the kernel's generic path: works on every interface, and is slow.
    Generic,
    /// In the driver if it can, else in the generic path.
    Auto,
}

/// What to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What fails.
    Error,
    /// And what is not as it should be.
    Warn,
    /// And every change.
    #[default]
    Info,
    /// And what helps to find faults in `lb`.
    Debug,
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What it says is wrong; one line for each fault.
    #[error("the configuration cannot be used\n  {}", .0.join("\n  "))]
    Invalid(Vec<String>),
}

impl Config {
    /// Reads a file.
    pub fn read(path: PathBuf, own: &[IpAddr]) -> Result<Self, Error> {
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&path.display().to_string(), &text, own),
            Err(source) => Err(Error::Read { path, source }),
        }
    }

    /// Parses and checks the text of a file called `name`; `own` are the addresses of this host.
    pub fn parse(name: &str, text: &str, own: &[IpAddr]) -> Result<Self, Error> {
        let config: Self = toml::from_str(text).map_err(|e| {
            let at = e.span().map_or(0, |span| span.start);
            Error::Invalid(vec![format!(
                "{name}:{}: {}",
                line_of(text, at),
                e.message().trim_end().replace('\n', "; ")
            )])
        })?;
        let problems = check(&config.spec(), &config.limits(), own);
        if problems.is_empty() {
            return Ok(config);
        }
        let document = DeTable::parse(text).ok();
        let lines = problems.iter().map(|problem| {
            let path = problem.place.path();
            match document.as_ref().and_then(|doc| offset_of(doc, &path)) {
                Some(at) => format!("{name}:{}: {problem}", line_of(text, at)),
                None => format!("{name}: {problem}"),
            }
        });
        Err(Error::Invalid(lines.collect()))
    }

    /// What is wanted at the start.
    pub fn spec(&self) -> Spec {
        Spec {
            services: self.services.clone(),
        }
    }

    /// How much the maps hold.
    pub fn limits(&self) -> Limits {
        Limits {
            services: self.balancer.max_services,
            backends: self.balancer.max_backends,
            candidate_rows: self.balancer.candidate_rows,
        }
    }
}

/// The line, counted from 1, in which a byte is.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|&byte| byte == b'\n').count() + 1
}

/// Where in the document the value at a path like `service[0].backend[1].address` is, or the nearest
/// thing around it.
fn offset_of(document: &Spanned<DeTable<'_>>, path: &str) -> Option<usize> {
    let mut found = None;
    let mut table = document.get_ref();
    for part in path.split('.') {
        let (key, index) = match part.split_once('[') {
            Some((key, rest)) => (key, rest.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        let value = table
            .iter()
            .find(|(name, _)| {
                let name: &str = name.get_ref();
                name == key || (key == "backend" && name == "backends")
            })
            .map(|(_, value)| value);
        let Some(mut value) = value else { break };
        if let (Some(index), DeValue::Array(array)) = (index, value.get_ref()) {
            value = array.get(index)?;
        }
        found = Some(value.span().start);
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    found
}

fn range<'de, const MIN: u32, const MAX: u32, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<u32, D::Error> {
    let value = i64::deserialize(deserializer)?;
    u32::try_from(value)
        .ok()
        .filter(|value| (MIN..=MAX).contains(value))
        .ok_or_else(|| D::Error::custom(format_args!("{value} is not in the range {MIN} to {MAX}")))
}

fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let value = range::<1, 65535, _>(deserializer)?;
    u16::try_from(value).map_err(D::Error::custom)
}

fn seed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let value = i64::deserialize(deserializer)?;
    u64::try_from(value)
        .map(Some)
        .map_err(|_| D::Error::custom("hash_seed is a number from 0 to 2^63 - 1"))
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
