//! What the agent asks of the host: privileges, interfaces, addresses, forwarding.

use std::{fs, net::IpAddr};

use nix::{errno::Errno, ifaddrs::getifaddrs, net::if_::if_nameindex};
use tracing::warn;

/// Capabilities, from linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_BPF: u32 = 39;

/// Why the agent cannot run on this host, or not so.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not enough privileges.
    #[error(
        "no privilege to load BPF programs and attach them: {0} missing; run as root (sudo lb ...), or with \
         CAP_BPF and CAP_NET_ADMIN"
    )]
    Privilege(String),
    /// The kernel has no BPF.
    #[error(
        "this kernel has no BPF: it was built without CONFIG_BPF_SYSCALL; use a kernel of a common distribution, 6.1 \
         or later"
    )]
    NoBpf,
    /// No such interface.
    #[error("there is no interface \"{name}\"; there are: {}", known.join(", "))]
    NoInterface {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The interfaces cannot be listed.
    #[error("cannot list the interfaces: {0}")]
    Interfaces(Errno),
    /// No interface was given.
    #[error(
        "no interface to attach to: give --interface IF, or interfaces in [balancer]; there are: {}",
        .0.join(", ")
    )]
    NoneGiven(Vec<String>),
    /// One was given twice.
    #[error("interface \"{0}\" is given twice")]
    Twice(String),
}

/// Checks that this process may load and attach BPF programs, and that the kernel can.
pub fn check_privileges() -> Result<(), Error> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // No /proc: the kernel itself will say no.
    if let Some(missing) = missing_capabilities(&status) {
        return Err(Error::Privilege(missing));
    }
    // SAFETY: BPF_PROG_GET_NEXT_ID (11) reads the first 12 bytes of the attribute; 128 are given.
    let result = unsafe {
        let attribute = [0_u64; 16];
        libc::syscall(libc::SYS_bpf, 11, &raw const attribute, 12)
    };
    if result < 0 && Errno::last() == Errno::ENOSYS {
        return Err(Error::NoBpf);
    }
    Ok(())
}

/// What is missing, from the text of /proc/PID/status; none if all is there or nothing is known.
fn missing_capabilities(status: &str) -> Option<String> {
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(line.trim(), 16).ok()?;
    let has = |capability: u32| effective & (1 << capability) != 0;
    let mut missing = Vec::new();
    if !has(CAP_BPF) && !has(CAP_SYS_ADMIN) {
        missing.push("CAP_BPF");
    }
    if !has(CAP_NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    (!missing.is_empty()).then(|| missing.join(" and "))
}

/// Checks that interfaces are given, that each is once, and that they are there.
pub fn check_interfaces(names: &[String]) -> Result<(), Error> {
    let known: Vec<String> = if_nameindex()
        .map_err(Error::Interfaces)?
        .iter()
        .map(|i| i.name().to_string_lossy().into_owned())
        .collect();
    if names.is_empty() {
        return Err(Error::NoneGiven(known));
    }
    for (at, name) in names.iter().enumerate() {
        if !known.contains(name) {
            return Err(Error::NoInterface {
                name: name.clone(),
                known,
            });
        }
        if names[..at].contains(name) {
            return Err(Error::Twice(name.clone()));
        }
    }
    Ok(())
}

/// The addresses of this host, in this network namespace.
pub fn addresses() -> Vec<IpAddr> {
    match getifaddrs() {
        Ok(list) => list
            .filter_map(|i| i.address)
            .filter_map(|address| {
                let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))
            })
            .collect(),
        Err(e) => {
            warn!("cannot list this host's addresses, so backends are not compared with them: {e}");
            Vec::new()
        }
    }
}

/// Notes on forwarding that is off: packets whose next hop is not known yet are then lost.
pub fn forwarding_notes(ipv4: bool, ipv6: bool) -> Vec<String> {
    let mut notes = Vec::new();
    for (wanted, name) in [
        (ipv4, "net/ipv4/ip_forward"),
        (ipv6, "net/ipv6/conf/all/forwarding"),
    ] {
        let off = || {
            fs::read_to_string(format!("/proc/sys/{name}")).is_ok_and(|value| value.trim() == "0")
        };
        if wanted && off() {
            let name = name.replace('/', ".");
            notes.push(format!(
                "{name} is 0: packets to a backend whose next hop is not known yet are lost; set it with `sysctl -w \
                 {name}=1`"
            ));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities() {
        let status = |caps: u64| format!("Name:\tlb\nCapEff:\t{caps:016x}\nSeccomp:\t0\n");
        let missing = |caps| missing_capabilities(&status(caps));
        assert_eq!(missing(u64::MAX), None);
        assert_eq!(missing(1 << CAP_BPF | 1 << CAP_NET_ADMIN), None);
        assert_eq!(missing(1 << CAP_SYS_ADMIN | 1 << CAP_NET_ADMIN), None);
        assert_eq!(missing(1 << CAP_BPF).unwrap(), "CAP_NET_ADMIN");
        assert_eq!(missing(0).unwrap(), "CAP_BPF and CAP_NET_ADMIN");
        assert_eq!(missing_capabilities(""), None);
    }

    #[test]
    fn interfaces_are_named() {
        let lo = "lo".to_owned();
        assert!(check_interfaces(std::slice::from_ref(&lo)).is_ok());
        let error = check_interfaces(&["nope".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"nope\"") && error.contains("lo"),
            "{error}"
        );
        assert!(matches!(check_interfaces(&[]), Err(Error::NoneGiven(_))));
        assert!(matches!(
            check_interfaces(&[lo.clone(), lo]),
            Err(Error::Twice(_))
        ));
    }

    #[test]
    fn own_addresses_have_loopback() {
        assert!(addresses().contains(&IpAddr::from([127, 0, 0, 1])));
    }
}
