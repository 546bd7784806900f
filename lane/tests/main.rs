//! Frames on real interfaces (root).

#![allow(missing_docs)]

mod common;

mod profile;
mod wire;
