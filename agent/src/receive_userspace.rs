//! The receive program in user space, for hosts or interfaces where XDP is not to be had.
//!
//! It makes the same decisions in the same order as `xdp/src/bpf/receive.h` and keeps the same table, so that the rest of the agent
//! cannot tell which of the two is at work. What it costs: every packet waits for the stack and for this agent's turn on the processor.

use fide_wire::event::{Record, RecordKind};
use fide_wire::jitter;
use fide_wire::mac::Keyring;
use fide_wire::packet::{self, Header, Kind, Notice, Packet, Refusal};
use fide_wire::{PATHS, SLOTS};
use fide_xdp::Used;
use fide_xdp::layout::{INTRODUCTIONS, Jitter, Peer, Source, words};
use std::collections::HashMap;
use std::net::IpAddr;

/// Who receives.
#[derive(Clone, Copy, Debug)]
pub struct Me {
    /// Cluster id.
    pub cluster: u32,
    /// Node id.
    pub node: u32,
    /// Incarnation.
    pub incarnation: u32,
    /// The highest number of a heartbeat that it sent, and of anything else.
    pub sent: (u64, u64),
}

/// What an accepted packet asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Accepted<'a> {
    /// The table was updated, nothing else to do.
    Heartbeat,
    /// Notices: [`UserspaceTable::records`] says what would lie in the urgent ring.
    Notices(Packet<'a>),
    /// Anything else: announcements, reports, pulls, rows, heartbeats with a piggyback (already in the table).
    Packet(Packet<'a>),
    /// Another agent asks this host's kernel whether it is there: nothing to do, and nothing to count.
    Probe,
}

/// As `struct fide_stranger`.
#[derive(Clone, Copy, Default)]
struct Stranger {
    number: [u64; PATHS],
    second: u64,
    heard: usize,
}

/// Most of them that are remembered (`FIDE_STRANGERS`). Beyond it all are forgotten.
const STRANGERS: usize = 2048;

#[derive(Clone, Copy, Default)]
struct Seen {
    incarnation: u32,
    highest: u32,
    window: u64,
}

/// Which copies, or messages, of one peer and path were taken: each once, in any order.
#[derive(Clone, Copy, Default)]
struct Taken {
    highest: u64,
    /// Bit i: highest − i.
    window: u64,
}

impl Taken {
    fn first(&mut self, number: u64) -> bool {
        if number > self.highest {
            let step = number - self.highest;
            self.window = if step > 63 { 1 } else { self.window << step | 1 };
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        let is_first = behind < 64 && self.window >> behind & 1 == 0;
        self.window |= if is_first { 1 << behind } else { 0 };
        is_first
    }
}

/// The table and its counters.
pub struct UserspaceTable {
    peers: Vec<Peer>,
    jitter: Vec<Jitter>,
    seen: Vec<Seen>,
    copies: Vec<[Taken; PATHS]>,
    messages: Vec<[Taken; PATHS]>,
    slot_of: HashMap<u32, usize>,
    strangers: HashMap<(u32, u32), Stranger>,
    /// By reason, in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::COUNT],
    /// Packets of this name that this incarnation did not send.
    pub not_sent: u64,
    /// By reason and path: how many came, and where the last came from.
    pub sources: [[Source; PATHS]; Refusal::COUNT],
    /// The same of questions of other agents.
    pub probes: [Source; PATHS],
}

impl Default for UserspaceTable {
    fn default() -> Self {
        Self {
            peers: vec![Peer::default(); SLOTS],
            jitter: vec![[0; jitter::BUCKETS]; SLOTS * PATHS],
            seen: vec![Seen::default(); SLOTS],
            copies: vec![[Taken::default(); PATHS]; SLOTS],
            messages: vec![[Taken::default(); PATHS]; SLOTS],
            slot_of: HashMap::new(),
            strangers: HashMap::new(),
            refused: [0; Refusal::COUNT],
            not_sent: 0,
            sources: [[Source::default(); PATHS]; Refusal::COUNT],
            probes: [Source::default(); PATHS],
        }
    }
}

impl UserspaceTable {
    /// Decides on one UDP payload. `by_group`: it was sent to the path's group.
    ///
    /// # Errors
    /// The reason, counted.
    pub fn accept<'a>(
        &mut self,
        bytes: &'a [u8],
        path: u8,
        (from, by_group): (IpAddr, bool),
        now_ns: u64,
        me: &Me,
        keys: &Keyring,
    ) -> Result<Accepted<'a>, Refusal> {
        let row = usize::from(path).min(PATHS - 1);
        if fide_lane::probe::is_probe(bytes) {
            note(&mut self.probes[row], from, now_ns);
            return Ok(Accepted::Probe);
        }
        let result = self.decide(bytes, path, by_group, now_ns, me, keys);
        let own = matches!(&result, Ok(Accepted::Packet(p)) if p.header.sender == me.node);
        if let Some(reason) = result.as_ref().err().copied().or(own.then_some(Refusal::Own)) {
            self.refused[reason as usize] += 1;
            note(&mut self.sources[reason as usize][row], from, now_ns);
        }
        result
    }

    fn decide<'a>(
        &mut self,
        bytes: &'a [u8],
        path: u8,
        by_group: bool,
        now_ns: u64,
        me: &Me,
        keys: &Keyring,
    ) -> Result<Accepted<'a>, Refusal> {
        let packet = packet::decode(bytes, me.cluster, keys)?;
        let h = packet.header;
        if h.path != path || usize::from(path) >= PATHS {
            return Err(Refusal::WrongPath);
        }
        if h.sender == me.node {
            let sent = if h.kind == Kind::Heartbeat { me.sent.0 } else { me.sent.1 };
            self.not_sent += u64::from(h.incarnation != me.incarnation || h.number > sent);
            let shown = h.kind == Kind::Introduction && self.introduce(&h, now_ns).is_ok();
            return if shown { Ok(Accepted::Packet(packet)) } else { Err(Refusal::Own) };
        }
        let Some(&slot) = self.slot_of.get(&h.sender) else {
            if !matches!(h.kind, Kind::Introduction | Kind::Hello) {
                return Err(Refusal::UnknownSender);
            }
            return self.introduce(&h, now_ns).map(|()| Accepted::Packet(packet));
        };
        let peer = &mut self.peers[slot];
        if h.incarnation != peer.incarnation || peer.condemned != 0 {
            // A newer incarnation asks others, and begins with an announcement. Who was given up may have given us up: only its report says so.
            if h.incarnation > peer.incarnation && h.kind == Kind::Introduction || h.kind == Kind::Hello {
                return self.introduce(&h, now_ns).map(|()| Accepted::Packet(packet));
            }
            if h.incarnation == peer.incarnation && h.kind == Kind::PathReport {
                let told = &mut peer.told[usize::from(path)];
                if h.number as u32 <= *told {
                    return Err(Refusal::OldNumber);
                }
                *told = h.number as u32;
                return Ok(Accepted::Packet(packet));
            }
            return Err(Refusal::OldIncarnation);
        }
        let row = &mut peer.path[usize::from(path)];
        if h.kind == Kind::Copy {
            // One that is refused stops its receiver, so a frame of another receive queue may
            // overtake it.
            if !self.copies[slot][usize::from(path)].first(h.number) {
                row.refused += 1;
                return Err(Refusal::OldNumber);
            }
            return Ok(Accepted::Packet(packet));
        }
        if h.kind == Kind::Heartbeat {
            if !by_group && h.number == row.number {
                return Ok(Accepted::Heartbeat); // the copy by unicast of what multicast has brought
            }
            if h.number <= row.number {
                row.refused += 1;
                return Err(Refusal::OldNumber);
            }
            if row.number != 0 {
                if h.number - row.number > 1 {
                    row.lost += h.number - row.number - 1;
                } else if row.arrived_ns != 0 {
                    let excess = (now_ns - row.arrived_ns.min(now_ns)).saturating_sub(h.period_ns.into());
                    let bucket = &mut self.jitter[slot * PATHS + usize::from(path)][jitter::bucket(excess)];
                    *bucket = bucket.wrapping_add(1);
                    row.jitter_max_ns = row.jitter_max_ns.max(excess);
                }
            }
            row.sent_ns = h.sent_ns;
            row.arrived += 1;
            row.arrived_ns = now_ns;
            row.number = h.number;
            if by_group {
                row.by_group = h.number as u32;
            }
            peer.period_ns = h.period_ns;
            if (h.table_version.wrapping_sub(peer.table_version) as i32) > 0 {
                peer.table_version = h.table_version;
            }
            return Ok(if packet.body.is_empty() && packet.items.is_empty() {
                Accepted::Heartbeat
            } else {
                Accepted::Packet(packet)
            });
        }
        if h.kind == Kind::Message && h.number > 0 {
            // A frame of another receive queue may overtake it, too.
            let is_near = h.number.saturating_add(64) > row.event_number;
            if !is_near || !self.messages[slot][usize::from(path)].first(h.number) {
                row.refused += 1;
                return Err(Refusal::OldNumber);
            }
            row.event_number = row.event_number.max(h.number);
            return Ok(Accepted::Packet(packet));
        }
        if h.number <= row.event_number {
            row.refused += 1;
            return Err(Refusal::OldNumber);
        }
        row.event_number = h.number;
        Ok(if packet.notice.is_some() { Accepted::Notices(packet) } else { Accepted::Packet(packet) })
    }

    /// The records of an accepted packet's notices, as they would lie in the urgent ring.
    pub fn records(&mut self, packet: &Packet<'_>, received_ns: u64) -> impl Iterator<Item = Record> {
        let h = packet.header;
        let mut seen = self.slot_of.get(&h.sender).map(|slot| &mut self.seen[*slot]);
        packet.notices().map(move |n| {
            let is_first = seen.as_mut().is_some_and(|seen| seen.first(h.incarnation, n.notice));
            let confirms = if n.flags & Notice::CONFIRMS != 0 { Record::CONFIRMS } else { 0 };
            Record {
                kind: if h.kind == Kind::Leave { RecordKind::Host } else { RecordKind::Process } as u16,
                cause: n.cause as u8,
                grade: n.grade as u8,
                node: h.sender,
                app: n.app,
                incarnation: h.incarnation,
                code: n.code,
                path: h.path,
                flags: confirms | if is_first { 0 } else { Record::DUPLICATE },
                id: u64::from(h.sender) << 32 | u64::from(n.notice),
                event_ns: n.event_ns,
                sent_ns: h.sent_ns,
                received_ns,
                number: h.number,
                ..Record::default()
            }
        })
    }

    /// An announcement of one who is not known: each once, and not more of them in a second than a host makes.
    fn introduce(&mut self, h: &Header, now_ns: u64) -> Result<(), Refusal> {
        let who = (h.sender, h.incarnation);
        if self.strangers.len() >= STRANGERS && !self.strangers.contains_key(&who) {
            self.strangers.clear();
        }
        let stranger = self.strangers.entry(who).or_default();
        let highest = &mut stranger.number[usize::from(h.path)];
        if h.number <= *highest {
            return Err(Refusal::OldNumber);
        }
        *highest = h.number;
        if stranger.second != now_ns >> 30 {
            (stranger.second, stranger.heard) = (now_ns >> 30, 0);
        }
        stranger.heard += 1;
        if stranger.heard <= INTRODUCTIONS { Ok(()) } else { Err(Refusal::RateLimited) }
    }

    /// See [`fide_xdp::Mechanism::set_peer`].
    pub fn set_peer(&mut self, slot: usize, node: u32, incarnation: u32, used: Used) {
        let (number, event_number, by_group) = (used.heartbeats, used.others, used.heartbeats as u32);
        let path = fide_xdp::layout::Path { number, event_number, by_group, ..Default::default() };
        self.peers[slot] = Peer { node, incarnation, path: [path; PATHS], ..Peer::default() };
        self.jitter[slot * PATHS..(slot + 1) * PATHS].fill([0; jitter::BUCKETS]);
        self.copies[slot] = Default::default();
        self.messages[slot] = Default::default();
        self.slot_of.insert(node, slot);
    }

    /// Goes on with what the receive program knew of a peer.
    pub fn go_on(&mut self, slot: usize, known: Peer, jitter: [Jitter; PATHS]) {
        let own = &mut self.peers[slot];
        if known.node == 0 || (known.node, known.incarnation) != (own.node, own.incarnation) {
            return;
        }
        *own = known;
        self.jitter[slot * PATHS..(slot + 1) * PATHS].copy_from_slice(&jitter);
    }

    /// See [`fide_xdp::Mechanism::remove_peer`].
    pub fn remove_peer(&mut self, slot: usize, node: u32) {
        self.slot_of.remove(&node);
        self.peers[slot] = Peer::default();
    }

    /// See [`fide_xdp::Mechanism::condemn`].
    pub fn condemn(&mut self, slot: usize) {
        self.peers[slot].condemned = 1;
    }

    /// See [`fide_xdp::Mechanism::peer`].
    #[must_use]
    pub fn peer(&self, slot: usize) -> Peer {
        self.peers[slot]
    }

    /// See [`fide_xdp::Mechanism::jitter`].
    #[must_use]
    pub fn jitter(&self, slot: usize, path: usize) -> Jitter {
        self.jitter[slot * PATHS + path]
    }

    /// See [`fide_xdp::Mechanism::take_jitter_max`].
    pub fn take_jitter_max(&mut self, slot: usize, path: usize) -> u64 {
        std::mem::take(&mut self.peers[slot].path[path].jitter_max_ns)
    }
}

