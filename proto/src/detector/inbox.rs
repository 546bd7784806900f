//! Which notices of one sender have been received: what the confirmations say.

use fide_wire::packet::ConfirmEntry;

/// Notices recognised beyond the first one missing: the width of [`ConfirmEntry::beyond`].
pub const WINDOW: u32 = 32;

/// A hole older than this will not be filled any more: the sender stops repeating after two seconds
/// ([`super::OutboxConfig::give_up_ns`]).
const HOLE_NS: u64 = 3_000_000_000;

/// What [`Inbox::offer`] says of a notice's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Not received before.
    New,
    /// Received before.
    Duplicate,
    /// Too far beyond a hole to be remembered, hence not confirmed: the sender will repeat it.
    TooFar,
}

/// The numbers of the notices received from one incarnation of one sender.
///
/// Numbers run from 1 without a gap, so a hole is a notice that was lost on both paths and will be repeated. Whoever joins late hears the
/// first notice at some higher number; what lies more than a window before it is taken for older than the acquaintance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inbox {
    upto: u32,
    beyond: u32,
    hole_since_ns: u64,
}

impl Inbox {
    /// Nothing received yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { upto: 0, beyond: 0, hole_since_ns: 0 }
    }

    /// Takes note of notice `number` (from 1) at `now_ns`.
    pub fn offer(&mut self, number: u32, now_ns: u64) -> Offer {
        if self.upto == 0 && self.beyond == 0 && number > WINDOW {
            self.upto = number - WINDOW;
        }
        self.give_up_holes(now_ns);
        if self.covers(number) {
            return Offer::Duplicate;
        }
        let distance = number - self.upto;
        if distance > WINDOW {
            return Offer::TooFar;
        }
        if self.beyond == 0 {
            self.hole_since_ns = now_ns;
        }
        self.beyond |= 1 << (distance - 1);
        self.slide(now_ns);
        Offer::New
    }

    /// Whether notice `number` was received (or given up).
    #[must_use]
    pub fn covers(&self, number: u32) -> bool {
        self.entry(0, 0).covers(number)
    }

    /// What to tell the sender.
    #[must_use]
    pub const fn entry(&self, node: u32, incarnation: u32) -> ConfirmEntry {
        ConfirmEntry { node, incarnation, upto: self.upto, beyond: self.beyond }
    }

    /// Moves over everything received in a row.
    fn slide(&mut self, now_ns: u64) {
        let run = self.beyond.trailing_ones();
        if run > 0 {
            self.upto += run;
            self.beyond = self.beyond.checked_shr(run).unwrap_or(0);
            self.hole_since_ns = now_ns;
        }
    }

    /// Moves over a hole that nobody will fill.
    fn give_up_holes(&mut self, now_ns: u64) {
        if self.beyond != 0 && now_ns.saturating_sub(self.hole_since_ns) > HOLE_NS {
            let hole = self.beyond.trailing_zeros();
            self.upto += hole;
            self.beyond >>= hole;
            self.slide(now_ns);
        }
    }
}
