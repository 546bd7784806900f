//! What every coordination core speaks of: members and their order, values, entries, refusals.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A member of a group: one life of one process. Ids are given out in growing order and never again (U5: unique ids); a process that comes back
/// is a new member. The order is the hierarchy: the lowest id that is alive leads (FiDe Alg. 3, 4; Nano-consensus Alg. 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberId(pub u16);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// Most members that a group may have at once.
pub const MAX_MEMBERS: usize = 64;

/// Most bytes that one value may have; larger ones belong into storage, with a reference to them in the log.
pub const VALUE_MAX: usize = 1 << 20;

/// An ordered set of members; small, so a sorted vector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemberSet(Vec<MemberId>);

impl MemberSet {
    /// Nobody.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The members with the ids `1..=n`, as the papers number them.
    #[must_use]
    pub fn first(n: u16) -> Self {
        (1..=n).map(MemberId).collect()
    }

    /// Puts `member` in; false if it was there.
    pub fn insert(&mut self, member: MemberId) -> bool {
        match self.0.binary_search(&member) {
            Ok(_) => false,
            Err(at) => {
                self.0.insert(at, member);
                true
            }
        }
    }

    /// Takes `member` out; false if it was not there.
    pub fn remove(&mut self, member: MemberId) -> bool {
        self.0.binary_search(&member).map(|at| self.0.remove(at)).is_ok()
    }

    /// Takes everyone out.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether `member` is in it.
    #[must_use]
    pub fn contains(&self, member: MemberId) -> bool {
        self.0.binary_search(&member).is_ok()
    }

    /// Whether everyone of `other` is in this one too (`self ⊇ other`).
    #[must_use]
    pub fn covers(&self, other: &MemberSet) -> bool {
        other.iter().all(|member| self.contains(member))
    }

    /// The lowest id: the leader, if this is the set of those alive.
    #[must_use]
    pub fn min(&self) -> Option<MemberId> {
        self.0.first().copied()
    }

    /// From the lowest to the highest.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = MemberId> + '_ {
        self.0.iter().copied()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are more than half of them.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.0.len() / 2 + 1
    }
}

impl FromIterator<MemberId> for MemberSet {
    fn from_iter<I: IntoIterator<Item = MemberId>>(members: I) -> Self {
        let mut members: Vec<_> = members.into_iter().collect();
        members.sort_unstable();
        members.dedup();
        Self(members)
    }
}

impl fmt::Display for MemberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, member) in self.iter().enumerate() {
            write!(f, "{}{member}", if i == 0 { "" } else { " " })?;
        }
        f.write_str("}")
    }
}

/// Bytes of an application. Cloned without copying.
pub type Value = Arc<[u8]>;

/// A value as one piece, where serde's own way with slices is byte by byte. What postcard writes is
/// the same.
pub(crate) mod value {
    use super::Value;
    use serde::de::{self, SeqAccess, Visitor};
    use serde::{Deserializer, Serializer};
    use std::fmt;

    pub fn serialize<S: Serializer>(value: &Value, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_bytes(Bytes)
    }

    struct Bytes;

    impl<'de> Visitor<'de> for Bytes {
        type Value = Value;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Value, E> {
            Ok(bytes.into())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Value, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = all.next_element()? {
                bytes.push(byte);
            }
            Ok(bytes.into())
        }
    }
}

/// Who proposed an entry, and the how-manieth of its proposals it was: two entries with one id are one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryId {
    /// The member that proposed it.
    pub proposer: MemberId,
    /// From 1, without a gap, within that member's life.
    pub number: u64,
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.proposer, self.number)
    }
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Body {
    /// Bytes of the application.
    Value(#[serde(with = "value")] Value),
    /// From the next instance on, this member belongs to the group.
    Join(MemberId),
    /// From the next instance on, this member does not belong to the group any more.
    Leave(MemberId),
    /// This instance is the last one of the engine that decides it; the next one is this engine's first.
    Switch(super::consensus::Kind),
}

/// One thing that was proposed and is to be decided once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Its identity.
    pub id: EntryId,
    /// What it says.
    pub body: Body,
}

/// What one instance of consensus decides: some entries in their order; none is *no value* (⊥), and never decided.
pub type Batch = Arc<[Entry]>;