fn note(source: &mut Source, from: IpAddr, now_ns: u64) {
    source.count += 1;
    (source.last_ns, source.from, source.ip) = (now_ns, words(from), if from.is_ipv4() { 4 } else { 6 });
}

impl Seen {
    fn first(&mut self, incarnation: u32, n: u32) -> bool {
        if self.incarnation != incarnation {
            *self = Self { incarnation, highest: 0, window: u64::MAX };
        }
        if n > self.highest {
            let step = n - self.highest;
            self.window = if step > 63 { 1 } else { self.window << step | 1 };
            self.highest = n;
            return true;
        }
        let back = self.highest - n;
        let fresh = back < 64 && self.window >> back & 1 == 0;
        if fresh {
            self.window |= 1 << back;
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::packet::PACKET_MAX;
    use fide_wire::verdict::{Cause, Grade};

    const ME: Me = Me { cluster: 1, node: 10, incarnation: 5, sent: (100, 10) };
    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 20));

    fn frame(kind: Kind, number: u64, incarnation: u32, path: u8, notice: Option<u32>, body: &[u8]) -> Vec<u8> {
        let mut out = [0; PACKET_MAX];
        let header = Header {
            kind,
            path,
            key_id: 0,
            cluster: 1,
            sender: 20,
            incarnation,
            number,
            sent_ns: 1,
            period_ns: 1000,
            table_version: 3,
            more: false,
        };
        let notice = notice.map(|n| Notice {
            notice: n,
            app: 3,
            cause: Cause::Killed,
            grade: Grade::Certain,
            flags: 0,
            code: 9,
            event_ns: 4,
        });
        let len = packet::encode(&mut out, &header, notice.as_ref(), body, &Keyring::default()).unwrap();
        out[..len].to_vec()
    }

