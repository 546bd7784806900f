//! An interface with several receive queues, and what the receive program notes of what comes out
//! of them.

use super::host::Host;
use crate::rng::Rng;
use fide_proto::node::probing::{self, View};
use fide_wire::PATHS;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

/// Rounds of TCP questions whose answers are noted.
const ROUNDS: usize = 8;
/// Responders that are no hosts have addresses from here on.
const RESPONDERS: u8 = 200;

/// What an interface hashes to choose a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Frames and heartbeats of a host, which have ports of their own.
    Lane(u32),
    /// What has no ports: the two addresses alone.
    Icmp(u32),
    /// A segment to this port.
    Tcp(u32, u16),
}

/// One interface.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    key: u64,
    queues: u32,
    /// What comes by one queue waits, and until when.
    held: (u32, u64),
    /// Rounds of TCP questions: all but the last byte of their numbers.
    expected: VecDeque<u32>,
    /// The number of the answer by TCP that came last, by queue.
    noted: BTreeMap<u32, u32>,
    /// Which echo's answer came last, by queue.
    echoes: BTreeMap<u32, u64>,
}

impl Default for Nic {
    fn default() -> Self {
        Self { key: 0, queues: 1, held: (0, 0), expected: VecDeque::new(), noted: BTreeMap::new(), echoes: BTreeMap::new() }
    }
}

impl Nic {
    /// With so many queues, as one of many interfaces hashes.
    pub(crate) fn new(queues: u32, rng: &mut Rng) -> Self {
        Self { key: rng.bits(), queues, ..Self::default() }
    }

    pub(crate) const fn queues(&self) -> u32 {
        self.queues
    }

    /// By which queue this comes, counted from 1.
    pub(crate) fn queue_of(&self, flow: Flow) -> u32 {
        let flow = match flow {
            Flow::Lane(node) => u64::from(node),
            Flow::Icmp(node) => 1 << 32 | u64::from(node),
            Flow::Tcp(node, port) => 1 << 33 | u64::from(port) << 40 | u64::from(node),
        };
        1 + Rng::new(self.key ^ flow).below(self.queues.into()) as u32
    }

    /// What comes by this queue waits until then: the processor that serves it is busy.
    pub(crate) fn hold(&mut self, queue: u32, until_ns: u64) {
        self.held = (queue, until_ns);
    }

    /// Until when what comes by this queue waits; 0: it does not.
    pub(crate) fn held_until(&self, queue: u32) -> u64 {
        if self.held.0 == queue { self.held.1 } else { 0 }
    }

    /// Until when anything waits, or waited last.
    pub(crate) const fn held_last(&self) -> u64 {
        self.held.1
    }

    pub(crate) fn expect(&mut self, number: u32) {
        self.expected.push_back(number & !0xff);
        self.expected.drain(..self.expected.len().saturating_sub(ROUNDS));
    }

    /// An answer by TCP came.
    pub(crate) fn note(&mut self, queue: u32, number: u32) {
        if self.expected.contains(&(number & !0xff)) {
            self.noted.insert(queue, number);
        }
    }

    /// The answer to an echo came, the `number`th of all.
    pub(crate) fn note_echo(&mut self, queue: u32, number: u64) {
        self.echoes.insert(queue, number);
    }

    /// By which queue it came, unless another has come by it since.
    pub(crate) fn barrier(&self, queue: u32, number: u64) -> Option<u32> {
        (self.echoes.get(&queue) == Some(&number)).then_some(queue)
    }

    /// A new agent's receive program knows nothing.
    pub(crate) fn forget(&mut self) {
        self.expected.clear();
        self.noted.clear();
        self.echoes.clear();
    }
}

/// The address of a host on a path.
pub(crate) fn address(host: usize, path: usize) -> IpAddr {
    Ipv4Addr::new(10, path as u8, 0, 1 + host as u8).into()
}

/// The address of a responder that is no host.
pub(crate) fn responder(at: usize, path: usize) -> IpAddr {
    address(usize::from(RESPONDERS) + at, path)
}

/// Who has an address: a host, or else a responder.
pub(crate) fn owner(address: IpAddr) -> Result<usize, usize> {
    let IpAddr::V4(v4) = address else { unreachable!("all are of one family") };
    let at = usize::from(v4.octets()[3]) - 1;
    at.checked_sub(RESPONDERS.into()).map_or(Ok(at), Err)
}

/// What the node of a host may look at when it decides whom to ask.
pub(crate) struct Mechanisms<'a> {
    pub hosts: &'a [Host],
    pub host: usize,
    pub steers: bool,
    /// All queues are taken for one: see [`super::Neglect::Queues`].
    pub is_blind: bool,
    pub rng: &'a mut Rng,
}

impl Mechanisms<'_> {
    const fn own(&self) -> &Host {
        &self.hosts[self.host]
    }
}

impl View for Mechanisms<'_> {
    fn places(&self) -> usize {
        self.hosts.len()
    }

    fn host(&self, place: usize) -> Option<probing::Host> {
        let node = self.hosts.get(place)?.node;
        let slot = self.own().table.get(&node)?;
        let addresses = std::array::from_fn(|path| Some(address(place, path)));
        Some(probing::Host { node, left: slot.left, condemned: slot.condemned, addresses })
    }

    fn arrived_ns(&self, place: usize, path: usize) -> u64 {
        self.own().table.get(&self.hosts[place].node).map_or(0, |slot| slot.rows[path].last_arrival_ns)
    }

    fn queue(&self, place: usize, path: usize) -> u32 {
        let measured = self.own().measured.get(&self.hosts[place].node);
        let queue = measured.map_or(0, |paths| paths[path].queue);
        if self.is_blind { queue.min(1) } else { queue }
    }

    fn offers_barriers(&self) -> bool {
        true
    }

    fn steers(&self) -> bool {
        self.steers
    }

    fn noted(&self, path: usize) -> Vec<(u32, u32)> {
        self.own().nics[path].noted.iter().map(|(queue, number)| (*queue, *number)).collect()
    }

    fn source(&self, path: usize) -> Option<IpAddr> {
        Some(address(self.host, path))
    }

    fn carrier(&self, path: usize) -> bool {
        path < PATHS && !self.own().is_unplugged[path]
    }

    fn random(&mut self) -> Option<u64> {
        Some(self.rng.bits())
    }
}
