//! What the loop wants of states of applications (`state_transfer.rs`).

use fide_proto::services::groups::large::{Large, LargeRef};
use fide_wire::mac::Keyring;
use std::net::IpAddr;

/// What the loop wants of states.
pub enum Job {
    /// This host has it.
    Hold(Large),
    /// This one is let go of.
    Release(Large),
    /// This one is to be fetched for a group from a host that has these addresses.
    Fetch {
        /// The group's generation.
        generation: u64,
        /// Which.
        what: LargeRef,
        /// Where, the best first.
        from: Vec<IpAddr>,
    },
    /// These are the keys from now on.
    Keys(Keyring),
}