    fn of(sender: u32, kind: Kind, number: u64, incarnation: u32) -> Vec<u8> {
        let mut out = [0; PACKET_MAX];
        let header = Header {
            kind,
            path: 0,
            key_id: 0,
            cluster: 1,
            sender,
            incarnation,
            number,
            sent_ns: 1,
            period_ns: 1000,
            table_version: 3,
            more: false,
        };
        let len = packet::encode(&mut out, &header, None, b"{}", &Keyring::default()).unwrap();
        out[..len].to_vec()
    }

    #[test]
    fn announcements_of_those_who_are_not_known_are_heard_once_and_in_bounds() {
        let mut t = table();
        let k = Keyring::default();
        let mut heard = |sender, incarnation, number, now_ns| {
            let f = of(sender, Kind::Introduction, number, incarnation);
            t.accept(&f, 0, (FROM, true), now_ns, &ME, &k).map(|_| ())
        };
        for (sender, incarnation) in [(99, 5), (20, 8), (10, 5), (10, 4)] {
            // What this host's own name announced is counted as refused, but shown, too.
            let again = if sender == 10 { Refusal::Own } else { Refusal::OldNumber };
            for (number, what) in [(5, Ok(())), (5, Err(again)), (4, Err(again)), (6, Ok(()))] {
                assert_eq!(heard(sender, incarnation, number, 1), what, "{sender} {incarnation} {number}");
            }
        }
        for number in 100..100 + INTRODUCTIONS as u64 {
            assert_eq!(heard(98, 1, number, 1), Ok(()));
        }
        assert_eq!(heard(98, 1, 9_000, 1), Err(Refusal::RateLimited));
        assert_eq!(heard(98, 1, 9_001, 2 << 30), Ok(()), "a second later");
        assert_eq!(t.not_sent, 4, "the own ones of an incarnation that is not this one");
        assert_eq!((t.refused[Refusal::Own as usize], t.sources[Refusal::Own as usize][0].count), (8, 8));
        assert_eq!(t.sources[Refusal::Own as usize][0].address(), Some(FROM));
        for sender in 0..2 * STRANGERS as u32 {
            let f = of(1000 + sender, Kind::Introduction, 1, 1);
            assert!(t.accept(&f, 0, (FROM, true), 1, &ME, &k).is_ok());
        }
        assert!(t.strangers.len() <= STRANGERS);
    }

