//! The decapsulator in the kernel: loading, its maps, attaching.

use std::{collections::BTreeSet, net::IpAddr};

use aya::{
    Ebpf, EbpfLoader,
    maps::{
        HashMap, MapData, PerCpuArray,
        lpm_trie::{Key, LpmTrie},
    },
};
use lb_common::decap::{AddressKey, Counter, Settings};

use super::{
    Attachment, Error, XdpMode, attach,
    load::{load_program, with_causes},
    netlink::Netlink,
    object,
};
use crate::model::{addr::address_words, prefix::Prefix};

/// The largest MTU with which drivers keep a frame in one buffer; the strictest leave 3,498 bytes of a page
/// of 4,096 to the packet.
const ONE_BUFFER_MTU: u32 = 3498;

/// The loaded decapsulator. Dropping it detaches it.
pub struct Decapsulator {
    ebpf: Ebpf,
    program: &'static str,
    local: HashMap<MapData, AddressKey, u32>,
    local_now: BTreeSet<IpAddr>,
    counters: PerCpuArray<MapData, u64>,
}

/// What packets to take off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// UDP port of GUE; none takes no GUE off.
    pub gue_port: Option<u16>,
    /// Prefixes of outer sources; none allows all.
    pub from: Vec<Prefix>,
    /// Inner destinations; none allows all.
    pub vips: Vec<IpAddr>,
}

impl Decapsulator {
    /// Loads the variant of the program that the interface's MTU asks for. Nothing is attached yet.
    pub fn for_interface(options: &Options, interface: &str) -> Result<Self, Error> {
        let link = attach::find(&mut Netlink::open()?, interface)?;
        Self::load(options, link.mtu > ONE_BUFFER_MTU)
    }

    /// Loads the program, in the variant for frames in several buffers if `frags`.
    pub fn load(options: &Options, frags: bool) -> Result<Self, Error> {
        let settings = Settings {
            gue_port: options.gue_port.unwrap_or(0).to_be(),
            any_source: options.from.is_empty().into(),
            any_destination: options.vips.is_empty().into(),
        };
        let mut ebpf = EbpfLoader::new()
            .override_global("SETTINGS", &settings, true)
            .load(object::DECAP)
            .map_err(|e| Error::Load(with_causes(&e)))?;
        let program = match frags {
            true => "decap_frags",
            false => "decap",
        };
        load_program(&mut ebpf, program)?;

        let mut take = |name| {
            ebpf.take_map(name)
                .ok_or_else(|| Error::map(name, "not in the object"))
        };
        let mut sources: LpmTrie<_, AddressKey, u32> =
            LpmTrie::try_from(take("SOURCES")?).map_err(|e| Error::map("SOURCES", e))?;
        let mut destinations: HashMap<_, AddressKey, u32> =
            HashMap::try_from(take("DESTINATIONS")?).map_err(|e| Error::map("DESTINATIONS", e))?;
        let local = HashMap::try_from(take("LOCAL")?).map_err(|e| Error::map("LOCAL", e))?;
        let counters =
            PerCpuArray::try_from(take("COUNTERS")?).map_err(|e| Error::map("COUNTERS", e))?;

        for prefix in &options.from {
            let bits = AddressKey::FAMILY_BITS + u32::from(prefix.bits());
            sources
                .insert(&Key::new(bits, key(prefix.address())), 1, 0)
                .map_err(|e| Error::map("SOURCES", with_causes(&e)))?;
        }
        for &vip in &options.vips {
            destinations
                .insert(key(vip), 1, 0)
                .map_err(|e| Error::map("DESTINATIONS", with_causes(&e)))?;
        }
        Ok(Self {
            ebpf,
            program,
            local,
            local_now: BTreeSet::new(),
            counters,
        })
    }

    /// Sets the addresses that tunnels end at.
    pub fn set_local(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), Error> {
        let failed = |e| Error::map("LOCAL", with_causes(&e));
        let gone: Vec<_> = self.local_now.difference(addresses).copied().collect();
        for address in gone {
            self.local.remove(&key(address)).map_err(failed)?;
            self.local_now.remove(&address);
        }
        let new: Vec<_> = addresses.difference(&self.local_now).copied().collect();
        for address in new {
            self.local.insert(key(address), 1, 0).map_err(failed)?;
            self.local_now.insert(address);
        }
        Ok(())
    }

    /// Attaches the program to an interface. It is attached, or nothing has changed.
    pub fn attach(&mut self, interface: &str, mode: XdpMode) -> Result<Attachment, Error> {
        attach::attach(&mut self.ebpf, self.program, interface, mode)
    }

    /// All counters, each summed over the CPUs.
    pub fn counters(&self) -> Result<Vec<(Counter, u64)>, Error> {
        Counter::ALL
            .iter()
            .map(|&counter| {
                let cells = self
                    .counters
                    .get(&(counter as u32), 0)
                    .map_err(|e| Error::map("COUNTERS", with_causes(&e)))?;
                Ok((counter, cells.iter().sum()))
            })
            .collect()
    }

    /// The loaded program, for test runs.
    #[cfg(feature = "testbed")]
    pub fn program(&self) -> Result<&aya::programs::Xdp, Error> {
        self.ebpf
            .program(self.program)
            .ok_or_else(|| Error::Load(format!("program {} is not in the object", self.program)))?
            .try_into()
            .map_err(|e: aya::programs::ProgramError| Error::Load(e.to_string()))
    }
}

/// An address as the program looks it up.
fn key(address: IpAddr) -> AddressKey {
    match address {
        IpAddr::V4(v4) => AddressKey::v4(u32::from_ne_bytes(v4.octets())),
        IpAddr::V6(_) => AddressKey::v6(address_words(address)),
    }
}
