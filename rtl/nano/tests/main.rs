//! Members on real packets (root).

#![allow(missing_docs)]

mod group;

mod lab;
mod soak;
mod trace;
