//! The LOWI engine in hardware (`rtl/`): its register map in one description ([`description`]), what its
//! control software writes ([`setup`]), and its co-simulation with `fide_proto::consensus::lowi`
//! ([`model`], [`cosim`]).

pub mod cosim;
pub mod crc;
pub mod description;
pub mod figures;
pub mod frames;
pub mod model;
pub mod reg;
pub mod setup;
