//! Co-simulation: engines in hardware and software members in one group, clock by clock. Beside each
//! engine runs its *shadow*, the software core, which is handed the same events at the same times; after
//! every step of the engine both must be in the same state.
//!
//! A schedule is a list of perturbations drawn from a seed; delays are drawn from the seed and the copy
//! they concern, so that a schedule with fewer perturbations is the same otherwise. That makes shrinking
//! plain: perturbations are left out as long as the difference remains.

use crate::frames::{accept, encode, entries, round_bytes};
use crate::model::{In, Library, Model, Out};
use crate::reg;
use crate::setup::{Built, Setup};
use fide_proto::consensus::lowi::{self, Lowi, Message, Round, Start, StartPoint};
use fide_proto::consensus::{Action, Engine, Halted};
use fide_proto::group::{Batch, Body, Entry, EntryId, MemberId, MemberSet};
use fide_wire::frame::{BODY_AT, HEADER_LEN};
use fide_wire::mac::Key;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::PathBuf;

/// Time of one clock.
pub const CLK_NS: u64 = crate::model::CLK_NS as u64;

/// Clocks that engines may need for a frame with a value of so many bytes, under load: from the stamp to the last word
/// that leaves, and from the first word that arrives to the end of its step. Of these 8 for each word on either side
/// are the hash's, and `parts` on either side the bus's.
fn processing(value_max: usize, parts: u64) -> u64 {
    let words = 2 + (24 + 16 + value_max as u64).div_ceil(64);
    88 + (16 + 2 * parts) * words
}

/// Small, seeded, good enough.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    /// One in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// What is drawn for one event, whatever else happens.
fn draw(seed: u64, what: [u64; 4]) -> u64 {
    let mut rng = Rng(seed);
    for word in what {
        rng.0 ^= word.wrapping_mul(0xd6e8_feb8_6659_fd93);
        rng.draw();
    }
    rng.draw()
}

/// One perturbation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A value of so many bytes is handed in at a member.
    Request {
        /// In which clock.
        at: u64,
        /// At whom, by rank.
        at_rank: usize,
        /// The value's length.
        bytes: usize,
    },
    /// A reconfiguration entry is handed in: a member leaves, or none.
    Change {
        /// In which clock.
        at: u64,
        /// At whom, by rank.
        at_rank: usize,
        /// Who leaves.
        leaves: Option<usize>,
    },
    /// A member crashes; the others get certain reports after so many clocks.
    Crash {
        /// In which clock.
        at: u64,
        /// Who.
        rank: usize,
        /// When the reports come.
        reported: Option<u64>,
    },
    /// Copies to a member on some paths (a bit each) are lost.
    Lose {
        /// From which clock.
        at: u64,
        /// For how many.
        clocks: u64,
        /// To whom.
        rank: usize,
        /// On which paths.
        paths: u8,
    },
    /// Copies to a member on a path take longer.
    Late {
        /// From which clock.
        at: u64,
        /// For how many.
        clocks: u64,
        /// To whom.
        rank: usize,
        /// On which path.
        path: u8,
        /// By how many clocks.
        by: u64,
    },
    /// A frame that was sent comes once more to a member, changed at a byte.
    Forge {
        /// In which clock.
        at: u64,
        /// To whom.
        rank: usize,
        /// Which byte, how it is changed, how many are cut off, by this number.
        how: u64,
    },
    /// The network does not take words of an engine for a while.
    Stall {
        /// From which clock.
        at: u64,
        /// For how many.
        clocks: u64,
        /// Whose.
        rank: usize,
        /// On which paths (a bit each).
        paths: u8,
    },
    /// The host does not take decisions of an engine for a while.
    Busy {
        /// From which clock.
        at: u64,
        /// For how many.
        clocks: u64,
        /// Whose.
        rank: usize,
    },
    /// A register is written that must not be: locked while the engine runs, read-only, none at all, or no such command.
    Write {
        /// In which clock, or soon after.
        at: u64,
        /// Whose.
        rank: usize,
        /// Which one, by this number.
        how: u64,
    },
    /// The last rank begins as a joiner, at the starting point that a member gives it, and then its join is handed in there.
    Join {
        /// In which clock, or as soon as that member has a starting point.
        at: u64,
        /// At whom, by rank.
        at_rank: usize,
        /// So many clocks behind the point it begins; the copies of the meantime are handed in then.
        after: u64,
    },
    /// The control software reports a fault of the network.
    Fault {
        /// In which clock.
        at: u64,
        /// To whom.
        rank: usize,
    },
}

/// One simulation.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// What it was drawn from; delays are still drawn from it.
    pub seed: u64,
    /// The settings of all.
    pub config: lowi::Config,
    /// Members, and who joins.
    pub members: usize,
    /// The last of them is no member at the start.
    pub joins: bool,
    /// Which of them are in hardware, one bit for each rank.
    pub hardware: u64,
    /// Clocks on the way, at most.
    pub delay: u64,
    /// Whether all start within Δ_W, or on the first round.
    pub together: bool,
    /// How long it runs.
    pub clocks: u64,
    /// What happens.
    pub items: Vec<Item>,
    /// All must agree, whatever happens: for models that must fail.
    pub strict: bool,
}

