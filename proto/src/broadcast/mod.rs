//! Broadcasts that the consensus cores are built on.
//!
//! * [`osrb`]: reliable, over reliable links; keeps what may have to be sent again until it is stable (FiDe Alg. 2).

pub mod osrb;
