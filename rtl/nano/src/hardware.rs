//! The engine in hardware: its Verilator model, clocked by this process.
//!
//! A clock of the model takes microseconds here and not 4 ns, so time does not grow by itself: the model's clock is set, as a
//! NIC's is by its time stamps. A frame is handed in at the time of its arrival, and the present time is read anew *behind* the
//! sending of a frame and before the engine is told that it left. So whatever this process is late by counts against the
//! member, and safety rests on what it does in hardware, too: a member that was too late leaves.

use crate::member::{Decision, KEPT_MAX, Member, Note, Wire, members_behind};
use fide_proto::consensus::lowi::{Message, StartPoint};
use fide_proto::group::{Entry, MemberSet};
use fide_rtl::frames::{encode, entries};
use fide_rtl::model::{CLK_NS, In, Library, Model, Out};
use fide_rtl::reg;
use fide_rtl::setup::Setup;
use fide_wire::frame::Kind;
use fide_wire::frame::group::LowiKind;
use std::collections::VecDeque;

/// The model is looked at so often (ns): its deadlines cannot be read.
const LOOK_NS: u64 = 200_000;
/// Clocks without anything under way behind which the model rests.
const QUIET: u32 = 6;
/// Where the kind and the type of a message are in a frame.
const KIND_AT: usize = 16;
const TYPE_AT: usize = 55;

/// A member in hardware.
pub struct Hardware {
    model: Model,
    setup: Setup,
    time_ns: u64,
    /// The model's time is at least this at its next clock.
    reach_ns: u64,
    ready: u8,
    sending: [Vec<u8>; 2],
    deciding: Vec<u8>,
    decided: VecDeque<Decision>,
    members: MemberSet,
    /// Where a joiner would begin: behind the last round that was delivered here or has left.
    point: Option<StartPoint>,
    /// The last round and its leader, as the engine had them at once.
    last: (u64, usize),
    kept: VecDeque<(usize, Vec<u8>)>,
    running: bool,
    halted: bool,
    admitted: u64,
    number: u64,
    set_members: Option<MemberSet>,
    fault: bool,
    looked_ns: u64,
}

fn is_request(frame: &[u8]) -> bool {
    frame.get(KIND_AT) == Some(&(Kind::Message as u8)) && frame.get(TYPE_AT) == Some(&(LowiKind::Forward as u8))
}

impl Hardware {
    /// Out of reset, at the present time.
    #[must_use]
    pub fn new(library: Library, setup: Setup, wire: &mut dyn Wire) -> Self {
        let mut hardware = Self {
            model: Model::new(library),
            members: setup.members.clone(),
            setup,
            time_ns: 0,
            reach_ns: 0,
            ready: 0,
            sending: [Vec::new(), Vec::new()],
            deciding: Vec::new(),
            decided: VecDeque::new(),
            point: None,
            last: (0, 0),
            kept: VecDeque::new(),
            running: false,
            halted: false,
            admitted: 0,
            number: wire.now_ns() / 1_000,
            set_members: None,
            fault: false,
            looked_ns: 0,
        };
        hardware.reach(wire.now_ns(), wire);
        hardware
    }

    /// One clock.
    fn clock(&mut self, mut input: In, wire: &mut dyn Wire) -> Out {
        let step_ns = self.reach_ns.saturating_sub(self.time_ns).clamp(CLK_NS.into(), u32::MAX.into());
        input.time_step = step_ns as u32;
        input.tx_ready = self.ready;
        let out = self.model.step(&input);
        self.time_ns += step_ns;
        self.running = out.running == 1;
        self.halted = out.halted != 0;
        if out.round != self.last.0 {
            // Whoever speaks is waited for again at once: in this clock it is the leader.
            self.last = (out.round, usize::from(out.leader));
        }
        self.admitted += u64::from(out.admit);
        let taken = std::mem::take(&mut self.ready);
        for path in 0..2usize {
            let bit = 1 << path;
            // A word is looked at first and taken in the next clock.
            if out.tx_valid & !taken & bit == 0 {
                continue;
            }
            let len = out.tx_keep[path].count_ones() as usize;
            self.sending[path].extend_from_slice(&out.tx_data[path][..len]);
            self.ready |= bit;
            if out.tx_last & bit != 0 {
                let user = out.tx_user >> (5 * path) & 31;
                let to = (user & 16 != 0).then(|| self.setup.ids.get(usize::from(user & 15)).copied()).flatten();
                let frame = std::mem::take(&mut self.sending[path]);
                self.fault |= !wire.send(path, to, &frame);
                // Only now has it left.
                self.reach_ns = self.reach_ns.max(wire.now_ns());
            }
        }
        if out.dec_valid == 1 {
            self.deciding.extend_from_slice(&out.dec_data[..out.dec_keep.count_ones() as usize]);
            if out.dec_last == 1 {
                let bytes = std::mem::take(&mut self.deciding);
                self.decide(&bytes, usize::from(out.dec_user));
            }
        }
        out
    }