impl Schedule {
    /// Draws one, for engines whose bus takes a word of 64 bytes in so many parts.
    #[must_use]
    pub fn draw(seed: u64, parts: u64) -> Self {
        let mut rng = Rng(seed ^ 0x6c6f_7769);
        let members = 2 + rng.below(4) as usize;
        let hardware = if rng.one_in(4) { (1 << members) - 1 } else { 1 << rng.below(members as u64) };
        let delay = 4 + rng.below(40);
        let value_max = if rng.one_in(6) { 984 } else { 60 };
        let processing = processing(value_max, parts);
        let delta_i_ns = (delay + processing) * CLK_NS + rng.below(4);
        let late_ns = 260 + rng.below(200);
        let delta_w_ns = delta_i_ns + late_ns + 4;
        let period_ns = (delta_i_ns + late_ns) / 3 + 2 + rng.below(2 * delta_i_ns);
        let config = lowi::Config {
            delta_w_ns,
            drift_ppm: [0, 100, 1_000][rng.below(3) as usize],
            depth: 1 + rng.below(3) as usize,
            batch_entries_max: 1,
            batch_bytes_max: value_max,
            hurry: !rng.one_in(3),
            exit_together: !rng.one_in(4),
            rounds_max: 4,
            ..lowi::Config::new(period_ns, delta_i_ns)
        };
        let mut config = if config.check(members).is_ok() && config.late_ns(members).is_some_and(|late_ns| late_ns >= 256) {
            config
        } else {
            lowi::Config { drift_ppm: 0, ..config }
        };
        // By the rounding of what was drawn a period can be too short by a little.
        while config.check(members).is_err() && config.period_ns < period_ns + 100 {
            config.period_ns += 1;
        }
        let slots = (delta_i_ns + delta_w_ns) / CLK_NS;
        let clocks = 400 + delta_w_ns / CLK_NS + 8 * (period_ns / CLK_NS) + 2 * slots;
        let at = |rng: &mut Rng| 20 + rng.below(clocks - 200);
        let mut items = Vec::new();
        for _ in 0..rng.below(14) {
            let at_rank = if rng.one_in(3) { rng.below(members as u64) as usize } else { 0 };
            let bytes = if rng.one_in(2) { rng.below(value_max as u64 + 1) } else { rng.below(60) } as usize;
            items.push(Item::Request { at: at(&mut rng), at_rank, bytes });
        }
        if rng.one_in(4) {
            for _ in 0..=rng.below(2) {
                let leaves = (!rng.one_in(3)).then(|| rng.below(members as u64) as usize);
                items.push(Item::Change { at: at(&mut rng), at_rank: rng.below(2) as usize, leaves });
            }
        }
        if !rng.one_in(3) {
            for rank in 0..members - 1 {
                if rng.one_in(2) {
                    let reported = (!rng.one_in(3)).then(|| rng.below(2 * delay + 60));
                    items.push(Item::Crash { at: at(&mut rng), rank, reported });
                    if rng.one_in(2) {
                        break;
                    }
                }
            }
        }
        for _ in 0..if rng.one_in(3) { 1 + rng.below(3) } else { 0 } {
            let rank = rng.below(members as u64) as usize;
            let (at, clocks) = (at(&mut rng), 1 + rng.below(2 * period_ns / CLK_NS));
            items.push(match rng.below(8) {
                0 | 1 => Item::Lose { at, clocks, rank, paths: 1 << rng.below(2) },
                2 => Item::Lose { at, clocks, rank, paths: 3 },
                3 | 4 => Item::Late { at, clocks, rank, path: rng.below(2) as u8, by: rng.below(2 * slots) },
                5 => Item::Stall { at, clocks: 4 + rng.below(slots), rank, paths: 1 + rng.below(3) as u8 },
                6 => Item::Fault { at, rank },
                _ => Item::Late { at, clocks, rank, path: rng.below(2) as u8, by: rng.below(delay + processing) },
            });
        }
        if rng.one_in(4) {
            for _ in 0..=rng.below(6) {
                items.push(Item::Forge { at: at(&mut rng), rank: rng.below(members as u64) as usize, how: rng.draw() });
            }
        }
        // Drawn last: what was drawn before stays as it was.
        for _ in 0..if rng.one_in(4) { 1 + rng.below(3) } else { 0 } {
            items.push(Item::Write { at: at(&mut rng), rank: rng.below(members as u64) as usize, how: rng.draw() });
        }
        if rng.one_in(5) {
            // More requests than the FIFO holds, while what was decided is not taken.
            let (at, rank, span) = (at(&mut rng), rng.below(2) as usize, 4 * period_ns / CLK_NS);
            items.push(Item::Busy { at, clocks: rng.below(2 * span), rank });
            for _ in 0..10 + rng.below(6) {
                items.push(Item::Request { at: at + rng.below(span), at_rank: rank, bytes: rng.below(60) as usize });
            }
        }
        let together = !rng.one_in(3);
        let mut schedule = Self { seed, config, members, joins: false, hardware, delay, together, clocks, items, strict: false };
        if rng.one_in(3) {
            schedule.join(&mut rng, slots);
        }
        schedule
    }

    /// One more member joins, if these settings are fit for so many; in half of the schedules all others crash behind it, one after
    /// the other, so that it leads.
    fn join(&mut self, rng: &mut Rng, slots: u64) {
        let fits = |late_ns| late_ns >= crate::setup::STEP_CLOCKS_MAX * CLK_NS;
        if self.config.check(self.members + 1).is_err() || !self.config.late_ns(self.members + 1).is_some_and(fits) {
            return;
        }
        let joiner = self.members;
        (self.joins, self.members) = (true, joiner + 1);
        if self.hardware.count_ones() as usize == joiner || rng.one_in(2) {
            self.hardware |= 1 << joiner;
        }
        let at = self.clocks / 4 + rng.below(self.clocks / 2);
        let period = self.config.period_ns / CLK_NS;
        let at_rank = if rng.one_in(4) { rng.below(joiner as u64) as usize } else { 0 };
        self.items.push(Item::Join { at, at_rank, after: rng.below(4 * period) });
        let mut dies = at + rng.below(6 * period);
        if rng.one_in(2) {
            for rank in 0..joiner {
                let reported = (!rng.one_in(3)).then(|| rng.below(2 * self.delay + 60));
                self.items.push(Item::Crash { at: dies, rank, reported });
                dies += 1 + rng.below(3 * slots + 2 * period);
            }
        }
        for _ in 0..rng.below(4) {
            self.items.push(Item::Request { at: at + rng.below(8 * period), at_rank: joiner, bytes: rng.below(60) as usize });
        }
        self.clocks = self.clocks.max(dies + (joiner as u64 + 1) * slots + 4 * period);
    }

    /// Whether everything happens within what LOWI assumes, so that all must agree.
    #[must_use]
    pub fn is_fair(&self) -> bool {
        let breaks = |item: &Item| {
            matches!(item, Item::Late { .. } | Item::Forge { .. } | Item::Stall { .. })
                || matches!(item, Item::Lose { paths: 3, .. })
        };
        self.strict || !self.items.iter().any(breaks)
    }
}

/// A difference, or a violation.
#[derive(Debug)]
pub struct Difference {
    /// The clock in which it was seen.
    pub clock: u64,
    /// What differs.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clock {}: {}", self.clock, self.what)
    }
}

/// What happened in a simulation, for counts that show that schedules reach what they should.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Decisions of engines in hardware.
    pub decisions: u64,
    /// Rounds that they sent.
    pub rounds: u64,
    /// Steps that were compared.
    pub steps: u64,
    /// Why they halted.
    pub halts: BTreeMap<&'static str, u64>,
    /// Events refused by them.
    pub refused: u64,
    /// Clocks of engines.
    pub clocks: u64,
    /// Requests admitted by them.
    pub admitted: u64,
    /// Elections: engines that began to lead after the start.
    pub elections: u64,
    /// Engines that began as joiners.
    pub joined: u64,
    /// Those of them that decided something.
    pub joined_decided: u64,
}

impl Report {
    /// Adds another one's counts.
    pub fn add(&mut self, other: &Report) {
        self.decisions += other.decisions;
        self.rounds += other.rounds;
        self.steps += other.steps;
        self.refused += other.refused;
        self.clocks += other.clocks;
        self.admitted += other.admitted;
        self.elections += other.elections;
        self.joined += other.joined;
        self.joined_decided += other.joined_decided;
        other.halts.iter().for_each(|(why, n)| *self.halts.entry(why).or_default() += n);
    }
}

/// What is on its way to a member.
enum Transit {
    Copy { path: usize, bytes: Vec<u8> },
    Send { from: MemberId, message: Message },
    Report { dead: MemberId },
}

struct Software {
    engine: Lowi,
    setup: Setup,
    offset_ns: u64,
    drift_ppm: u64,
    number: u64,
    due_ns: u64,
    members: MemberSet,
}

struct Stream {
    queue: VecDeque<Vec<u8>>,
    at: usize,
    /// A frame that begins now finds a lane of the tags' check; one began in this clock.
    room: bool,
    began: bool,
}

