//! The software core behind the same registers, so that both kinds of members are driven and watched alike. Settings come
//! from the group's file; of the registers those are kept that a start reads (MEMBERS and BEGIN_*).

use crate::member::{Decision, KEPT_MAX, Member, Note, Wire, members_behind};
use fide_proto::consensus::lowi::{Lowi, Message, Start, StartPoint};
use fide_proto::consensus::{Action, Engine, Halted};
use fide_proto::group::{Entry, MemberId, MemberSet};
use fide_rtl::frames::{accept, encode};
use fide_rtl::reg;
use fide_rtl::setup::Setup;
use fide_wire::frame::{self, Refusal};
use std::collections::{BTreeMap, VecDeque};

/// *Exit* is repeated so often: links lose frames, and this shell has no other reliable ones.
const EXITS: u32 = 40;

/// A member in software.
pub struct Software {
    setup: Setup,
    engine: Option<Lowi>,
    registers: BTreeMap<u16, u32>,
    number: u64,
    members: MemberSet,
    decided: VecDeque<Decision>,
    kept: VecDeque<(usize, u64, Vec<u8>)>,
    /// The latest time that the core was given.
    latest_ns: u64,
    ready_to: Option<MemberId>,
    exits: u32,
    repeat_ns: u64,
    refused_writes: u32,
    dropped: [u32; 16],
}

/// The index of a refusal among the DROPPED counters.
fn dropped(why: Refusal) -> usize {
    match why {
        Refusal::Short => 0,
        Refusal::Oversize => 1,
        Refusal::Magic => 2,
        Refusal::Version => 3,
        Refusal::Cluster => 4,
        Refusal::Key => 5,
        Refusal::Mac => 6,
        _ => 7,
    }
}

impl Software {
    /// Not started.
    #[must_use]
    pub fn new(setup: Setup, wire: &mut dyn Wire) -> Self {
        let mut registers = BTreeMap::new();
        for (at, value) in setup.writes() {
            registers.insert(at, value);
        }
        Self {
            members: setup.members.clone(),
            setup,
            engine: None,
            registers,
            number: wire.now_ns() / 1_000,
            decided: VecDeque::new(),
            kept: VecDeque::new(),
            latest_ns: 0,
            ready_to: None,
            exits: 0,
            repeat_ns: 0,
            refused_writes: 0,
            dropped: [0; 16],
        }
    }

    fn now(&mut self, wire: &dyn Wire) -> u64 {
        self.latest_ns = self.latest_ns.max(wire.now_ns());
        self.latest_ns
    }

    fn long(&self, at: u16) -> u64 {
        let word = |at: u16| u64::from(self.registers.get(&at).copied().unwrap_or(0));
        word(at + 4) << 32 | word(at)
    }

    fn start(&mut self, mode: u32, wire: &mut dyn Wire) -> bool {
        let mask = self.registers.get(&reg::MEMBERS).copied().unwrap_or(0);
        let ids = self.setup.ids.iter().enumerate();
        self.members = ids.filter(|(rank, _)| mask >> rank & 1 == 1).map(|(_, id)| *id).collect();
        let (me, config, members, now_ns) = (self.setup.me, self.setup.config, self.members.clone(), self.now(wire));
        let leader = self.registers.get(&reg::BEGIN_LEADER).map_or(0, |rank| *rank as usize);
        let Some(&leader) = self.setup.ids.get(leader) else { return false };
        let begin = StartPoint { round: self.long(reg::BEGIN_ROUND), leader, next: self.long(reg::BEGIN_NEXT) };
        let made = match mode {
            1 => Lowi::new(me, config, members, begin.next, Start::Together, now_ns),
            2 => Lowi::new(me, config, members, begin.next, Start::OnMessage, now_ns),
            _ => Lowi::join(me, config, members, begin, now_ns),
        };
        let Ok(engine) = made else { return false };
        self.engine = Some(engine);
        wire.note(now_ns, Note::Started { mode, members: &self.members, begin });
        // At the time of the start, before anything else: what came before it is no round that a joiner could count from.
        for (path, _, frame) in std::mem::take(&mut self.kept).into_iter().filter(|_| mode == 3) {
            self.hand(path, now_ns, &frame, wire);
        }
        self.act(wire);
        true
    }

