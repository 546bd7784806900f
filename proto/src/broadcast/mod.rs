//! Broadcasts that the consensus cores are built on.
//!
//! * [`fcurb`]: on heartbeats, to everybody or nobody, and never after the crash of its sender (FiDe App. A.4).
//! * [`osrb`]: reliable, over reliable links; keeps what may have to be sent again until it is stable (FiDe Alg. 2).
//! * [`rsbcast`]: synchronous, a copy on every path; a missing copy is a network fault (Nano-consensus Alg. 1).

pub mod fcurb;
pub mod osrb;
pub mod rsbcast;