struct Hardware {
    model: Model,
    setup: Setup,
    shadow: Option<Lowi>,
    members: MemberSet,
    streams: [Stream; 3],
    expected: [VecDeque<(MemberId, Message)>; 2],
    commands: VecDeque<(u16, u32)>,
    command: Option<(u16, u32)>,
    /// A setting was written: the answer is to come.
    setting: bool,
    /// It began as a joiner.
    joiner: bool,
    /// Writes that must be refused: to come, in hand, and so far.
    bad_writes: VecDeque<(u16, u32)>,
    bad_write: bool,
    refused_writes: u32,
    requests: VecDeque<Option<(MemberId, Message)>>,
    visible: Vec<(MemberId, Message)>,
    /// It led in the clock before, in which requests were judged that are told of in this one.
    led: bool,
    leaving: bool,
    copies: [VecDeque<Round>; 2],
    sending: [Vec<u8>; 2],
    deciding: Vec<u8>,
    decided: VecDeque<(Instance, Batch, Option<MemberId>)>,
    tells_exit: bool,
    ready_to: Option<MemberId>,
    changed: bool,
    elected: bool,
    counted: bool,
}

type Instance = u64;

enum Host {
    Software(Box<Software>),
    Hardware(Box<Hardware>),
    Waiting,
    Dead,
}

/// Runs schedules; engines are kept from one to the next.
pub struct Cosim {
    library: Library,
    pool: Vec<Model>,
    /// Where a waveform goes, if the model can write one.
    pub waveform: Option<PathBuf>,
}

struct World<'a> {
    schedule: &'a Schedule,
    cosim: &'a mut Cosim,
    clock: u64,
    ids: Vec<MemberId>,
    hosts: Vec<Host>,
    starts: Vec<u64>,
    transit: BTreeMap<(u64, u64), (usize, Transit)>,
    /// Who joins, when and at whom; and the copies that came to it before.
    joins: Option<(u64, usize, u64)>,
    joiner: Option<(u64, usize, Setup)>,
    kept: Vec<(usize, Vec<u8>)>,
    links: BTreeMap<(usize, usize), u64>,
    sequence: u64,
    sent: Vec<(u64, Vec<u8>)>,
    log: BTreeMap<Instance, Batch>,
    numbers: Vec<u64>,
    report: Report,
}

/// The names that halts have in hardware.
const HALTS: [&str; 6] = ["none", "network fault", "missing broadcast", "expelled", "left", "capacity"];

fn halt_code(halted: Option<Halted>) -> u8 {
    match halted {
        None => 0,
        Some(Halted::NetworkFault) => 1,
        Some(Halted::MissingBroadcast) => 2,
        Some(Halted::Expelled) => 3,
        Some(Halted::Left) => 4,
        Some(_) => 9,
    }
}

fn started(setup: &Setup, together: bool, now_ns: u64) -> Result<Lowi, String> {
    let start = if together { Start::Together } else { Start::OnMessage };
    Lowi::new(setup.me, setup.config, setup.members.clone(), 1, start, now_ns).map_err(ToString::to_string)
}

impl Cosim {
    /// With engines of this library.
    #[must_use]
    pub fn new(library: Library) -> Self {
        Self { library, pool: Vec::new(), waveform: None }
    }

    /// In how many parts the engines' bus takes 64 bytes.
    pub fn parts(&mut self) -> u64 {
        let model = self.pool.pop().unwrap_or_else(|| Model::new(self.library));
        let parts = 64 / model.word_bytes as u64;
        self.pool.push(model);
        parts
    }

    /// Runs one schedule.
    ///
    /// # Errors
    /// The first difference.
    pub fn run(&mut self, schedule: &Schedule) -> Result<Report, Difference> {
        let ids: Vec<MemberId> = (0..schedule.members).map(|rank| MemberId(3 + 4 * rank as u16)).collect();
        let start_window = schedule.config.delta_w_ns / CLK_NS / 2;
        let starts = (0..schedule.members)
            .map(|rank| {
                if schedule.joins && rank + 1 == schedule.members {
                    return u64::MAX;
                }
                draw(schedule.seed, [1, rank as u64, 0, 0]) % if schedule.together { start_window } else { start_window + 200 }
            })
            .collect();
        let hosts = ids.iter().map(|_| Host::Waiting).collect();
        let mut world = World {
            schedule,
            cosim: self,
            clock: 0,
            numbers: vec![0; ids.len()],
            ids,
            hosts,
            starts,
            transit: BTreeMap::new(),
            joins: schedule.items.iter().find_map(|item| match item {
                Item::Join { at, at_rank, after } => Some((*at, *at_rank, *after)),
                _ => None,
            }),
            joiner: None,
            kept: Vec::new(),
            links: BTreeMap::new(),
            sequence: 0,
            sent: Vec::new(),
            log: BTreeMap::new(),
            report: Report::default(),
        };
        let result = world.run();
        let (clock, report) = (world.clock, world.report.clone());
        let hosts = std::mem::take(&mut world.hosts);
        for host in hosts {
            if let Host::Hardware(hardware) = host {
                self.pool.push(hardware.model);
            }
        }
        result.map(|()| report).map_err(|what| Difference { clock, what })
    }

    /// Leaves out perturbations as long as the difference remains.
    pub fn shrink(&mut self, schedule: &Schedule) -> Schedule {
        let mut least = schedule.clone();
        let mut at = 0;
        while at < least.items.len() {
            let mut fewer = least.clone();
            fewer.items.remove(at);
            if self.run(&fewer).is_err() {
                least = fewer;
            } else {
                at += 1;
            }
        }
        least
    }
}

