//! Figures of the engine, in clocks of its model: they are the design's, whatever runs it. Nothing here is a time of this host.

use crate::frames::encode;
use crate::model::{CLK_NS, In, Library, Model, Out};
use crate::reg;
use crate::setup::{Built, Setup};
use fide_proto::consensus::lowi::{self, Message, Round, Since, StartPoint};
use fide_proto::group::{Body, Entry, EntryId, MemberId};
use fide_wire::mac::Key;

/// From one round to the next (clocks): longer than anything that is measured within one.
const PERIOD: u64 = 1_500;
/// Frames in a row, for rates.
const FRAMES: u64 = 512;
/// The DROPPED counter of frames that found no lane, buffer or place in a FIFO.
const NO_ROOM: u16 = 13;

/// What a model was built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Bits of its streams.
    pub bits: usize,
    /// 64-bit words hashed each clock; 0: no tags.
    pub tag_words: u32,
    /// Ranks.
    pub members: usize,
}

/// A silent leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failover {
    /// From the last byte of the leader's last copy to the first byte of its successor's first round.
    pub clocks: u64,
    /// Of these the wait that the settings ask for.
    pub configured: u64,
}

/// One engine, and what is on its outputs.
struct Rig {
    model: Model,
    setup: Setup,
    /// Number of the present clock.
    now: u64,
    sending: Vec<u8>,
    begun: u64,
    /// First clock and bytes of each frame that left on path 0.
    sent: Vec<(u64, Vec<u8>)>,
    /// Clocks in which a decision's first word was offered.
    decided: Vec<u64>,
    deciding: bool,
    time_ns: u64,
    round: u64,
}

/// What the library's engines were built with.
#[must_use]
pub fn params(library: Library) -> Params {
    let mut model = Model::new(library);
    let value = model.read(reg::PARAMS).unwrap_or(0);
    Params {
        bits: 8 * model.word_bytes,
        tag_words: value >> reg::PARAMS_TAG_WORDS & 15,
        members: (value >> reg::PARAMS_MEMBERS & 255) as usize,
    }
}

