//! The kernel programs on real packets, processes and gates (root).

#![allow(missing_docs)]

mod common;

mod ends;
mod exit;
mod fence;
mod receive;
