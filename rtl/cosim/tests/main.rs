//! The engine in hardware beside the software core.

#![allow(missing_docs)]

mod cosim;
mod figures;