    #[test]
    fn what_this_incarnation_did_not_send_is_told_from_what_came_back() {
        let mut t = table();
        let k = Keyring::default();
        for (kind, number, incarnation, not_sent) in [
            (Kind::Heartbeat, 100, 5, 0),
            (Kind::Heartbeat, 101, 5, 1),
            (Kind::PathReport, 11, 5, 2),
            (Kind::PathReport, 1, 6, 3),
        ] {
            let f = of(10, kind, number, incarnation);
            assert_eq!(t.accept(&f, 0, (FROM, true), 1, &ME, &k), Err(Refusal::Own));
            assert_eq!(t.not_sent, not_sent);
        }
    }

    fn table() -> UserspaceTable {
        let mut t = UserspaceTable::default();
        t.set_peer(0, 20, 7, Used::default());
        t
    }

    #[test]
    fn the_question_of_another_agent_is_no_refusal() {
        use fide_lane::probe::{PROBE_LEN, PROBE_MAGIC};
        let mut t = table();
        let mut probe = PROBE_MAGIC.to_vec();
        probe.resize(PROBE_LEN, 7);
        assert!(matches!(t.accept(&probe, 0, (FROM, true), 1, &ME, &Keyring::default()), Ok(Accepted::Probe)));
        assert!(t.accept(&probe[..PROBE_LEN - 1], 0, (FROM, true), 1, &ME, &Keyring::default()).is_err());
        assert_eq!(t.refused.iter().sum::<u64>(), 1);
        assert_eq!((t.probes[0].count, t.probes[0].address()), (1, Some(FROM)));
        // The receive program knows it by the same bytes.
        let program = include_str!("../../xdp/src/bpf/receive.h");
        assert!(program.contains(&format!("#define PROBE_LEN {PROBE_LEN}\n")));
        assert!(program.contains(&format!("#define PROBE_MAGIC {:#x}\n", u32::from_be_bytes(PROBE_MAGIC))));
    }

