//! What XDP can do on each interface: the generic netlink family "netdev" (Linux 6.3;
//! `Documentation/netlink/specs/netdev.yaml`).

use std::{collections::HashMap, io};

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_DUMP, NetlinkDeserializable, NetlinkHeader,
    NetlinkSerializable, Nla, NlasIterator,
};
use netlink_sys::protocols::NETLINK_GENERIC;

use super::{Error, channel::Channel};

/// The family that knows the ids of the others (`GENL_ID_CTRL`).
const CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// The interface transmits frames that are redirected to it.
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 1 << 2;

/// Asks what XDP can do on interfaces.
pub struct XdpFeatures {
    channel: Channel,
    /// Id of the family; none: the kernel has no such family.
    family: Option<u16>,
}

impl XdpFeatures {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        let mut channel = Channel::open(NETLINK_GENERIC)?;
        let name = DefaultNla::new(CTRL_ATTR_FAMILY_NAME, b"netdev\0".to_vec());
        let request = Message {
            family: CTRL,
            command: CTRL_CMD_GETFAMILY,
            attributes: vec![name],
        };
        let family = match channel.exchange(request, 0) {
            Ok(answers) => answers
                .iter()
                .find_map(|answer| answer.get(CTRL_ATTR_FAMILY_ID))
                .map(u16::from_ne_bytes),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => None,
            Err(cause) => return Err(failed(cause)),
        };
        Ok(Self { channel, family })
    }

    /// Whether frames can be redirected to each interface, by index; `None` if the kernel does not tell.
    ///
    /// It depends on more than the driver: on the far end of a veth pair, on the ports of a bond, on whether
    /// a program is attached.
    pub fn redirect_targets(&mut self) -> Result<Option<HashMap<u32, bool>>, Error> {
        let Some(family) = self.family else {
            return Ok(None);
        };
        let request = Message {
            family,
            command: NETDEV_CMD_DEV_GET,
            attributes: Vec::new(),
        };
        let answers = self.channel.exchange(request, NLM_F_DUMP).map_err(failed)?;
        Ok(Some(answers.iter().filter_map(redirect_target).collect()))
    }
}

fn failed(cause: io::Error) -> Error {
    Error::Netlink {
        what: "asking what XDP can do on interfaces".to_owned(),
        cause,
    }
}

fn redirect_target(answer: &Message) -> Option<(u32, bool)> {
    let ifindex = u32::from_ne_bytes(answer.get(NETDEV_A_DEV_IFINDEX)?);
    let features = u64::from_ne_bytes(answer.get(NETDEV_A_DEV_XDP_FEATURES)?);
    Some((ifindex, features & NETDEV_XDP_ACT_NDO_XMIT != 0))
}

/// A message of a generic netlink family: `struct genlmsghdr` and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
}

/// Length of `struct genlmsghdr`: command, version, two reserved bytes.
const HEADER: usize = 4;
/// Version of both families.
const VERSION: u8 = 1;

impl Message {
    /// The value of an attribute, if there is one of this length.
    fn get<const N: usize>(&self, kind: u16) -> Option<[u8; N]> {
        let attribute = self.attributes.iter().find(|a| a.kind() == kind)?;
        let mut value = vec![0; attribute.value_len()];
        attribute.emit_value(&mut value);
        value.try_into().ok()
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        HEADER + self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..HEADER].copy_from_slice(&[self.command, VERSION, 0, 0]);
        self.attributes.as_slice().emit(&mut buffer[HEADER..]);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let Some((&[command, _, _, _], attributes)) = payload.split_first_chunk::<HEADER>() else {
            return Err(DecodeError::from(format!(
                "a generic netlink message of {} bytes has no header",
                payload.len()
            )));
        };
        let attributes = NlasIterator::new(attributes)
            .map(|nla| {
                // Without the flag that tells a nested attribute.
                nla.map(|nla| DefaultNla::new(nla.kind(), nla.value().to_vec()))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            family: header.message_type,
            command,
            attributes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went() {
        let message = Message {
            family: 20,
            command: NETDEV_CMD_DEV_GET,
            attributes: vec![
                DefaultNla::new(NETDEV_A_DEV_IFINDEX, 7_u32.to_ne_bytes().to_vec()),
                DefaultNla::new(99, vec![1, 2, 3]),
                DefaultNla::new(NETDEV_A_DEV_XDP_FEATURES, 0x67_u64.to_ne_bytes().to_vec()),
            ],
        };
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let mut header = NetlinkHeader::default();
        header.message_type = 20;
        let read = Message::deserialize(&header, &bytes).expect("a message that was just made");
        assert_eq!(read, message);
        assert_eq!(redirect_target(&read), Some((7, true)));
        for length in 0..HEADER {
            assert!(Message::deserialize(&header, &bytes[..length]).is_err());
        }
    }

    #[test]
    fn not_every_interface_transmits() {
        let device = |features: &[u8]| Message {
            family: 20,
            command: NETDEV_CMD_DEV_GET,
            attributes: vec![
                DefaultNla::new(NETDEV_A_DEV_IFINDEX, 7_u32.to_ne_bytes().to_vec()),
                DefaultNla::new(NETDEV_A_DEV_XDP_FEATURES, features.to_vec()),
            ],
        };
        let virtio = device(&0x2b_u64.to_ne_bytes());
        assert_eq!(redirect_target(&virtio), Some((7, false)));
        assert_eq!(redirect_target(&device(&[4])), None);
    }

    #[test]
    fn the_kernel_knows_of_the_loopback() {
        let mut features = XdpFeatures::open().expect("a socket");
        let targets = features.redirect_targets().expect("an answer");
        // Kernels before 6.3 do not tell.
        if let Some(targets) = targets {
            assert_eq!(targets.get(&1), Some(&false));
        }
    }
}
