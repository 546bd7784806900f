//! A module of Redis 7 and Valkey: the servers of a group hold the same data, and a reply means that the group has decided.
//!
//! ```text
//! loadmodule /usr/local/lib/redis/modules/fide.so group orders
//! ```
//!
//! One server leads. It executes commands at once, and the module keeps back what it writes to clients and proposes to the group what it writes to replicas:
//! effects, in the order of the one thread that made them. When the entry is decided, the replies leave. The other servers are given what is decided through Redis' own
//! replication protocol, by this module on their own host. If the leader's process ends, a server that has all that was decided proposes to lead, and the
//! first such entry says who does.
//!
//! | file | |
//! |---|---|
//! | `course.rs` | what entries mean; pure |
//! | `copies.rs` | which entries agents must keep for servers, and which servers lag; pure |
//! | `reads.rs` | which replies wait for which writes; pure |
//! | `clocks.rs` | whether this server's clock goes as the leader's; pure |
//! | `feed.rs` | decided bytes on their way to a server that follows |
//! | `group.rs` | the thread that proposes, applies entries, and decides what this server should be |
//! | `replication.rs` | Redis' replication protocol, both sides |
//! | `commands.rs` | what a command may do to data |
//! | `metrics.rs` | what it knows of the group, for Prometheus |
//! | `server.rs` | the server's main thread: what it is, and which commands are refused |
//! | `gate.rs` | what was written to clients and is not confirmed; the stream |
//! | `calls.rs` | the server's calls of the C library that pass the gate; `unsafe` |
//! | `interpose.rs` | how they do: replaced functions of a loaded program; `unsafe` |
//! | `shared.rs` | what these two threads tell each other |
//! | `api.rs` | Redis' functions for modules; `unsafe` |

pub mod api;
mod calls;
pub mod clocks;
pub mod commands;
pub mod copies;
pub mod course;
pub mod feed;
pub mod gate;
pub mod group;
mod interpose;
pub mod lineage;
mod metrics;
pub mod reads;
pub mod replication;
pub mod server;
pub mod shared;

use api::{Api, Ctx, Text};
use std::ffi::c_int;

/// Redis calls it once.
///
/// # Safety
/// Redis does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(ctx: *mut Ctx, argv: *mut *mut Text, argc: c_int) -> c_int {
    // SAFETY: as Redis calls it.
    match unsafe { api::init(ctx, server::NAME, 1) } {
        Ok(true) => {}
        Ok(false) => {
            Api(ctx).log(c"warning", "fide: the module is loaded already: name it once, in redis.conf or on the command line");
            return api::ERR;
        }
        Err(missing) => {
            eprintln!("fide: this server has no {missing}: Redis 7.0 or later, or Valkey, is needed");
            return api::ERR;
        }
    }
    // SAFETY: Redis gives that many texts.
    let arguments = unsafe { std::slice::from_raw_parts(argv, if argv.is_null() { 0 } else { argc as usize }) };
    // SAFETY: they live during this call.
    let arguments = arguments.iter().map(|text| String::from_utf8_lossy(unsafe { api::bytes(*text) }).into_owned()).collect();
    match server::load(Api(ctx), arguments) {
        Ok(()) => api::OK,
        Err(what) => {
            Api(ctx).log(c"warning", &what);
            api::ERR
        }
    }
}

/// Redis asks it before the module is unloaded: never, because undecided replies wait and the server follows through it.
#[unsafe(no_mangle)]
pub extern "C" fn RedisModule_OnUnload(_ctx: *mut Ctx) -> c_int {
    api::ERR
}