    fn decide(&mut self, bytes: &[u8], rank: usize) {
        let word = |at: usize| bytes.get(at..at + 8).and_then(|w| w.try_into().ok()).map_or(0, u64::from_be_bytes);
        let count = bytes.get(16..18).map_or(0, |w| u16::from_be_bytes([w[0], w[1]]));
        let batch = bytes.get(24..).and_then(|batch| entries(count, batch)).unwrap_or_default().into();
        let Some(&leader) = self.setup.ids.get(rank) else { return };
        let instance = word(8);
        if let Some(members) = members_behind(&self.members, &batch) {
            self.members = members.clone();
            self.set_members = Some(members);
        }
        self.decided.push_back(Decision { instance, leader: Some(leader), batch });
    }

    /// Sets its clock forward.
    fn reach(&mut self, now_ns: u64, wire: &mut dyn Wire) {
        self.reach_ns = self.reach_ns.max(now_ns);
        while self.time_ns < self.reach_ns {
            self.clock(In::idle(), wire);
        }
    }

    /// Until nothing is under way.
    fn settle(&mut self, wire: &mut dyn Wire) {
        let (mut quiet, mut clocks) = (0, 0);
        while quiet < QUIET && clocks < 100_000 {
            let out = self.clock(In::idle(), wire);
            quiet = if out.busy == 0 && self.ready == 0 { quiet + 1 } else { 0 };
            clocks += 1;
            // Nothing of ours is under way: what was decided is all that was said.
            let (round, rank) = self.last;
            if quiet == QUIET && round > 0 && !self.halted && out.next == out.decided + 1 {
                self.point = self.setup.ids.get(rank).map(|&leader| StartPoint { round, leader, next: out.next });
            }
        }
        if let Some(members) = self.set_members.take() {
            // Of more members each may be late by less.
            let late_ns = self.setup.config.late_ns(members.len()).unwrap_or(0);
            let mask = self.setup.mask(&members);
            self.put(reg::LATE, late_ns as u32, wire);
            self.put(reg::LATE + 4, (late_ns >> 32) as u32, wire);
            self.put(reg::SET_MEMBERS, mask, wire);
            self.settle(wire);
        }
        if std::mem::take(&mut self.fault) && self.running {
            self.put(reg::COMMAND, 5, wire);
            self.settle(wire);
        }
    }

    fn put(&mut self, at: u16, value: u32, wire: &mut dyn Wire) -> bool {
        self.clock(In { awvalid: 1, awaddr: at.into(), wdata: value, ..In::idle() }, wire);
        let out = self.clock(In::idle(), wire);
        out.bvalid == 1 && out.bresp == 0
    }

    fn hand(&mut self, path: usize, frame: &[u8], wire: &mut dyn Wire) {
        let at_ns = self.time_ns;
        self.feed((!is_request(frame)).then_some(path), frame, wire);
        wire.note(at_ns, Note::Handed { path, frame, halted: self.halted });
    }

