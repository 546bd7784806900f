//! The application's end of the piggyback bridge (X6): see [`fide_wire::control::bridge`] for its layout.

use crate::error::Error;
use crate::shm::{Access, Mapping};
use fide_wire::PIGGYBACK_MAX;
use fide_wire::control::bridge::{DATA, HEAD, LEN, PIGGYBACKS_LEN, SLOT, SLOTS, TAIL};
use std::os::fd::BorrowedFd;

/// The writing end of a bridge.
#[derive(Debug)]
pub struct Bridge {
    memory: Mapping,
    /// Messages written; the memory holds a copy for the agent.
    head: u32,
}

impl Bridge {
    /// Maps the bridge that came with a `Joined` reply.
    pub fn map(fd: BorrowedFd<'_>, len: u32) -> Result<Self, Error> {
        if (len as usize) < LEN {
            return Err(Error::Protocol(format!("a bridge of {len} bytes where {LEN} are needed")));
        }
        let memory = Mapping::new(fd, 0, PIGGYBACKS_LEN, Access::Write)?;
        let head = memory.load_u32(HEAD);
        Ok(Self { memory, head })
    }

    /// Writes one message of at most [`PIGGYBACK_MAX`] bytes. No system call.
    pub fn push(&mut self, message: &[u8]) -> Result<(), Error> {
        if message.len() > PIGGYBACK_MAX {
            return Err(Error::TooLarge { size: message.len(), limit: PIGGYBACK_MAX });
        }
        // A tail ahead of the head cannot be; it counts as full, so that nothing is written over.
        if self.head.wrapping_sub(self.memory.load_u32(TAIL)) >= SLOTS {
            return Err(Error::Full);
        }
        let slot = DATA + (self.head % SLOTS) as usize * SLOT;
        self.memory.copy_in(slot + 4, message);
        // Not read before the head covers it; its own ordering is of no concern. The bound above makes the cast exact.
        self.memory.store_u32(slot, message.len() as u32);
        self.head = self.head.wrapping_add(1);
        self.memory.store_u32(HEAD, self.head);
        Ok(())
    }
}

// Every slot is a whole number of words after a whole number of words, and holds the largest message rounded up.
const _: () = assert!(DATA.is_multiple_of(4) && SLOT.is_multiple_of(4));
const _: () = assert!(4 + PIGGYBACK_MAX.next_multiple_of(4) <= SLOT);
const _: () = assert!(DATA + SLOTS as usize * SLOT <= PIGGYBACKS_LEN);
