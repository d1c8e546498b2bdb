//! bpf(2) commands that aya does not offer: batches, and lookup-and-delete.
//!
//! See the kernel's `include/uapi/linux/bpf.h`, `union bpf_attr`. A batch reads a table in about a
//! third of the time that one call for each entry takes.

use std::{
    io,
    ops::ControlFlow,
    os::fd::{AsRawFd, BorrowedFd},
};

const PROG_TEST_RUN: libc::c_long = 10;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_LOOKUP_AND_DELETE_ELEM: libc::c_long = 21;
const MAP_LOOKUP_BATCH: libc::c_long = 24;

/// A value that is plain bytes on both sides.
///
/// Every [`aya::Pod`] is one; the alias says what is relied on here.
pub trait Plain: aya::Pod {}
impl<T: aya::Pod> Plain for T {}

#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ElemAttr {
    map_fd: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<()> {
    // SAFETY: `attr` begins with the fields that the command reads, and its pointers are to buffers
    // that live through the call and have the sizes given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Calls `each` with every entry of a hash or array map, until it breaks off.
///
/// Entries that come or go meanwhile may be seen or not, and one may be seen twice.
/// `value_size` is the size of a value in the buffer: for a per-CPU map that of all CPUs together.
pub fn for_each<K: Plain>(
    fd: BorrowedFd<'_>,
    value_size: usize,
    mut each: impl FnMut(&K, &[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut capacity = 4096;
    // What the kernel resumes from: a bucket or index number, at most as large as the key.
    let mut cursor = [0_u8; 64];
    let mut next = [0_u8; 64];
    let mut first = true;
    let mut keys: Vec<K> = Vec::new();
    let mut values: Vec<u64> = Vec::new();
    loop {
        // SAFETY: all zeros is a value of a plain type.
        keys.resize_with(capacity, || unsafe { std::mem::zeroed() });
        values.resize((capacity * value_size).div_ceil(8), 0);
        let mut attr = BatchAttr {
            in_batch: if first { 0 } else { cursor.as_ptr() as u64 },
            out_batch: next.as_mut_ptr() as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: capacity as u32,
            map_fd: fd.as_raw_fd() as u32,
            ..BatchAttr::default()
        };
        let result = bpf(MAP_LOOKUP_BATCH, &mut attr);
        let end = match result {
            Ok(()) => false,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => true,
            // A bucket holds more than the buffer: try again with a larger one.
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) && capacity < 1 << 20 => {
                capacity *= 2;
                continue;
            }
            Err(e) => return Err(e),
        };
        // SAFETY: the buffer is of u64, so it has at least as many initialised bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), capacity * value_size)
        };
        for (key, value) in keys
            .iter()
            .zip(bytes.chunks_exact(value_size))
            .take(attr.count as usize)
        {
            if each(key, value).is_break() {
                return Ok(());
            }
        }
        if end {
            return Ok(());
        }
        cursor = next;
        first = false;
    }
}

/// Reads a plain value out of bytes from the kernel.
///
/// # Panics
/// If there are fewer bytes than the value has; buffers are sized by the caller for the type.
pub fn read<T: Plain>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= size_of::<T>());
    // SAFETY: enough bytes (asserted), and every bit pattern is a value of a plain type.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// An entry of a map, or `None`.
pub fn lookup<K: Plain, V: Plain>(fd: BorrowedFd<'_>, key: &K) -> io::Result<Option<V>> {
    lookup_with(MAP_LOOKUP_ELEM, fd, key)
}

/// Deletes an entry of a hash map and returns the value it had, or `None` if there was none.
pub fn take<K: Plain, V: Plain>(fd: BorrowedFd<'_>, key: &K) -> io::Result<Option<V>> {
    lookup_with(MAP_LOOKUP_AND_DELETE_ELEM, fd, key)
}

fn lookup_with<K: Plain, V: Plain>(
    command: libc::c_long,
    fd: BorrowedFd<'_>,
    key: &K,
) -> io::Result<Option<V>> {
    let mut value = std::mem::MaybeUninit::<V>::zeroed();
    let mut attr = ElemAttr {
        map_fd: fd.as_raw_fd() as u32,
        key: std::ptr::from_ref(key) as u64,
        value: value.as_mut_ptr() as u64,
        ..ElemAttr::default()
    };
    match bpf(command, &mut attr) {
        // SAFETY: zeroed, then filled by the kernel; every bit pattern is a value.
        Ok(()) => Ok(Some(unsafe { value.assume_init() })),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Inserts an entry that must not be there (`BPF_NOEXIST`).
pub fn insert_new<K: Plain, V: Plain>(fd: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<()> {
    let mut attr = ElemAttr {
        map_fd: fd.as_raw_fd() as u32,
        key: std::ptr::from_ref(key) as u64,
        value: std::ptr::from_ref(value) as u64,
        flags: 1,
        ..ElemAttr::default()
    };
    bpf(MAP_UPDATE_ELEM, &mut attr)
}

/// Runs an XDP program once on an empty frame and returns what it returns.
pub fn run(program: BorrowedFd<'_>) -> io::Result<u32> {
    // The least that the kernel takes: an Ethernet header.
    let frame = [0_u8; 14];
    let mut attr = TestRunAttr {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat: 1,
        ..TestRunAttr::default()
    };
    bpf(PROG_TEST_RUN, &mut attr)?;
    Ok(attr.retval)
}
