//! Reads a BPF ring buffer in place, without a copy and without a system call when there is something to read.
//!
//! Layout (kernel/bpf/ringbuf.c): page 0 the consumer position (ours), page 1 the producer position, then the data, mapped twice in a row so
//! that an entry never wraps. An entry is a u32 length (bit 31: still being written, bit 30: discarded), a u32, then the data, rounded to 8.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const HEADER: u64 = 8;

/// A consumer of one ring.
pub struct Ring {
    fd: OwnedFd,
    consumer: *mut u8,
    producer: *mut u8,
    size: u64,
    page: usize,
}

// SAFETY: the mappings are valid in every thread, and reading needs `&mut self`: one consumer at a time.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring behind `fd`, whose data area has `size` bytes.
    pub(crate) fn new(fd: OwnedFd, size: u32) -> io::Result<Self> {
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let map = |len: usize, prot: i32, offset: usize| {
            // SAFETY: a fresh mapping at an address of the kernel's choice; the result is checked.
            let at =
                unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd.as_raw_fd(), offset as libc::off_t) };
            if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast::<u8>()) }
        };
        let consumer = map(page, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let producer = match map(page + 2 * size as usize, libc::PROT_READ, page) {
            Ok(at) => at,
            Err(e) => {
                // SAFETY: the mapping made just above.
                unsafe { libc::munmap(consumer.cast(), page) };
                return Err(e);
            }
        };
        Ok(Self { fd, consumer, producer, size: size.into(), page })
    }

    /// The descriptor to wait on: readable when there are entries.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }

    /// The same, raw.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Hands every entry that is there now to `take`, and returns how many there were. When it returns, the kernel knows how far we read: the
    /// next entry makes the descriptor readable, however it is waited for.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) -> usize {
        let mut taken = 0;
        loop {
            let (entries, positions) = self.pass(&mut take, usize::MAX);
            taken += entries;
            // The kernel wakes nobody who it thinks is still reading: it commits an entry, then looks at our position. We moved our
            // position, and must look for a commit once more after that, or both could miss the other (store, then load: a full barrier).
            fence(Ordering::SeqCst);
            if positions == 0 {
                return taken;
            }
        }
    }

    /// Hands the next entry to `take`, if there is one. While entries are left the descriptor stays readable.
    pub fn take_one(&mut self, take: impl FnOnce(&[u8])) -> bool {
        let mut take = Some(take);
        loop {
            let (taken, passed) = self.pass(&mut |bytes| take.take().into_iter().for_each(|take| take(bytes)), 1);
            fence(Ordering::SeqCst); // as in `drain`
            if taken > 0 || passed == 0 {
                return taken > 0;
            }
        }
    }

    /// Whether there is an entry, or may be.
    #[must_use]
    pub fn has_entry(&self) -> bool {
        // SAFETY: aligned words in pages that stay mapped as long as self.
        unsafe {
            let consumer = (*self.consumer.cast::<AtomicU64>()).load(Ordering::Relaxed);
            consumer < (*self.producer.cast::<AtomicU64>()).load(Ordering::Acquire)
        }
    }

    /// Reads until there is nothing more, or `most` were taken: how many entries were handed over, and how many positions were passed (discarded ones too).
    fn pass(&mut self, take: &mut impl FnMut(&[u8]), most: usize) -> (usize, usize) {
        // SAFETY: both positions are aligned words in their pages, which stay mapped as long as self.
        let (consumer, producer) = unsafe { (&*self.consumer.cast::<AtomicU64>(), &*self.producer.cast::<AtomicU64>()) };
        let mut at = consumer.load(Ordering::Relaxed);
        let (mut taken, mut passed) = (0, 0);
        while taken < most && at < producer.load(Ordering::Acquire) {
            let offset = (at & (self.size - 1)) as usize;
            // SAFETY: offset < size and entries are 8-aligned; the data area follows the producer page.
            let entry = unsafe { self.producer.add(self.page + offset) };
            // SAFETY: an entry starts with its aligned u32 length.
            let len = unsafe { &*entry.cast::<AtomicU32>() }.load(Ordering::Acquire);
            if len & BUSY != 0 {
                break;
            }
            let bytes = u64::from(len & !DISCARD);
            if len & DISCARD == 0 && bytes + HEADER <= self.size {
                // SAFETY: the area is mapped twice in a row, so `bytes` ≤ size from any offset < size stay inside.
                take(unsafe { std::slice::from_raw_parts(entry.add(HEADER as usize), bytes as usize) });
                taken += 1;
            }
            at += (bytes + HEADER).next_multiple_of(8);
            passed += 1;
            consumer.store(at, Ordering::Release);
        }
        (taken, passed)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the two mappings made in `new`, unmapped once.
        unsafe {
            libc::munmap(self.consumer.cast(), self.page);
            libc::munmap(self.producer.cast(), self.page + 2 * self.size as usize);
        }
    }
}