    #[test]
    fn heartbeats_update_the_row_of_their_path_alone() {
        let mut t = table();
        for (number, at) in [(1, 1_000), (2, 2_500), (5, 9_000)] {
            let f = frame(Kind::Heartbeat, number, 7, 1, None, b"");
            assert_eq!(t.accept(&f, 1, (FROM, true), at, &ME, &Keyring::default()), Ok(Accepted::Heartbeat));
        }
        let row = t.peer(0).path[1];
        assert_eq!((row.number, row.arrived, row.lost, row.arrived_ns, row.jitter_max_ns), (5, 3, 2, 9_000, 500));
        assert_eq!(t.peer(0).path[0].arrived, 0);
        assert_eq!(t.jitter(0, 1)[jitter::bucket(500)], 1);
    }

    #[test]
    fn a_replay_an_old_life_and_a_stranger_are_refused_and_counted() {
        let mut t = table();
        let k = Keyring::default();
        let f = frame(Kind::Heartbeat, 4, 7, 0, None, b"");
        assert!(t.accept(&f, 0, (FROM, true), 1, &ME, &k).is_ok());
        assert_eq!(t.accept(&f, 0, (FROM, true), 2, &ME, &k), Err(Refusal::OldNumber));
        assert_eq!(t.accept(&f, 1, (FROM, true), 2, &ME, &k), Err(Refusal::WrongPath));
        assert_eq!(
            t.accept(&frame(Kind::Heartbeat, 9, 6, 0, None, b""), 0, (FROM, true), 2, &ME, &k),
            Err(Refusal::OldIncarnation)
        );
        assert_eq!(
            t.accept(&frame(Kind::Heartbeat, 9, 8, 0, None, b""), 0, (FROM, true), 2, &ME, &k),
            Err(Refusal::OldIncarnation)
        );
        assert!(matches!(
            t.accept(&frame(Kind::Introduction, 9, 8, 0, None, b"{}"), 0, (FROM, true), 2, &ME, &k),
            Ok(Accepted::Packet(_))
        ));
        t.condemn(0);
        assert_eq!(
            t.accept(&frame(Kind::Heartbeat, 10, 7, 0, None, b""), 0, (FROM, true), 2, &ME, &k),
            Err(Refusal::OldIncarnation)
        );
        let report = |incarnation| frame(Kind::PathReport, 11, incarnation, 0, None, b"");
        assert!(
            matches!(t.accept(&report(7), 0, (FROM, true), 2, &ME, &k), Ok(Accepted::Packet(_))),
            "it may have given us up, too"
        );
        assert_eq!(t.accept(&report(7), 0, (FROM, true), 2, &ME, &k), Err(Refusal::OldNumber), "once");
        assert_eq!(t.accept(&report(6), 0, (FROM, true), 2, &ME, &k), Err(Refusal::OldIncarnation));
        assert_eq!(t.peer(0).path[0].event_number, 0, "and nothing of it counts");
        assert_eq!(t.refused[Refusal::OldIncarnation as usize], 4);
    }