impl World<'_> {
    fn setup(&self, rank: usize) -> Setup {
        Setup {
            config: self.schedule.config,
            ids: self.ids.clone(),
            me: self.ids[rank],
            members: self.ids[..self.ids.len() - usize::from(self.schedule.joins)].iter().copied().collect(),
            begin: StartPoint { round: 0, leader: self.ids[0], next: 1 },
            cluster: 0xc1c2_c3c4,
            sender: 100 + rank as u32,
            incarnation: 1,
            group: 0x9a9b_9c9d,
            generation: 0x0102_0304_0506_0708,
            key: if self.schedule.seed & 1 == 0 { (0, Key::PUBLIC) } else { (5, Key([0xa5; 16])) },
            clk_ns: CLK_NS,
            retry_ns: 1_600,
            rate: (0, 1),
        }
    }

    fn rank(&self, member: MemberId) -> usize {
        self.ids.iter().position(|id| *id == member).unwrap_or(0)
    }

    fn run(&mut self) -> Result<(), String> {
        for rank in 0..self.ids.len() {
            if self.schedule.hardware & 1 << rank == 0 {
                continue;
            }
            let setup = self.setup(rank);
            setup.check(Built::default()).map_err(|why| why.to_string())?;
            let library = self.cosim.library;
            let mut model = self.cosim.pool.pop().unwrap_or_else(|| Model::new(library));
            if let Some(path) = &self.cosim.waveform {
                model = Model::new(library);
                model.trace(&path.with_extension(format!("{rank}.vcd")));
            }
            model.reset();
            for (at, value) in setup.writes() {
                if !model.write(at, value) {
                    return Err(format!("a write of {value:#x} to {at:#x} was refused"));
                }
            }
            // Clocks of members are apart.
            (0..draw(self.schedule.seed, [2, rank as u64, 0, 0]) % 40).for_each(|_| {
                model.step(&In::idle());
            });
            let stream = || Stream { queue: VecDeque::new(), at: 0, room: false, began: false };
            let hardware = Hardware {
                model,
                members: setup.members.clone(),
                setup,
                shadow: None,
                streams: [stream(), stream(), stream()],
                expected: Default::default(),
                commands: VecDeque::new(),
                command: None,
                setting: false,
                joiner: self.schedule.joins && rank + 1 == self.ids.len(),
                bad_writes: VecDeque::new(),
                bad_write: false,
                refused_writes: 0,
                requests: VecDeque::new(),
                visible: Vec::new(),
                led: false,
                leaving: false,
                copies: Default::default(),
                sending: Default::default(),
                deciding: Vec::new(),
                decided: VecDeque::new(),
                tells_exit: false,
                ready_to: None,
                changed: false,
                elected: false,
                counted: false,
            };
            self.hosts[rank] = Host::Hardware(Box::new(hardware));
        }
        while self.clock < self.schedule.clocks {
            self.happen();
            self.join()?;
            while let Some(entry) = self.transit.first_entry().filter(|entry| entry.key().0 <= self.clock) {
                let (rank, transit) = entry.remove();
                self.arrive(rank, transit)?;
            }
            for rank in 0..self.ids.len() {
                if self.starts[rank] == self.clock {
                    self.start(rank)?;
                }
                match std::mem::replace(&mut self.hosts[rank], Host::Waiting) {
                    Host::Hardware(mut hardware) => {
                        let result = self.step(rank, &mut hardware);
                        self.hosts[rank] = Host::Hardware(hardware);
                        result?;
                    }
                    Host::Software(mut software) => {
                        let now_ns = software.now_ns(self.clock);
                        if now_ns >= software.due_ns {
                            software.engine.handle_timeout(now_ns);
                            self.act(rank, &mut software)?;
                        }
                        self.hosts[rank] = Host::Software(software);
                    }
                    other => self.hosts[rank] = other,
                }
            }
            self.clock += 1;
        }
        self.finish()
    }

    /// Everything that was decided has come out; nothing else has.
    fn finish(&mut self) -> Result<(), String> {
        for rank in 0..self.ids.len() {
            let Host::Hardware(mut hardware) = std::mem::replace(&mut self.hosts[rank], Host::Dead) else { continue };
            self.report.clocks += self.schedule.clocks;
            let mut rest = 0;
            // The core is left where it is: only the decisions' stream moves.
            while !hardware.decided.is_empty() && rest < 8_000 {
                let out = hardware.model.step(&In::idle());
                hardware.take_decision(&out)?;
                rest += 1;
            }
            if !hardware.decided.is_empty() {
                return Err(format!("{} of {} decisions did not come out", hardware.decided.len(), self.report.decisions));
            }
            let refused_writes = hardware.model.read(reg::REFUSED_WRITES);
            if refused_writes != Some(hardware.refused_writes + u32::from(hardware.bad_write)) {
                return Err(format!("{} writes were refused, and {refused_writes:?} counted", hardware.refused_writes));
            }
            self.hosts[rank] = Host::Hardware(hardware);
        }
        Ok(())
    }

    fn start(&mut self, rank: usize) -> Result<(), String> {
        let setup = self.setup(rank);
        if let Host::Hardware(hardware) = &mut self.hosts[rank] {
            hardware.commands.push_back((reg::COMMAND, if self.schedule.together { 1 } else { 2 }));
            return Ok(());
        }
        if !matches!(self.hosts[rank], Host::Waiting) {
            return Ok(());
        }
        let offset_ns = 1_000 + draw(self.schedule.seed, [3, rank as u64, 0, 0]) % 100_000;
        let drift_ppm = draw(self.schedule.seed, [4, rank as u64, 0, 0]) % (u64::from(self.schedule.config.drift_ppm) + 1);
        let now_ns = local_ns(offset_ns, drift_ppm, self.clock);
        let engine = started(&setup, self.schedule.together, now_ns)?;
        let members = setup.members.clone();
        let mut software = Software { engine, setup, offset_ns, drift_ppm, number: 0, due_ns: 0, members };
        self.act(rank, &mut software)?;
        self.hosts[rank] = Host::Software(Box::new(software));
        Ok(())
    }

    /// The last rank begins as a joiner, once somebody has a point for it.
    fn join(&mut self) -> Result<(), String> {
        if self.joiner.as_ref().is_some_and(|(at, ..)| *at == self.clock) {
            self.begin_joiner()?;
        }
        let Some((at, sponsor, after)) = self.joins.filter(|(at, ..)| *at <= self.clock) else { return Ok(()) };
        let (engine, members) = match &self.hosts[sponsor] {
            Host::Software(software) => (&software.engine, &software.members),
            // What was decided was taken, and the core was told what changed.
            Host::Hardware(hardware) => match &hardware.shadow {
                Some(shadow) if hardware.is_at_rest() => (shadow, &hardware.members),
                _ => return Ok(()),
            },
            Host::Waiting => return Ok(()),
            Host::Dead => {
                self.joins = None;
                return Ok(());
            }
        };
        if engine.halted().is_some() || self.clock > at + self.schedule.clocks {
            self.joins = None;
            return Ok(());
        }
        let point = engine.start_point().and_then(|bytes| StartPoint::from_value(&bytes));
        let Some(begin) = point.filter(|point| point.round > 0) else { return Ok(()) };
        let setup = Setup { begin, members: members.clone(), ..self.setup(self.ids.len() - 1) };
        self.joins = None;
        self.joiner = Some((self.clock + 1 + after, sponsor, setup));
        Ok(())
    }

    fn begin_joiner(&mut self) -> Result<(), String> {
        let Some((_, sponsor, setup)) = self.joiner.take() else { return Ok(()) };
        let (members, rank, begin) = (setup.members.clone(), self.ids.len() - 1, setup.begin);
        let behind = |(path, bytes): &(usize, Vec<u8>)| matches!(accept(&setup, Some(*path as u8), bytes), Some((_, Message::Round(round))) if round.round > begin.round);
        self.kept.retain(behind);
        match std::mem::replace(&mut self.hosts[rank], Host::Waiting) {
            Host::Hardware(mut hardware) => {
                for (at, value) in setup.writes() {
                    // A request that came before may be judged in these clocks.
                    let written = In { awvalid: 1, awaddr: at.into(), wdata: value, ..In::idle() };
                    for input in [written, In::idle()] {
                        let out = hardware.model.step(&input);
                        hardware
                            .follow(&out, self.schedule.together, &mut self.report)
                            .map_err(|what| format!("rank {rank}: {what}"))?;
                        if input.awvalid == 0 && (out.bvalid, out.bresp) != (1, 0) {
                            return Err(format!("a joiner's write of {value:#x} to {at:#x} was refused"));
                        }
                    }
                }
                hardware.members = members;
                hardware.setup = setup;
                hardware.commands.push_back((reg::COMMAND, 3));
                self.hosts[rank] = Host::Hardware(hardware);
            }
            Host::Waiting => {
                let offset_ns = 1_000 + draw(self.schedule.seed, [3, rank as u64, 0, 0]) % 100_000;
                let drift_ppm =
                    draw(self.schedule.seed, [4, rank as u64, 0, 0]) % (u64::from(self.schedule.config.drift_ppm) + 1);
                let now_ns = local_ns(offset_ns, drift_ppm, self.clock);
                let engine = Lowi::join(setup.me, setup.config, members.clone(), begin, now_ns).map_err(ToString::to_string)?;
                let mut software = Software { engine, setup, offset_ns, drift_ppm, number: 0, due_ns: 0, members };
                for (path, bytes) in std::mem::take(&mut self.kept) {
                    if let Some((from, message)) = accept(&software.setup, Some(path as u8), &bytes) {
                        let _ = software.engine.handle_copy(now_ns, from, path, message);
                    }
                }
                self.act(rank, &mut software)?;
                self.hosts[rank] = Host::Software(Box::new(software));
            }
            other => self.hosts[rank] = other,
        }
        self.hand_in(sponsor, Body::Join(self.ids[rank]));
        Ok(())
    }

    /// Perturbations of this clock.
    fn happen(&mut self) {
        let items: Vec<Item> = self.schedule.items.clone();
        for item in items {
            match item {
                Item::Request { at, at_rank, bytes } if at == self.clock => {
                    let value: Vec<u8> = (0..bytes).map(|i| draw(self.schedule.seed, [5, at, i as u64, 0]) as u8).collect();
                    self.hand_in(at_rank % self.ids.len(), Body::Value(value.as_slice().into()));
                }
                Item::Change { at, at_rank, leaves } if at == self.clock => {
                    let body = leaves.map_or(Body::Switch(fide_proto::consensus::Kind::Raft), |rank| Body::Leave(self.ids[rank]));
                    self.hand_in(at_rank % self.ids.len(), body);
                }
                Item::Crash { at, rank, reported } if at == self.clock => {
                    if let Host::Hardware(hardware) = std::mem::replace(&mut self.hosts[rank], Host::Dead) {
                        self.cosim.pool.push(hardware.model);
                    }
                    self.starts[rank] = u64::MAX;
                    for other in (0..self.ids.len()).filter(|other| *other != rank) {
                        if let Some(after) = reported {
                            let at = self.clock
                                + 1
                                + after / 2
                                + draw(self.schedule.seed, [6, rank as u64, other as u64, 0]) % (after / 2 + 1);
                            self.send(at, other, Transit::Report { dead: self.ids[rank] });
                        }
                    }
                }
                Item::Forge { at, rank, how } if at == self.clock && !self.sent.is_empty() => {
                    let mut rng = Rng(how);
                    let newest = self.sent.len() - 1;
                    let (_, mut bytes) = self.sent[newest - rng.below(newest.min(5) as u64 + 1) as usize].clone();
                    let path = usize::from(bytes[3] >> 4).min(1);
                    for _ in 0..rng.below(3) {
                        // The entry's kind decides how its bytes are read: hardware does not read them.
                        let place = (if rng.one_in(2) { rng.below(bytes.len() as u64) } else { 64 + rng.below(24) } as usize)
                            .min(bytes.len() - 1);
                        if place != 90 {
                            bytes[place] ^= 1 << rng.below(8);
                        }
                    }
                    if rng.one_in(4) {
                        bytes.truncate(bytes.len() - rng.below(bytes.len() as u64) as usize);
                    }
                    if bytes.len() >= BODY_AT && !rng.one_in(3) {
                        // By one who has the key: what is behind the tag's check is judged, too.
                        let (_, key) = self.setup(rank).keys().sending();
                        let tag = key.frame_tag(&bytes[..HEADER_LEN], &bytes[BODY_AT..]);
                        bytes[HEADER_LEN..BODY_AT].copy_from_slice(&tag.to_be_bytes());
                    }
                    self.send(at, rank, Transit::Copy { path: if rng.one_in(8) { 1 - path } else { path }, bytes });
                }
                Item::Write { at, rank, how } if at == self.clock => {
                    if let Host::Hardware(hardware) = &mut self.hosts[rank]
                        && hardware.shadow.is_some()
                    {
                        hardware.bad_writes.push_back(bad_write(how));
                    }
                }
                Item::Fault { at, rank } if at == self.clock => {
                    if let Host::Hardware(hardware) = &mut self.hosts[rank]
                        && hardware.shadow.is_some()
                    {
                        hardware.commands.push_back((reg::COMMAND, 5));
                    }
                }
                _ => {}
            }
        }
    }

    fn hand_in(&mut self, rank: usize, body: Body) {
        self.numbers[rank] += 1;
        let entry = Entry { id: EntryId { proposer: self.ids[rank], number: self.numbers[rank] }, body };
        match std::mem::replace(&mut self.hosts[rank], Host::Waiting) {
            Host::Software(mut software) => {
                let now_ns = software.now_ns(self.clock);
                let _ = software.engine.propose(now_ns, entry);
                let _ = self.act(rank, &mut software);
                self.hosts[rank] = Host::Software(software);
            }
            Host::Hardware(mut hardware) => {
                let bytes = encode(&hardware.setup, self.ids[rank], 0, 1, 0, &Message::Forward(entry));
                hardware.streams[2].queue.push_back(bytes);
                self.hosts[rank] = Host::Hardware(hardware);
            }
            other => self.hosts[rank] = other,
        }
    }

    fn send(&mut self, at: u64, rank: usize, transit: Transit) {
        self.sequence += 1;
        self.transit.insert((at, self.sequence), (rank, transit));
    }

    /// A copy leaves on a path, to everybody else.
    fn copy(&mut self, from: usize, path: usize, bytes: &[u8]) {
        self.sent.push((self.clock, bytes.to_vec()));
        for to in (0..self.ids.len()).filter(|to| *to != from) {
            let (mut lost, mut late) = (false, 0);
            for item in &self.schedule.items {
                match *item {
                    Item::Lose { at, clocks, rank, paths } if rank == to && (at..at + clocks).contains(&self.clock) => {
                        lost |= paths & 1 << path != 0;
                    }
                    Item::Late { at, clocks, rank, path: on, by }
                        if rank == to && usize::from(on) == path && (at..at + clocks).contains(&self.clock) =>
                    {
                        late += by;
                    }
                    _ => {}
                }
            }
            if !lost {
                let delay =
                    draw(self.schedule.seed, [7, self.clock, (from * 16 + to) as u64, path as u64]) % (self.schedule.delay + 1);
                self.send(self.clock + 1 + delay + late, to, Transit::Copy { path, bytes: bytes.to_vec() });
            }
        }
    }

    /// Over the reliable link.
    fn link(&mut self, from: usize, to: usize, message: Message) {
        let delay = draw(self.schedule.seed, [8, self.clock, from as u64, to as u64]) % (3 * self.schedule.delay + 1);
        let at = (self.clock + 1 + delay).max(self.links.get(&(from, to)).copied().unwrap_or(0));
        self.links.insert((from, to), at);
        self.send(at, to, Transit::Send { from: self.ids[from], message });
    }

    fn arrive(&mut self, rank: usize, transit: Transit) -> Result<(), String> {
        let joiner = self.schedule.joins && rank + 1 == self.ids.len();
        let waits = match &self.hosts[rank] {
            Host::Waiting => true,
            Host::Hardware(hardware) => hardware.shadow.is_none(),
            Host::Software(_) | Host::Dead => false,
        };
        if joiner && waits {
            if let Transit::Copy { path, bytes } = transit {
                self.kept.push((path, bytes));
            }
            return Ok(());
        }
        match std::mem::replace(&mut self.hosts[rank], Host::Waiting) {
            Host::Software(mut software) => {
                let now_ns = software.now_ns(self.clock);
                match transit {
                    Transit::Copy { path, bytes } => match accept(&software.setup, Some(path as u8), &bytes) {
                        Some((from, message @ Message::Round(_))) => {
                            let _ = software.engine.handle_copy(now_ns, from, path, message);
                        }
                        Some((from, message)) => {
                            let _ = software.engine.handle_message(now_ns, from, message);
                        }
                        None => {}
                    },
                    Transit::Send { from, message } => {
                        let _ = software.engine.handle_message(now_ns, from, message);
                    }
                    Transit::Report { dead } => {
                        let _ = software.engine.handle_crash(now_ns, dead);
                    }
                }
                self.act(rank, &mut software)?;
                self.hosts[rank] = Host::Software(software);
            }
            Host::Hardware(mut hardware) => {
                match transit {
                    Transit::Copy { path, bytes } => hardware.streams[path].queue.push_back(bytes),
                    Transit::Send { from, message } => {
                        let path = draw(self.schedule.seed, [9, self.clock, rank as u64, from.0.into()]) % 2;
                        let bytes = encode(&hardware.setup, from, path as u8, 1, 0, &message);
                        let stream = if matches!(message, Message::Forward(_)) { 2 } else { path as usize };
                        hardware.streams[stream].queue.push_back(bytes);
                    }
                    Transit::Report { dead } => {
                        let rank = hardware.setup.rank(dead).unwrap_or(0);
                        hardware.commands.push_back((reg::CRASH, rank));
                    }
                }
                self.hosts[rank] = Host::Hardware(hardware);
            }
            other => self.hosts[rank] = other,
        }
        Ok(())
    }

    fn agree(&mut self, rank: usize, instance: Instance, batch: &Batch) -> Result<(), String> {
        let known = self.log.entry(instance).or_insert_with(|| batch.clone());
        if known != batch && self.schedule.is_fair() {
            return Err(format!("rank {rank} decided instance {instance} differently: uniform agreement"));
        }
        Ok(())
    }

    /// What a software member asks for.
    fn act(&mut self, rank: usize, software: &mut Software) -> Result<(), String> {
        let now_ns = software.now_ns(self.clock);
        loop {
            let Some(action) = software.engine.poll_action() else {
                match software.engine.poll_timeout() {
                    Some(due_ns) if due_ns <= now_ns => software.engine.handle_timeout(now_ns),
                    due => {
                        software.due_ns = due.unwrap_or(u64::MAX);
                        return Ok(());
                    }
                }
                continue;
            };
            match action {
                Action::Copies { message } => {
                    software.number += 1;
                    for path in 0..2 {
                        let bytes = encode(&software.setup, self.ids[rank], path, software.number, sent_ns(&message), &message);
                        self.copy(rank, path.into(), &bytes);
                    }
                }
                Action::Send { to, message } => self.link(rank, self.rank(to), message),
                Action::Decide { instance, batch } => {
                    self.agree(rank, instance, &batch)?;
                    if let Some(members) = members_behind(&software.members, &batch) {
                        software.members = members.clone();
                        let _ = software.engine.set_members(now_ns, instance + 1, members);
                    }
                }
                _ => {}
            }
        }
    }

    /// One clock of an engine in hardware.
    fn step(&mut self, rank: usize, hardware: &mut Hardware) -> Result<(), String> {
        let mut input = In::idle();
        for item in &self.schedule.items {
            if let Item::Stall { at, clocks, rank: stalled, paths } = *item
                && stalled == rank
                && (at..at + clocks).contains(&self.clock)
            {
                input.tx_ready &= !paths;
            }
        }
        for item in &self.schedule.items {
            if let Item::Busy { at, clocks, rank: busy } = *item
                && busy == rank
                && (at..at + clocks).contains(&self.clock)
            {
                input.dec_ready = 0;
            }
        }
        hardware.feed(&mut input, self.clock, draw(self.schedule.seed, [10, self.clock, rank as u64, 0]));
        let out = hardware.model.step(&input);
        // A frame that began in this clock is not counted in it yet.
        for (i, stream) in hardware.streams.iter_mut().enumerate() {
            stream.room = out.room & 1 << i != 0 && !std::mem::take(&mut stream.began);
        }
        hardware.follow(&out, self.schedule.together, &mut self.report).map_err(|what| format!("rank {rank}: {what}"))?;
        if hardware.joiner && hardware.shadow.is_some() && !self.kept.is_empty() {
            self.kept.drain(..).for_each(|(path, bytes)| hardware.streams[path].queue.push_back(bytes));
        }
        // Frames that leave.
        for path in 0..2usize {
            if out.tx_valid & input.tx_ready & 1 << path == 0 {
                continue;
            }
            let len = out.tx_keep[path].count_ones() as usize;
            hardware.sending[path].extend_from_slice(&out.tx_data[path][..len]);
            if out.tx_last & 1 << path != 0 {
                let bytes = std::mem::take(&mut hardware.sending[path]);
                self.leave(rank, hardware, path, &bytes)?;
            }
        }
        let decision = if input.dec_ready == 1 { hardware.take_decision(&out) } else { Ok(None) };
        if let Some((instance, batch)) = decision.map_err(|what| format!("rank {rank}: {what}"))? {
            self.report.decisions += 1;
            self.report.joined_decided += u64::from(std::mem::take(&mut hardware.joiner));
            self.agree(rank, instance, &batch)?;
            if let Some(members) = members_behind(&hardware.members, &batch) {
                // Of more members each may be late by less.
                let late_ns = hardware.setup.config.late_ns(members.len()).unwrap_or(0);
                hardware.members = members;
                hardware.commands.push_back((reg::LATE, late_ns as u32));
                hardware.commands.push_back((reg::LATE + 4, (late_ns >> 32) as u32));
                hardware.commands.push_back((reg::SET_MEMBERS, hardware.setup.mask(&hardware.members)));
            }
        }
        Ok(())
    }

    /// A frame of an engine is what its shadow said.
    fn leave(&mut self, rank: usize, hardware: &mut Hardware, path: usize, bytes: &[u8]) -> Result<(), String> {
        let receiver = self.setup((rank + 1) % self.ids.len());
        let kind_path = if bytes.get(16) == Some(&(fide_wire::frame::Kind::Copy as u8)) { path as u8 } else { 0 };
        let Some((from, message)) = accept(&receiver, Some(kind_path), bytes) else {
            return Err(format!("rank {rank} sent on path {path} what nobody takes: {bytes:02x?}"));
        };
        if from != self.ids[rank] {
            return Err(format!("rank {rank} sent a frame of {from}"));
        }
        match message {
            Message::Round(round) => {
                let expected = hardware.copies[path].pop_front();
                if expected.as_ref() != Some(&round) {
                    return Err(format!("rank {rank} sent on path {path} {round:?}, and not {expected:?}"));
                }
                self.report.rounds += u64::from(path == 0);
                if rank != 0 && !hardware.elected {
                    hardware.elected = true;
                    self.report.elections += 1;
                }
                self.copy(rank, path, bytes);
            }
            Message::Exit if hardware.tells_exit && path == 0 => {
                (0..self.ids.len()).filter(|to| *to != rank).for_each(|to| self.link(rank, to, Message::Exit));
            }
            Message::Ready if path == 0 => {
                let Some(to) = hardware.ready_to else { return Err(format!("rank {rank} is ready, and nobody asked")) };
                self.link(rank, self.rank(to), Message::Ready);
            }
            Message::Exit | Message::Ready if path == 1 => {}
            message => return Err(format!("rank {rank} sent {message:?}")),
        }
        Ok(())
    }
}

