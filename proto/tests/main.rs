//! The pure cores from outside: every interleaving of small groups, any bytes, tables of whole clusters.

#![allow(missing_docs)]

#[path = "exhaustive/main.rs"]
mod exhaustive;
#[path = "hostile/main.rs"]
mod hostile;
#[path = "tables/main.rs"]
mod tables;