    #[test]
    fn every_copy_of_a_round_is_taken_by_each_path_once_in_any_order() {
        let mut t = table();
        let k = Keyring::default();
        let mut copy = |path: u8, number: u64| {
            let f = frame(Kind::Copy, number, 7, path, None, b"round");
            t.accept(&f, path, (FROM, true), 1, &ME, &k).map(|_| ())
        };
        assert_eq!([copy(0, 10), copy(1, 10), copy(0, 12), copy(0, 11)], [Ok(()); 4]);
        assert_eq!([copy(0, 11), copy(0, 10), copy(1, 10)], [Err(Refusal::OldNumber); 3]);
        assert_eq!([copy(0, 100), copy(0, 14)], [Ok(()), Err(Refusal::OldNumber)], "too far behind");
        let mut message = |number: u64| {
            let f = frame(Kind::Message, number, 7, 0, None, b"segment");
            t.accept(&f, 0, (FROM, true), 1, &ME, &k).map(|_| ())
        };
        let old = Err(Refusal::OldNumber);
        assert_eq!([message(0), message(10), message(12), message(11), message(11)], [old, Ok(()), Ok(()), Ok(()), old]);
        assert_eq!([message(100), message(36), message(37), message(37)], [Ok(()), old, Ok(()), old]);
        t.set_peer(0, 20, 7, Used::default());
        let f = frame(Kind::Copy, 10, 7, 0, None, b"round");
        assert!(t.accept(&f, 0, (FROM, true), 1, &ME, &k).is_ok(), "the row begins anew");
    }

    #[test]
    fn a_forged_body_does_not_use_up_the_number_of_its_packet() {
        let mut t = table();
        let k = Keyring::default();
        for kind in [Kind::Heartbeat, Kind::PathReport, Kind::Introduction] {
            let good = frame(kind, 9, 7, 0, None, b"a body");
            let mut forged = good.clone();
            forged[50] ^= 1;
            assert_eq!(t.accept(&forged, 0, (FROM, true), 1, &ME, &k), Err(Refusal::Mac));
            assert_eq!((t.peer(0).path[0].number, t.peer(0).path[0].refused), (if kind == Kind::Heartbeat { 0 } else { 9 }, 0));
            assert!(t.accept(&good, 0, (FROM, true), 1, &ME, &k).is_ok());
            t.peers[0].path[0].event_number = 0;
        }
    }

    #[test]
    fn a_notice_is_first_once_whatever_the_order() {
        let mut t = table();
        let k = Keyring::default();
        let mut firsts = Vec::new();
        for (number, path, notice) in [(1, 0, 2), (1, 1, 2), (2, 0, 1), (2, 1, 1), (3, 0, 70), (3, 1, 5), (4, 1, 7)] {
            let f = frame(Kind::Notice, number, 7, path, Some(notice), b"");
            match t.accept(&f, path, (FROM, true), 9, &ME, &k) {
                Ok(Accepted::Notices(p)) => {
                    firsts.extend(t.records(&p, 1).map(|r| (notice, r.flags & Record::DUPLICATE == 0)));
                }
                other => panic!("{other:?}"),
            }
        }
        // 5 is outside the window of 64 below 70: too old to tell, so not delivered again.
        assert_eq!(firsts, [(2, true), (2, false), (1, true), (1, false), (70, true), (5, false), (7, true)]);
    }
}
