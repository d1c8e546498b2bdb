//! The bytes of big downloads: each depends on its place, so that a lost, doubled, swapped or altered
//! piece shows.

use lb_common::flow::mix64;

/// Writes the bytes from `offset` on.
pub fn fill(offset: u64, buffer: &mut [u8]) {
    for (place, byte) in (offset..).zip(buffer) {
        *byte = at(place);
    }
}

/// Where in the stream the first wrong byte is, of those received from `offset` on.
pub fn first_wrong(offset: u64, received: &[u8]) -> Option<u64> {
    (offset..)
        .zip(received)
        .find(|(place, byte)| at(*place) != **byte)
        .map(|(place, _)| place)
}

fn at(place: u64) -> u8 {
    mix64(place / 8).to_le_bytes()[(place % 8) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_in_pieces_is_the_stream() {
        let mut whole = vec![0; 1000];
        fill(0, &mut whole);
        for cut in [1, 7, 8, 500, 999] {
            let mut tail = vec![0; 1000 - cut];
            fill(cut as u64, &mut tail);
            assert_eq!(whole[cut..], tail);
            assert_eq!(first_wrong(cut as u64, &tail), None);
        }
    }

    #[test]
    fn a_wrong_byte_and_a_shift_show() {
        let mut bytes = vec![0; 1000];
        fill(40, &mut bytes);
        bytes[123] ^= 1;
        assert_eq!(first_wrong(40, &bytes), Some(163));
        fill(48, &mut bytes);
        assert!(first_wrong(40, &bytes).is_some());
    }
}
