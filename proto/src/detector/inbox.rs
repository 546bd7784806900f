//! Which notices of one sender have been received: what the confirmations say.

/// What one receiver has of one sender's notices: all up to and including `upto`, and those above it whose bit is set
/// (bit 0 is `upto + 1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmEntry {
    /// Whose notices.
    pub node: u32,
    /// Which of its incarnations.
    pub incarnation: u32,
    /// All up to here.
    pub upto: u32,
    /// And these beyond.
    pub beyond: u32,
}

impl ConfirmEntry {
    /// Whether this confirms notice `n`.
    #[must_use]
    pub fn covers(&self, n: u32) -> bool {
        n <= self.upto || (n - self.upto <= 32 && self.beyond >> (n - self.upto - 1) & 1 == 1)
    }
}

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
/// Numbers run from 1 without a gap, so a hole is a notice that was lost on both paths, or was sent before we listened. It is kept open, and
/// what lies too far beyond it unconfirmed, for as long as its sender may still repeat it. Whoever joins late therefore does not
/// confirm the first notices it hears (it takes them all the same): confirming a notice that never came would silence
/// its repetitions, and that crash would never be known here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inbox {
    upto: u32,
    beyond: u32,
    /// A number that showed that something before it is missing, and when it came.
    revealed: Option<(u32, u64)>,
}

impl Inbox {
    /// Nothing received yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { upto: 0, beyond: 0, revealed: None }
    }

    /// Takes note of notice `number` (from 1) at `now_ns`.
    pub fn offer(&mut self, number: u32, now_ns: u64) -> Offer {
        self.give_up_holes(now_ns);
        if self.covers(number) {
            return Offer::Duplicate;
        }
        let distance = number - self.upto;
        if distance > WINDOW {
            self.revealed.get_or_insert((number, now_ns));
            return Offer::TooFar;
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

    /// Moves over everything received in a row; then the next hole, if any, is the one that is waited for.
    fn slide(&mut self, now_ns: u64) {
        self.advance(self.beyond.trailing_ones());
        if self.revealed.is_none_or(|(number, _)| number <= self.upto) {
            self.revealed = (self.beyond != 0).then(|| (self.upto + 1 + self.beyond.trailing_zeros(), now_ns));
        }
    }

    /// Whatever was sent before a number that came long ago is not repeated any more.
    fn give_up_holes(&mut self, now_ns: u64) {
        if let Some((number, since_ns)) = self.revealed
            && now_ns.saturating_sub(since_ns) > HOLE_NS
        {
            self.advance((number - 1).saturating_sub(self.upto));
            self.revealed = None;
            self.slide(now_ns);
        }
    }

    fn advance(&mut self, by: u32) {
        self.upto += by;
        self.beyond = self.beyond.checked_shr(by).unwrap_or(0);
    }
}