    /// Hands a frame to the core.
    fn hand(&mut self, path: usize, arrived_ns: u64, frame: &[u8], wire: &mut dyn Wire) {
        let Some(engine) = &mut self.engine else { return };
        if let Err(why) = frame::decode(frame, self.setup.cluster, &self.setup.keys()) {
            self.dropped[dropped(why)] += 1;
            return;
        }
        self.latest_ns = self.latest_ns.max(arrived_ns);
        let at_ns = self.latest_ns;
        // A round is judged by its path; requests come by any.
        match accept(&self.setup, Some(path as u8), frame).or_else(|| accept(&self.setup, None, frame)) {
            Some((from, message @ Message::Round(_))) => {
                let _ = engine.handle_copy(arrived_ns, from, path, message);
            }
            Some((from, message)) => {
                let _ = engine.handle_message(arrived_ns, from, message);
            }
            None => self.dropped[11] += 1,
        }
        wire.note(at_ns, Note::Handed { path, frame, halted: engine.halted().is_some() });
    }

    fn link(&mut self, to: MemberId, message: &Message, wire: &mut dyn Wire) {
        self.number += 1;
        for path in 0..self.setup.config.paths {
            let frame = encode(&self.setup, self.setup.me, path as u8, self.number, wire.now_ns(), message);
            // One that arrives is enough; a duplicate is refused.
            if wire.send(path, Some(to), &frame) && matches!(message, Message::Forward(_)) {
                break;
            }
        }
    }

    /// Does what the core asks for.
    fn act(&mut self, wire: &mut dyn Wire) {
        loop {
            let now_ns = self.now(wire);
            let Some(engine) = &mut self.engine else { return };
            let Some(action) = engine.poll_action() else {
                match engine.poll_timeout() {
                    Some(due_ns) if due_ns <= now_ns => engine.handle_timeout(now_ns),
                    _ => return,
                }
                continue;
            };
            match action {
                Action::Copies { message } => {
                    self.number += 1;
                    let sent_ns = if let Message::Round(round) = &message { round.sent_ns } else { wire.now_ns() };
                    let mut left = true;
                    for path in 0..self.setup.config.paths {
                        let frame = encode(&self.setup, self.setup.me, path as u8, self.number, sent_ns, &message);
                        left &= wire.send(path, None, &frame);
                    }
                    if !left {
                        engine.handle_network_fault(wire.now_ns());
                    }
                }
                Action::Send { to, message: Message::Ready } => self.ready_to = Some(to),
                Action::Send { message: Message::Exit, .. } => self.exits = EXITS,
                Action::Send { to, message } => self.link(to, &message, wire),
                Action::Decide { instance, batch } => {
                    let members = members_behind(&self.members, &batch);
                    if let Some(members) = members {
                        self.members = members.clone();
                        let _ = engine.set_members(now_ns, instance + 1, members);
                    }
                    self.decided.push_back(Decision { instance, leader: None, batch });
                }
                _ => {}
            }
        }
    }

    fn repeat(&mut self, wire: &mut dyn Wire) {
        if wire.now_ns() < self.repeat_ns {
            return;
        }
        self.repeat_ns = wire.now_ns() + u64::from(self.setup.retry_ns);
        let waits = self.engine.as_ref().is_some_and(|engine| engine.halted().is_none() && engine.round() == 0);
        if let Some(to) = self.ready_to.filter(|_| waits) {
            self.link(to, &Message::Ready, wire);
        }
        if self.exits > 0 {
            self.exits -= 1;
            let others: Vec<MemberId> = self.members.iter().filter(|id| *id != self.setup.me).collect();
            others.into_iter().for_each(|to| self.link(to, &Message::Exit, wire));
        }
    }

    fn status(&self) -> u32 {
        let Some(engine) = &self.engine else { return 0 };
        let halted = match engine.halted() {
            None => 0,
            Some(Halted::NetworkFault) => 1,
            Some(Halted::MissingBroadcast) => 2,
            Some(Halted::Expelled) => 3,
            Some(Halted::Left) => 4,
            Some(_) => 5,
        };
        let leader = engine.leader();
        let rank = leader.and_then(|leader| self.setup.rank(leader)).unwrap_or(0);
        1 << reg::STATUS_RUNNING
            | halted << reg::STATUS_HALTED
            | u32::from(leader == Some(self.setup.me)) << reg::STATUS_LEADS
            | u32::from(leader.is_some()) << reg::STATUS_HAS_LEADER
            | rank << reg::STATUS_LEADER
            | u32::from(engine.round() > 0) << reg::STATUS_HEARD
    }
}