impl Rig {
    /// A member of a group of so many, with its settings.
    fn new(library: Library, members: usize, rank: usize, retry_ns: u32) -> Result<Self, String> {
        let ids: Vec<MemberId> = (1..=members as u16).map(MemberId).collect();
        let clk_ns = u64::from(CLK_NS);
        let delta_i_ns = 1_000 * clk_ns;
        let config = lowi::Config {
            delta_w_ns: delta_i_ns + 1_000 * clk_ns,
            drift_ppm: 0,
            batch_entries_max: 1,
            batch_bytes_max: 984,
            hurry: true,
            rounds_max: 4,
            ..lowi::Config::new(PERIOD * clk_ns, delta_i_ns)
        };
        let setup = Setup {
            config,
            me: ids[rank],
            members: ids.iter().copied().collect(),
            begin: StartPoint { round: 0, leader: ids[0], next: 1 },
            ids,
            cluster: 1,
            sender: 1,
            incarnation: 1,
            group: 1,
            generation: 1,
            key: (0, Key::PUBLIC),
            clk_ns,
            retry_ns,
            rate: (0, 1),
        };
        let members = params(library).members as u64;
        setup.check(Built { members, ..Built::default() }).map_err(|why| why.to_string())?;
        let mut model = Model::new(library);
        for (at, value) in setup.writes() {
            if !model.write(at, value) {
                return Err(format!("a write of {value:#x} to {at:#x} was refused"));
            }
        }
        let (sending, sent, decided) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { model, setup, now: 0, sending, begun: 0, sent, decided, deciding: false, time_ns: 0, round: 0 })
    }

    fn clock(&mut self, input: &In) -> Out {
        let out = self.model.step(input);
        if out.tx_valid & input.tx_ready & 1 != 0 {
            if self.sending.is_empty() {
                self.begun = self.now;
            }
            self.sending.extend_from_slice(&out.tx_data[0][..out.tx_keep[0].count_ones() as usize]);
            if out.tx_last & 1 != 0 {
                self.sent.push((self.begun, std::mem::take(&mut self.sending)));
            }
        }
        if out.dec_valid == 1 {
            if !self.deciding {
                self.decided.push(self.now);
            }
            self.deciding = out.dec_last == 0;
        }
        (self.time_ns, self.round) = (out.time, out.round);
        self.now += 1;
        out
    }

    fn idle(&mut self, clocks: u64) {
        for _ in 0..clocks {
            self.clock(&In::idle());
        }
    }

    fn command(&mut self, at: u16, value: u32) -> Result<u64, String> {
        let written = self.now;
        self.clock(&In { awvalid: 1, awaddr: at.into(), wdata: value, ..In::idle() });
        let out = self.clock(&In::idle());
        if out.bvalid == 1 && out.bresp == 0 { Ok(written) } else { Err(format!("a write of {value:#x} to {at:#x} was refused")) }
    }

    /// Frames on streams at the same time, a word each clock; the clock of the last word.
    fn feed(&mut self, frames: &[(Option<usize>, Vec<u8>)]) -> u64 {
        let bytes = self.model.word_bytes;
        let words = frames.iter().map(|(_, frame)| frame.len().div_ceil(bytes)).max().unwrap_or(0);
        for word in 0..words {
            let mut input = In::idle();
            for (stream, frame) in frames {
                if let Some(part) = frame.chunks(bytes).nth(word) {
                    input.word(*stream, part, (word + 1) * bytes >= frame.len());
                }
            }
            self.clock(&input);
        }
        self.now - 1
    }

    /// Clocks until something is so.
    fn until(&mut self, what: &str, most: u64, so: impl Fn(&Self) -> bool) -> Result<(), String> {
        let end = self.now + most;
        while !so(self) {
            if self.now == end {
                return Err(format!("within {most} clocks there was no {what}"));
            }
            let out = self.clock(&In::idle());
            if out.halted != 0 {
                return Err(format!("the engine halted ({}) before there was {what}", out.halted));
            }
        }
        Ok(())
    }

    /// Copies of a round of rank 0, on both paths at the same time, or apart.
    fn round(&mut self, number: u64, instance: u64, value: Option<usize>, apart: bool) -> u64 {
        let leader = self.setup.ids[0];
        let batch: Vec<Entry> = value.map(|size| entry(leader, instance, size)).into_iter().collect();
        let sent_ns = self.time_ns;
        let message = Message::Round(Round { round: number, leader, instance, sent_ns, batch: batch.into() });
        let copies: Vec<_> =
            (0..2).map(|path| (Some(usize::from(path)), encode(&self.setup, leader, path, number, sent_ns, &message))).collect();
        if apart {
            self.feed(&copies[..1]);
            self.idle(16);
        }
        self.feed(&copies[usize::from(apart)..])
    }

    fn dropped(&mut self) -> Vec<u64> {
        (0..16).map(|i| self.model.read(reg::DROPPED + 4 * i).unwrap_or(0).into()).collect()
    }
}

fn entry(proposer: MemberId, number: u64, size: usize) -> Entry {
    Entry { id: EntryId { proposer, number }, body: Body::Value(vec![0x5a; size].as_slice().into()) }
}

/// From the last byte of a request to the first byte of its proposal, for a request that comes just in time for a round; one
/// that comes later waits for the next.
///
/// # Errors
/// What the engine did instead.
pub fn request_to_proposal(library: Library, members: usize, size: usize) -> Result<u64, String> {
    let mut rig = Rig::new(library, members, 0, 400)?;
    rig.command(reg::COMMAND, 1)?;
    rig.until("first round", 4 * PERIOD, |rig| rig.round > 0)?;
    let (mut spoke, mut number, me) = (rig.now - 1, 0, rig.setup.me);
    // The request's last word comes so many clocks before the round begins: at `late` it is too late, at `early` in time.
    let (mut late, mut early, mut found) = (0, PERIOD / 2, None);
    while early - late > 1 || found.is_none() {
        let before = (late + early) / 2 + u64::from(found.is_none() && early - late <= 1);
        number += 1;
        let frame = encode(&rig.setup, me, 0, number, 0, &Message::Forward(entry(me, number, size)));
        let words = frame.len().div_ceil(rig.model.word_bytes) as u64;
        let (round, first) = (rig.round, spoke + PERIOD - before + 1 - words);
        rig.until("room for the request", 2 * PERIOD, |rig| rig.now == first)?;
        let fed = rig.feed(&[(None, frame)]);
        rig.until("next round", 2 * PERIOD, |rig| rig.round > round)?;
        spoke = rig.now - 1;
        let proposal = rig.sent.len();
        rig.until("proposal", 4 * PERIOD, |rig| {
            rig.sent.len() > proposal && rig.sent.iter().skip(proposal).any(|(_, f)| f.len() > 88)
        })?;
        let begun = rig.sent.iter().skip(proposal).find(|(_, frame)| frame.len() > 88).map_or(0, |(begun, _)| *begun);
        if begun < spoke + PERIOD - 1 {
            (early, found) = (before, Some(begun - fed));
        } else {
            late = before;
        }
        // In a round that carries nothing of the trial.
        let round = rig.round;
        rig.until("next round", 2 * PERIOD, |rig| rig.round > round)?;
        spoke = rig.now - 1;
        if late + 1 >= PERIOD / 2 {
            return Err("no request was proposed in the round before which it came".into());
        }
    }
    found.ok_or_else(|| "no request was proposed".into())
}

