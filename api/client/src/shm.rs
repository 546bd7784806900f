//! Memory shared with another process: the only place where the client touches bytes that others may change meanwhile.
//!
//! All access goes through atomics and is checked against the mapping's bounds, so nothing that the other side writes, and
//! no mistake in the layers above ([`crate::ring`], [`crate::bridge`]), can make a read or a write leave the mapping.

use crate::error::{Error, system};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What may be done with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads; the kernel refuses more for the producer's pages of a BPF ring.
    Read,
    /// Reads and writes.
    Write,
}

/// A MAP_SHARED mapping, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    access: Access,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only read and written by atomic operations.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Bytes of a page.
pub fn page_size() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, a multiple of the page size.
    ///
    /// # Errors
    /// When the system refuses, or when `fd` is a file that is too short: touching its missing pages would raise SIGBUS.
    pub fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, access: Access) -> Result<Self, Error> {
        let invalid = || system("mmap")(io::Error::from_raw_os_error(libc::EINVAL));
        let end = offset.checked_add(len).ok_or_else(invalid)?;
        let from = libc::off_t::try_from(offset).map_err(|_| invalid())?;
        // SAFETY: all-zero is a valid stat.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` lives through the call.
        if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } < 0 {
            return Err(system("fstat")(io::Error::last_os_error()));
        }
        if stat.st_mode & libc::S_IFMT == libc::S_IFREG && usize::try_from(stat.st_size).unwrap_or(0) < end {
            return Err(Error::Protocol(format!("shared memory of {} bytes where {end} were promised", stat.st_size)));
        }
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), from) };
        if start == libc::MAP_FAILED {
            return Err(system("mmap")(io::Error::last_os_error()));
        }
        let start = NonNull::new(start.cast()).ok_or_else(invalid)?;
        Ok(Self { start, len, access })
    }

    /// One page of memory of this process's own, until [`Mapping::replace`] puts shared memory there.
    pub fn private_page() -> Result<Self, Error> {
        let len = page_size();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(system("mmap")(io::Error::last_os_error()));
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| system("mmap")(io::Error::from_raw_os_error(libc::EINVAL)))?;
        Ok(Self { start, len, access: Access::Write })
    }

    /// Puts the page of `fd` at `offset` where this page is, at the same address and in one step: who stores into it meanwhile stores into the old
    /// one or the new one.
    ///
    /// # Errors
    /// As [`Mapping::new`].
    pub fn replace(&self, fd: BorrowedFd<'_>, offset: usize) -> Result<(), Error> {
        // Made elsewhere first, where it is checked, and then moved.
        let new = std::mem::ManuallyDrop::new(Self::new(fd, offset, self.len, self.access)?);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both are whole mappings of this length that are ours; the one at the target goes, the other is not used any more.
        let at = unsafe { libc::mremap(new.start.as_ptr().cast(), self.len, self.len, flags, self.start.as_ptr()) };
        if at == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            drop(std::mem::ManuallyDrop::into_inner(new));
            return Err(system("mremap")(error));
        }
        Ok(())
    }

    /// The address of `size` bytes at `offset`, which must lie within the mapping and be aligned to `align`.
    fn at(&self, offset: usize, size: usize, align: usize) -> *mut u8 {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.len);
        assert!(inside && offset.is_multiple_of(align), "{size} bytes at {offset} of a mapping of {}", self.len);
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The word at `offset`, to be loaded; to be stored only where the mapping may be written.
    fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `at` gave an aligned address inside the mapping, which lives as long as the reference; all access is atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast()) }
    }

    /// The word at `offset` of a mapping that may be written.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.assert_writable();
        // SAFETY: as in `atomic_u32`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast()) }
    }

    fn atomic_usize(&self, offset: usize) -> &AtomicUsize {
        // SAFETY: as in `atomic_u32`.
        unsafe { AtomicUsize::from_ptr(self.at(offset, size_of::<usize>(), size_of::<usize>()).cast()) }
    }

    /// Loads the u32 at `offset`, acquiring what was written before it.
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.atomic_u32(offset).load(Ordering::Acquire)
    }

    /// Stores a u32 at `offset`, releasing what was written before.
    pub fn store_u32(&self, offset: usize, value: u32) {
        self.assert_writable();
        self.atomic_u32(offset).store(value, Ordering::Release);
    }

    /// Loads the machine word at `offset`, acquiring what was written before it.
    pub fn load_usize(&self, offset: usize) -> usize {
        self.atomic_usize(offset).load(Ordering::Acquire)
    }

    /// Stores a machine word at `offset`, releasing what was written before.
    pub fn store_usize(&self, offset: usize, value: usize) {
        self.assert_writable();
        self.atomic_usize(offset).store(value, Ordering::Release);
    }

    /// Replaces the contents of `to` by the `len` bytes at `offset`, a multiple of 8, the last word of which lies inside too.
    pub fn copy_out(&self, offset: usize, len: usize, to: &mut Vec<u8>) {
        let words = self.at(offset, len.next_multiple_of(8), 8).cast::<u64>();
        to.clear();
        to.reserve(len.next_multiple_of(8));
        for i in 0..len.div_ceil(8) {
            // SAFETY: `at` checked that all the words lie in the mapping and are aligned; the access is atomic.
            let word = unsafe { AtomicU64::from_ptr(words.add(i)) }.load(Ordering::Relaxed);
            to.extend_from_slice(&word.to_ne_bytes());
        }
        to.truncate(len);
    }

    /// Writes `bytes` at `offset`, a multiple of 4, filling up the last word with zeros.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.assert_writable();
        let words = self.at(offset, bytes.len().next_multiple_of(4), 4).cast::<u32>();
        for (i, part) in bytes.chunks(4).enumerate() {
            let mut word = [0; 4];
            word[..part.len()].copy_from_slice(part);
            // SAFETY: as in `copy_out`, and writable as just checked.
            unsafe { AtomicU32::from_ptr(words.add(i)) }.store(u32::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    fn assert_writable(&self) {
        assert!(self.access == Access::Write, "a store into a mapping for reading");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
