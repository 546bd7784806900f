//! Traces of groups of HSUC and HUC, which the TLA+ specifications judge (specs/README.md,
//! "Traces"). For tests: an agent writes them where the environment has [`DIRECTORY`].
//!
//! Each member has a file of its own, `ENGINE.MEMBER.TIME`, with one line an event. A line begins
//! with CLOCK_MONOTONIC, which all hosts of a lab share: what leaves is written before it leaves,
//! and what came after it has come, so the files of a group can be put in one order.
//!
//! Lines are written at once, by the real-time thread. That costs it a system call for each, but
//! an agent that is killed has then written all that others may have received of it.

use crate::clock::now_ns;
use fide_proto::consensus::Kind;
use fide_proto::consensus::trace::{Sink, Traced};
use fide_proto::services::groups::Make;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The environment's variable: where files of traces are put.
pub const DIRECTORY: &str = "FIDE_GROUP_TRACES";
/// Most lines of one member: traces are of short runs, and disks have an end.
const LINES_MAX: u32 = 100_000;

/// Makes engines that write traces, if the environment asks for it. Others cost nothing.
#[must_use]
pub fn traced(make: Make) -> Make {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return make };
    tracing::warn!("{DIRECTORY} is set: what members of groups do is written to {}", directory.display());
    Arc::new(move |setup, policy, timing| {
        let engine = make(setup, policy, timing)?;
        if !matches!(setup.kind, Kind::Hsuc | Kind::Huc) {
            return Some(engine);
        }
        let path = directory.join(format!("{}.{}.{}", setup.kind, setup.me, now_ns()));
        match sink(&path) {
            Ok(sink) => Some(Box::new(Traced::new(setup.me, engine, sink))),
            Err(why) => {
                tracing::warn!("{}: {why}", path.display());
                Some(engine)
            }
        }
    })
}

fn sink(path: &Path) -> std::io::Result<Sink> {
    let mut file = File::create_new(path)?;
    let mut left = LINES_MAX;
    Ok(Box::new(move |what| {
        if left > 0 {
            left -= 1;
            // What is not written is missing in the trace, which is then refused.
            let _ = file.write_all(format!("{} {what}\n", now_ns()).as_bytes());
        }
    }))
}
