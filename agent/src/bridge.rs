//! The agent's end of a bridge: memory shared with one application, which is not trusted. Piggybacks come by it (X6), and progress counters lie in
//! it (B10).
//!
//! The application can write anything at any time, so lengths are copied out once, checked, and only then used; it can neither make
//! the agent read outside the bridge nor wait. The memory is sealed against shrinking, so reading it cannot fault.

use fide_proto::detector::progress::Look;
use fide_wire::control::bridge::{BUSY, COUNTER, COUNTERS, DATA, HEAD, LEN, PROGRESS, SLOT, SLOTS, TAIL};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The agent's mapping.
#[derive(Debug)]
pub struct Bridge {
    base: *mut u8,
    taken: u32,
}

// SAFETY: plain shared memory, valid in every thread; the agent uses it from one thread at a time (`&mut self`, or atomic loads).
unsafe impl Send for Bridge {}

impl Bridge {
    /// Makes a bridge and the descriptor for the application.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        // SAFETY: a constant, terminated name; the result is checked.
        let fd = unsafe { libc::memfd_create(c"fide-bridge".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an open descriptor and a constant length.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), LEN as libc::off_t) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: an open memfd made with MFD_ALLOW_SEALING.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice; the result is checked.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok((Self { base: base.cast(), taken: 0 }, fd))
    }

    fn counter(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: HEAD and TAIL are aligned offsets inside the mapping, which lives as long as self.
        unsafe { &*self.base.add(offset).cast::<AtomicU32>() }
    }

    /// What a progress counter shows. Any number may stand there; none does harm.
    #[must_use]
    pub fn look(&self, counter: u8) -> Option<Look> {
        if usize::from(counter) >= COUNTERS {
            return None;
        }
        let word = |offset: usize| {
            // SAFETY: the counter's number was checked, so this is an aligned offset inside the mapping, which lives as long as self.
            unsafe { &*self.base.add(PROGRESS + usize::from(counter) * COUNTER + offset).cast::<AtomicU64>() }
        };
        // In the other order than they are written at a begin: who is seen busy is seen to have moved.
        let busy = word(BUSY).load(Ordering::Acquire) != 0;
        Some(Look { count: word(0).load(Ordering::Acquire), busy })
    }

    /// Whether a message waits. Costs one load.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.counter(HEAD).load(Ordering::Acquire) != self.taken
    }

    /// Appends the next message to `out`; messages that are empty or larger than `limit` (an application that ignores what it was
    /// granted) are skipped. `false` when there is none.
    pub fn take(&mut self, out: &mut Vec<u8>, limit: usize) -> bool {
        let head = self.counter(HEAD).load(Ordering::Acquire);
        if head.wrapping_sub(self.taken) > SLOTS {
            self.taken = head.wrapping_sub(SLOTS); // the counter jumped: not what our library does
        }
        let mut found = false;
        while self.taken != head && !found {
            let at = DATA + (self.taken % SLOTS) as usize * SLOT;
            // SAFETY: `at` is an aligned offset of a slot inside the mapping; volatile because the application may write meanwhile.
            let len = unsafe { self.base.add(at).cast::<u32>().read_volatile() } as usize;
            if len != 0 && len <= limit.min(SLOT - 4) {
                let start = out.len();
                out.resize(start + len, 0);
                // SAFETY: len ≤ SLOT - 4, so the source stays in its slot; the destination was just made as long.
                unsafe { std::ptr::copy_nonoverlapping(self.base.add(at + 4), out.as_mut_ptr().add(start), len) };
                found = true;
            }
            self.taken = self.taken.wrapping_add(1);
        }
        self.counter(TAIL).store(self.taken, Ordering::Release);
        found
    }

    #[cfg(test)]
    pub(crate) fn progress_for_test(&self, counter: u8, count: u64, busy: u64) {
        let at = PROGRESS + usize::from(counter) * COUNTER;
        // SAFETY: an aligned offset inside the mapping.
        let word = |offset: usize| unsafe { &*self.base.add(at + offset).cast::<AtomicU64>() };
        word(0).store(count, Ordering::Release);
        word(BUSY).store(busy, Ordering::Release);
    }

    #[cfg(test)]
    pub(crate) fn push_for_test(&mut self, message: &[u8]) {
        let head = self.counter(HEAD).load(Ordering::Relaxed);
        let at = DATA + (head % SLOTS) as usize * SLOT;
        // SAFETY: a slot inside the mapping, and a message that fits it.
        unsafe {
            self.base.add(at).cast::<u32>().write_volatile(message.len() as u32);
            std::ptr::copy_nonoverlapping(message.as_ptr(), self.base.add(at + 4), message.len().min(SLOT - 4));
        }
        self.counter(HEAD).store(head.wrapping_add(1), Ordering::Release);
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `create`, unmapped once.
        unsafe { libc::munmap(self.base.cast(), LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in_around_the_ring() {
        let (mut b, _fd) = Bridge::create().unwrap();
        for i in 0..SLOTS * 3 {
            b.push_for_test(&[i as u8; 5]);
            let mut out = vec![1];
            assert!(b.is_waiting() && b.take(&mut out, 5));
            assert_eq!(out[1..], [i as u8; 5]);
        }
        assert!(!b.is_waiting());
    }

    #[test]
    fn progress_counters_show_what_was_written_and_no_more_of_them_exist() {
        let (b, _fd) = Bridge::create().unwrap();
        for counter in 0..COUNTERS as u8 {
            assert_eq!(b.look(counter), Some(Look { count: 0, busy: false }));
            b.progress_for_test(counter, u64::MAX - u64::from(counter), u64::MAX);
        }
        for counter in 0..COUNTERS as u8 {
            assert_eq!(b.look(counter), Some(Look { count: u64::MAX - u64::from(counter), busy: true }));
        }
        assert_eq!((b.look(COUNTERS as u8), b.look(255)), (None, None));
        assert!(!b.is_waiting(), "they lie apart from the messages");
    }

    #[test]
    fn hostile_counters_and_lengths_are_survived() {
        let (mut b, _fd) = Bridge::create().unwrap();
        b.counter(HEAD).store(u32::MAX - 3, Ordering::Release);
        let mut out = Vec::new();
        assert!(!b.take(&mut out, 1418), "empty slots hold no message");
        b.push_for_test(b"fine");
        // SAFETY: the slot just written, inside the mapping.
        unsafe { b.base.add(DATA + ((u32::MAX - 3) % SLOTS) as usize * SLOT).cast::<u32>().write_volatile(u32::MAX) };
        assert!(!b.take(&mut out, 1418));
        b.push_for_test(b"too long for what was granted");
        b.push_for_test(b"ok");
        assert!(b.take(&mut out, 4));
        assert_eq!(out, b"ok");
    }
}
