//! Pure protocol cores: no clock, socket, thread or unsafe.
//!
//! Each core is a machine that is fed facts and the time, and asked what to do. The same machine runs in the agent, in the
//! simulated worlds of its tests and (later) in a model checker.
//!
//! * [`detector`]: arrivals, notices, probe results and `now` in; verdicts out.
//! * [`fence`]: heartbeats sent, completed or confirmed in; how long this host may go on sending out.
//! * [`group`]: members, values and refusals, shared by those below.
//! * [`broadcast`]: what everybody gets, under which assumptions.
//! * [`consensus`]: messages and crashes in; decisions out.
//! * [`membership`]: joins, leaves, reads of coordinators and the time in; memberships and leases out.
//! * [`node`]: one host's part in the cluster: tables of processes, introductions.
//! * [`services`]: what plugs into a node: reliable links, groups.

#![forbid(unsafe_code)]

pub mod broadcast;
pub mod consensus;
pub mod detector;
pub mod fence;
pub mod group;
pub mod membership;
pub mod node;
pub mod services;
