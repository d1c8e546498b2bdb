//! The only pointer arithmetic on packets.

use aya_ebpf::programs::XdpContext;

/// What one BPF instruction loads or stores.
pub trait Word: Copy {}
impl Word for u8 {}
impl Word for u16 {}
impl Word for u32 {}

/// A frame as XDP hands it over, from the Ethernet header on.
#[derive(Clone, Copy)]
pub struct Packet {
    data: *mut u8,
    end: *mut u8,
}

impl Packet {
    #[inline(always)]
    pub fn new(ctx: &XdpContext) -> Self {
        Self {
            data: ctx.data() as *mut u8,
            end: ctx.data_end() as *mut u8,
        }
    }

    /// The frame without its first `len` bytes, for headers that have others before them. Bounds shown
    /// on the one are not known of the other.
    #[inline(always)]
    pub fn behind(&self, len: usize) -> Self {
        Self {
            data: self.data.wrapping_add(len),
            end: self.end,
        }
    }

    /// Length in bytes of the linear part of the frame.
    #[inline(always)]
    pub fn len(&self) -> u64 {
        self.end as u64 - self.data as u64
    }

    /// Whether the frame has at least `len` bytes.
    ///
    /// The comparison is also what the verifier learns the bound from: it refuses to load the program
    /// if any [`get`](Self::get) or [`set`](Self::set) is not dominated by such a check in the same
    /// function, so a missing one cannot reach a packet.
    #[inline(always)]
    pub fn has(&self, len: usize) -> bool {
        self.data.wrapping_add(len) <= self.end
    }

    /// The `T` at byte `at`, as it lies in the packet.
    ///
    /// A typed load although headers behind Ethernet lie at odd word offsets: as an unaligned load it
    /// would become one load for each byte, four times the instructions. The instruction itself has
    /// no alignment; on machines where it matters the verifier refuses the program
    /// (`BPF_F_STRICT_ALIGNMENT`), so it cannot fault.
    #[inline(always)]
    pub fn get<T: Word>(&self, at: usize) -> T {
        // SAFETY: the verifier has proved `at + size_of::<T>()` to be within the frame (see `has`).
        unsafe { *self.data.wrapping_add(at).cast::<T>() }
    }

    /// Overwrites the `T` at byte `at`.
    #[inline(always)]
    pub fn set<T: Word>(&self, at: usize, value: T) {
        // SAFETY: as in `get`; no other CPU has this frame.
        unsafe { *self.data.wrapping_add(at).cast::<T>() = value }
    }

    /// The address at byte `at`, word by word: copied whole it would be copied byte by byte.
    #[inline(always)]
    pub fn address<const N: usize>(&self, at: usize) -> [u32; N] {
        core::array::from_fn(|i| self.get(at + 4 * i))
    }

    /// Overwrites the words (an address, or the Ethernet addresses) at byte `at`.
    #[inline(always)]
    pub fn set_words<const N: usize>(&self, at: usize, words: &[u32; N]) {
        for (i, &word) in words.iter().enumerate() {
            self.set(at + 4 * i, word);
        }
    }
}
