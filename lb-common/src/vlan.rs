//! VLAN tags of a next hop (IEEE 802.1Q).

/// The tags that a frame to a next hop has: none, one or two.
///
/// Only which VLANs, and by which EtherType each is announced: priority and drop eligibility are a
/// frame's own affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Tags(u32);

/// How a tag is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum TagType {
    /// EtherType 0x8100, a customer's tag.
    Dot1Q = 1,
    /// EtherType 0x88a8, a service provider's tag (802.1ad).
    Dot1Ad = 2,
}

/// Bits of a tag's VLAN id.
pub const VLAN_ID: u16 = 0x0fff;
const TYPE_SHIFT: u32 = 12;
const INNER_SHIFT: u32 = 16;

impl Tags {
    /// No tags.
    pub const NONE: Self = Self(0);

    /// These tags and, inside of them, one more. A frame has two at most; a third is not taken.
    #[inline(always)]
    #[must_use]
    pub const fn with(self, kind: TagType, vlan: u16) -> Self {
        let tag = ((kind as u32) << TYPE_SHIFT) | (vlan & VLAN_ID) as u32;
        match self.count() {
            0 => Self(tag),
            1 => Self(self.0 | (tag << INNER_SHIFT)),
            _ => self,
        }
    }

    /// How many tags there are, 0 to 2.
    #[inline(always)]
    pub const fn count(self) -> u32 {
        (self.0 != 0) as u32 + (self.0 >> INNER_SHIFT != 0) as u32
    }

    /// Type and VLAN id of the outer tag.
    #[inline(always)]
    pub const fn outer(self) -> Option<(TagType, u16)> {
        tag(self.0 as u16)
    }

    /// Type and VLAN id of the inner of two tags.
    #[inline(always)]
    pub const fn inner(self) -> Option<(TagType, u16)> {
        tag((self.0 >> INNER_SHIFT) as u16)
    }
}

#[inline(always)]
const fn tag(bits: u16) -> Option<(TagType, u16)> {
    let kind = match bits >> TYPE_SHIFT {
        0 => return None,
        1 => TagType::Dot1Q,
        _ => TagType::Dot1Ad,
    };
    Some((kind, bits & VLAN_ID))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn none_has_none() {
        assert_eq!(Tags::NONE.count(), 0);
        assert_eq!((Tags::NONE.outer(), Tags::NONE.inner()), (None, None));
    }

    #[test]
    fn vlan_0_is_a_tag() {
        let tags = Tags::NONE.with(TagType::Dot1Q, 0);
        assert_eq!(tags.count(), 1);
        assert_ne!(tags, Tags::NONE);
        assert_eq!(tags.outer(), Some((TagType::Dot1Q, 0)));
    }

    #[test]
    fn a_third_is_not_taken() {
        let two = Tags::NONE
            .with(TagType::Dot1Ad, 7)
            .with(TagType::Dot1Q, 4094);
        assert_eq!(two.with(TagType::Dot1Q, 1), two);
    }

    proptest! {
        #[test]
        fn what_went_in_comes_out(outer in 0_u16..4096, inner in 0_u16..4096, ad in any::<bool>()) {
            let kind = if ad { TagType::Dot1Ad } else { TagType::Dot1Q };
            let one = Tags::NONE.with(kind, outer);
            prop_assert_eq!((one.count(), one.outer(), one.inner()), (1, Some((kind, outer)), None));
            let two = one.with(TagType::Dot1Q, inner);
            prop_assert_eq!(two.count(), 2);
            prop_assert_eq!((two.outer(), two.inner()), (Some((kind, outer)), Some((TagType::Dot1Q, inner))));
        }
    }
}