/// From the last byte of a proposal to the first byte of the decision, the most of some rounds. The copies come on all paths at
/// the same time, so that they are matched one after the other; or, `apart`, the second one when the first has been matched.
///
/// # Errors
/// What the engine did instead.
pub fn proposal_to_decision(library: Library, members: usize, size: usize, apart: bool) -> Result<u64, String> {
    let mut rig = Rig::new(library, members, 1, 400)?;
    rig.command(reg::COMMAND, 1)?;
    let mut most = 0;
    for number in 1..=8 {
        let fed = rig.round(number, number, Some(size), apart);
        rig.until("decision", PERIOD, |rig| rig.decided.len() as u64 == number)?;
        most = most.max(rig.decided.last().map_or(0, |at| at - fed));
        let next = fed + PERIOD;
        rig.until("next round", 2 * PERIOD, |rig| rig.now >= next)?;
    }
    Ok(most)
}

/// Frames of so many bytes, back to back on one path: how many were judged in how many clocks. They are of another
/// generation, so that it is the receiving side that is measured and not the core.
///
/// # Errors
/// What the engine did instead.
pub fn accepted(library: Library, bytes: usize) -> Result<(u64, u64), String> {
    let mut rig = Rig::new(library, 3, 1, 400)?;
    let other = Setup { generation: 2, ..rig.setup.clone() };
    let leader = other.ids[0];
    let frame = if bytes <= 64 {
        encode(&other, leader, 0, 1, 0, &Message::Exit)
    } else {
        let batch = vec![entry(leader, 1, bytes - 104)].into();
        encode(&other, leader, 0, 1, 0, &Message::Round(Round { round: 1, leader, instance: 1, sent_ns: 0, batch }))
    };
    let (before, begun) = (rig.dropped(), rig.now);
    for _ in 0..FRAMES {
        rig.feed(&[(Some(0), frame.clone())]);
    }
    let clocks = rig.now - begun;
    rig.idle(4 * FRAMES);
    let after = rig.dropped();
    let dropped: u64 = after.iter().zip(&before).map(|(after, before)| after - before).sum();
    if dropped != FRAMES {
        return Err(format!("of {FRAMES} frames {dropped} were counted"));
    }
    Ok((FRAMES - (after[usize::from(NO_ROOM)] - before[usize::from(NO_ROOM)]), clocks))
}

/// Frames of 64 bytes that leave on a path in so many clocks, when there is always one more to send.
///
/// # Errors
/// What the engine did instead.
pub fn generated(library: Library) -> Result<(u64, u64), String> {
    let mut rig = Rig::new(library, 3, 1, 0)?;
    rig.command(reg::COMMAND, 2)?;
    rig.until("ready", PERIOD, |rig| !rig.sent.is_empty())?;
    let (before, clocks) = (rig.sent.len(), 2_048);
    rig.idle(clocks);
    Ok(((rig.sent.len() - before) as u64, clocks))
}

/// A leader that falls silent after a round; with a certain report of its crash, or without.
///
/// # Errors
/// What the engine did instead.
pub fn failover(library: Library, members: usize, reported: bool) -> Result<Failover, String> {
    let mut rig = Rig::new(library, members, 1, 400)?;
    rig.command(reg::COMMAND, 1)?;
    let mut from = rig.round(1, 1, None, false);
    let (config, members) = (rig.setup.config, rig.setup.members.len());
    let late_ns = config.late_ns(members).ok_or("the settings have no Δ_W")?;
    let mut wait_ns = config.wait_ns(1, Since::Round, late_ns);
    if reported {
        rig.idle(64);
        from = rig.command(reg::CRASH, 0)?;
        wait_ns = config.flight_ns();
    }
    rig.until("round of the successor", 8 * PERIOD, |rig| !rig.sent.is_empty())?;
    let begun = rig.sent.first().map_or(0, |(begun, _)| *begun);
    Ok(Failover { clocks: begun - from, configured: wait_ns.div_ceil(CLK_NS.into()) })
}