fn sent_ns(message: &Message) -> u64 {
    if let Message::Round(round) = message { round.sent_ns } else { 0 }
}

/// The members behind a batch, if it is a reconfiguration entry.
fn members_behind(members: &MemberSet, batch: &Batch) -> Option<MemberSet> {
    let mut members = members.clone();
    match batch.first()?.body {
        Body::Value(_) => return None,
        Body::Leave(leaver) => {
            let _ = members.len() > 1 && members.remove(leaver);
        }
        Body::Join(joiner) => {
            members.insert(joiner);
        }
        Body::Switch(_) => {}
    }
    Some(members)
}

/// A register and a value that a running engine refuses.
fn bad_write(how: u64) -> (u16, u32) {
    let word = (how >> 8) as u32;
    let at = |base: u16, words: u32| base + 4 * (word % words) as u16;
    match how % 12 {
        0 => (reg::CONFIG, 0x101),
        1 => (reg::MEMBERS, 1),
        2 => (at(reg::BASE, 16), word),
        3 => (at(reg::KEY, 4), word),
        4 => (at(reg::IDS, 8), 1),
        5 => (at(reg::WAIT_RUN, 18), word),
        6 => (at(reg::FLIGHT, 2), word),
        7 => (at(reg::ROUND, 6), word),
        8 => (0xa00 + 4 * (word % 64) as u16, word),
        9 => (reg::COMMAND, [0, 1, 2, 3, 6][(word % 5) as usize]),
        10 => (reg::CRASH, 8 + word % 100),
        _ => (reg::SET_MEMBERS, [0, 0x100][(word % 2) as usize]),
    }
}

