//! Attaching to an interface, without ever taking another program's place.

use aya::{
    Ebpf,
    programs::{ProgramError, Xdp, XdpMode as AyaMode, loaded_programs},
};

use super::{
    Error,
    netlink::{Link, Netlink},
};

/// How to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, or not at all.
    Native,
    /// In the kernel's stack: any driver, at a fraction of the speed.
    Generic,
    /// In the driver if it can, else in the stack, saying so.
    Auto,
}

/// How the program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedMode {
    /// In the driver.
    Native,
    /// In the kernel's stack.
    Generic,
}

impl AttachedMode {
    /// As people say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

/// An interface that the program is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the interface.
    pub interface: String,
    /// Its index.
    pub ifindex: u32,
    /// The mode that the kernel says it is in.
    pub mode: AttachedMode,
    /// What one should know about it.
    pub note: Option<String>,
}

/// Attaches a program of the object to an interface.
pub fn attach(
    ebpf: &mut Ebpf,
    program: &str,
    interface: &str,
    mode: XdpMode,
) -> Result<Attachment, Error> {
    let mut netlink = Netlink::open()?;
    let link = find(&mut netlink, interface)?;
    refuse_if_occupied(&link)?;
    let program: &mut Xdp = ebpf
        .program_mut(program)
        .ok_or_else(|| Error::Load(format!("program {program} is not in the object")))?
        .try_into()
        .map_err(|e: ProgramError| Error::Load(e.to_string()))?;
    let mut note = None;
    match mode {
        XdpMode::Native => try_attach(program, &link, AttachedMode::Native)?,
        XdpMode::Generic => try_attach(program, &link, AttachedMode::Generic)?,
        XdpMode::Auto => {
            if let Err(native) = try_attach(program, &link, AttachedMode::Native) {
                try_attach(program, &link, AttachedMode::Generic)?;
                note = Some(format!("fell back to generic mode: {native}"));
            }
        }
    }
    // What the kernel made of it, not what was asked for.
    let attached = find(&mut netlink, interface)?.xdp;
    let mode = match attached {
        Some(xdp) if xdp.native => AttachedMode::Native,
        _ => AttachedMode::Generic,
    };
    Ok(Attachment {
        interface: link.name,
        ifindex: link.ifindex,
        mode,
        note,
    })
}

/// The interface of that name.
pub fn find(netlink: &mut Netlink, interface: &str) -> Result<Link, Error> {
    let links = netlink.links()?;
    match links.iter().find(|link| link.name == interface) {
        Some(link) => Ok(link.clone()),
        None => Err(Error::NoInterface {
            name: interface.to_owned(),
            there: links.into_iter().map(|link| link.name).collect(),
        }),
    }
}

fn refuse_if_occupied(link: &Link) -> Result<(), Error> {
    let Some(xdp) = link.xdp else {
        return Ok(());
    };
    let name = loaded_programs()
        .filter_map(Result::ok)
        .find(|info| info.id() == xdp.program_id)
        .and_then(|info| info.name_as_str().map(str::to_owned))
        .unwrap_or_else(|| "of unknown name".to_owned());
    Err(Error::Occupied {
        interface: link.name.clone(),
        program: name,
        id: xdp.program_id,
        mode: if xdp.native { "native" } else { "generic" },
    })
}

fn try_attach(program: &mut Xdp, link: &Link, mode: AttachedMode) -> Result<(), Error> {
    let flags = match mode {
        AttachedMode::Native => AyaMode::Driver,
        AttachedMode::Generic => AyaMode::Skb,
    };
    match program.attach_to_if_index(link.ifindex, flags) {
        Ok(_) => Ok(()),
        Err(e) => {
            let code = error_code(&e);
            Err(Error::Attach {
                interface: link.name.clone(),
                mode: mode.name(),
                cause: code.map_or_else(
                    || e.to_string(),
                    |code| std::io::Error::from_raw_os_error(code).to_string(),
                ),
                hint: hint(code, mode, link),
            })
        }
    }
}

/// The kernel's error among the causes of an error, if there is one.
fn error_code(error: &ProgramError) -> Option<i32> {
    let first: &dyn std::error::Error = error;
    std::iter::successors(Some(first), |cause| cause.source())
        .find_map(|cause| cause.downcast_ref::<std::io::Error>())
        .and_then(std::io::Error::raw_os_error)
}

fn hint(code: Option<i32>, mode: AttachedMode, link: &Link) -> String {
    let generic = "or use `--xdp-mode generic` (slower)";
    match (code, mode) {
        (Some(libc::EPERM | libc::EACCES), _) => {
            "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON".to_owned()
        }
        (Some(libc::EBUSY | libc::EEXIST), _) => {
            "another XDP program was attached in this moment; see `ip link show`".to_owned()
        }
        (Some(libc::EOPNOTSUPP), AttachedMode::Native) => {
            format!("The driver has no native XDP; use another interface, {generic}")
        }
        (Some(libc::ERANGE | libc::EINVAL | libc::EMSGSIZE), AttachedMode::Native)
            if link.mtu > 1500 =>
        {
            format!(
                "The MTU of {} (or of its peer) is {}, more than the driver takes with XDP; lower it \
                 (`ip link set dev {} mtu 1500`), {generic}",
                link.name, link.mtu, link.name
            )
        }
        (Some(libc::EINVAL), AttachedMode::Native) => format!(
            "The driver does not take XDP with the interface's present settings (LRO, queues or MTU; \
             see `ethtool -k {}`); change them, {generic}",
            link.name
        ),
        (Some(libc::ENOMEM), _) => {
            "The kernel has not enough memory for the interface's XDP queues".to_owned()
        }
        _ => "See the kernel's log (`dmesg`) for more".to_owned(),
    }
}
