//! Where events come from: a BPF ring buffer that the kernel writes straight into, or a socket that the agent writes to.
//!
//! A BPF ring buffer, as a process without privileges may map it:
//! ```text
//! page 0        consumer position, ours to write                   (a word, free running)
//! page 1        producer position, the kernel's                    (a word, free running)
//! page 2 ...    `size` bytes of data, and then the same pages once more, so that an entry never wraps
//! ```
//! An entry is `u32 length | BUSY | DISCARD`, `u32` of the kernel's own, then the bytes, rounded up to 8.

use crate::error::{Error, system};
use crate::shm::{Access, Mapping, page_size};
use crate::sys;
use fide_wire::control::RingKind;
use fide_wire::event::Record;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Largest entry that is of interest; a longer one is cut off here.
pub const ENTRY_MAX: usize = size_of::<Record>() + u16::MAX as usize;
/// Largest ring taken, bytes of data.
const SIZE_MAX: u32 = 1 << 28;
/// Still being written.
const BUSY: u32 = 1 << 31;
/// Given up by its writer.
const DISCARD: u32 = 1 << 30;
/// Bytes before an entry's own.
const HEADER: usize = 8;

/// The reading end of a mapped BPF ring buffer.
#[derive(Debug)]
pub struct BpfRing {
    consumer_page: Mapping,
    producer_pages: Mapping,
    /// Bytes of data, a power of two.
    size: usize,
    /// Our position; the page holds a copy for the kernel.
    consumed: usize,
    page: usize,
}

impl BpfRing {
    /// Maps the ring. Needs no privilege, only the descriptor.
    pub fn map(fd: BorrowedFd<'_>, size: u32) -> Result<Self, Error> {
        let page = page_size();
        if !size.is_power_of_two() || size > SIZE_MAX || (size as usize) < page {
            return Err(Error::Protocol(format!("a ring of {size} bytes")));
        }
        let size = size as usize;
        let consumer_page = Mapping::new(fd, 0, page, Access::Write)?;
        let producer_pages = Mapping::new(fd, page, page + 2 * size, Access::Read)?;
        let consumed = consumer_page.load_usize(0);
        Ok(Self { consumer_page, producer_pages, size, consumed, page })
    }

    /// Copies the next entry into `entry`; `false` when there is none yet. No system call.
    ///
    /// # Errors
    /// When the positions or a length cannot be. Nothing was read out of bounds then, and nothing can be read any more.
    pub fn next(&mut self, entry: &mut Vec<u8>) -> Result<bool, Error> {
        // The kernel wakes nobody who it thinks is still reading: it commits an entry, then looks at our position. We stored our position at
        // the end of the last call and look for an entry now; without a full barrier between, both could miss the other.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        loop {
            let available = self.producer_pages.load_usize(0).wrapping_sub(self.consumed);
            if available == 0 {
                return Ok(false);
            }
            if available > self.size || !available.is_multiple_of(8) || !self.consumed.is_multiple_of(8) {
                return Err(Error::Ring("impossible positions"));
            }
            let at = self.page + (self.consumed & (self.size - 1));
            let header = self.producer_pages.load_u32(at);
            if header & BUSY != 0 {
                return Ok(false);
            }
            let len = (header & !DISCARD) as usize;
            let step = (len + HEADER).next_multiple_of(8);
            if step > available {
                return Err(Error::Ring("an entry longer than what was written"));
            }
            let given_up = header & DISCARD != 0;
            if !given_up {
                // at + step <= page + 2 * size, because step <= size: the second copy of the data makes it contiguous.
                self.producer_pages.copy_out(at + HEADER, len.min(ENTRY_MAX), entry);
            }
            self.consumed = self.consumed.wrapping_add(step);
            // Only now may the kernel write over the entry.
            self.consumer_page.store_usize(0, self.consumed);
            if !given_up {
                return Ok(true);
            }
        }
    }
}

/// What was found when an event was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// One, now in the buffer.
    Entry,
    /// None yet.
    Nothing,
    /// None, and the other side has hung up.
    End,
}

/// A source of events, with its descriptor.
#[derive(Debug)]
pub enum Ring {
    /// Written by the kernel.
    Bpf(BpfRing, OwnedFd),
    /// Written by the agent, one record per message; with a buffer for it.
    Socket(OwnedFd, Box<[u8]>),
}

impl Ring {
    /// The ring that came with a `Ring` reply.
    pub fn new(kind: RingKind, fd: OwnedFd, size: u32) -> Result<Self, Error> {
        Ok(match kind {
            RingKind::Bpf => Ring::Bpf(BpfRing::map(fd.as_fd(), size)?, fd),
            RingKind::Socket => Ring::Socket(fd, vec![0; ENTRY_MAX].into_boxed_slice()),
        })
    }

    /// The next entry, copied into `entry`.
    pub fn next(&mut self, entry: &mut Vec<u8>) -> Result<Found, Error> {
        match self {
            Ring::Bpf(ring, _) => Ok(if ring.next(entry)? { Found::Entry } else { Found::Nothing }),
            Ring::Socket(fd, buffer) => match sys::receive(fd.as_fd(), buffer) {
                Ok(got) if got.len == 0 => Ok(Found::End),
                Ok(got) => {
                    entry.clear();
                    // What is too long cannot be a record: it is left empty, which whoever reads it counts as lost.
                    entry.extend_from_slice(if got.truncated { &[] } else { &buffer[..got.len] });
                    Ok(Found::Entry)
                }
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => Ok(Found::Nothing),
                    io::ErrorKind::ConnectionReset => Ok(Found::End),
                    _ => Err(system("receive an event")(e)),
                },
            },
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Ring::Bpf(_, fd) | Ring::Socket(fd, _) => fd.as_fd(),
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