fn local_ns(offset_ns: u64, drift_ppm: u64, clock: u64) -> u64 {
    offset_ns + clock * CLK_NS + clock * CLK_NS * drift_ppm / 1_000_000
}

impl Software {
    fn now_ns(&self, clock: u64) -> u64 {
        local_ns(self.offset_ns, self.drift_ppm, clock)
    }
}

impl Hardware {
    /// Words on the streams, a command on the bus.
    fn feed(&mut self, input: &mut In, clock: u64, dice: u64) {
        for (i, stream) in self.streams.iter_mut().enumerate() {
            // Now and then a word waits.
            if dice >> (8 * i) & 7 == 0 {
                continue;
            }
            let Some(frame) = stream.queue.front() else { continue };
            if stream.at == 0 && !stream.room {
                continue;
            }
            stream.began = stream.at == 0;
            let end = (stream.at + self.model.word_bytes).min(frame.len());
            let last = end == frame.len();
            input.word((i < 2).then_some(i), &frame[stream.at..end], last);
            stream.at = end;
            if !last {
                continue;
            }
            stream.at = 0;
            let frame = stream.queue.pop_front().unwrap_or_default();
            let taken = accept(&self.setup, (i < 2).then_some(i as u8), &frame);
            if i == 2 {
                self.requests.push_back(taken);
            } else if let Some(event) = taken {
                self.expected[i].push_back(event);
            }
        }
        // One command at a time, and a clock for the answer.
        if self.command.is_none() && !self.setting && clock.is_multiple_of(2) {
            let waits = self.shadow.is_some() || self.commands.front().is_some_and(|(at, _)| *at == reg::COMMAND);
            if let Some((at, value)) = self.commands.pop_front().filter(|_| waits) {
                if (reg::LATE..reg::LATE + 8).contains(&at) {
                    self.setting = true;
                } else {
                    self.command = Some((at, value));
                }
                (input.awvalid, input.awaddr, input.wdata) = (1, at.into(), value);
            } else if let Some((at, value)) = self.bad_writes.pop_front() {
                self.bad_write = true;
                (input.awvalid, input.awaddr, input.wdata) = (1, at.into(), value);
            }
        }
    }

