//! One host: a kernel (receive table, ring, answers to probes) and an agent in it.

use super::nic::Nic;
use crate::gates::Gates;
use crate::groups::shell::Shell;
use crate::host::{Slot, name};
use crate::time::US;
use fide_proto::detector::Config;
use fide_proto::node::directory::Numbers;
use fide_proto::node::probing::Answer;
use fide_proto::node::table::Owner;
use fide_proto::node::{Node, calibration};
use fide_wire::PATHS;
use fide_wire::frame::Kind;
use fide_wire::frame::table::{Content, HOST_ROW, Instance, Process, State};
use fide_wire::jitter::{BUCKETS, bucket};
use fide_wire::verdict::{Cause, Contract};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// A millisecond: these hosts are those of an ordinary network.
pub(crate) const MS: u64 = 1_000_000;

/// HB 1 ms, λmin 50 µs, δmax 100 µs. What the world does within the contract stays below: a sender is at most 30 µs late, a
/// packet at most 60 µs slower than the fastest.
pub(crate) const CONTRACT: Contract = Contract { period_ns: MS, size_max: 0, lambda_min_ns: 50 * US, delta_max_ns: 100 * US };
pub(crate) const SENDER_LATE_NS: u64 = 30 * US;
pub(crate) const WIRE_JITTER_NS: u64 = 60 * US;
/// By how much the agent of a busy host may be late on top: short of what it would call a pause.
pub(crate) const BUSY_AGENT_NS: u64 = MS;
pub(crate) const AGENT_TIMEOUT_NS: u64 = 20 * MS;
/// What is measured goes into the contracts this often; in an agent once a second.
pub(crate) const WINDOW_NS: u64 = 10 * MS;
/// Windows without a breach before a contract counts as kept.
pub(crate) const CALM_WINDOWS: u32 = 2;

