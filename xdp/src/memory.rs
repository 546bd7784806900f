//! A memory-mapped BPF array: the kernel programs write it while we read, so every access is volatile and a value may be a mixture of
//! two moments. Callers only use fields that are meaningful on their own.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// An array map of `T`, mapped read-write.
#[derive(Debug)]
pub(crate) struct MappedArray<T> {
    base: *mut u8,
    stride: usize,
    entries: usize,
    len: usize,
    what: PhantomData<T>,
}

// SAFETY: the mapping is plain shared memory, valid in every thread; accesses are volatile copies.
unsafe impl<T: Send> Send for MappedArray<T> {}
// SAFETY: as above; concurrent volatile copies of plain integers are what the kernel does as well.
unsafe impl<T: Send> Sync for MappedArray<T> {}

impl<T: Copy> MappedArray<T> {
    /// Maps `entries` values of the array behind `fd`. `T` must be the C struct of the map: only plain integers, any bytes valid.
    pub(crate) fn new(fd: BorrowedFd<'_>, entries: usize) -> io::Result<Self> {
        let stride = size_of::<T>().next_multiple_of(8); // the kernel rounds array values up to 8
        let len = (stride * entries).next_multiple_of(4096);
        // SAFETY: a fresh mapping of `len` bytes at an address of the kernel's choice; the result is checked.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), stride, entries, len, what: PhantomData })
    }

    /// A pointer to entry `index`, for accesses to single fields.
    ///
    /// # Panics
    /// When `index` is out of range.
    pub(crate) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        // SAFETY: index is in range, so the offset stays within the mapping.
        unsafe { self.base.add(index * self.stride).cast() }
    }

    pub(crate) fn read(&self, index: usize) -> T {
        // SAFETY: `at` is in range and aligned (stride is a multiple of 8, the base page-aligned); T is plain integers.
        unsafe { self.at(index).read_volatile() }
    }

    pub(crate) fn write(&self, index: usize, value: T) {
        // SAFETY: as for `read`.
        unsafe { self.at(index).write_volatile(value) }
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: base and len are those of the mapping made in `new`, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
