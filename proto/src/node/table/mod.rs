//! Tables of processes: state that every host has a copy of, instead of messages that every host confirms.
//!
//! # In one head
//! A table is a shop's price list with numbered amendments. The shop calls every amendment out as it makes it; its
//! clock tower shows the number of the latest one at every beat. A customer who missed a call sees a number that
//! is too high, and asks for the amendments since the last that he has. Nobody signs for anything.
//!
//! # Owner and replica
//! [`Owner`] is the one writer: it gives every change the next version, pushes it, and answers pulls. [`Replica`] is a
//! copy on another host: it applies what comes in any order, knows through which version it is *complete*, and
//! pulls when a version above that is named for longer than [`replica::GAP_NS`].
//!
//! | case | what happens | frames for each host |
//! |---|---|---|
//! | nothing lost | the push | 1 on each path |
//! | a push lost | the next heartbeat names its version; pull and answer | + 2 |
//! | a push lost at many | the second pull is answered to everybody, most others are not sent | + O(1) |
//! | a late joiner, a restart of the observer | pull from 0 | the rows |
//! | a restart of the owner that kept its table | the version goes on | 0 |
//! | a restart of the owner that lost its table | another epoch: all rows, old instances compared | the rows |
//!
//! # Removed rows and lists
//! Rows that ended stay for [`owner::ENDED_NS`], at most [`owner::ENDED_MAX`] of them; then they are removed. The
//! *floor* is the highest version of a removed row. A replica that is complete through the floor needs only a
//! difference. One that is not gets a *list*: all rows in order of their versions. When the list has reached the
//! floor, rows below it that were not listed are gone. A change during the list moves its row to the end, so one
//! pass is enough; if the floor rises meanwhile, the list begins again.
//!
//! # What holds
//! * A replica's row never goes back to an older version. (`Replica::apply`)
//! * *Complete through v*: every row whose last change is ≤ v is in the replica as the owner has it, or was
//!   removed by the owner. (`Replica::handle_rows`, `Owner::answer`)
//! * Each end of a known process is one event, whatever is lost, doubled, late or restarted.
//!   (`proto/tests/tables.rs` runs owners and replicas with faults until all have healed.)

pub mod owner;
pub mod replica;

pub use owner::Owner;
pub use replica::{Event, Replica};

/// Why something was refused. Nothing was changed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// A row number or content that cannot be.
    Malformed,
    /// As many rows as a table may have.
    Full,
    /// No such row.
    UnknownRow,
    /// The row has this version or a later one.
    OldVersion,
    /// The row's state is final.
    Ended,
    /// About another host's table.
    OtherOrigin,
    /// Of a table that this host does not write any more, or not yet.
    OtherEpoch,
    /// It does not follow what is there; a pull is on its way.
    Gap,
}

/// The most rows of one table: 4096 running processes, as many that ended, interests and the host.
pub const ROWS_MAX: usize = 16_384;

/// Spreads pulls of many hosts over time: a number below `bound`, the same for the same three.
fn spread(me: u32, origin: u32, version: u64, bound: u64) -> u64 {
    // splitmix64's finalizer: neighbouring ids end far apart.
    let mut z = u64::from(me) << 32 ^ u64::from(origin) ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31).checked_rem(bound).unwrap_or(0)
}

#[cfg(test)]
mod tests;
