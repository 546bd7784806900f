//! A host: a kernel with its receive table, an agent with the real detector, a member's process with
//! the real log behind its gate, and memory that anybody reads.

use std::collections::{HashMap, VecDeque};

use fide_proto::consensus::Halted;
use fide_proto::consensus::log::{self, Epoch, Log};
use fide_proto::consensus::memory::{self, Request, RequestId};
use fide_proto::consensus::policy::{Answer, Policy};
use fide_proto::detector::{Config, PathArrival};
use fide_proto::group::{MemberId, Value};
use fide_proto::node::Node;
use fide_proto::node::directory::Numbers;
use fide_proto::node::probing::View;
use fide_proto::node::table::Owner;
use fide_proto::services::groups::member::{self, GateConfig};
use fide_wire::PATHS;
use fide_wire::frame::table::{Content, HOST_ROW, Instance, Process, State};
use fide_wire::marks::Marks;
use fide_wire::verdict::{Cause, Grade};

use crate::invariants::{CrashOrder, NoGap, Stability};
use crate::time::{CONTRACT, Clock, PERIOD_NS, US};

/// What waits for a member's process, or is handed to it.
#[derive(Clone, Debug)]
pub enum Input {
    /// Over the reliable link.
    Message(MemberId, log::Message),
    /// A copy on a path, and when it arrived by this host's clock.
    Copy(MemberId, usize, log::Message, u64),
    /// What rode on a heartbeat.
    Piggyback(MemberId, log::Message),
    /// A memory's answer.
    Memory(MemberId, Epoch, RequestId, memory::Answer),
    /// The detector of this host says this of a member.
    Verdict(MemberId, Cause, Grade),
    /// It was heard in a life that was reported over.
    Alive(MemberId),
    /// It was cut off.
    Fenced(MemberId),
    /// The witness answers.
    Witness(MemberId, Answer),
    /// Its timer.
    Timer,
    /// Others gave this host up.
    Condemned,
}

/// What a node may look at when it decides whom to ask, where nothing waits between an interface
/// and the detector: no barriers.
pub(crate) struct NoBarriers;

impl View for NoBarriers {}

/// A row of the receive table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// Of which incarnation; 0 for a host that was not announced.
    pub incarnation: u32,
    /// Refused from now on.
    pub condemned: bool,
    /// It said that it leaves.
    pub left: bool,
    /// The version of its table that its last heartbeats named, as the node was told.
    pub version: u32,
    /// What came on each path.
    pub rows: [PathArrival; PATHS],
    /// What the receive program notes now and then.
    pub marks: [Marks; PATHS],
    /// Something came since the detector looked.
    pub fresh: bool,
    /// The last heartbeat whose piggyback was handed in, and those before it (bit n: n+1 before).
    pub rode: (u64, u64),
    /// When that host was last told that it is condemned.
    pub told_ns: u64,
}

impl Slot {
    /// A heartbeat of the incarnation that is heard came on this path, by multicast or by unicast.
    pub fn count(&mut self, path: usize, number: u64, by_group: bool, now_ns: u64) {
        let row = &mut self.rows[path];
        if number > row.last_number {
            let behind = (number - row.last_number) as u32;
            row.since_group = if by_group || row.last_number == 0 { 0 } else { row.since_group.saturating_add(behind) };
            row.lost += if row.last_number == 0 { 0 } else { number - row.last_number - 1 };
            row.last_number = number;
            row.last_arrival_ns = now_ns;
            let (arrived, marks) = (row.last_number - row.lost, &mut self.marks[path]);
            marks.count(arrived, row.lost, now_ns);
            row.recent = marks.recent(arrived, row.lost, now_ns);
            self.fresh = true;
        }
    }