    /// Nothing that was decided waits for its host, and nothing that the host has to say for it.
    fn is_at_rest(&self) -> bool {
        self.decided.is_empty() && !self.leaving && self.commands.is_empty() && self.command.is_none() && !self.setting
    }

    /// The shadow does what the engine did, and both are compared.
    fn follow(&mut self, out: &Out, together: bool, report: &mut Report) -> Result<(), String> {
        report.joined += u64::from(self.joiner && out.step_event == 1 && self.shadow.is_none());
        if out.halted == 5 {
            return Err("capacity".into());
        }
        if self.setting && out.bvalid == 1 {
            self.setting = false;
            if out.bresp != 0 {
                return Err("a setting was refused".into());
            }
        }
        if self.bad_write && out.bvalid == 1 {
            self.bad_write = false;
            self.refused_writes += 1;
            if out.bresp == 0 {
                return Err("a write was taken that must be refused".into());
            }
        }
        if out.step_live == 1 && self.changed {
            self.compare(out, report)?;
        }
        if out.step_live == 1 || out.running == 0 {
            self.propose()?;
        }
        if out.step_event == 1 {
            self.event(out, together)?;
        } else if out.step_live == 1 {
            let now_ns = out.time;
            let Some(shadow) = &mut self.shadow else { return Err("it runs, and was not started".into()) };
            if out.step_left == 1 {
                if !self.leaving {
                    return Err("a round has left that nobody sent".into());
                }
                if let Some(path) = self.copies.iter().position(|copies| !copies.is_empty()) {
                    return Err(format!("a round is said to have left, and has not on path {path}"));
                }
                self.leaving = false;
                if !matches!(shadow.poll_action(), Some(Action::Copies { .. })) {
                    return Err("the shadow has no copies to send".into());
                }
            }
            if out.step_left == 1 || shadow.poll_timeout().is_some_and(|due_ns| due_ns <= now_ns) {
                self.call(|shadow| shadow.handle_timeout(now_ns))?;
            }
        }
        let judged = if out.judged == 1 { self.requests.pop_front().flatten() } else { None };
        if out.admit == 1 {
            let Some(request) = judged else { return Err("a request was admitted that is none".into()) };
            if !self.led {
                return Err("a request was admitted by one that does not lead".into());
            }
            report.admitted += 1;
            self.visible.push(request);
        }
        self.led = out.has_leader == 1 && self.setup.ids[usize::from(out.leader)] == self.setup.me;
        Ok(())
    }

    /// Requests that were admitted in earlier clocks: the core sees them from now on. What an event
    /// has made due in its own moment the core does in its next step, which finds them there: the
    /// shadow must not do it before.
    fn propose(&mut self) -> Result<(), String> {
        for (from, message) in std::mem::take(&mut self.visible) {
            let Message::Forward(entry) = message else { return Err("a request is an entry".into()) };
            if self.shadow.as_ref().is_some_and(|shadow| shadow.halted().is_some()) {
                // Admitted before the halt: it waits in vain in both.
                continue;
            }
            let mut result = Ok(());
            self.call(|shadow| result = shadow.enqueue(from, entry))?;
            if result.is_err() {
                return Err(format!("the shadow refused a request: {result:?}"));
            }
            self.changed = false;
        }
        Ok(())
    }

