//! The engines that worlds run.

use fide_proto::consensus::hsuc::Hsuc;
use fide_proto::consensus::log::{Build, Carried, EngineMessage, Setup};
use fide_proto::consensus::{Engine, Kind};

/// Those that are built.
pub const AVAILABLE: &[Kind] = &[Kind::Hsuc];

/// Makes engines for one member.
#[must_use]
pub fn build() -> Build {
    Box::new(make)
}

fn make(setup: &Setup) -> Option<Box<dyn Engine<EngineMessage>>> {
    let mut engine: Box<dyn Engine<EngineMessage>> = match setup.kind {
        Kind::Hsuc => Box::new(Carried::new(Hsuc::new(setup.me, setup.members.clone(), setup.first))),
        _ => return None,
    };
    for member in setup.crashed.iter() {
        let _ = engine.handle_crash(setup.now_ns, member);
    }
    Some(engine)
}