/// δmax is [`CONTRACT`]'s where the world keeps to that, up to four times as much behind a fault,
/// and falls again.
const fn calibration() -> calibration::Config {
    calibration::Config {
        floor_ns: CONTRACT.delta_max_ns,
        ceiling_ns: Some(4 * CONTRACT.delta_max_ns),
        calm_windows: CALM_WINDOWS,
        lambda_unknown_ns: CONTRACT.lambda_min_ns,
        ..calibration::Config::shared()
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// `items`: what services piggyback.
    Heartbeat {
        number: u64,
        version: u32,
        items: Rc<[u8]>,
    },
    Frame {
        number: u64,
        kind: Kind,
        body: Rc<[u8]>,
    },
    /// Of a round of a group, with its stamp.
    Copy {
        sent_ns: u64,
        body: Rc<[u8]>,
    },
}

impl Body {
    /// Whether it may leave an agent past closed gates (`passes` in `agent/src/core/fencing.rs`).
    pub(crate) fn passes_gates(&self) -> bool {
        match self {
            Self::Heartbeat { items, .. } => items.is_empty(),
            Self::Frame { kind, .. } => {
                matches!(kind, Kind::PathReport | Kind::Introduction | Kind::Hello | Kind::Pull | Kind::Rows)
            }
            Self::Copy { .. } => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub node: u32,
    pub incarnation: u32,
    pub path: usize,
    /// It came by multicast.
    pub by_group: bool,
    pub sent_ns: u64,
    pub body: Body,
}

/// What waits for the agent.
#[derive(Clone, Debug)]
pub(crate) enum RingItem {
    Packet(Packet, u64),
    /// What services piggybacked on a heartbeat.
    Items {
        node: u32,
        incarnation: u32,
        number: u64,
        items: Rc<[u8]>,
    },
    /// A heartbeat names an incarnation, or a version of a table, that is new.
    Named {
        node: u32,
        incarnation: u32,
        version: u32,
    },
    /// Which of all echoes it answers.
    Answer(Answer, u64),
    Carrier {
        path: usize,
        up: bool,
    },
    /// From the exit watch: a process (its place in `Host::apps`) of the life of the host it belongs to.
    Exit {
        app: usize,
        cause: Cause,
        event_ns: u64,
    },
}

/// The truth about a process.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub doomed_at: Option<u64>,
    pub dead: bool,
    /// Its number in each incarnation of the agent that watched it.
    pub numbers: BTreeMap<u32, u32>,
}

pub(crate) struct Agent {
    pub node: Node,
    /// When the window that is measured began.
    pub window_ns: u64,
    pub next_report_ns: u64,
    /// When it is looked again who answers.
    pub next_try_ns: u64,
    pub numbers: Numbers,
    /// Of its table.
    pub version: u64,
    /// What it read of the interfaces' counters last.
    pub drops_seen: [u64; PATHS],
    pub restart: bool,
    /// Its groups, in simulations that have any.
    pub shell: Option<Box<Shell>>,
}

/// Of the heartbeats of one host on one path, in this incarnation.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub counters: [u32; BUCKETS],
    /// Since it was taken last.
    pub max_ns: u64,
    /// The stamp of the last one.
    pub sent_ns: u64,
    /// The receive queue that it came by, counted from 1.
    pub queue: u32,
}

impl Default for Measured {
    fn default() -> Self {
        Self { counters: [0; BUCKETS], max_ns: 0, sent_ns: 0, queue: 0 }
    }
}

impl Measured {
    /// `gap_ns`: since its predecessor, if that was not lost.
    fn count(&mut self, gap_ns: Option<u64>, sent_ns: u64) {
        self.sent_ns = sent_ns;
        let Some(gap_ns) = gap_ns else { return };
        let late_ns = gap_ns.saturating_sub(CONTRACT.period_ns);
        self.counters[bucket(late_ns)] += 1;
        self.max_ns = self.max_ns.max(late_ns);
    }
}

pub(crate) struct Host {
    pub index: usize,
    pub node: u32,
    pub incarnation: u32,
    pub up: bool,
    pub frozen_until: u64,
    pub stuck_until: u64,
    pub cut: [bool; PATHS],
    /// The host's own interfaces have no carrier, so that nothing leaves.
    pub is_unplugged: [bool; PATHS],
    /// What its fence lets out.
    pub gates: Gates,
    /// What others confirm leaves its agent past them ([`fide_proto::node::fence::HostFence::passes`]).
    pub is_past_gates: bool,
    /// What the interfaces lost, as they count it.
    pub nic_drops: [u64; PATHS],
    /// Its kernel gets to what arrives up to so much later, until then.
    pub busy_ns: u64,
    pub busy_until: u64,
    pub backlog_until: u64,
    pub table: BTreeMap<u32, Slot>,
    /// What it measures of each row's heartbeats.
    pub measured: BTreeMap<u32, [Measured; PATHS]>,
    /// Who gets copies by unicast of what this host sends to everybody, by path.
    pub copies: Vec<(u32, usize)>,
    pub nics: [Nic; PATHS],
    pub ring: VecDeque<RingItem>,
    pub agent: Option<Agent>,
    pub apps: Vec<App>,
    pub next_wake: u64,
    /// Boots of the kernel: events of an earlier one are void.
    pub boot: u32,
}

impl Host {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            index,
            node: fide_wire::name_id(&name(index)),
            incarnation: 0,
            up: true,
            frozen_until: 0,
            stuck_until: 0,
            cut: [false; PATHS],
            is_unplugged: [false; PATHS],
            gates: Gates::default(),
            is_past_gates: false,
            nic_drops: [0; PATHS],
            busy_ns: 0,
            busy_until: 0,
            backlog_until: 0,
            table: BTreeMap::new(),
            measured: BTreeMap::new(),
            copies: Vec::new(),
            nics: Default::default(),
            ring: VecDeque::new(),
            agent: None,
            apps: Vec::new(),
            next_wake: u64::MAX,
            boot: 0,
        }
    }

    /// A new incarnation of the agent; it watches what is still alive under new numbers.
    pub(crate) fn start_agent(&mut self, now: u64) {
        self.incarnation += 1;
        let config = Config {
            agent_timeout_ns: AGENT_TIMEOUT_NS,
            late_probe_ns: 2 * MS,
            agent_lost_probe_ns: 5 * MS,
            ..Config::new(self.node, self.incarnation)
        };
        // Nothing of the agent before is kept: what is still alive is found again.
        let mut owner = Owner::new(self.node, self.incarnation.into());
        let state = State::running(now);
        let facts = fide_wire::frame::table::Host {
            state,
            boot: self.boot.into(),
            size_max: 0,
            renewed_from: None,
            fence: None,
            starting: None,
            addresses: [Some([10, 0, 0, self.node as u8].into()), None],
            name: name(self.index).into(),
        };
        owner.put(HOST_ROW, 1, Content::Host(facts), now).expect("a new table");
        let mut number = 0;
        for (at, app) in self.apps.iter_mut().enumerate().filter(|(_, a)| a.doomed_at.is_none()) {
            number += 1;
            app.numbers.insert(self.incarnation, number);
            let instance = Instance { pid: at as u32 + 1, start_ticks: self.boot.into() };
            let process = Process { state, instance, uid: 0, pbsize: 0, name: format!("app-{at}").into() };
            owner.put(number, u64::from(number) + 1, Content::Process(process), now).expect("a new table");
        }
        self.table.clear();
        self.measured.clear();
        self.ring.clear();
        self.copies.clear();
        let mut node = Node::new(config, owner, CONTRACT, [], now).expect("a host row is there");
        node.set_calibration(calibration());
        self.agent = Some(Agent {
            node,
            window_ns: now,
            drops_seen: self.nic_drops,
            next_report_ns: now,
            next_try_ns: now,
            numbers: Numbers::default(),
            version: u64::from(number) + 1,
            restart: false,
            shell: None,
        });
    }

    /// The receive program: heartbeats update the table, the rest goes to the ring. Returns whether the agent is woken.
    pub(crate) fn receive(&mut self, packet: Packet, queue: u32, now: u64) -> bool {
        let slot = self.table.get_mut(&packet.node).filter(|slot| slot.incarnation == packet.incarnation);
        let is_condemned = slot.as_ref().is_some_and(|slot| slot.condemned);
        let Body::Heartbeat { number, version, items } = &packet.body else {
            // Who was given up may have given this host up as well.
            let passes = matches!(&packet.body, Body::Frame { kind: Kind::PathReport | Kind::Hello, .. });
            if is_condemned && !passes {
                return false;
            }
            self.ring.push_back(RingItem::Packet(packet, now));
            return true;
        };
        if is_condemned {
            return false;
        }
        let (node, incarnation, number, version) = (packet.node, packet.incarnation, *number, *version);
        if let Some(slot) = slot {
            let row = &slot.rows[packet.path];
            let is_newer = number > row.last_number;
            if is_newer && let Some(paths) = self.measured.get_mut(&node) {
                paths[packet.path].queue = queue;
                let follows = row.last_number != 0 && number == row.last_number + 1;
                paths[packet.path].count(follows.then_some(now - row.last_arrival_ns), packet.sent_ns);
            }
            slot.count(packet.path, number, packet.by_group, now);
            if !items.is_empty() {
                self.ring.push_back(RingItem::Items { node, incarnation, number, items: items.clone() });
            }
            if !is_newer || std::mem::replace(&mut slot.version, version) == version {
                return !items.is_empty();
            }
        }
        self.ring.push_back(RingItem::Named { node, incarnation, version });
        true
    }
}