    fn event(&mut self, out: &Out, together: bool) -> Result<(), String> {
        let now_ns = out.time;
        let running = out.running == 1;
        // Copy, exit and ready come by a path, the rest by commands.
        if out.event < 3 {
            let Some((from, message)) = self.expected[usize::from(out.event_path & 1)].pop_front() else {
                return Err(format!("an event on path {} that no frame made", out.event_path));
            };
            if !running {
                return Ok(());
            }
            let path = usize::from(out.event_path);
            return match message {
                Message::Round(_) => self.call(|shadow| {
                    let _ = shadow.handle_copy(now_ns, from, path, message);
                }),
                _ => self.call(|shadow| {
                    let _ = shadow.handle_message(now_ns, from, message);
                }),
            };
        }
        let Some((at, value)) = self.command.take() else { return Err("an event that no command made".into()) };
        match (at, value) {
            (reg::COMMAND, 1 | 2) => {
                self.shadow = Some(started(&self.setup, together, now_ns)?);
                self.call(|_| {})
            }
            (reg::COMMAND, 3) => {
                let (setup, members) = (&self.setup, self.members.clone());
                let joined = Lowi::join(setup.me, setup.config, members, setup.begin, now_ns);
                self.shadow = Some(joined.map_err(ToString::to_string)?);
                self.call(|_| {})
            }
            (reg::COMMAND, _) => self.call(|shadow| shadow.handle_network_fault(now_ns)),
            (reg::CRASH, rank) => {
                let dead = self.setup.ids[rank as usize];
                self.call(|shadow| {
                    let _ = shadow.handle_crash(now_ns, dead);
                })
            }
            _ => {
                let members: MemberSet =
                    self.setup.ids.iter().enumerate().filter(|(i, _)| value & 1 << i != 0).map(|(_, id)| *id).collect();
                self.call(|shadow| {
                    let from = shadow.decided_through() + 1;
                    let _ = shadow.set_members(now_ns, from, members);
                })
            }
        }
    }

    /// Calls the shadow and takes what it asks for.
    fn call(&mut self, call: impl FnOnce(&mut Lowi)) -> Result<(), String> {
        let Some(shadow) = &mut self.shadow else { return Err("it was not started".into()) };
        let before = shadow.round();
        call(shadow);
        shadow.invariants();
        self.changed = true;
        if self.leaving && shadow.halted().is_some() {
            self.leaving = false;
        }
        let mut keep = if self.leaving { Some(0) } else { None };
        if !self.leaving && shadow.round() != before && shadow.leader() == Some(self.setup.me) {
            // Copies stay in the queue until they have left; what is before them is done.
            let mut peek = shadow.clone();
            let mut ahead = 0;
            while let Some(action) = peek.poll_action() {
                if let Action::Copies { message: Message::Round(round) } = action {
                    self.leaving = true;
                    self.copies.iter_mut().for_each(|copies| copies.push_back(round.clone()));
                    keep = Some(ahead);
                    break;
                }
                ahead += 1;
            }
        }
        let mut decided = Vec::new();
        let mut taken = 0;
        while keep.is_none_or(|keep| taken < keep) {
            let Some(action) = shadow.poll_action() else { break };
            taken += 1;
            match action {
                Action::Decide { instance, batch } => decided.push((instance, batch)),
                Action::Send { message: Message::Exit, .. } => self.tells_exit = true,
                Action::Send { to, message: Message::Ready } => self.ready_to = Some(to),
                _ => {}
            }
        }
        let leader = shadow.start_point().and_then(|bytes| StartPoint::from_value(&bytes)).map(|point| point.leader);
        let alone = decided.len() == 1;
        self.decided.extend(decided.into_iter().map(|(instance, batch)| (instance, batch, leader.filter(|_| alone))));
        Ok(())
    }

    fn compare(&mut self, out: &Out, report: &mut Report) -> Result<(), String> {
        self.changed = false;
        let Some(shadow) = &self.shadow else { return Err("it runs, and was not started".into()) };
        report.steps += 1;
        let leader = (out.has_leader == 1).then(|| self.setup.ids[usize::from(out.leader)]);
        let ready_to = (out.tells_ready == 1).then(|| self.setup.ids[usize::from(out.ready_to)]);
        let expected_ready = self.ready_to.filter(|_| shadow.halted().is_none() && out.heard == 0);
        let same = [
            ("halted", u64::from(out.halted), halt_code(shadow.halted()).into()),
            ("leader", leader.map_or(0, |id| id.0.into()), shadow.leader().map_or(0, |id| id.0.into())),
            ("round", out.round, shadow.round()),
            ("decided", out.decided, shadow.decided_through()),
            ("refused", out.refused.into(), shadow.refusals().total()),
            ("tells exit", out.tells_exit.into(), self.tells_exit.into()),
            ("tells ready to", ready_to.map_or(0, |id| id.0.into()), expected_ready.map_or(0, |id| id.0.into())),
        ];
        for (what, hardware, software) in same {
            if hardware != software {
                return Err(format!("{what}: {hardware} in hardware, {software} in software ({:?})", shadow.halted()));
            }
        }
        if out.halted != 0 && !self.counted {
            self.counted = true;
            *report.halts.entry(HALTS[usize::from(out.halted.min(5))]).or_default() += 1;
            report.refused += u64::from(out.refused);
        }
        Ok(())
    }

    /// A word of a decision; what it says, with the last one.
    fn take_decision(&mut self, out: &Out) -> Result<Option<(Instance, Batch)>, String> {
        if out.dec_valid == 0 {
            return Ok(None);
        }
        self.deciding.extend_from_slice(&out.dec_data[..out.dec_keep.count_ones() as usize]);
        if out.dec_last == 0 {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.deciding);
        let Some((instance, batch, leader)) = self.decided.pop_front() else {
            return Err(format!("a decision that the shadow does not know: {bytes:02x?}"));
        };
        if bytes.get(8..) != Some(&round_bytes(0, instance, &batch)[8..]) {
            return Err(format!("decision {instance}: {bytes:02x?}, and not {:02x?}", round_bytes(0, instance, &batch)));
        }
        if leader.is_some_and(|leader| self.setup.ids[usize::from(out.dec_user)] != leader) {
            return Err(format!("decision {instance} is said to be of rank {}, and is of {leader:?}", out.dec_user));
        }
        let count = u16::from_be_bytes([bytes[16], bytes[17]]);
        Ok(Some((instance, entries(count, &bytes[24..]).unwrap_or_default().into())))
    }
}

/// The schedules from `from` on, shared out among so many threads.
///
/// # Errors
/// As [`run_many`]: of the failing one with the lowest number among those that were run.
pub fn run_shared(library: Library, threads: u64, from: u64, count: u64) -> Result<Report, String> {
    let share = |i: u64| from + count * i / threads..from + count * (i + 1) / threads;
    let run = |i: u64| run_many(&mut Cosim::new(library), share(i).start, share(i).end - share(i).start);
    let reports: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|i| scope.spawn(move || run(i))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let mut total = Report::default();
    for report in reports {
        total.add(&report?);
    }
    Ok(total)
}

/// The schedules from `from` on. A failing one is shrunk and printed.
///
/// # Errors
/// The report of the first failing one, as text.
pub fn run_many(cosim: &mut Cosim, from: u64, count: u64) -> Result<Report, String> {
    let mut total = Report::default();
    let parts = cosim.parts();
    for seed in from..from + count {
        let schedule = Schedule::draw(seed, parts);
        match cosim.run(&schedule) {
            Ok(report) => total.add(&report),
            Err(difference) if difference.what.ends_with("capacity") => {
                *total.halts.entry(HALTS[5]).or_default() += 1;
            }
            Err(difference) => {
                let least = cosim.shrink(&schedule);
                let least_difference = cosim.run(&least).err().map_or_else(String::new, |difference| difference.to_string());
                return Err(format!(
                    "seed {seed}: {difference}\nshrunk from {} to {} perturbations: {least_difference}\n{least:#?}\n\
                     again: FIDE_RTL_FROM={seed} FIDE_RTL_SCHEDULES=1 scripts/rtl cosim",
                    schedule.items.len(),
                    least.items.len(),
                ));
            }
        }
    }
    Ok(total)
}
