//! Members of a LOWI group on real packets, and their control software (`fide nano`).
//!
//! In the order of a packet: [`shell`] takes it off an interface and gives it to a [`member`], which is the engine in hardware
//! ([`hardware`]: `rtl/` as a Verilator model, loaded at run time) or the software core ([`software`]). Both are seen through the
//! register map of `rtl/registers.toml`, so [`control`] drives either of them, and a board, by the same [`driver`]. What a member does can be
//! written down ([`trace`]) and judged by the TLA+ specification.
//!
//! The model is emulation: it shows correctness, not speed ([`EMULATION`]).

pub mod args;
pub mod config;
pub mod control;
pub mod driver;
pub mod hardware;
pub mod member;
pub mod shell;
pub mod software;
pub mod trace;

use std::fmt;

/// What every output says.
pub const EMULATION: &str =
    "emulation: a model of the engine, or the software core, on this host's processor; it shows correctness, not speed";

/// Why a command was refused.
#[derive(Debug)]
pub struct Refusal {
    /// What, and why.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
    /// Whether a permission is missing.
    pub permission: bool,
}

impl Refusal {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None, permission: false }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Refusal {}