impl Member for Software {
    fn read(&mut self, at: u16, wire: &mut dyn Wire) -> Option<u32> {
        let engine = self.engine.as_ref();
        let long = |base: u16, value: u64| (if at == base { value } else { value >> 32 }) as u32;
        let (round, decided) = engine.map_or((0, 0), |engine| (engine.round(), engine.decided_through()));
        Some(match at {
            // The same map; the parameters say that it holds what the engine in hardware does.
            reg::ID => 0xf1de_0201,
            reg::PARAMS => {
                1 << reg::PARAMS_TAG_WORDS | 4 << reg::PARAMS_CLK_NS | 8 << reg::PARAMS_WINDOW | 2 << reg::PARAMS_PATHS | 8
            }
            reg::STATUS => self.status(),
            reg::REFUSED_WRITES => self.refused_writes,
            reg::REFUSED => engine.map_or(0, |engine| engine.refusals().total() as u32),
            _ if at & !7 == reg::ROUND => long(reg::ROUND, round),
            _ if at & !7 == reg::NEXT => long(reg::NEXT, decided + 1),
            _ if at & !7 == reg::DECIDED => long(reg::DECIDED, decided),
            _ if at & !7 == reg::TIME => long(reg::TIME, wire.now_ns()),
            _ if (reg::DROPPED..reg::DROPPED + 64).contains(&at) => self.dropped[usize::from(at - reg::DROPPED) / 4],
            _ if (reg::KEY..reg::KEY + 16).contains(&at) => return None,
            _ => *self.registers.get(&at)?,
        })
    }

    fn write(&mut self, at: u16, value: u32, wire: &mut dyn Wire) -> bool {
        let running = self.engine.is_some();
        let now_ns = self.now(wire);
        let taken = match (at, value) {
            (reg::COMMAND, 1..=3) => !running && self.start(value, wire),
            (reg::COMMAND, 4) => {
                self.engine = None;
                (self.ready_to, self.exits) = (None, 0);
                wire.note(now_ns, Note::Stopped);
                true
            }
            (reg::COMMAND, 5) => self.engine.as_mut().map(|engine| engine.handle_network_fault(now_ns)).is_some(),
            (reg::CRASH, rank) => match (self.setup.ids.get(rank as usize), &mut self.engine) {
                (Some(&dead), Some(engine)) => {
                    wire.note(now_ns, Note::Reported(dead));
                    engine.handle_crash(now_ns, dead).is_ok()
                }
                _ => false,
            },
            (reg::RATE_GAP | reg::RATE_BURST | reg::RETRY, _) => self.registers.insert(at, value).is_some(),
            _ => !running && self.registers.contains_key(&at) && self.registers.insert(at, value).is_some(),
        };
        self.refused_writes += u32::from(!taken);
        self.act(wire);
        taken
    }

    fn frame(&mut self, path: usize, arrived_ns: u64, frame: &[u8], wire: &mut dyn Wire) {
        if self.engine.is_none() {
            if self.kept.len() == KEPT_MAX {
                self.kept.pop_front();
            }
            self.kept.push_back((path, arrived_ns, frame.to_vec()));
            return;
        }
        self.hand(path, arrived_ns, frame, wire);
        self.act(wire);
    }

    fn propose(&mut self, entry: Entry, wire: &mut dyn Wire) -> Result<(), String> {
        let now_ns = self.now(wire);
        let Some(engine) = &mut self.engine else { return Err("the member was not started".into()) };
        let result = engine.propose(now_ns, entry).map_err(|why| format!("the core refuses it: {why:?}"));
        self.act(wire);
        result
    }

    fn advance(&mut self, wire: &mut dyn Wire) {
        let now_ns = self.now(wire);
        if let Some(engine) = &mut self.engine {
            engine.handle_timeout(now_ns);
        }
        self.act(wire);
        self.repeat(wire);
    }

    fn due_ns(&self) -> u64 {
        let due_ns = self.engine.as_ref().and_then(Engine::poll_timeout).unwrap_or(u64::MAX);
        let repeats = self.exits > 0 || self.ready_to.is_some();
        due_ns.min(if repeats { self.repeat_ns } else { u64::MAX })
    }

    fn decisions(&mut self) -> VecDeque<Decision> {
        std::mem::take(&mut self.decided)
    }

    fn point(&self) -> Option<(StartPoint, MemberSet)> {
        let bytes = self.engine.as_ref()?.start_point()?;
        Some((StartPoint::from_value(&bytes)?, self.members.clone()))
    }

    fn halted(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.halted().is_some())
    }

    fn kind(&self) -> &'static str {
        "software"
    }
}
