//! The only pointer arithmetic on packets.

use aya_ebpf::programs::XdpContext;

/// What one BPF instruction loads or stores.
pub trait Word: Copy {}
impl Word for u8 {}
impl Word for u16 {}
impl Word for u32 {}

/// The first buffer of a frame, or a part of it up to its end.
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

    /// What is left without the first `len` bytes. Bounds shown on the one are not known of the other.
    #[inline(always)]
    pub fn behind(&self, len: usize) -> Self {
        Self {
            data: self.data.wrapping_add(len),
            end: self.end,
        }
    }

    /// Whether there are at least `len` bytes: the comparison from which the verifier learns the bound.
    /// It refuses the program if a [`get`](Self::get) or [`set`](Self::set) has none before it.
    #[inline(always)]
    pub fn has(&self, len: usize) -> bool {
        self.data.wrapping_add(len) <= self.end
    }

    /// The `T` at byte `at`, as it lies in the packet.
    #[inline(always)]
    pub fn get<T: Word>(&self, at: usize) -> T {
        // SAFETY: the verifier has proved `at + size_of::<T>()` to be within the frame (see `has`), and
        // where loads must be aligned it refuses the program.
        unsafe { *self.data.wrapping_add(at).cast::<T>() }
    }

    /// Overwrites the `T` at byte `at`.
    #[inline(always)]
    pub fn set<T: Word>(&self, at: usize, value: T) {
        // SAFETY: as in `get`; no other CPU has this frame.
        unsafe { *self.data.wrapping_add(at).cast::<T>() = value }
    }

    /// The IPv6 address at byte `at`.
    #[inline(always)]
    pub fn address(&self, at: usize) -> [u32; 4] {
        core::array::from_fn(|i| self.get(at + 4 * i))
    }
}