    fn started(&mut self, mode: u32, wire: &mut dyn Wire) {
        let long = |low: Option<u32>, high: Option<u32>| u64::from(high.unwrap_or(0)) << 32 | u64::from(low.unwrap_or(0));
        let round = long(self.read(reg::BEGIN_ROUND, wire), self.read(reg::BEGIN_ROUND + 4, wire));
        let next = long(self.read(reg::BEGIN_NEXT, wire), self.read(reg::BEGIN_NEXT + 4, wire));
        let rank = self.read(reg::BEGIN_LEADER, wire).unwrap_or(0);
        let leader = self.setup.ids.get(rank as usize).copied().unwrap_or(self.setup.begin.leader);
        wire.note(self.time_ns, Note::Started { mode, members: &self.members, begin: StartPoint { round, leader, next } });
    }

    fn feed(&mut self, stream: Option<usize>, frame: &[u8], wire: &mut dyn Wire) {
        let mut words = frame.chunks(self.model.word_bytes).peekable();
        while let Some(word) = words.next() {
            let mut input = In::idle();
            input.word(stream, word, words.peek().is_none());
            self.clock(input, wire);
        }
        self.settle(wire);
    }
}

impl Member for Hardware {
    fn read(&mut self, at: u16, wire: &mut dyn Wire) -> Option<u32> {
        self.clock(In { arvalid: 1, araddr: at.into(), ..In::idle() }, wire);
        let out = self.clock(In::idle(), wire);
        (out.rvalid == 1 && out.rresp == 0).then_some(out.rdata)
    }

    fn write(&mut self, at: u16, value: u32, wire: &mut dyn Wire) -> bool {
        self.reach(wire.now_ns(), wire);
        if at == reg::MEMBERS && !self.running {
            let ids = self.setup.ids.iter().enumerate();
            self.members = ids.filter(|(rank, _)| value >> rank & 1 == 1).map(|(_, id)| *id).collect();
        }
        if !self.put(at, value, wire) {
            return false;
        }
        match (at, value) {
            (reg::COMMAND, 1..=3) => self.started(value, wire),
            (reg::COMMAND, 4) => wire.note(self.time_ns, Note::Stopped),
            (reg::CRASH, rank) => {
                if let Some(&dead) = self.setup.ids.get(rank as usize) {
                    wire.note(self.time_ns, Note::Reported(dead));
                }
            }
            _ => {}
        }
        self.settle(wire);
        if at == reg::COMMAND && matches!(value, 1..=3) {
            let kept = std::mem::take(&mut self.kept);
            for (path, frame) in kept.into_iter().filter(|_| value == 3) {
                self.hand(path, &frame, wire);
            }
        }
        true
    }

    fn frame(&mut self, path: usize, arrived_ns: u64, frame: &[u8], wire: &mut dyn Wire) {
        if frame.is_empty() {
            return;
        }
        if !self.running {
            if self.kept.len() == KEPT_MAX {
                self.kept.pop_front();
            }
            self.kept.push_back((path, frame.to_vec()));
            return;
        }
        self.reach(arrived_ns, wire);
        self.hand(path, frame, wire);
    }

    fn propose(&mut self, entry: Entry, wire: &mut dyn Wire) -> Result<(), String> {
        self.reach(wire.now_ns(), wire);
        self.number += 1;
        let (before, number) = (self.admitted, self.number);
        let frame = encode(&self.setup, self.setup.me, 0, number, self.time_ns, &Message::Forward(entry));
        if frame.len() > 64 * (1 + fide_rtl::frames::BEATS_MAX) || frame.is_empty() {
            return Err("the value is too long: the engine takes at most 984 bytes".into());
        }
        self.feed(None, &frame, wire);
        if self.admitted > before {
            return Ok(());
        }
        Err("the engine dropped it: only the leader takes requests, at most as many as its rate allows and its FIFO holds".into())
    }

    fn advance(&mut self, wire: &mut dyn Wire) {
        self.looked_ns = wire.now_ns();
        self.reach(self.looked_ns, wire);
        self.settle(wire);
    }

    fn due_ns(&self) -> u64 {
        if self.running { self.looked_ns + LOOK_NS } else { u64::MAX }
    }

    fn decisions(&mut self) -> VecDeque<Decision> {
        std::mem::take(&mut self.decided)
    }

    fn point(&self) -> Option<(StartPoint, MemberSet)> {
        Some((self.point?, self.members.clone()))
    }

    fn halted(&self) -> bool {
        self.halted
    }

    fn kind(&self) -> &'static str {
        "hardware-model"
    }
}
