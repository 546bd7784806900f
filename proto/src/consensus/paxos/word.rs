//! The 8 bytes that an acceptor is: what fits into one compare-and-swap (uKharon §5.3.1, *CAS size limitation*).

use crate::consensus::Instance;
use crate::group::{MAX_MEMBERS, MemberId};

/// A word with this `min_proposal` is *frozen*: its acceptor answers by message only (App. A.6), and no proposer ever has this number.
pub const FROZEN: u16 = u16::MAX;

/// An acceptor's state for one slot: `min_proposal | accepted_proposal | accepted_value`, from the highest bits to the lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Word {
    /// Proposals below this one are refused; [`FROZEN`] if all are.
    pub min_proposal: u16,
    /// The proposal that was accepted last; 0 for none.
    pub accepted_proposal: u16,
    /// Where its value is, as [`ValueId`]; 0 if nothing was accepted.
    pub accepted_value: u32,
}

impl Word {
    /// Of what memory holds.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { min_proposal: (bits >> 48) as u16, accepted_proposal: (bits >> 32) as u16, accepted_value: bits as u32 }
    }

    /// For memory.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.min_proposal as u64) << 48 | (self.accepted_proposal as u64) << 32 | self.accepted_value as u64
    }

    /// A slot that was prepared with this number, and in which nothing was accepted.
    #[must_use]
    pub const fn prepared(min_proposal: u16) -> Self {
        Self { min_proposal, accepted_proposal: 0, accepted_value: 0 }
    }

    /// Whether this acceptor answers by message only.
    #[must_use]
    pub const fn is_frozen(self) -> bool {
        self.min_proposal == FROZEN
    }

    /// Whether anything was accepted, or may have been without being seen here: what a reader of the next slot must take for a
    /// superseded membership (Alg. 6 line 6). A frozen word does not show what was accepted later.
    #[must_use]
    pub const fn may_be_accepted(self) -> bool {
        self.accepted_proposal != 0 || self.is_frozen()
    }
}

/// Where the bytes of a value are: the how-manieth value of that proposer in that slot. "Instead of deciding on the membership itself,
/// coordinators decide on its location in memory" (§5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId {
    /// Who wrote it; always the owner of the proposal with which it was accepted.
    pub proposer: MemberId,
    /// From 0. A slot sees at most as many values as it has proposers.
    pub variant: u16,
}

impl ValueId {
    /// Of a word's `accepted_value`.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self { proposer: MemberId((bits >> 16) as u16), variant: bits as u16 }
    }

    /// For a word's `accepted_value`.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        (self.proposer.0 as u32) << 16 | self.variant as u32
    }

    /// The region of every acceptor's memory that holds the bytes. Only `proposer` writes it. It is used again after `window` slots.
    #[must_use]
    pub const fn region(self, slot: Instance, window: u64) -> u64 {
        ((slot % window) * MAX_MEMBERS as u64 + self.variant as u64) << 16 | self.proposer.0 as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_two_numbers_and_a_place() {
        let id = ValueId { proposer: MemberId(3), variant: 1 };
        let word = Word { min_proposal: 0x1234, accepted_proposal: 0x0567, accepted_value: id.to_bits() };
        assert_eq!(word.to_bits(), 0x1234_0567_0003_0001);
        assert_eq!(Word::from_bits(word.to_bits()), word);
        assert_eq!(ValueId::from_bits(word.accepted_value), id);
        assert_eq!(Word::from_bits(0), Word::default());
        assert!(!Word::prepared(5).may_be_accepted() && Word::prepared(FROZEN).may_be_accepted());
        assert_ne!(id.region(1, 8), id.region(2, 8));
        assert_eq!(id.region(1, 8), id.region(9, 8));
    }
}
