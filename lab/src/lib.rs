//! Hosts and switches as network namespaces, and fault injection.
//!
//! A *lab* is N hosts (2 to 64) on one machine, each with two NICs on two separate switches, made of network
//! namespaces, veth pairs and bridges. It needs root, iproute2 and the kernel, nothing else.
//!
//! ```text
//!   fide-<lab>-h1            fide-<lab>-h2            …        one namespace per host
//!    net0    net1             net0    net1                      10.77.<net>.<host>, fd77:0:0:<net>::<host>
//!     │        │               │        │
//!     │        └───────────────┼────────┴─── h1 h2 … br0       fide-<lab>-s1, network 1
//!     └────────────────────────┴──────────── h1 h2 … br0       fide-<lab>-s0, network 0
//! ```
//!
//! Every lab lives in its own namespaces, so all labs use the same addresses and never meet.
//!
//! The order of reading is the order of things happening: [`LabSpec`] says what is wanted, [`Lab::up`] makes it
//! (`wiring`, recorded beforehand by `state`), [`Lab::command`] and [`Lab::in_host`] run things inside, [`Lab::cut`]
//! and its relatives (`fault`) break it, [`Lab::status`] tells, and `teardown` leaves nothing behind — also after
//! the creator crashed (`watcher`, [`Lab::reap_stale`]). [`Leftover`] does the same for what a test
//! makes outside of labs.
//!
//! ```no_run
//! use fide_lab::{Cut, Lab, LabSpec};
//!
//! let lab = Lab::up(&LabSpec { hosts: 3, ephemeral: true, ..LabSpec::default() })?;
//! let mut shell = lab.command(1, "sh")?.arg("-c").arg("ip -br addr").spawn().unwrap();
//! shell.wait().unwrap();
//! lab.cut(2, 0, Cut::Silent)?;
//! lab.heal(2, 0)?;
//! lab.down()?;
//! # Ok::<(), fide_lab::LabError>(())
//! ```

mod error;
mod fault;
mod freeze;
mod lab;
mod leftovers;
mod names;
mod netns;
mod process;
mod spec;
mod state;
mod status;
mod teardown;
mod tool;
mod watcher;
mod wiring;

pub use error::LabError;
pub use fault::{Cut, Direction, LinkFaults, SwitchFault};
pub use freeze::FreezeBy;
pub use lab::Lab;
pub use leftovers::Leftover;
pub use names::{NETS, host_ipv4, host_ipv6, host_mac, host_name, nic_name};
pub use process::ProcessId;
pub use spec::{LabSpec, MAX_HOSTS, MIN_HOSTS};
pub use state::Phase;
pub use status::{HostStatus, LabStatus, LabSummary, NicStatus, ProcessStatus, SwitchStatus};
pub use teardown::Reaped;
