//! Labs: their life, their traffic, their faults (root).

#![allow(missing_docs)]

mod common;

mod faults;
mod life;
mod traffic;
