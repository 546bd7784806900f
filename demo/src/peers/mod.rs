//! What others use for the same purpose, measured in the same crashes: etcd's lease and ZooKeeper's ephemeral node.
//!
//! ```text
//! servers    an etcd and a ZooKeeper on h3, as they come and tuned        http        what of HTTP/1.1 etcd's gateway speaks
//! etcd       lease, put, keepalive and watch by its JSON gateway          zookeeper   a session of its wire protocol
//! cluster    an etcd of several members, beside groups                    grpc        as its own clients speak to it
//! ```
//!
//! The process that crashes keeps a key alive, as any of their users would ([`keep`]): it renews after each third of what it was
//! granted, as their own clients do. The observer on another host watches the key ([`watch`]). Neither server takes the end of a
//! connection for the end of a process: both wait until what they granted has run out.

pub mod cluster;
pub mod etcd;
pub mod grpc;
pub mod http;
pub mod servers;
pub mod zookeeper;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a server may take to answer anything.
pub const ANSWER: Duration = Duration::from_secs(10);
/// How long a key is watched: far beyond anything that is granted here.
const WATCHED_FOR: Duration = Duration::from_secs(120);

/// Whose server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// A key with a lease.
    Etcd,
    /// An ephemeral node.
    ZooKeeper,
}

/// A key to be kept alive or watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Whose.
    pub system: System,
    /// Where its server listens.
    pub address: SocketAddr,
    /// Begins with a slash.
    pub key: String,
}

/// Makes the key with the shortest life that the server grants, says how long that is (ms), and renews it until something fails.
///
/// # Errors
/// Whatever ends it: it never returns otherwise.
pub fn keep(target: &Target, granted: impl FnOnce(u64)) -> Result<Infallible> {
    match target.system {
        System::Etcd => etcd::keep(target, granted),
        System::ZooKeeper => zookeeper::keep(target, granted),
    }
}

/// Watches the key, which must be there: says when it is being watched, and returns once it is gone.
///
/// # Errors
/// When there is no such key, the server fails, or the key outlives all patience.
pub fn watch(target: &Target, watching: impl FnOnce()) -> Result<()> {
    let deadline = Instant::now() + WATCHED_FOR;
    match target.system {
        System::Etcd => etcd::watch(target, watching, deadline),
        System::ZooKeeper => zookeeper::watch(target, watching, deadline),
    }
}
