//! Address prefixes: `10.0.0.0/8`, `2001:db8::/32`, or an address alone.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A prefix whose address has no bits behind its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// Why a text is no prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// It is neither an address nor an address with a length.
    #[error("\"{0}\" is no prefix: write 10.0.0.0/8, 2001:db8::/32, or an address")]
    Form(String),
    /// It is longer than an address.
    #[error("the length of \"{text}\" is more than {most}")]
    Length {
        /// The text.
        text: String,
        /// Bits of an address of its family.
        most: u8,
    },
    /// The address has bits that the prefix does not keep.
    #[error("\"{text}\" has bits behind its length: write {prefix}, or the address alone")]
    HostBits {
        /// The text.
        text: String,
        /// What is left without those bits.
        prefix: Prefix,
    },
}

impl Prefix {
    /// The address, network part only.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits behind the length.
    pub const fn free_bits(&self) -> u8 {
        let most = if self.address.is_ipv4() { 32 } else { 128 };
        most - self.bits
    }

    /// The length in bits.
    pub const fn bits(&self) -> u8 {
        self.bits
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || PrefixError::Form(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits: u8 = bits.unwrap_or(most);
        if bits > most {
            let text = text.to_owned();
            return Err(PrefixError::Length { text, most });
        }
        let network = network(address, bits);
        let prefix = Self {
            address: network,
            bits,
        };
        if network != address {
            let text = text.to_owned();
            return Err(PrefixError::HostBits { text, prefix });
        }
        Ok(prefix)
    }
}

/// The address without the bits behind the first `bits`.
fn network(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

impl Serialize for Prefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_addresses() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("192.0.2.1/32", "192.0.2.1/32"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
            ("2001:db8::1", "2001:db8::1/128"),
        ] {
            assert_eq!(text.parse::<Prefix>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let error = |text: &str| text.parse::<Prefix>().unwrap_err();
        for text in [
            "",
            "a",
            "10.0.0.0/",
            "10.0.0/8",
            "10.0.0.0/-1",
            "/8",
            "::/x",
        ] {
            assert_eq!(error(text), PrefixError::Form(text.to_owned()));
        }
        assert!(matches!(
            error("10.0.0.0/33"),
            PrefixError::Length { most: 32, .. }
        ));
        assert!(matches!(
            error("::/129"),
            PrefixError::Length { most: 128, .. }
        ));
        assert!(error("10.1.0.0/8").to_string().contains("10.0.0.0/8"));
        assert!(
            error("2001:db8::1/32")
                .to_string()
                .contains("2001:db8::/32")
        );
        assert!(error("1.2.3.4/0").to_string().contains("0.0.0.0/0"));
    }
}