/// Why a core did not take what it was handed. Its state is as before; it counted the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Refused {
    /// From or about someone who is not a member.
    UnknownMember,
    /// From a member that is known to have crashed.
    Crashed,
    /// Of an instance that is over: nothing is wrong, a late copy.
    OldInstance,
    /// Of an instance further ahead than is buffered.
    TooFarAhead,
    /// A member says what only the leader may.
    NotLeader,
    /// A proposal number, term or round that its sender cannot have.
    ImpossibleBallot,
    /// A value, batch or message over its limit.
    TooLarge,
    /// Not a message for this engine, or not one that a correct member sends.
    Malformed,
    /// As much is waiting as may wait: propose again after the next decision.
    Busy,
    /// The engine stopped safely and takes nothing any more.
    Halted,
    /// This member is not in the group (yet, or any more).
    NotMember,
    /// It was decided, delivered or answered before.
    Duplicate,
}

impl Refused {
    /// Every reason.
    pub const ALL: [Refused; 12] = [
        Refused::UnknownMember,
        Refused::Crashed,
        Refused::OldInstance,
        Refused::TooFarAhead,
        Refused::NotLeader,
        Refused::ImpossibleBallot,
        Refused::TooLarge,
        Refused::Malformed,
        Refused::Busy,
        Refused::Halted,
        Refused::NotMember,
        Refused::Duplicate,
    ];

    /// The name used in metrics and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Refused::UnknownMember => "unknown-member",
            Refused::Crashed => "crashed",
            Refused::OldInstance => "old-instance",
            Refused::TooFarAhead => "too-far-ahead",
            Refused::NotLeader => "not-leader",
            Refused::ImpossibleBallot => "impossible-ballot",
            Refused::TooLarge => "too-large",
            Refused::Malformed => "malformed",
            Refused::Busy => "busy",
            Refused::Halted => "halted",
            Refused::NotMember => "not-member",
            Refused::Duplicate => "duplicate",
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::UnknownMember => "no such member in this group",
            Refused::Crashed => "this member is known to have crashed; it may come back as a new member",
            Refused::OldInstance => "this instance was decided already",
            Refused::TooFarAhead => "this instance is further ahead than is buffered",
            Refused::NotLeader => "only the leader may say this",
            Refused::ImpossibleBallot => "its sender cannot have this number",
            Refused::TooLarge => "larger than its limit",
            Refused::Malformed => "not a message that a correct member sends here",
            Refused::Busy => "as much is waiting as may wait: try again after the next decision",
            Refused::Halted => "this engine stopped safely",
            Refused::NotMember => "this member is not in the group",
            Refused::Duplicate => "seen before",
        })
    }
}

impl std::error::Error for Refused {}

/// Refusals by reason: every core keeps one.
///
/// It hashes to nothing: two machines that differ in it alone will do the same, and whoever explores states by their hashes need see only one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals([u64; Refused::ALL.len()]);

impl Hash for Refusals {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Refusals {
    /// Counts one and hands it back, for `return Err(self.refusals.count(why))`.
    pub fn count(&mut self, why: Refused) -> Refused {
        self.0[why as usize] += 1;
        why
    }

    /// How many for this reason.
    #[must_use]
    pub fn of(&self, why: Refused) -> u64 {
        self.0[why as usize]
    }

    /// How many in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_as_before_it_was_one_piece() {
        let body = Body::Value(vec![7, 0, 200].into());
        let bytes = postcard::to_allocvec(&body).unwrap();
        assert_eq!(bytes, [0, 3, 7, 0, 200], "variant, length, bytes");
        assert_eq!(bytes[1..], postcard::to_allocvec(&vec![7u8, 0, 200]).unwrap());
        assert_eq!(postcard::from_bytes::<Body>(&bytes).unwrap(), body);
        assert!(postcard::from_bytes::<Body>(&bytes[..4]).is_err());
    }

    #[test]
    fn a_set_is_ordered_and_its_lowest_leads() {
        let mut set: MemberSet = [3, 1, 2, 3].map(MemberId).into_iter().collect();
        assert_eq!((set.len(), set.min(), set.majority()), (3, Some(MemberId(1)), 2));
        assert!(!set.insert(MemberId(2)));
        assert!(set.remove(MemberId(1)) && !set.remove(MemberId(1)));
        assert_eq!((set.to_string().as_str(), set.min()), ("{p2 p3}", Some(MemberId(2))));
        assert!(MemberSet::first(3).covers(&set) && !set.covers(&MemberSet::first(3)));
        assert_eq!(MemberSet::first(4).majority(), 3);
    }

    #[test]
    fn refusals_stand_in_the_order_of_their_counters() {
        for (place, why) in Refused::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, place);
        }
        let mut refusals = Refusals::default();
        assert_eq!(refusals.count(Refused::Busy), Refused::Busy);
        assert_eq!((refusals.of(Refused::Busy), refusals.total()), (1, 1));
    }
}