    /// Whether this is the first copy of the piggyback of this heartbeat.
    pub fn is_first_copy(&mut self, number: u64) -> bool {
        let (last, before) = self.rode;
        if number > last {
            let by = number - last;
            let mask = if by > 64 { 0 } else { before.checked_shl(by as u32).unwrap_or(0) | 1 << (by - 1) };
            self.rode = (number, if last == 0 { 0 } else { mask });
            return true;
        }
        let back = last - number;
        if back == 0 || back > 64 || before & 1 << (back - 1) != 0 {
            return false;
        }
        self.rode.1 |= 1 << (back - 1);
        true
    }
}

/// One-sided memory of one member in one epoch.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    words: HashMap<u64, u64>,
    regions: HashMap<u64, Value>,
}

impl Memory {
    /// Carries out an operation.
    pub fn handle(&mut self, request: Request) -> (RequestId, memory::Answer) {
        match request {
            Request::Read { id, word } => (id, memory::Answer::Word(self.words.get(&word).copied().unwrap_or(0))),
            Request::Cas { id, word, expected, new } => {
                let there = self.words.entry(word).or_insert(0);
                let was = *there;
                if was == expected {
                    *there = new;
                }
                (id, memory::Answer::Word(was))
            }
            Request::Write { id, region, bytes } => {
                self.regions.insert(region, bytes);
                (id, memory::Answer::Written)
            }
            Request::Fetch { id, region } => (id, memory::Answer::Bytes(self.regions.get(&region).cloned())),
        }
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Behind so many more outputs.
    pub after: u32,
    /// Its host loses its power.
    pub power: bool,
    /// Of the outputs only what is sent counts.
    pub sends: bool,
}

/// A member's process.
pub struct Member {
    /// Who.
    pub id: MemberId,
    /// The real log and its gate, as agents run them.
    pub core: member::Member,
    /// Stands still until then.
    pub paused_until: u64,
    /// What came meanwhile.
    pub inbox: VecDeque<Input>,
    /// Ends soon.
    pub crash_after: Option<Ends>,
    /// For which time its timer is set (world's time).
    pub timer_ns: u64,
    /// The application.
    pub state: u64,
    /// The last value that is in it, as the world counts them.
    pub chain: Option<usize>,
    /// It asked to leave.
    pub leaves: bool,
    /// Of which epoch its engine is, while it runs, and since when.
    pub engine_of: Option<Epoch>,
    /// See there.
    pub engine_ns: u64,
    /// When the newest copy that came was sent.
    pub copy_ns: u64,
    /// It joined a group that was running, and was started then.
    pub joined_ns: Option<u64>,
    /// Somebody proposed its join then.
    pub asked_ns: u64,
    /// Said so already.
    pub halted: Option<Halted>,
    /// Own positions.
    pub no_gap: NoGap,
    /// What it was told of crashes.
    pub crash_order: CrashOrder,
    /// What it called stable.
    pub stability: Stability,
}

impl Member {
    /// Its log.
    #[must_use]
    pub const fn log(&self) -> &Log {
        self.core.log()
    }
}

/// A host.
pub struct Host {
    /// Its clock.
    pub clock: Clock,
    /// Has power.
    pub up: bool,
    /// When it lost it.
    pub off_ns: u64,
    /// How many times it booted: what was planned for an earlier life is void.
    pub boot: u32,
    /// Of its agent.
    pub incarnation: u32,
    /// Kernel and all stand still until then.
    pub paused_until: u64,
    /// Cut off by a fence, for good.
    pub fenced: bool,
    /// Each cable is cut until then.
    pub cut_until: [u64; PATHS],
    /// Its part in the cluster, as an agent runs it.
    pub node: Node,
    /// What the kernel notes of arrivals, by host.
    pub table: Vec<Slot>,
    /// For when the node's turn is planned (world's time).
    pub tick_ns: u64,
    /// Of the last heartbeat and the last other frame.
    pub numbers: Numbers,
    /// The last version of its table: counted by the kernel.
    pub version: u64,
    /// The member's process.
    pub member: Option<Member>,
    /// The memory of each member that lived here since the boot, by epoch.
    pub memories: Vec<(MemberId, Epoch, Memory)>,
}

/// What a host is called.
#[must_use]
pub fn name(host: usize) -> String {
    format!("host-{}", host + 1)
}

/// The settings of a detector as this world's times want it.
pub(crate) fn config(id: u32, incarnation: u32) -> Config {
    Config {
        agent_timeout_ns: 30 * PERIOD_NS,
        probe_wait_ns: Some(150 * US),
        late_probe_ns: 2 * PERIOD_NS,
        drain_wait_ns: Some(0), // nothing waits between an interface and the detector here, so barriers would prove nothing
        agent_lost_probe_ns: 5 * PERIOD_NS,
        ..Config::new(id, incarnation)
    }
}

/// The settings of a member's gate, likewise. LOWI stops as soon as a member was late.
pub(crate) const fn gate_config(policy: Policy) -> GateConfig {
    GateConfig {
        policy,
        fence_repeat_ns: 10 * PERIOD_NS,
        witness_timeout_ns: 20 * PERIOD_NS,
        distrust_ns: 50 * PERIOD_NS,
        lowi_judges_itself: false,
    }
}

/// The row of a host in its own table.
pub(crate) fn facts(host: usize, boot: u128, now_ns: u64) -> Content {
    Content::Host(fide_wire::frame::table::Host {
        state: State::running(now_ns),
        boot,
        size_max: CONTRACT.size_max,
        renewed_from: None,
        fence: None,
        starting: None,
        addresses: [Some([10, 0, (host >> 8) as u8, host as u8].into()), None],
        name: name(host).into(),
    })
}

/// What a booted host runs: a table with its own row, and nobody known. Tables of other boots have other epochs.
fn node(host: usize, incarnation: u32, now_ns: u64) -> Node {
    let id = fide_wire::name_id(&name(host));
    let mut owner = Owner::new(id, u64::from(incarnation));
    owner.put(HOST_ROW, 1, facts(host, u128::from(incarnation), now_ns), now_ns).expect("the first row of a table");
    Node::new(config(id, incarnation), owner, CONTRACT, [], now_ns).expect("a host row is there")
}

/// A member's process as it stands in its host's table.
#[must_use]
pub fn process(member: MemberId, now_ns: u64) -> Content {
    Content::Process(Process {
        state: State::running(now_ns),
        instance: Instance { pid: u32::from(member.0), start_ticks: now_ns },
        uid: 0,
        pbsize: 0,
        name: format!("{member}").into(),
    })
}

impl Host {
    /// One of `hosts`, just booted.
    #[must_use]
    pub fn new(index: usize, hosts: usize, clock: Clock) -> Self {
        Self {
            clock,
            up: true,
            off_ns: 0,
            boot: 1,
            incarnation: 1,
            paused_until: 0,
            fenced: false,
            cut_until: [0; PATHS],
            node: node(index, 1, clock.local(0)),
            table: vec![Slot::default(); hosts],
            tick_ns: u64::MAX,
            numbers: Numbers::default(),
            version: 1,
            member: None,
            memories: Vec::new(),
        }
    }

    /// It boots: nothing of the life before is left.
    pub fn boot(&mut self, index: usize, now_ns: u64) {
        self.up = true;
        self.boot = self.incarnation + 1;
        self.incarnation = self.boot;
        self.node = node(index, self.incarnation, now_ns);
        self.table.fill(Slot::default());
        self.tick_ns = u64::MAX;
        self.numbers = Numbers::default();
        self.version = 1;
    }

    /// The version of the next change of its table.
    pub const fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// What its heartbeats name.
    #[must_use]
    pub const fn table_version(&self) -> u32 {
        self.node.directory().owner().complete() as u32
    }

    /// The memory of this member and epoch.
    pub fn memory(&mut self, member: MemberId, epoch: Epoch) -> &mut Memory {
        let at = self.memories.iter().position(|(who, of, _)| *who == member && *of == epoch);
        let at = at.unwrap_or_else(|| {
            self.memories.push((member, epoch, Memory::default()));
            self.memories.len() - 1
        });
        &mut self.memories[at].2
    }
}
