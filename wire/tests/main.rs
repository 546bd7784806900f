//! The bytes: test vectors, and readers that are given anything.

#![allow(missing_docs)]

mod targets;

mod fuzz_smoke;
mod vectors;
