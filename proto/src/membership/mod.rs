//! Memberships: who belongs to an application, in one order for everybody, and which of them is *active* now (uKharon §3.1, §4.2, §6, App. B, C).
//!
//! * [`view`]: coordinators make them of joins, leaves and failures, one after the other without a gap; members learn them in that order.
//! * [`clique`]: who stays when not everybody reaches everybody.
//! * [`lease`]: `Active(M)`, leased, so that it costs a comparison of clocks.
//! * [`cache`]: leases from one cache in place of a majority of coordinators.
//!
//! Agents run none of these yet: members of groups come and go by the group's log. What [`lease`]
//! and [`view`] want done, as [`lease::Action::Finish`], is done by their tests and models.
//!
//! That a membership was decided is no matter of time; that it is active is, and rests on clocks: see [`lease`] for what exactly.

pub mod cache;
pub mod clique;
pub mod lease;
pub mod view;

#[cfg(test)]
mod tests;

pub use cache::Cache;
pub use clique::maximum_clique;
pub use lease::{Holder, Lease, Role, Timing};
pub use view::{Coordinator, Membership, Sequence};
