//! The interfaces that frames are redirected to: those that backends are behind, and those that clients'
//! packets come in on, if XDP can send on them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use aya::maps::{MapData, MapError, xdp::DevMapHash};

use super::way::Network;
use crate::dataplane::Error;

/// The interfaces that the packet program is attached to, by index, each with whether it runs in the driver.
#[derive(Debug, Default)]
pub struct Attached(Mutex<HashMap<u32, bool>>);

impl Attached {
    /// One more.
    pub fn add(&self, ifindex: u32, native: bool) {
        self.lock().insert(ifindex, native);
    }

    /// Their indices.
    pub fn indices(&self) -> Vec<u32> {
        self.lock().keys().copied().collect()
    }

    /// Whether the program runs in the driver anywhere. If not, the kernel's stack sends what it redirects, on
    /// any interface.
    pub fn is_native(&self) -> bool {
        self.lock().values().any(|&native| native)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The map of these interfaces, `DEVICES`.
pub struct Devices {
    map: DevMapHash<MapData>,
    /// What was last done with each: put in, or taken out.
    known: HashMap<u32, bool>,
}

impl Devices {
    pub fn new(map: DevMapHash<MapData>) -> Self {
        Self {
            map,
            known: HashMap::new(),
        }
    }

    /// Lets frames be redirected to an interface.
    pub fn allow(&mut self, ifindex: u32) -> Result<(), Error> {
        if self.known.get(&ifindex) != Some(&true) {
            self.map
                .insert(ifindex, ifindex, None, 0)
                .map_err(|e| Error::map("DEVICES", e))?;
            self.known.insert(ifindex, true);
        }
        Ok(())
    }

    /// Keeps the map in step with what can be done: of the interfaces in it and those `attached`, the ones
    /// that XDP can send on. The kernel itself takes out what is gone.
    pub fn revise(&mut self, network: &Network, attached: &[u32]) -> Result<(), Error> {
        self.known
            .retain(|&ifindex, _| network.link(ifindex).is_some());
        let all: Vec<u32> = self.known.keys().chain(attached).copied().collect();
        for ifindex in all {
            match network.link(ifindex) {
                Some(link) if !network.sends_on(link) => self.forbid(ifindex)?,
                // One that is not attached to is put in when a backend is found behind it.
                Some(_) if attached.contains(&ifindex) => self.allow(ifindex)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn forbid(&mut self, ifindex: u32) -> Result<(), Error> {
        if self.known.get(&ifindex) == Some(&false) {
            return Ok(());
        }
        match self.map.remove(ifindex) {
            Ok(()) => {}
            Err(MapError::SyscallError(e)) if e.io_error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(Error::map("DEVICES", e)),
        }
        self.known.insert(ifindex, false);
        Ok(())
    }
}
