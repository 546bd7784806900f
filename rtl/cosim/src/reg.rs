//! Addresses of registers and places of their fields. Generated from `rtl/registers.toml` by
//! `cargo xtask gen`. Do not edit.

/// 0xF1DE0201: FiDe, wire version 2, register map 1.
pub const ID: u16 = 0x000;

/// What the engine was built with. TAG_WORDS: 64-bit words of a frame hashed each clock; 0: tags are neither made nor checked.
pub const PARAMS: u16 = 0x004;
/// Lowest bit of a field of 8 in [`PARAMS`].
pub const PARAMS_CLK_NS: u32 = 20;
/// Lowest bit of a field of 8 in [`PARAMS`].
pub const PARAMS_MEMBERS: u32 = 0;
/// Lowest bit of a field of 4 in [`PARAMS`].
pub const PARAMS_PATHS: u32 = 8;
/// Lowest bit of a field of 4 in [`PARAMS`].
pub const PARAMS_TAG_WORDS: u32 = 28;
/// Lowest bit of a field of 8 in [`PARAMS`].
pub const PARAMS_WINDOW: u32 = 12;

/// 1: start together with all others. 2: start on the first round. 3: join at BEGIN_*. 4: stop, from any state; decisions that were not taken are lost. 5: the network is at fault: safe exit.
pub const COMMAND: u16 = 0x008;

/// What the member is. HALTED: 0 no, 1 network fault, 2 missing broadcast, 3 expelled, 4 left, 5 capacity. AWAITING: SET_MEMBERS is due.
pub const STATUS: u16 = 0x00c;
/// Lowest bit of a field of 1 in [`STATUS`].
pub const STATUS_AWAITING: u32 = 12;
/// Lowest bit of a field of 1 in [`STATUS`].
pub const STATUS_COMMAND_WAITS: u32 = 15;
/// Lowest bit of a field of 3 in [`STATUS`].
pub const STATUS_HALTED: u32 = 1;
/// Lowest bit of a field of 1 in [`STATUS`].
pub const STATUS_HAS_LEADER: u32 = 5;
/// Lowest bit of a field of 1 in [`STATUS`].
pub const STATUS_HEARD: u32 = 13;
/// Lowest bit of a field of 4 in [`STATUS`].
pub const STATUS_LEADER: u32 = 8;
/// Lowest bit of a field of 1 in [`STATUS`].
pub const STATUS_LEADS: u32 = 4;
/// Lowest bit of a field of 1 in [`STATUS`].
pub const STATUS_RUNNING: u32 = 0;
/// Lowest bit of a field of 1 in [`STATUS`].
pub const STATUS_UNSETTLED: u32 = 14;

/// This member's rank; one bit for each path in use; Config::depth less one; hurry; exit_together.
pub const CONFIG: u16 = 0x010;
/// Lowest bit of a field of 2 in [`CONFIG`].
pub const CONFIG_DEPTH: u32 = 16;
/// Lowest bit of a field of 1 in [`CONFIG`].
pub const CONFIG_EXIT_TOGETHER: u32 = 19;
/// Lowest bit of a field of 1 in [`CONFIG`].
pub const CONFIG_HURRY: u32 = 18;
/// Lowest bit of a field of 4 in [`CONFIG`].
pub const CONFIG_ME: u32 = 0;
/// Lowest bit of a field of 8 in [`CONFIG`].
pub const CONFIG_PATHS: u32 = 8;

/// The ranks that are members at the start, one bit each.
pub const MEMBERS: u16 = 0x014;

/// The ranks that have an id in IDS, one bit each.
pub const IDS_VALID: u16 = 0x018;

/// 2 · drift_ppm · CLK_NS; at most 333333.
pub const DRIFT: u16 = 0x01c;

/// A certain report: the member of this rank has crashed, and nothing of it leaves any more.
pub const CRASH: u16 = 0x020;

/// The members behind a reconfiguration entry, one bit for each rank (Engine::set_members).
pub const SET_MEMBERS: u16 = 0x024;

/// Between two messages *exit* or *ready* (ns).
pub const RETRY: u16 = 0x028;

/// Least mean time between two requests (ns); 0: no limit.
pub const RATE_GAP: u16 = 0x02c;

/// Requests that may come at once after a pause; at least 1.
pub const RATE_BURST: u16 = 0x030;

/// Register writes that were refused: to no register or a read-only one, to a locked one of a running engine, or a command while one waits.
pub const REFUSED_WRITES: u16 = 0x034;

/// Δ_I by any clock (Config::flight_ns), 48 bits (ns).
pub const FLIGHT: u16 = 0x038;

/// How late a member may speak (Config::late_ns), 48 bits (ns). Taken at a start; SET_MEMBERS takes it where it is smaller.
pub const LATE: u16 = 0x040;

/// The last round before this member's time; 0 at the beginning of a group.
pub const BEGIN_ROUND: u16 = 0x048;

/// The first instance to come.
pub const BEGIN_NEXT: u16 = 0x050;

/// The rank whose round BEGIN_ROUND was; at the beginning of a group the lowest.
pub const BEGIN_LEADER: u16 = 0x058;

/// Events that the core refused, as Engine::refusals counts them.
pub const REFUSED: u16 = 0x05c;

/// The last round that was delivered or sent.
pub const ROUND: u16 = 0x060;

/// The next instance in the order of rounds.
pub const NEXT: u16 = 0x068;

/// The last instance that was decided here.
pub const DECIDED: u16 = 0x070;

/// The clock that the shell of the NIC gives the engine (ns).
pub const TIME: u16 = 0x078;

/// The key of tags, byte 0 in the low byte of word 0; all zeros is the public one, of key id 0. Locked as settings are.
pub const KEY: u16 = 0x080;

/// Frames dropped before the core saw them, by reason: short, oversize, magic, version, cluster, key, tag, service, generation, member, path, malformed, too large, no room, not leader, over the rate.
pub const DROPPED: u16 = 0x0c0;

/// The pre-filled first 64 bytes of frames, byte 0 in the low byte of word 0: key id, cluster, sender, incarnation, period, table version, group, from, generation. The generator writes what changes over it; the parser compares cluster, key id, group and generation.
pub const BASE: u16 = 0x100;

/// The member ids (16 bits), by rank, growing.
pub const IDS: u16 = 0x140;

/// From the last round to the beginning of slot j (Config::wait_ns), 48 bits (ns).
pub const WAIT_RUN: u16 = 0x200;

/// The same before the first round.
pub const WAIT_START: u16 = 0x300;

/// The same after a leader that left.
pub const WAIT_LEFT: u16 = 0x400;
