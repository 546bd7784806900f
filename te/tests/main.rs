//! The planner against what it must agree with: brute force on small networks ([`brute`]), packets
//! ([`packets`]), the papers' numbers ([`papers`]), and itself ([`plans`]); and against strangers'
//! files ([`files`]).

mod brute;
mod common;
mod files;
mod packets;
mod papers;
mod plans;
